//! Growing guests are asked for no memory, unless it is urgent.

use memtide_model::{GuestSeen, Reading, Reason, State};

use super::{known, memory, targets, tick};
use crate::common::{but, config, guest, mib, snapshot};

/// Keeps 800 and costs `footprint`.
fn keeps(name: &str, footprint: u64) -> GuestSeen {
    but(guest(name, 800, 300), |guest| guest.cost.footprint = Reading::now(mib(footprint)))
}

/// Reach 2 × 860 = 1720. At 1720 nothing is short; then `a` takes 70 within a second, and 200 are short.
fn state() -> State {
    tick(&config(), &State::default(), &snapshot(20_000, 1720, vec![keeps("a", 360), keeps("b", 360)])).state
}

#[test]
fn another_one_gives() {
    let decision = tick(&config(), &state(), &snapshot(31_000, 1520, vec![keeps("a", 430), keeps("b", 360)]));
    // Its half.
    assert_eq!(targets(&decision), [("b", 700)]);
}

#[test]
fn what_it_still_has_to_give_is_left_to_it() {
    let seen = |millis, footprint| snapshot(millis, 1520, vec![keeps("a", footprint), keeps("b", 360)]);
    let asked = tick(&config(), &state(), &seen(31_000, 360));
    assert!(targets(&asked).iter().any(|(name, target)| *name == "a" && *target < 800));
    let grows = tick(&config(), &asked.state, &seen(32_000, 430));
    let action = grows.plan.actions.iter().find(|action| action.guest().unwrap().name() == "a").unwrap();
    assert!(matches!(action.reason, Reason::Grows { .. }), "{action:?}");
    assert!(targets(&grows).contains(&("a", 800)), "{:?}", targets(&grows));
}

#[test]
fn in_a_hurry_it_gives_like_all() {
    // 800 of both, 1600 together, of 1520: the host is low.
    let seen = snapshot(31_000, 1520, vec![keeps("a", 820), keeps("b", 790)]);
    let decision = tick(&config(), &state(), &seen);
    assert!(targets(&decision).iter().any(|(name, target)| *name == "a" && *target < 800));
}

#[test]
fn what_it_freed_is_ready_for_it() {
    let frees =
        |footprint| but(guest("a", 800, 100), |guest| guest.cost.footprint = Reading::now(mib(footprint)));
    let quiet = tick(&config(), &State::default(), &snapshot(20_000, 860, vec![frees(360)]));
    // 8 × 70 on top of 100, of 800.
    let decision = tick(&config(), &quiet.state, &snapshot(31_000, 600, vec![frees(430)]));
    assert!(targets(&decision).iter().any(|(name, target)| *name == "a" && *target < 800));
}

/// It uses all 300 that it keeps, and costs `footprint`.
fn without_headroom(footprint: u64) -> GuestSeen {
    but(guest("c", 300, 300), |guest| guest.cost.footprint = Reading::now(mib(footprint)))
}

#[test]
fn headroom_of_a_quiet_guest_is_no_hurry() {
    // Reach 860 + 360 = 1220.
    let before = vec![keeps("a", 360), without_headroom(330)];
    let state = known(&config(), &snapshot(20_000, 1220, before.clone()));
    let state = tick(&config(), &state, &snapshot(30_000, 1220, before)).state;
    let then = |footprint| {
        let seen = snapshot(31_000, 1220, vec![keeps("a", 430), without_headroom(footprint)]);
        tick(&config(), &state, &seen)
    };
    // `a` was asked for that headroom; now it grows, and keeps the rest.
    assert!(memory(&mut state.clone(), "a").target < Some(mib(800)));
    assert_eq!(targets(&then(330)), [("a", 800)]);
    // A guest that takes memory cannot wait.
    assert!(!targets(&then(350)).contains(&("a", 800)));
}
