//! The courses of simulated guests: as memtide decides for them, or with the recorded balloons.

use memtide_engine::{Asking, World};
use memtide_model::{Bytes, Span};
use memtide_sim::machine::Machine;
use memtide_sim::setup::BEGINS;
use memtide_sim::{Manager, Options, Setup, run};

use super::course::{Course, EVERY, Sizes, moments};
use super::recording::Recording;

/// The course of `setup` under memtide's own engine, at its own pace.
#[must_use]
pub fn decided(setup: &Setup, recording: &Recording) -> Course {
    let outcome = run(setup, Manager::Memtide(recording.commitment), &Options::default(), &mut |_| {});
    let mut course = Course::new(setup.guests.iter().map(|guest| guest.name.clone()).collect());
    for sample in outcome.samples {
        let sizes = |guest: &memtide_sim::measure::GuestSample| Sizes {
            footprint: Bytes::new(guest.footprint),
            actual: Some(Bytes::new(guest.actual)),
        };
        let guests = sample.guests.iter().map(|guest| guest.as_ref().map(sizes)).collect();
        course.push(Span::from_millis(sample.at), guests);
    }
    course
}

/// The course of `setup` with balloons that follow the recorded ones: only the guests are simulated.
#[must_use]
pub fn followed(setup: &Setup, recording: &Recording) -> Course {
    let mut machine = Machine::new(setup);
    let mut course = Course::new(setup.guests.iter().map(|guest| guest.name.clone()).collect());
    for at in moments(setup.lasts) {
        machine.live(BEGINS.after(at), false);
        let seen = machine.observe(&mut Asking::default());
        let next = Span::from_millis(at.as_millis() + EVERY.as_millis());
        let mut guests = vec![None; course.names().len()];
        for guest in &seen.guests {
            let number = |names: &[String]| names.iter().position(|name| name == guest.id.name());
            let target = number(&recording.names).and_then(|real| recording.course.actual(real, next));
            if let Some(target) = target {
                machine.set_target(&guest.id, target);
            }
            let footprint = guest.cost.footprint.latest().copied().unwrap_or_default();
            let actual = guest.told.balloon.latest().map(|balloon| balloon.actual);
            if let Some(own) = number(course.names()) {
                guests[own] = Some(Sizes { footprint, actual });
            }
        }
        course.push(at, guests);
    }
    course
}
