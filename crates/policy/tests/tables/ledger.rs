//! The room that a commitment leaves: strict and elastic.

use memtide_model::{
    Absence, Amount, Bytes, Config, GuestSeen, Hotplug, Mode, Reading, SelfDeflationWithin, Share, Snapshot,
    State,
};

use super::{deflating, known, line, targets, tick, told};
use crate::common::{OVERHEAD, but, config, elastic, guest, mib, snapshot};

/// 100 reserved, and self-deflations count whole.
fn strict(self_deflations: u32) -> Config {
    let self_deflation_within = SelfDeflationWithin::Whole;
    Config { reserve: Amount::Bytes(mib(100)), self_deflations, self_deflation_within, ..config() }
}

fn room(config: &Config, capacity: u64, guests: Vec<GuestSeen>) -> (Bytes, Bytes) {
    let host = tick(config, &State::default(), &snapshot(1000, capacity, guests)).report.host;
    (host.room, host.breach)
}

#[test]
fn strict_room_is_what_reach_reserve_and_the_k_largest_self_deflations_leave() {
    let guests = || vec![deflating(guest("a", 800, 300)), deflating(guest("b", 500, 300))];
    // Reach: 860 + 560 = 1420. Self-deflations to 1024: 224 and 524. 4096 − 100 − 1420 = 2576.
    for (k, expected) in [(0, 2576), (1, 2576 - 524), (2, 2576 - 524 - 224), (9, 2576 - 748)] {
        assert_eq!(room(&strict(k), 4096, guests()), (mib(expected), Bytes::ZERO), "k = {k}");
    }
    // 1420 + 100 + 524 = 2044 of 2000.
    assert_eq!(room(&strict(1), 2000, guests()), (Bytes::ZERO, mib(44)));
}

#[test]
fn of_a_self_deflation_counts_what_can_be_taken_before_it_is_answered() {
    let within = |within| Config { self_deflation_within: within, ..strict(1) };
    let guests = |a| vec![deflating(guest("a", a, 300)), deflating(guest("b", 500, 300))];
    // 4096 − 100 − 1420 without any.
    for (most, expected) in [(300, 2576 - 300), (600, 2576 - 524)] {
        let config = within(SelfDeflationWithin::Size(mib(most)));
        assert_eq!(room(&config, 4096, guests(800)), (mib(expected), Bytes::ZERO), "{most} MiB");
    }
    assert_eq!(room(&within(SelfDeflationWithin::Whole), 4096, guests(800)), (mib(2576 - 524), Bytes::ZERO));
    // "a" takes 400 by itself, within one tick: one may do so again.
    let config = Config { mode: Mode::Observe, ..within(SelfDeflationWithin::Size(mib(300))) };
    let seen = |millis, a| snapshot(millis, 4096, guests(a));
    let before = known(&config, &seen(1000, 400));
    let after = tick(&config, &before, &seen(1250, 800));
    assert_eq!(after.report.host.self_deflation, mib(400));
    let minutes_later = tick(&config, &after.state, &seen(61_250, 800));
    let counted = minutes_later.report.host.self_deflation;
    assert!((mib(300)..mib(400)).contains(&counted), "it is forgotten in time: {counted}");
}

#[test]
fn a_footprint_beyond_the_reach_counts_in_its_place() {
    // The balloon of "a" returned nothing to the host: 1000 instead of 800 + 60.
    let a = but(guest("a", 800, 300), |guest| guest.cost.footprint = Reading::now(mib(1000)));
    assert_eq!(room(&strict(0), 2100, vec![a]), (mib(1000), Bytes::ZERO));
}

#[test]
fn memory_asked_to_be_plugged_counts_before_it_is_there() {
    // 800 + 60 + (384 − 128) = 1116.
    let plug = Hotplug { requested: mib(384), plugged: mib(128), most: mib(384) };
    let a = but(guest("a", 800, 300), |guest| guest.told.hotplug = Reading::now(plug));
    assert_eq!(room(&strict(0), 2216, vec![a]), (mib(1000), Bytes::ZERO));
}

#[test]
fn memory_used_by_others_is_not_the_guests() {
    let mut seen = snapshot(1000, 2000, vec![guest("a", 800, 300)]);
    seen.host.other = mib(540);
    // 2000 − 100 − 540 − 860.
    assert_eq!(tick(&strict(0), &State::default(), &seen).report.host.room, mib(500));
}

#[test]
fn growing_into_the_largest_self_deflation_costs_nothing() {
    // 560 + 1084 + the 524 that "a" may take by itself = 2168: no room. A grant to it comes out of these 524.
    let config = Config { reserve: Amount::Bytes(Bytes::ZERO), ..strict(1) };
    let a = |stalls| told(deflating(guest("a", 500, 490)), |s| s.alloc_stalls = Some(stalls));
    let seen = |millis, stalls| snapshot(millis, 2168, vec![a(stalls), guest("b", 1024, 900)]);
    let first = tick(&config, &State::default(), &seen(1000, 0));
    assert_eq!(first.report.host.room, Bytes::ZERO);
    assert_eq!(targets(&first), [("a", 522)]);
}

