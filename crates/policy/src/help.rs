//! Strict: a guest that is about to deflate its own balloon is helped.
//!
//! **Problem.** A strict commitment keeps room for the k largest self-deflations. A guest in want that is granted nothing takes
//! its part of that room by itself, as its kernel's last resort: with an allocation that stalls for each MiB (35 MiB a
//! second were seen, where a balloon deflates at 2 GiB a second).
//!
//! **Rule.** Up to k guests in want (they grow or stall) that may deflate their own balloon, and cannot be
//! granted it from what is spare, count as deflating already: each with its full size, so that what it is granted costs
//! nothing more, and a quarter of that size is granted ahead while they grow; and room is kept for the k − 1, k − 2, … largest of the others.
//! Who holds least for its shares comes first. A guest keeps its place until it has given back what it was granted, but for a
//! dead band, or until there is room for all k again: others give their idle memory for that, without haste. One that was
//! granted little (an eighth of its size), uses it all and is in want no more has settled: it leaves its place to another
//! one, or else a few megabytes would keep help from everybody for good.
//!
//! **Property.** Helping never adds to what the commitment counted with before; who settles does, by what it keeps, at most once
//! for each time that it is in want.

use memtide_model::{Bytes, Commitment, Config, Mode};

use crate::demand::dead_band;
use crate::guest::Guest;
use crate::ledger::Ledger;

/// One in so many of its full size is little.
const LITTLE_PART: u64 = 8;

/// Chooses who is helped, notes it in the guests, and corrects the room that the ledger keeps for the others.
pub fn choose(config: &Config, ledger: &mut Ledger, guests: &mut [Guest<'_>]) {
    let strict = config.commitment == Commitment::Strict && config.mode == Mode::Manage;
    let kept = ledger.room.short.is_zero();
    let mut places = if strict { usize::try_from(config.self_deflations).unwrap_or(usize::MAX) } else { 0 };
    let mut another = guests.iter().any(|guest| guest.before.helped.is_none() && wants_help(guest));
    for guest in guests.iter_mut() {
        let holds = |from: &Bytes| places > 0 && !kept && guest.deflates_itself() && has_kept(guest, *from);
        let Some(from) = guest.before.helped.filter(holds) else {
            guest.next.helped = None;
            continue;
        };
        let leaves = another && has_settled(guest, from);
        guest.next.helped = (!leaves).then_some(from);
        // One at a time, and its place is free with the next decision.
        another = another && !leaves;
        places -= 1;
    }
    if places > 0 {
        for index in wanting(config, ledger, guests).into_iter().take(places) {
            guests[index].next.helped = Some(guests[index].entry.held);
        }
    }
    let (mut helped, mut whole) = (0, Bytes::ZERO);
    for guest in guests.iter().filter(|guest| guest.next.helped.is_some()) {
        helped += 1;
        whole = whole.saturating_add(guest.entry.self_deflation);
    }
    if helped > 0 {
        let others = guests.iter().filter(|guest| guest.next.helped.is_none());
        let k = config.self_deflations.saturating_sub(helped);
        ledger.help(whole, others.map(|guest| guest.entry.self_deflation), k);
    }
}

/// Whether a guest has not given back what it was granted, but for a dead band.
fn has_kept(guest: &Guest<'_>, from: Bytes) -> bool {
    guest.entry.held > from.saturating_add(dead_band(guest.seen.full))
}

/// Whether it is in want no more, has nothing idle, and was granted little: that is its own from now on.
fn has_settled(guest: &Guest<'_>, from: Bytes) -> bool {
    let held = guest.entry.held;
    let idle = held.saturating_sub(guest.demand.lean());
    let little = from.saturating_add(guest.seen.full.mul_div(1, LITTLE_PART));
    !wants_help(guest) && idle <= dead_band(guest.seen.full) && held <= little
}

/// Guests in want that cannot be granted what they need, who holds least for its shares first. Nobody where each can take it of
/// its own part of the kept room, which costs nobody anything: as long as nobody is helped.
fn wanting(config: &Config, ledger: &Ledger, guests: &[Guest<'_>]) -> Vec<usize> {
    let spare = ledger.room.spare;
    let in_want = |guest: &Guest<'_>| {
        guest.next.helped.is_none()
            && wants_help(guest)
            && guest.lacks() > spare.max(dead_band(guest.seen.full))
    };
    let mut wanting: Vec<usize> = (0..guests.len()).filter(|i| in_want(&guests[*i])).collect();
    if wanting.is_empty() {
        return wanting;
    }
    let next = next_largest(guests, config.self_deflations);
    let own = |i: usize| guests[i].entry.self_deflation.saturating_sub(next);
    let covered = |&i: &usize| guests[i].lacks() <= spare.saturating_add(own(i));
    if guests.iter().all(|guest| guest.next.helped.is_none()) && wanting.iter().all(covered) {
        return Vec::new();
    }
    // a.held / a.shares < b.held / b.shares, multiplied out.
    let weight = |i: usize, j: usize| {
        u128::from(guests[i].entry.held.get()) * u128::from(guests[j].class.shares.max(1))
    };
    wanting.sort_by(|&a, &b| weight(a, b).cmp(&weight(b, a)).then(a.cmp(&b)));
    wanting
}

/// The (k + 1)th largest self-deflation.
fn next_largest(guests: &[Guest<'_>], k: u32) -> Bytes {
    let mut selfs: Vec<Bytes> = guests.iter().map(|guest| guest.entry.self_deflation).collect();
    selfs.sort_unstable_by(|a, b| b.cmp(a));
    selfs.get(usize::try_from(k).unwrap_or(usize::MAX)).copied().unwrap_or_default()
}

/// Whether a guest in want would help itself, and can be given a size: it has less than three eighths of its full size left, and
/// its balloon moves.
fn wants_help(guest: &Guest<'_>) -> bool {
    let available = guest.seen.stats.fresh().and_then(|stats| stats.available);
    let has_little = available.is_some_and(|available| available < guest.seen.full.mul_div(3, 8));
    let moves = guest.next.stuck.until.is_none();
    has_little && moves && guest.is_managed() && guest.deflates_itself() && guest.is_in_want()
}
