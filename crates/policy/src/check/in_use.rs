//! Memory in use: for whom it may be taken, and who may be granted what is kept for surprises.
//!
//! **Terms.** A guest certainly uses what its statistics do not call available, as far as the host backs it. Page cache beyond that is not counted: a
//! kernel calls all of it available but what its watermarks need. Of a class that memtide may not squeeze, page cache counts as in use.
//!
//! **Rules.**
//! - Memory in use is given only for memory in use that other guests lack, and for a host in danger, as far as neither fits into what is free. What guests
//!   were asked for before and have not given yet counts.
//! - A guest lacks memory in use if it has less left than the headroom of a guest that does not grow. A guest that stalls only because
//!   its page cache is too small lacks none.
//! - What is kept for surprises (the reserve, the room for self-deflations) is granted only as far as a guest lacks its reservation or memory in use,
//!   with its growth. After a stall, it may lack a quarter of its memory, if it has less than three eighths of its size available: a stall alone
//!   opens no reserve.

use memtide_model::{Bytes, Commitment, Config, Moment, Snapshot, Witness};

use super::Violation;
use super::known::{Known, narrow};
use super::witness::STALL_LASTS;

/// A kernel calls at most this much of its page cache not available: what it keeps for its watermarks.
const KERNEL_KEEPS_AT_MOST: Bytes = Bytes::from_mib(160);

/// Memory in use that the shrinks of a plan may take.
pub struct InUse {
    /// All that guests may lack.
    lacks: u128,
    /// What of it can be granted, without anybody's memory.
    room: u128,
    /// What a host in danger lacks.
    danger: u128,
    /// Taken by the shrinks so far.
    taken: u128,
}

impl InUse {
    /// The memory in use that `guests` may lack, if `room` can be granted anyway, and `danger` is lacking in any case.
    pub fn new<'a, 'b: 'a>(guests: impl Iterator<Item = &'a Known<'b>>, room: u128, danger: u128) -> Self {
        let mut new = Self { lacks: 0, room, danger, taken: 0 };
        for guest in guests {
            new.lacks += lacks_used(guest);
            new.taken += under_way(guest);
        }
        new
    }

    /// The ledger of the whole host. A strict commitment that `is_kept` protects it: then, nothing that its guests use is taken for its sake.
    pub fn of_host(
        config: &Config,
        witness: &Witness,
        seen: &Snapshot,
        guests: &[Known<'_>],
        is_kept: bool,
    ) -> Self {
        let number = |bytes: Bytes| u128::from(bytes.get());
        let (capacity, growth) = (number(seen.host.capacity), number(witness.surge.recent));
        let line = |share| number(seen.host.share(share).mul_div(5, 4));
        let (mut costs, mut strict) = (number(seen.host.beside_guests()), number(seen.host.beside_guests()));
        for guest in guests {
            costs += guest.costs();
            strict += guest.strict_cost(guest.held());
        }
        let taken = match config.commitment {
            Commitment::Strict => strict,
            Commitment::Elastic => costs + growth,
        };
        let room = capacity.saturating_sub(taken + line(config.states.low()));
        let danger = (costs + growth + line(config.states.hard())).saturating_sub(capacity);
        Self::new(guests.iter(), room, if is_kept { 0 } else { danger })
    }

    /// Whether memory in use may be taken from a guest, if its other memory is not enough to reach `target`.
    ///
    /// # Errors
    /// The promise that this would break, if others can lack less.
    pub fn may_take(&self, guest: &Known<'_>, target: Bytes) -> Result<(), Violation> {
        let given = gives(guest, target);
        if given == 0 {
            return Ok(());
        }
        let others = self.lacks.saturating_sub(lacks_used(guest)).saturating_sub(self.room) + self.danger;
        let left = others.saturating_sub(self.taken);
        // A smaller step than half of its headroom is not worth a change. Sizes are whole pages.
        let page = guest.seen.capabilities.step.bytes().get();
        let step = if left == 0 { u128::from(page) } else { guest.headroom() / 2 };
        if given > left + step {
            let (taken, lacking) = (narrow(given), narrow(left));
            return Err(Violation::TakesInUse { guest: guest.seen.id.clone(), taken, lacking });
        }
        Ok(())
    }

    /// Takes it.
    pub fn take(&mut self, guest: &Known<'_>, target: Bytes) {
        self.taken += gives(guest, target);
    }
}

