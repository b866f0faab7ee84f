//! Strict: guests that are about to deflate their own balloon, and the room kept for them.

use memtide_model::{Action, Bytes, Config, GuestSeen, Moment, Reason, Request, State};
use memtide_policy::{Violation, check};

use super::{deflating, line, memory, targets, tick, told};
use crate::common::{config, guest, id, mib, snapshot};

fn strict(k: u32) -> Config {
    Config { self_deflations: k, ..config() }
}

/// 200 kept of 1024, `used` used, `stalls` so far.
fn small(name: &str, used: u64, stalls: u64) -> GuestSeen {
    told(deflating(guest(name, 200, used)), |stats| stats.alloc_stalls = Some(stalls))
}

/// Reach 3 × 260 = 780, and one self-deflation of 824: 1604 of 1604.
fn first(k: u32) -> State {
    let seen = snapshot(1000, 1604, ["a", "b", "c"].map(|name| small(name, 100, 0)).to_vec());
    let decision = tick(&strict(k), &State::default(), &seen);
    assert_eq!((decision.report.host.room, targets(&decision)), (Bytes::ZERO, vec![]));
    decision.state
}

fn then(k: u32, state: &State, guests: Vec<GuestSeen>) -> memtide_model::Decision {
    tick(&strict(k), state, &snapshot(2000, 1604, guests))
}

