//! What guests cost over time, recorded or simulated, and how far two such courses lie apart.

use memtide_engine::World;
use memtide_model::{Bytes, Span};
use memtide_sim::machine::{BEGINS, Machine};
use memtide_sim::{Manager, Options, Setup, run};

use super::recording::Recording;
use crate::show;
use crate::statistics::median;

/// Two courses are compared this often.
pub const EVERY: Span = Span::from_millis(250);

/// What guests cost over time.
#[derive(Clone, Debug)]
pub struct Course {
    names: Vec<String>,
    points: Vec<(Span, Vec<Option<Look>>)>,
}

/// A guest at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What it costs the host.
    pub footprint: Bytes,
    /// What it keeps; `None` while no driver says it.
    pub actual: Option<Bytes>,
}

/// How far two courses lie apart, in percent of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    /// Half of the time it is less.
    pub median: f64,
    /// Nine tenths of the time it is less.
    pub p90: f64,
}

impl Course {
    /// A course of these guests without any moment.
    #[must_use]
    pub const fn new(names: Vec<String>) -> Self {
        Self { names, points: Vec::new() }
    }

    /// The guests' names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the guest with this number was not there before.
    #[must_use]
    pub fn is_new(&self, guest: usize) -> bool {
        self.points.iter().all(|(_, looks)| looks[guest].is_none())
    }

    /// Adds a moment; `None` stands for a guest that is not there.
    pub fn push(&mut self, at: Span, looks: Vec<Option<Look>>) {
        self.points.push((at, looks));
    }

    /// The last moment.
    #[must_use]
    pub fn lasts(&self) -> Span {
        self.points.last().map_or(Span::ZERO, |(at, _)| *at)
    }

    /// A value at `at`, in a straight line between the moments before and after it.
    fn between(&self, at: Span, value: impl Fn(&[Option<Look>]) -> f64) -> f64 {
        let after = self.points.partition_point(|(point, _)| *point <= at);
        let before = after.saturating_sub(1);
        let (Some((left, low)), right) = (self.points.get(before), self.points.get(after)) else {
            return 0.0;
        };
        let Some((right, high)) = right else { return value(low) };
        let (whole, part) = (since(*right, *left), since(at, *left));
        let share = seconds(part) / seconds(whole).max(0.001);
        value(low) + (value(high) - value(low)) * share.clamp(0.0, 1.0)
    }

    /// What all guests cost at `at`, in MiB.
    #[must_use]
    pub fn all(&self, at: Span) -> f64 {
        self.between(at, |looks| looks.iter().flatten().map(|look| show::mib(look.footprint)).sum())
    }

    /// What the guest with this number costs at `at`, in MiB.
    #[must_use]
    pub fn footprint(&self, guest: usize, at: Span) -> f64 {
        self.between(at, |looks| looks[guest].map_or(0.0, |look| show::mib(look.footprint)))
    }

    /// What it keeps at `at`, in MiB; zero while no driver says it.
    #[must_use]
    pub fn actual(&self, guest: usize, at: Span) -> f64 {
        self.between(at, |looks| looks[guest].and_then(|look| look.actual).map_or(0.0, show::mib))
    }

    /// How far the sums of both lie apart.
    #[must_use]
    pub fn apart(&self, other: &Self, capacity: Bytes) -> Apart {
        let percent = 100.0 / show::mib(capacity);
        let mut errors: Vec<f64> =
            moments(self.lasts()).map(|at| (self.all(at) - other.all(at)).abs() * percent).collect();
        errors.sort_by(f64::total_cmp);
        let p90 = errors.get(errors.len() * 9 / 10).copied();
        Apart { median: median(errors).unwrap_or_default(), p90: p90.unwrap_or_default() }
    }
}

/// The moments at which courses are compared.
pub fn moments(lasts: Span) -> impl Iterator<Item = Span> {
    (0..=lasts.as_millis() / EVERY.as_millis()).map(|nth| Span::from_millis(nth * EVERY.as_millis()))
}

/// The time from `earlier` to `later`; none if they are the other way round.
#[must_use]
pub const fn since(later: Span, earlier: Span) -> Span {
    Span::from_millis(later.as_millis().saturating_sub(earlier.as_millis()))
}

/// Seconds, for computing and for pictures.
#[must_use]
pub fn seconds(span: Span) -> f64 {
    show::float(span.as_millis()) / 1_000.0
}

/// The course of `setup` under memtide's own engine, at its own pace.
#[must_use]
pub fn decided(setup: &Setup, recording: &Recording) -> Course {
    let outcome = run(setup, Manager::Memtide(recording.commitment), &Options::default(), &mut |_| {});
    let mut course = Course::new(setup.guests.iter().map(|guest| guest.name.clone()).collect());
    for sample in outcome.samples {
        let look = |guest: &memtide_sim::measure::GuestSample| Look {
            footprint: Bytes::new(guest.footprint),
            actual: Some(Bytes::new(guest.actual)),
        };
        let looks = sample.guests.iter().map(|guest| guest.as_ref().map(look)).collect();
        course.push(Span::from_millis(sample.at), looks);
    }
    course
}

/// The course of `setup` with the targets that were recorded: only the guests are simulated.
#[must_use]
pub fn followed(setup: &Setup, recording: &Recording) -> Course {
    let mut machine = Machine::new(setup);
    let mut course = Course::new(setup.guests.iter().map(|guest| guest.name.clone()).collect());
    let mut targets = recording.targets.iter().peekable();
    for at in moments(setup.lasts) {
        machine.live(BEGINS.after(at), false);
        let seen = machine.observe();
        while let Some((_, guest, target)) = targets.next_if(|(due, _, _)| *due <= at) {
            let name = recording.names.get(*guest);
            let there = seen.guests.iter().find(|seen| Some(seen.id.name()) == name.map(String::as_str));
            if let Some(there) = there {
                machine.set_target(&there.id, *target);
            }
        }
        let look = |name: &String| {
            let guest = seen.guests.iter().find(|guest| guest.id.name() == name)?;
            let actual = guest.balloon.latest().map(|balloon| balloon.actual);
            Some(Look { footprint: guest.footprint.latest().copied().unwrap_or_default(), actual })
        };
        course.push(at, course.names.iter().map(look).collect());
    }
    course
}
