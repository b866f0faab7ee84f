//! Simulated guests are asked at the same moments as real ones.
#![expect(clippy::unwrap_used, reason = "tests")]

use memtide_engine::{Asking, World};
use memtide_model::{Action, Bytes, GuestSeen, Moment, Reading, Reason, Request, Span};
use memtide_sim::Scenario;
use memtide_sim::machine::Machine;
use memtide_sim::setup::BEGINS;

/// The readings of `count` quiet guests, at ticks 250 ms apart, from 10 s after the start.
fn seen_of(count: usize) -> Vec<Vec<GuestSeen>> {
    let text = format!(
        "lasts = \"1m\"\n[host]\nmemory = \"64 GiB\"\n[[guest]]\nname = \"web\"\ncount = {count}\nmemory = \"256 MiB\"\n"
    );
    let mut machine = Machine::new(&Scenario::parse(&text).unwrap().setup);
    let mut asking = Asking::default();
    let mut ticks = Vec::new();
    for tick in 0..100_u64 {
        machine.live(BEGINS.after(Span::from_millis(tick * 250)), false);
        asking.begin(machine.now());
        let seen = machine.observe(&mut asking);
        asking.note(&seen.guests, seen.taken_at);
        for guest in seen.guests.iter().filter(|_| tick == 0) {
            let change = Request::PollStats(Span::from_secs(1));
            let action = Action::of(guest.id.clone(), change, Reason::Release);
            machine.apply(&action).unwrap();
        }
        if machine.elapsed() >= Span::from_secs(10) {
            ticks.push(seen.guests);
        }
    }
    ticks
}

fn age(guest: &GuestSeen) -> Span {
    match &guest.told.stats {
        Reading::Fresh { age, .. } => *age,
        other => panic!("{}: {other:?}", guest.id),
    }
}

#[test]
fn of_few_guests_everything_is_as_new_as_the_tick() {
    for guests in seen_of(10) {
        assert!(guests.iter().all(|guest| age(guest) == Span::ZERO));
    }
}

#[test]
fn of_many_guests_statistics_are_as_old_as_their_interval_and_a_tick_at_most() {
    let ticks = seen_of(100);
    let most = ticks.iter().flatten().map(age).max();
    assert!(most <= Some(Span::from_millis(1_280)), "{most:?}");
    let of_this_tick = ticks.iter().flatten().filter(|guest| age(guest) == Span::ZERO).count();
    assert!(of_this_tick * 2 < ticks.len() * 100, "{of_this_tick} of {} are new", ticks.len() * 100);
}

#[test]
fn a_look_between_two_ticks_tells_what_the_guest_has_reported_since() {
    let text = "lasts = \"1m\"\n[host]\nmemory = \"4 GiB\"\n[[guest]]\nname = \"web\"\n";
    let mut machine = Machine::new(&Scenario::parse(text).unwrap().setup);
    let seen = machine.observe(&mut Asking::default());
    let id = seen.guests[0].id.clone();
    let poll = Request::PollStats(Span::from_secs(1));
    machine.apply(&Action::of(id.clone(), poll, Reason::Release)).unwrap();
    machine.set_target(&id, Bytes::from_mib(300));
    machine.live(Moment::from_millis(BEGINS.as_millis() + 5_000), false);
    let told = machine.look(std::slice::from_ref(&id));
    let [(of, told)] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((of, told.balloon.fresh().map(|balloon| balloon.actual)), (&id, Some(Bytes::from_mib(300))));
    assert!(told.stats.fresh().is_some());
}