/// The memory in use that a guest gives if it keeps `target`.
fn gives(guest: &Known<'_>, target: Bytes) -> u128 {
    let before = guest.pending.min(guest.keeps).min(uses(guest).unwrap_or_default());
    u128::from(before.saturating_sub(target).get())
}

/// The memory in use that it was asked for before, and has not given yet. What a stuck guest does not give helps nobody.
fn under_way(guest: &Known<'_>) -> u128 {
    let is_stuck = guest.record.tries_since.is_some_and(|_| guest.record.stuck_at > guest.record.tries_since);
    let uses = uses(guest).filter(|_| !is_stuck).unwrap_or_default();
    u128::from(guest.keeps.min(uses).saturating_sub(guest.pending).get())
}

/// The memory that a guest certainly uses; `None` without fresh statistics.
fn uses(guest: &Known<'_>) -> Option<Bytes> {
    let (stats, available) = (guest.seen.told.stats.fresh()?, guest.available()?);
    let reclaimable = available.saturating_sub(stats.free.unwrap_or_default());
    let caches = stats.disk_caches.unwrap_or(reclaimable);
    let uses = guest.record.uses_at_least;
    let uses = if guest.class.squeeze {
        let keeps = guest.seen.told.full.mul_div(5, 64).min(KERNEL_KEEPS_AT_MOST);
        uses.saturating_sub(caches.saturating_sub(reclaimable).min(keeps))
    } else {
        uses.saturating_add(caches.min(reclaimable))
    };
    Some(uses)
}

/// Memory in use that a guest may lack, without headroom for its growth.
fn lacks_used(guest: &Known<'_>) -> u128 {
    lacks(guest, guest.headroom())
}

/// The most that a guest may be granted of what is kept for surprises.
pub fn lacks_in_use(guest: &Known<'_>, now: Moment) -> u128 {
    let full = guest.seen.told.full;
    let growth = u128::from(guest.record.grew.min(full.mul_div(1, 4)).get());
    let lacks = lacks(guest, guest.headroom() + growth);
    let has_little = guest.available().is_some_and(|available| available < full.mul_div(3, 8));
    let raised = guest.record.raised.filter(|(_, at)| has_little && now.since(*at) < STALL_LASTS);
    let raise = raised.map_or(Bytes::ZERO, |(size, _)| size.saturating_sub(guest.held()));
    lacks.max(u128::from(raise.get()))
}

/// What a guest may lack of memory in use with this headroom, or of its reservation; a released one, of its limit.
fn lacks(guest: &Known<'_>, headroom: u128) -> u128 {
    if guest.stands_outside() {
        return 0;
    }
    let held = guest.held();
    let own = if guest.is_released() { guest.limit() } else { guest.reservation() };
    let promised = u128::from(own.saturating_sub(held).get());
    if guest.available().is_none() {
        return promised;
    }
    // An agent can know it sooner.
    let agent = guest.seen.told.agent.fresh().map(|agent| guest.keeps.saturating_sub(agent.memory.available));
    let uses = u128::from(guest.record.uses_at_most.max(agent.unwrap_or_default()).get());
    // Its kernel may have swapped memory that it uses.
    let uses = uses + u128::from(guest.seen.cost.tier.fresh().map_or(Bytes::ZERO, |tier| tier.stored).get());
    let lacks = (uses + headroom).min(u128::from(guest.limit().get()));
    promised.max(lacks.saturating_sub(u128::from(held.get())))
}