#[test]
fn elastic_room_is_what_is_free_beyond_the_envelope() {
    // Free 2000 − 560 − 560 = 880. Of two guests that nobody has seen grow, 33 % may grow together by 300 in a reaction time of 1 s.
    let low = |name| but(guest(name, 1024, 300), |guest| guest.cost.footprint = Reading::now(mib(560)));
    assert_eq!(room(&elastic(), 2000, vec![low("a"), low("b")]), (mib(880 - 2 * 99), Bytes::ZERO));
    let without = Config { growth_prior: Share::percent(0).unwrap(), ..elastic() };
    assert_eq!(room(&without, 2000, vec![low("a"), low("b")]), (mib(880), Bytes::ZERO));
}

#[test]
fn an_elastic_host_keeps_the_joint_growth_free() {
    // Each grew by 200 within the reaction time. Free 2000 − 1520 = 480.
    let seen = |millis, footprint| {
        let guests = ["a", "b"].map(|name| {
            but(guest(name, 1024, 300), |guest| guest.cost.footprint = Reading::now(mib(footprint)))
        });
        snapshot(millis, 2000, guests.to_vec())
    };
    let state = tick(&elastic(), &State::default(), &seen(1000, 560)).state;
    let host = tick(&elastic(), &state, &seen(2000, 760)).report.host;
    assert_eq!((host.envelope, host.free, host.room), (mib(400), mib(480), mib(80)));
}

#[test]
fn an_envelope_is_no_more_than_guests_can_grow() {
    // Each grew by 400 and can grow by 1084 − 960 = 124 more: together 248.
    let seen = |millis, footprint| {
        let guests = ["a", "b"].map(|name| {
            but(guest(name, 1024, 300), |guest| guest.cost.footprint = Reading::now(mib(footprint)))
        });
        snapshot(millis, 4000, guests.to_vec())
    };
    let state = tick(&elastic(), &State::default(), &seen(1000, 560)).state;
    assert_eq!(tick(&elastic(), &state, &seen(2000, 960)).report.host.envelope, mib(248));
}

#[test]
fn an_elastic_breach_is_an_envelope_that_does_not_fit() {
    let seen = |millis, footprint| {
        let guests = ["a", "b"].map(|name| {
            but(guest(name, 1024, 300), |guest| guest.cost.footprint = Reading::now(mib(footprint)))
        });
        snapshot(millis, 1700, guests.to_vec())
    };
    let state = tick(&elastic(), &State::default(), &seen(1000, 560)).state;
    // Envelope 400, free 1700 − 1520 = 180.
    assert_eq!(tick(&elastic(), &state, &seen(2000, 760)).report.host.breach, mib(220));
}

#[test]
fn a_reset_guest_reaches_its_full_size_until_its_driver_reports() {
    let reset = but(guest("a", 300, 100), |guest| guest.told.reset = true);
    let decision = tick(&config(), &State::default(), &snapshot(1000, 4096, vec![reset]));
    assert_eq!(line(&decision, "a").reach, mib(1024).saturating_add(OVERHEAD));
}

#[test]
fn without_room_for_a_self_deflation_the_reach_fits() {
    // 1600 − 1084 leave 516: "a" can keep 456 beside its overhead, and another 568 by deflating its balloon do not fit.
    let a = but(deflating(guest("a", 512, 74)), |guest| guest.cost.footprint = Reading::now(mib(150)));
    let b = guest("b", 1024, 100);
    let b = but(b, |guest| {
        guest.told.balloon = Reading::absent(Absence::NoBalloon);
        guest.cost.footprint = Reading::now(mib(200));
    });
    let config = Config { self_deflations: 1, ..config() };
    let state = known(&config, &snapshot(1000, 1600, vec![a.clone(), b.clone()]));
    let decision = tick(&config, &state, &snapshot(60_000, 1600, vec![a, b]));
    assert_eq!(targets(&decision), [("a", 456)]);
}

#[test]
fn growth_that_needs_a_grant_does_not_stand_in_its_way() {
    // "a" has grown by 100 and has filled its 500. "b" could take 500 more without asking, but did not grow. 870 - 560 - 160 = 150 are free,
    // of which 2 % * 5 / 4 = 21.75 are kept. "a" lacks 100 + 32, and gets the other 128.25.
    let seen = |millis, used| {
        let b = but(guest("b", 600, 100), |guest| guest.cost.footprint = Reading::now(mib(160)));
        let a = but(guest("a", 500, used), |guest| guest.cost.footprint = Reading::now(mib(60 + used)));
        snapshot(millis, 870, vec![a, b])
    };
    let state = known(&elastic(), &seen(1000, 400));
    let decision = tick(&elastic(), &state, &seen(1250, 500));
    assert_eq!(targets(&decision), [("a", 628)]);
}

#[test]
fn memory_that_the_kernel_is_about_to_free_is_no_growth() {
    for config in [config(), elastic()] {
        let seen = |millis, other, ending| {
            let mut seen = snapshot(millis, 8192, vec![guest("a", 600, 300)]);
            (seen.host.other, seen.host.ending) = (mib(other), mib(ending));
            seen
        };
        let state = known(&config, &seen(1000, 100, 0));
        let grown = |seen: &Snapshot| tick(&config, &state, seen).state.growth.recent;
        assert_eq!(grown(&seen(1250, 1700, 1600)), Bytes::ZERO, "a guest has ended");
        assert_eq!(grown(&seen(1250, 1720, 1600)), mib(20), "and others have grown");
        assert_eq!(grown(&seen(1250, 1700, 0)), mib(1600));
    }
}
