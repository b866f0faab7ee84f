//! Elastic: what a guest holds and has never touched costs nothing, and is not asked for.

use memtide_model::{GuestSeen, Reading, State};

use super::{line, targets, tick};
use crate::common::{OVERHEAD, elastic, guest, mib, snapshot};

/// Holds all of its 1024, uses 100, and has touched so much.
fn touched(name: &str, touched: u64) -> GuestSeen {
    let footprint = Reading::now(mib(touched).saturating_add(OVERHEAD));
    GuestSeen { footprint, ..guest(name, 1024, 100) }
}

#[test]
fn who_has_touched_more_than_it_needs_gives() {
    // 140 + 700 and twice 60 of 1000: 35 less free than the soft line and a quarter.
    let seen = snapshot(60_000, 1000, vec![touched("idle", 140), touched("large", 700)]);
    let decision = tick(&elastic(), &State::default(), &seen);
    assert_eq!(targets(&decision), [("large", 989)]);
    assert_eq!(line(&decision, "idle").entitlement, mib(1024));
}

#[test]
fn nobody_is_asked_in_vain() {
    // 900 of 960 are in use, and nobody has touched more than it needs: what is wanted is nowhere.
    let guests = (1..=5).map(|n| touched(&format!("vm{n}"), 120)).collect();
    let decision = tick(&elastic(), &State::default(), &snapshot(60_000, 960, guests));
    assert_eq!(targets(&decision), []);
}

#[test]
fn what_a_guest_keeps_ready_passes_for_used() {
    // It rested at 140 and now has touched 200: its kernel counts 60 that it keeps for the next allocation as used.
    let ready = || GuestSeen { footprint: Reading::now(mib(260)), ..guest("vm", 1024, 180) };
    let other = || GuestSeen { footprint: Reading::now(mib(660)), ..guest("other", 1024, 560) };
    let rested = snapshot(60_000, 1200, vec![touched("vm", 140), other()]);
    let state = tick(&elastic(), &State::default(), &rested).state;
    let state = tick(&elastic(), &state, &snapshot(61_000, 1200, vec![ready(), other()])).state;
    // 920 of 960 are in use, and the soft line and a quarter are 72: 32 are short. "other" has 8 beyond its need, "vm" 60.
    let decision = tick(&elastic(), &state, &snapshot(66_000, 960, vec![ready(), other()]));
    assert_eq!(targets(&decision), [("vm", 992)]);
}
