//! Actions that free memory come first, and a grant is backed by memory that is verified as returned.
//!
//! **Rule.** Actions come in this order: polling of statistics, reclaims that the operator ordered, splits of torn huge pages, requests to agents, shrinks (the largest first), grants (urgent ones first, then the
//! largest lack). A lowered target frees nothing yet. The grants of a plan must fit into the room that the ledger shows *now*,
//! where a guest counts with max(target, actual). Raising a target up to the actual costs nothing. In a strict commitment, a
//! grant to a guest whose self-deflation is among the k largest costs only its excess over the fall of that sum. A grant that
//! does not fit whole is given in part. The part may be less than a dead band only if no more than another dead band is missing
//! then.
//!
//! **Property.** After the plan the commitment holds, or is no further from holding than before.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memtide_model::{Action, Bytes, Ordered, Plan, Polling, Reason, Request, Snapshot, Yield};

use crate::belief::Beliefs;
use crate::belief::guest::Guest;
use crate::constants::{REPORTS_EVERY, SAID_AFTER};
use crate::ladder::orders::ordered;
use crate::ladder::wish::Wish;
use crate::share::purse::Purse;
use crate::share::tmpfs::Bound;

/// The plan.
#[must_use]
pub fn order(beliefs: &Beliefs<'_>, bound: &[Bound], cheap: Vec<Action>, mut wishes: Vec<Wish>) -> Plan {
    let Beliefs { seen, guests, scene, .. } = beliefs;
    let mut actions = Vec::new();
    for guest in guests {
        let slow = match guest.seen.told.polling {
            Polling::Off => true,
            Polling::Every(span) => span > REPORTS_EVERY,
            Polling::Unknown => false,
        } || (guest.seen.told.polling != Polling::Unknown && guest.before.polled_before.is_none());
        if slow && guest.is_managed() {
            let poll = Request::PollStats(REPORTS_EVERY);
            actions.push(Action::of(guest.seen.id.clone(), poll, Reason::NeedStats));
        }
    }
    for (index, bytes) in ordered_reclaim(seen, guests) {
        let action = Action::of(guests[index].seen.id.clone(), Request::Reclaim(bytes), Reason::Ordered);
        actions.push(Action { expects: Some(Yield { bytes, within: SAID_AFTER }), ..action });
    }
    actions.extend(cheap);
    let gives = |wish: &Wish| guests[wish.index].entry.target.saturating_sub(wish.target);
    let lacks = |wish: &Wish| wish.target.saturating_sub(guests[wish.index].entry.held);
    let grows = |wish: &Wish| wish.target > guests[wish.index].entry.target;
    wishes.sort_by_cached_key(|wish| {
        let grows = grows(wish);
        (grows, grows && !wish.urgent, Reverse(gives(wish)), Reverse(lacks(wish)), wish.index)
    });
    let mut purse = Purse::new(scene, guests.iter().map(|guest| guest.entry.self_deflation).collect());
    let mut purses: Vec<Purse> = bound.iter().map(|tmpfs| tmpfs.purse(guests)).collect();
    for wish in wishes {
        let guest = &guests[wish.index];
        let mut target = wish.target;
        if grows(&wish) {
            for (tmpfs, purse) in bound.iter().zip(&mut purses) {
                if let Ok(place) = tmpfs.members.binary_search(&wish.index) {
                    target = purse.grant(place, guest, target);
                }
            }
            target = purse.grant(wish.index, guest, target);
        }
        let is_grant = wish.target.round_down(guest.step()) > guest.entry.held;
        if !(is_grant && is_too_little(guest, target, wish.target)) {
            let target = target.round_down(guest.step());
            let expects = expected_yield(guest, target);
            let action = Action::of(guest.seen.id.clone(), Request::SetTarget(target), wish.reason);
            let ends_hold = guest.hold_ends.is_some();
            actions.push(Action { expects, takes: wish.takes, ends_hold, ..action });
        }
    }
    Plan { actions }
}

/// The reclaims that the operator ordered, with the guest of each: the last order counts. A guest that only a hold protects can be reclaimed
/// from: it keeps its size.
fn ordered_reclaim(seen: &Snapshot, guests: &[Guest<'_>]) -> BTreeMap<usize, Bytes> {
    let is_reclaim = |ordered| if let Ordered::Reclaim(bytes) = ordered { Some(bytes) } else { None };
    let mut reclaims = ordered(seen, guests, is_reclaim);
    reclaims.retain(|index, _| guests[*index].is_managed() || guests[*index].ends_free());
    reclaims
}

/// The memory that must come back if the guest keeps only `target`: the part of its touched memory that does not fit into it.
fn expected_yield(guest: &Guest<'_>, target: Bytes) -> Option<Yield> {
    let bytes = guest.entry.touched().saturating_sub(target);
    (target < guest.entry.held && !bytes.is_zero()).then_some(Yield { bytes, within: SAID_AFTER })
}

/// Whether a grant up to `target` is too little: less than the least grant to this guest, unless the wish was for more and no more than as much
/// again is missing.
fn is_too_little(guest: &Guest<'_>, target: Bytes, wished: Bytes) -> bool {
    let (now, little) = (guest.entry.target, guest.least_grant());
    let enough = now.saturating_add(little);
    let leaves_little = wished >= enough && target > now && target.saturating_add(little) >= wished;
    target < enough && !leaves_little
}
