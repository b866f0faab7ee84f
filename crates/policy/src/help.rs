//! Strict: helps a guest that is about to deflate its own balloon.
//!
//! **Problem.** A strict commitment keeps room for the k largest self-deflations. A guest in want without a grant takes its
//! part of that room by itself, as its kernel's last resort: an allocation stalls for each MiB. The measured rate was 35 MiB
//! a second; a balloon deflates at 2 GiB a second.
//!
//! **Rule.** Up to k guests count as deflating already. They are in want (they grow or stall) and may deflate their own
//! balloon, and spare memory cannot cover their grant. Each counts with its full size, so a grant to it costs nothing more.
//! While it grows, it is granted a quarter of its size ahead. For the others, room is kept for the k − 1, k − 2, … largest
//! self-deflations. The guest that holds least for its shares comes first. A guest keeps its place until it has given back
//! the grant except for a dead band, or until there is room for all k again: others give idle memory for that, without
//! haste. A guest has settled if it was granted little (an eighth of its size), uses all of it and is no longer in want. It
//! leaves its place to another guest; otherwise a few MiB would block help for everybody, permanently.
//!
//! **Property.** Helping adds nothing to the commitment's earlier count. A guest that settles adds the memory that it keeps,
//! at most once each time that it is in want.

use memtide_model::{Bytes, Commitment, Config, Mode};

use crate::demand::dead_band;
use crate::guest::Guest;
use crate::ledger::Ledger;

/// One part in this many of the full size is little.
const LITTLE_PART: u64 = 8;

/// Chooses the guests to help, notes the choice in the guests, and corrects the room that the ledger keeps for the others.
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
        // One guest at a time; its place is free at the next decision.
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

/// Whether a guest still keeps more than a dead band of its grant.
fn has_kept(guest: &Guest<'_>, from: Bytes) -> bool {
    guest.entry.held > from.saturating_add(dead_band(guest.seen.told.full))
}

/// Whether a guest is no longer in want, has nothing idle and was granted little: the grant is its own from now on.
fn has_settled(guest: &Guest<'_>, from: Bytes) -> bool {
    let held = guest.entry.held;
    let idle = held.saturating_sub(guest.demand.lean());
    let little = from.saturating_add(guest.seen.told.full.mul_div(1, LITTLE_PART));
    !wants_help(guest) && idle <= dead_band(guest.seen.told.full) && held <= little
}

/// Guests in want that cannot be granted the memory they need; the one that holds least for its shares comes first. Empty if
/// nobody is helped yet and each can take the memory from its own part of the kept room, which costs nobody anything.
fn wanting(config: &Config, ledger: &Ledger, guests: &[Guest<'_>]) -> Vec<usize> {
    let spare = ledger.room.spare;
    let in_want = |guest: &Guest<'_>| {
        guest.next.helped.is_none()
            && wants_help(guest)
            && guest.lacks() > spare.max(dead_band(guest.seen.told.full))
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

/// Whether a guest in want would help itself and can be resized: less than three eighths of its full size is available, and
/// its balloon moves.
fn wants_help(guest: &Guest<'_>) -> bool {
    let available = guest.seen.told.stats.fresh().and_then(|stats| stats.available);
    let has_little = available.is_some_and(|available| available < guest.seen.told.full.mul_div(3, 8));
    let moves = guest.next.stuck.until.is_none();
    has_little && moves && guest.is_managed() && guest.deflates_itself() && guest.is_in_want()
}
