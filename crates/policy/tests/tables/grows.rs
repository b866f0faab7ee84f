//! Guests that take more memory are asked for none, as long as nobody is in a hurry.

use memtide_model::{GuestSeen, Reading, Reason, State};

use super::{targets, tick};
use crate::common::{config, guest, mib, snapshot};

/// Keeps 800 and costs `footprint`.
fn keeps(name: &str, footprint: u64) -> GuestSeen {
    GuestSeen { footprint: Reading::now(mib(footprint)), ..guest(name, 800, 300) }
}

/// Reach 2 × 860 = 1720. Nothing is short of 1720; then `a` takes 70 within a second, and 200 are.
fn state() -> State {
    tick(&config(), &State::default(), &snapshot(30_000, 1720, vec![keeps("a", 360), keeps("b", 360)])).state
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
    let action = grows.plan.actions.iter().find(|action| action.guest.name() == "a").unwrap();
    assert!(matches!(action.reason, Reason::Grows { .. }), "{action:?}");
    assert!(targets(&grows).contains(&("a", 800)), "{:?}", targets(&grows));
}

#[test]
fn in_a_hurry_it_gives_like_all() {
    // 800 of both cost 1600 of 1520: the host is low.
    let seen = snapshot(31_000, 1520, vec![keeps("a", 820), keeps("b", 790)]);
    let decision = tick(&config(), &state(), &seen);
    assert!(targets(&decision).iter().any(|(name, target)| *name == "a" && *target < 800));
}
