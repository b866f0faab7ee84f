//! Elastic: held memory that a guest has never touched costs nothing, and is not asked for.

use memtide_model::{Decision, GuestSeen, Reading, State};

use super::{line, memory, targets, tick};
use crate::common::{OVERHEAD, but, elastic, guest, id, mib, snapshot};

/// It holds all of its 1024, uses 100, and has touched `touched`.
fn touched(name: &str, touched: u64) -> GuestSeen {
    let footprint = Reading::now(mib(touched).saturating_add(OVERHEAD));
    but(guest(name, 1024, 100), |guest| guest.cost.footprint = footprint)
}

/// A state with these guests pressed down to their present cost.
fn pressed(guests: &[GuestSeen]) -> State {
    let mut state = tick(&elastic(), &State::default(), &snapshot(1000, 4000, guests.to_vec())).state;
    for guest in guests {
        memory(&mut state, guest.id.name()).pressed = guest.cost.footprint.latest().copied();
    }
    state
}

#[test]
fn who_has_touched_more_than_it_needs_gives() {
    // 140 + 700 and twice 60 of 1000: 35 less free than the soft line plus a quarter.
    let guests = [touched("idle", 140), touched("large", 700)];
    let decision = tick(&elastic(), &pressed(&guests), &snapshot(60_000, 1000, guests.to_vec()));
    assert_eq!(targets(&decision), [("large", 989)]);
    assert_eq!(line(&decision, "idle").entitlement, mib(1024));
}

#[test]
fn nobody_is_asked_in_vain() {
    // 900 of 960 are in use, and nobody has touched more than it needs: nobody has the wanted memory.
    let guests: Vec<GuestSeen> = (1..=5).map(|n| touched(&format!("vm{n}"), 120)).collect();
    let decision = tick(&elastic(), &pressed(&guests), &snapshot(60_000, 960, guests));
    assert_eq!(targets(&decision), []);
}

/// It has touched 200 of `actual`. Its kernel keeps 60 of them for the next allocation and counts them as used.
fn ready(actual: u64) -> GuestSeen {
    but(guest("vm", actual, 180), |guest| guest.cost.footprint = Reading::now(mib(260)))
}

/// It has touched 600 and uses 570.
fn busy() -> GuestSeen {
    but(guest("busy", 1024, 570), |guest| guest.cost.footprint = Reading::now(mib(660)))
}

/// 920 of 960 are in use, and the soft line plus a quarter is 72: 32 are short. "busy" has nothing beyond its need.
fn asked() -> Decision {
    let mut state = pressed(&[ready(1024), busy()]);
    memory(&mut state, "vm").pressed = None;
    tick(&elastic(), &state, &snapshot(60_000, 960, vec![ready(1024), busy()]))
}

#[test]
fn what_a_kernel_keeps_ready_passes_for_used() {
    assert_eq!(targets(&asked()), [("vm", 992)]);
}

#[test]
fn a_dry_balloon_is_asked_no_more() {
    // 32 were taken, and nothing came back.
    let seen = snapshot(61_000, 960, vec![ready(992), busy()]);
    let decision = tick(&elastic(), &asked().state, &seen);
    assert_eq!(targets(&decision), []);
    assert_eq!(decision.state.guests[&id("vm")].pressed, Some(mib(260)));
}
