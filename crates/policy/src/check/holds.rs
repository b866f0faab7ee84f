//! Guests that are left alone: which changes their holds allow, and when a hold for a foreign movement may end.

use memtide_model::{Bytes, Commitment, Config, Hold, Keeps, Moment, Request, Snapshot, Witness};

use super::known::Known;
use super::room::strict_need;
use super::witness::{DOES_NOT_FOLLOW, DRAWN_BACK};

/// Whether a change moves a guest that is left alone. A held guest may be asked to keep its present size. A released guest
/// may grow, or shrink to its limit.
pub fn breaks(guest: &Known<'_>, request: Request) -> bool {
    let Some(hold) = guest.hold() else { return false };
    let stays = |target| target == guest.whole_pages(guest.keeps);
    match (hold.keeps, request.size(), request) {
        // It only takes what the guest does not keep anyway.
        (_, _, Request::Reclaim(_)) => false,
        (Keeps::Size, Some(size), _) => !stays(size),
        (Keeps::Limit, Some(size), _) => {
            let least = guest.whole_pages(guest.pending.min(guest.limit()));
            size < least && !stays(size)
        }
        (Keeps::Limit, None, Request::PollStats(_)) => false,
        _ => true,
    }
}

/// Whether a guest is held because somebody else moved its balloon, and no operator's hold is running.
pub fn is_foreign(hold: Option<Hold>, now: Moment) -> bool {
    match hold {
        Some(Hold { keeps: Keeps::Foreign { held_until, .. }, .. }) => {
            held_until.is_none_or(|until| until <= now)
        }
        _ => false,
    }
}

/// Whether a guest has lately killed programs of its own for lack of memory. The policy may hear of it some statistics later.
pub fn kills(guest: &Known<'_>, now: Moment) -> bool {
    guest.record.killed_at.is_some_and(|at| now.since(at) < DOES_NOT_FOLLOW)
}

/// A guest whose foreign hold ends is granted nothing yet.
pub fn stays_or_shrinks(guest: &Known<'_>, request: Request) -> bool {
    request.size().is_none_or(|size| size <= guest.keeps)
}

/// Whether foreign holds may end: the host is in danger, or another guest runs dry.
pub fn may_end(config: &Config, witness: &Witness, seen: &Snapshot, guests: &[Known<'_>]) -> bool {
    host_is_in_danger(config, witness, seen, guests) || others_run_dry(config, witness, seen, guests)
}

/// Whether the host's free memory is below the line at which the state low ends, and the guests that are not held cannot give what is missing
/// without memory that they use.
fn host_is_in_danger(config: &Config, witness: &Witness, seen: &Snapshot, guests: &[Known<'_>]) -> bool {
    let costs: u128 = guests.iter().map(Known::costs).sum();
    let line = seen.host.share(config.states.low());
    let taken = costs + u128::from(seen.host.beside_guests().get());
    let capacity = u128::from(seen.host.capacity.get());
    if capacity.saturating_sub(taken) >= u128::from(line.get()) * 5 / 4 {
        return false;
    }
    // It is out of danger at the state hard.
    let safe = u128::from(seen.host.share(config.states.hard()).get());
    let gives = |guest: &&Known<'_>| gives(guest, seen.taken_at);
    let others = guests.iter().filter(|guest| !guest.stands_outside() && !guest.is_released()).filter(gives);
    let can_give = |guest: &Known<'_>| {
        let held = u128::from(guest.held().get());
        let headroom = guest.headroom();
        let needs = guest.left().map_or(held, |left| held.saturating_sub(left) + headroom);
        guest.touched().min(held).saturating_sub(needs.max(u128::from(guest.reservation().get())))
    };
    let growth = u128::from(witness.surge.recent.get());
    taken + safe + growth > capacity + others.map(can_give).sum::<u128>()
}

/// Whether guests that are not held run dry, and lack more than can be granted now and the others hold idle. A held guest
/// never counts: no guest gives memory for its own lack.
fn others_run_dry(config: &Config, witness: &Witness, seen: &Snapshot, guests: &[Known<'_>]) -> bool {
    let (mut lacks, mut idle) = (0_u128, 0_u128);
    for guest in guests.iter().filter(|guest| !guest.stands_outside()) {
        let Some(left) = guest.left() else { continue };
        let headroom = guest.headroom();
        let growth = u128::from(guest.record.grew.min(guest.seen.told.full.mul_div(1, 4)).get());
        if left < headroom / 2 + growth {
            lacks += headroom + growth - left;
        } else if !guest.is_released() && gives(guest, seen.taken_at) {
            idle += has_idle(config, guest, left, headroom);
        }
    }
    let capacity = u128::from(seen.host.capacity.get());
    let fixed =
        u128::from(seen.host.beside_guests().get()) + u128::from(config.reserve_of(seen.host.capacity).get());
    let taken = match config.commitment {
        Commitment::Strict => strict_need(config, witness, guests),
        Commitment::Elastic => {
            let costs: u128 = guests.iter().map(Known::costs).sum();
            costs + u128::from(witness.surge.recent.get())
        }
    };
    lacks > capacity.saturating_sub(fixed).saturating_sub(taken) + idle
}

/// Whether a guest may be asked for memory: it was not stuck lately, did not refuse a target, and does not keep more than it was asked to. One that was
/// asked a moment ago for the size that it has may have been drawn back.
fn gives(guest: &Known<'_>, now: Moment) -> bool {
    let is_asked = guest.record.written_at.is_some_and(|at| now.since(at) < DOES_NOT_FOLLOW);
    let stood_out = [guest.record.stuck_at, guest.record.failed_at];
    let is_left_out = stood_out.into_iter().flatten().any(|at| now.since(at) < DRAWN_BACK);
    guest.is_at_target() && !is_asked && !is_left_out
}

/// Held memory beyond used memory, page cache, `headroom` and reservation. Elastic: only memory that the host backs.
fn has_idle(config: &Config, guest: &Known<'_>, left: u128, headroom: u128) -> u128 {
    let number = |bytes: Option<Bytes>| u128::from(bytes.unwrap_or_default().get());
    let stats = guest.seen.told.stats.fresh();
    let free = number(stats.and_then(|stats| stats.free));
    let droppable = number(guest.available()).saturating_sub(free);
    let caches = stats.and_then(|stats| stats.disk_caches);
    let cache = caches.map_or(droppable, |caches| droppable.min(u128::from(caches.get())));
    let held = u128::from(guest.held().get());
    let backed = match config.commitment {
        Commitment::Strict => held,
        Commitment::Elastic => guest.touched(),
    };
    let needs = held.saturating_sub(left) + cache + headroom;
    backed.saturating_sub(needs.max(u128::from(guest.reservation().get())))
}
