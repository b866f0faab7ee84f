//! Torn huge pages: the first answer to wanted memory.
//!
//! **Problem.** A balloon takes pages of 4 KiB. The rest of a torn huge page stays with the host's kernel until somebody makes the kernel
//! split it. Meanwhile nobody has that memory, and guests would give page cache in its place.
//!
//! **Rule.** If memory is wanted and the kernel holds torn huge pages, guests' pages are split before anybody gives page cache. Idle memory
//! is given as usual. The guests whose own torn memory is known come first, the largest first, until their torn memory covers the wanted
//! memory. Otherwise one guest is asked at each decision: the one that has given most to its balloon. A guest is asked at most once a
//! second, and only if its balloon has inflated since the last time: nothing else tears its pages. If a split returns nothing, the guest is
//! left out for 10 s, then for twice as long each time, up to 10 min. If a balloon has torn more meanwhile, the return cannot be seen: the
//! guest is asked again. Nobody counts on what a guest returns whose balloon inflates.
//!
//! **Property.** A split changes no guest's size, and torn memory pays for no grant before the host has it.

use std::cmp::Reverse;

use memtide_model::{Action, Asked, Bytes, Moment, Reason, Request, Snapshot, Splits, Yield};

use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::{FIRST_PAUSE, LEAST_STEP, LONGEST_PAUSE, SPLIT_EVERY, TOLERANCE};

/// The splits to ask for now. Notes in the scene how much memory they, and those before them, should return.
#[must_use]
pub fn ask(scene: &mut Scene, seen: &Snapshot, guests: &mut [Guest<'_>]) -> Vec<Action> {
    let inflated_at = guests.iter().filter_map(tore_at).max();
    for guest in guests.iter_mut() {
        watch(seen, guest, inflated_at, scene.now);
    }
    let (wanted, torn) = (scene.wanted(), scene.ledger.torn);
    if !seen.host.splits || wanted.is_zero() || torn < LEAST_STEP {
        return Vec::new();
    }
    let asked = guests.iter().filter(|guest| guest.next.splits.asked.is_some() && !guest.inflates());
    let mut returning = Bytes::sum(asked.filter_map(|guest| seen.torn_of(guest.seen)));
    let mut able: Vec<(bool, Bytes, usize)> = Vec::new();
    for (index, guest) in guests.iter().enumerate().filter(|(_, guest)| may_split(guest, scene.now)) {
        match guest.seen.cost.torn.fresh() {
            Some(own) if *own < LEAST_STEP => {}
            Some(own) => able.push((false, *own, index)),
            None => able.push((true, guest.full.saturating_sub(guest.entry.actual), index)),
        }
    }
    able.sort_by_key(|(is_unknown, bytes, index)| (*is_unknown, Reverse(*bytes), *index));
    let (mut splits, mut asked_unknown) = (Vec::new(), false);
    for (is_unknown, own, index) in able {
        let is_enough = returning >= wanted.min(torn) && !(is_unknown && splits.is_empty());
        if is_enough || (is_unknown && asked_unknown) {
            break;
        }
        asked_unknown |= is_unknown;
        let bytes = if is_unknown { torn } else { own.min(torn) };
        if !guests[index].inflates() {
            returning = returning.saturating_add(bytes);
        }
        splits.push(split(&guests[index], bytes, wanted));
    }
    scene.returning = returning.min(torn);
    splits
}

fn split(guest: &Guest<'_>, torn: Bytes, wanted: Bytes) -> Action {
    let action = Action::of(guest.seen.id.clone(), Request::Split, Reason::Torn { torn, wanted });
    Action { expects: Some(Yield { bytes: torn, within: SPLIT_EVERY }), ..action }
}

/// Watches the result of the last split of a guest. A balloon that has inflated since then has torn more, and hides it.
fn watch(seen: &Snapshot, guest: &mut Guest<'_>, inflated_at: Option<Moment>, now: Moment) {
    let Some(asked) = guest.before.splits.asked else { return };
    let least = seen.torn_of(guest.seen).map_or(asked.least, |torn| asked.least.min(torn));
    if now.since(asked.at) < SPLIT_EVERY {
        guest.next.splits.asked = Some(Asked { least, ..asked });
        return;
    }
    let own = guest.seen.cost.torn.fresh();
    let inflated_at = if own.is_some() { tore_at(guest) } else { inflated_at };
    let returned = asked.torn.saturating_sub(least);
    let splits = guest.before.splits;
    guest.next.splits = if returned >= LEAST_STEP {
        // More of its own is torn: the next split follows at once.
        let has_more = own.is_some_and(|own| *own >= LEAST_STEP);
        Splits { last_at: (!has_more).then_some(asked.at), ..Splits::default() }
    } else if inflated_at.is_some_and(|at| at > asked.at) {
        Splits { asked: None, last_at: Some(asked.at), ..splits }
    } else {
        let back_off = splits.back_off.again(now, FIRST_PAUSE, LONGEST_PAUSE);
        Splits { asked: None, back_off, ..splits }
    };
}

/// When a guest's balloon last moved at memtide's request.
fn tore_at(guest: &Guest<'_>) -> Option<Moment> {
    let under_way = guest.entry.actual > guest.entry.target.saturating_add(TOLERANCE);
    if under_way { guest.next.stuck.progress_at } else { guest.next.inflating_at }
}

fn may_split(guest: &Guest<'_>, now: Moment) -> bool {
    let splits = &guest.next.splits;
    // A released guest, and one whose hold ends, is left alone but for its target.
    let inflated_since = |at| guest.next.inflating_at.is_some_and(|inflating_at| inflating_at > at);
    guest.is_free()
        && !guest.is_withheld()
        && splits.asked.is_none()
        && splits.last_at.is_none_or(inflated_since)
        && !splits.back_off.lasts(now)
}