#[test]
fn a_guest_in_want_is_granted_what_it_would_take_by_itself() {
    let decision = then(1, &first(1), vec![small("a", 195, 100), small("b", 100, 0), small("c", 100, 0)]);
    // It uses 195, 95 more than a second ago, and has 32 of headroom, plus a quarter of 1024 ahead. Nothing was spare.
    assert_eq!(targets(&decision), [("a", 322 + 256)]);
    assert_eq!(decision.state.guests[&id("a")].helped, Some(mib(200)));
    // It counts with its full size, and no room is kept for others meanwhile: the sum is the same as before.
    assert_eq!(decision.report.host.self_deflation, Bytes::ZERO);
    assert_eq!((decision.report.host.room, decision.report.host.breach), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn others_give_what_they_do_not_need_so_that_there_is_room_for_all_again() {
    let helped = then(1, &first(1), vec![small("a", 195, 100), small("b", 100, 0), small("c", 100, 0)]);
    let a = told(deflating(guest("a", 578, 550)), |stats| stats.alloc_stalls = Some(100));
    let seen = |millis| snapshot(millis, 1604, vec![a.clone(), small("b", 100, 0), small("c", 100, 0)]);
    // Not from guests that have just begun.
    let mut state = helped.state;
    for name in ["a", "b", "c"] {
        memory(&mut state, name).told_since = Some(Moment::from_millis(18_000));
    }
    let decision = tick(&strict(1), &state, &seen(20_000));
    assert_eq!(targets(&decision), []);
    // 378 are missing; each needs 132 of 200.
    let decision = tick(&strict(1), &decision.state, &seen(30_000));
    assert_eq!(targets(&decision)[..2], [("b", 132), ("c", 132)]);
}

#[test]
fn no_more_guests_are_helped_than_may_deflate_at_once() {
    let guests = vec![small("a", 195, 100), small("b", 199, 100), small("c", 100, 0)];
    let decision = then(1, &first(1), guests);
    let helped = decision.state.guests.values().filter(|guest| guest.helped.is_some()).count();
    assert_eq!(helped, 1);
    // If no room is kept, nobody is helped.
    let guests = vec![small("a", 195, 100), small("b", 199, 100), small("c", 100, 0)];
    let decision = then(0, &State::default(), guests);
    assert!(decision.state.guests.values().all(|guest| guest.helped.is_none()));
}

#[test]
fn help_ends_when_what_was_granted_is_back() {
    let helped = then(1, &first(1), vec![small("a", 195, 100), small("b", 100, 0), small("c", 100, 0)]);
    let with = |actual, used| {
        let a = told(deflating(guest("a", actual, used)), |stats| stats.alloc_stalls = Some(100));
        vec![a, small("b", 100, 0), small("c", 100, 0)]
    };
    let decision = tick(&strict(1), &helped.state, &snapshot(3000, 1604, with(578, 550)));
    assert!(decision.state.guests[&id("a")].helped.is_some());
    // Past the 10 s for which a stall raises the demand: 378 too much for the promise; it gives an eighth of its size a second.
    let decision = tick(&strict(1), &decision.state, &snapshot(60_000, 1604, with(578, 90)));
    assert_eq!(line(&decision, "a").target, Some(mib(578 - 128)));
    assert!(decision.state.guests[&id("a")].helped.is_some());
    let decision = tick(&strict(1), &decision.state, &snapshot(61_000, 1604, with(450, 90)));
    let decision = tick(&strict(1), &decision.state, &snapshot(62_000, 1604, with(322, 90)));
    assert_eq!(line(&decision, "a").target, Some(mib(200)));
    // A sliver within the dead band, 16, keeps no place.
    let decision = tick(&strict(1), &decision.state, &snapshot(63_000, 1604, with(215, 90)));
    assert_eq!(decision.state.guests[&id("a")].helped, None);
}

#[test]
fn a_plan_that_helps_more_than_that_is_found() {
    let guests = vec![small("a", 195, 100), small("b", 199, 100), small("c", 100, 0)];
    let state = first(1);
    let seen = snapshot(2000, 1604, guests);
    let mut decision = tick(&strict(1), &state, &seen);
    let more = |name| Action::of(id(name), Request::SetTarget(mib(322)), Reason::Ample { room: Bytes::ZERO });
    let missing: Vec<Action> = ["a", "b"]
        .into_iter()
        .filter(|name| !targets(&decision).iter().any(|(other, target)| other == name && *target > 200))
        .map(more)
        .collect();
    assert_eq!(missing.len(), 1);
    decision.plan.actions.retain(|action| action.subject != missing[0].subject);
    decision.plan.actions.extend(missing);
    let found = check(&strict(1), &state, &seen, &decision.plan);
    assert!(matches!(found[..], [Violation::OverCommitted { .. }]), "{found:?}");
}

#[test]
fn who_has_settled_leaves_its_place_to_another() {
    let helped = then(1, &first(1), vec![small("a", 195, 100), small("b", 100, 0), small("c", 100, 0)]);
    // "a" keeps 40 of its grant, less than an eighth of 1024, uses them, and lacks nothing.
    let a = || told(deflating(guest("a", 240, 200)), |stats| stats.alloc_stalls = Some(100));
    let seen = |millis, b| snapshot(millis, 1604, vec![a(), b, small("c", 168, 0)]);
    let mut state = helped.state;
    (memory(&mut state, "a").target, memory(&mut state, "a").footprint) = (Some(mib(240)), Some(mib(300)));
    (memory(&mut state, "b").used, memory(&mut state, "c").used) = (mib(160), mib(168));
    let decision = tick(&strict(1), &state, &seen(60_000, small("b", 160, 0)));
    assert!(decision.state.guests[&id("a")].helped.is_some(), "nobody else is in want");
    let decision = tick(&strict(1), &decision.state, &seen(61_000, small("b", 195, 100)));
    assert!(!targets(&decision).iter().any(|(name, target)| *name == "b" && *target > 200));
    let decision = tick(&strict(1), &decision.state, &seen(62_000, small("b", 195, 200)));
    assert_eq!(decision.state.guests[&id("b")].helped, Some(mib(200)));
    assert!(targets(&decision).iter().any(|(name, target)| *name == "b" && *target > 200));
}

#[test]
fn who_was_granted_much_keeps_its_place_while_it_uses_it() {
    let helped = then(1, &first(1), vec![small("a", 195, 100), small("b", 100, 0), small("c", 100, 0)]);
    let a = told(deflating(guest("a", 400, 300)), |stats| stats.alloc_stalls = Some(100));
    let mut state = helped.state;
    memory(&mut state, "a").target = Some(mib(400));
    let guests = vec![a, small("b", 195, 100), small("c", 168, 0)];
    let decision = tick(&strict(1), &state, &snapshot(60_000, 1604, guests));
    assert_eq!(decision.state.guests[&id("a")].helped, Some(mib(200)));
    assert_eq!(decision.state.guests[&id("b")].helped, None);
}

#[test]
fn what_is_granted_ahead_stays_while_the_guest_grows() {
    let helped = then(1, &first(1), vec![small("a", 195, 100), small("b", 100, 0), small("c", 100, 0)]);
    let grown = |millis, used, b: u64, stalls| {
        let a = told(deflating(guest("a", 578, used)), |stats| stats.alloc_stalls = Some(100));
        snapshot(millis, 1604, vec![a, small("b", b, stalls), small("c", 100, 0)])
    };
    let takes = |decision: &memtide_model::Decision| {
        targets(decision).iter().any(|(name, target)| *name == "a" && *target < 578)
    };
    // It has been granted 578, and uses 20 more each second.
    let decision = tick(&strict(1), &helped.state, &grown(3000, 215, 100, 0));
    assert!(!takes(&decision), "{:?}", targets(&decision));
    let decision = tick(&strict(1), &decision.state, &grown(4000, 235, 100, 0));
    assert!(!takes(&decision), "{:?}", targets(&decision));
    // Another guest in want, which cannot be helped, takes nothing of the grant.
    let decision = tick(&strict(1), &decision.state, &grown(5000, 255, 195, 100));
    assert!(!takes(&decision), "{:?}", targets(&decision));
}
