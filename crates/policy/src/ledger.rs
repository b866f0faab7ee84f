//! The ledger: what each guest costs and can come to cost, and what the commitment leaves.
//!
//! For a capacity C, in bytes: `C = reserve + Σ footprint + other + free`.
//!
//! - `held` = max(target, actual): memory that the guest may use without asking; a lowered target is not yet memory
//!   returned;
//! - `reach` = held + requested hot-plug + overhead bound;
//! - `exposure` = reach − footprint, not below zero;
//! - `self-deflation` = full − held where the guest may deflate its own balloon.
//!
//! **Strict**: Σ reach + other + reserve + the k largest self-deflations ≤ C. A guest whose footprint is above its reach
//! (its balloon gives nothing back to the host) is counted with its footprint.
//! **Elastic**: the joint surge ≤ free; the policy keeps free what the host state `high` needs, too.

use memtide_model::{Bytes, Commitment, Config, GuestSeen, GuestState, Snapshot};

/// One guest's side of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// What we asked it to keep, or what it keeps where we never asked.
    pub target: Bytes,
    /// What it keeps.
    pub actual: Bytes,
    /// max(target, actual).
    pub held: Bytes,
    /// What it costs now; its reach where that is unknown.
    pub footprint: Bytes,
    /// What of that is not the guest's own memory.
    pub overhead: Bytes,
    /// What it can come to cost beyond what it holds: overhead, and hot-plug that was asked for.
    pub beyond: Bytes,
    /// What it can still take by deflating its own balloon.
    pub self_deflation: Bytes,
}

impl Entry {
    /// The entry of a guest that we remember as `before`.
    #[must_use]
    pub fn new(seen: &GuestSeen, before: &GuestState) -> Self {
        let actual = seen.actual();
        let target =
            if seen.has_driver() { before.target.unwrap_or(actual).min(seen.full) } else { seen.full };
        let held = target.max(actual);
        let beyond = seen.overhead_bound.saturating_add(seen.unplugged_request());
        let deflates = seen.balloon.latest().is_some_and(|balloon| balloon.deflate_on_oom);
        let self_deflation = if deflates { seen.full.saturating_sub(held) } else { Bytes::ZERO };
        let footprint = seen.footprint.latest().copied().unwrap_or(held.saturating_add(beyond));
        Self { target, actual, held, footprint, overhead: seen.overhead, beyond, self_deflation }
    }

    /// What of its memory the host has for it. The rest of what it holds costs nothing, and taking that frees nothing.
    #[must_use]
    pub fn touched(&self) -> Bytes {
        self.footprint.saturating_sub(self.overhead).min(self.held)
    }

    /// What it can come to cost without asking.
    #[must_use]
    pub fn reach(&self) -> Bytes {
        self.held.saturating_add(self.beyond)
    }

    /// By how much it can grow without asking.
    #[must_use]
    pub fn exposure(&self) -> Bytes {
        self.reach().saturating_sub(self.footprint)
    }

    /// What it is counted with in the strict rule.
    #[must_use]
    pub fn strict_cost(&self) -> Bytes {
        self.reach().max(self.footprint)
    }
}

/// The host's side of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// All memory that the ledger is about.
    pub capacity: Bytes,
    /// Kept free of guests.
    pub reserve: Bytes,
    /// What others cost.
    pub other: Bytes,
    /// What the guests cost now.
    pub footprints: Bytes,
    /// What the guests can come to cost without asking.
    pub reach: Bytes,
    /// What the guests are counted with in the strict rule; those that are helped with their full size.
    pub strict_costs: Bytes,
    /// By how much all guests can grow without asking, their own deflations included.
    pub exposures: Bytes,
    /// The k largest self-deflations.
    pub self_deflation: Bytes,
    /// The joint surge that must fit into what is free (elastic).
    pub surge: Bytes,
    /// By how much the guests together are expected to rise again (elastic).
    pub tide: Bytes,
    /// What an elastic commitment keeps free: the surge, and enough that the host state stays high.
    pub keep_free: Bytes,
    /// What the commitment leaves.
    pub room: Room,
    /// What may be granted to guests that lack what they use. Elastic: also what is kept free beyond the growth that goes on now.
    pub in_need: Bytes,
    /// What must come back beyond what is short now, and keeps nobody from a grant. Elastic: before the tide does. Strict:
    /// for room for all k self-deflations, while guests are helped.
    pub ahead: Bytes,
}

/// What the commitment leaves to be granted, or what it lacks. At most one of the two is above zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// What may be granted.
    pub spare: Bytes,
    /// What must come back.
    pub short: Bytes,
}

impl Room {
    /// What is left of `have` after `need`.
    #[must_use]
    pub fn between(have: Bytes, need: Bytes) -> Self {
        Self { spare: have.saturating_sub(need), short: need.saturating_sub(have) }
    }
}

impl Ledger {
    /// The ledger of a snapshot. `surge_peak` is the joint growth that must be expected, `single` the largest
    /// min(exposure, surge) of one guest, `tide` the rise that must be expected.
    #[must_use]
    pub fn new<'a>(
        config: &Config,
        seen: &Snapshot,
        entries: impl Iterator<Item = &'a Entry> + Clone,
        surge_peak: Bytes,
        single: Bytes,
        tide: Bytes,
    ) -> Self {
        let capacity = seen.host.capacity;
        let reserve = config.reserve_of(capacity);
        let mut ledger = Self { capacity, reserve, other: seen.host.other, ..Self::default() };
        for entry in entries.clone() {
            ledger.footprints = ledger.footprints.saturating_add(entry.footprint);
            ledger.reach = ledger.reach.saturating_add(entry.reach());
            ledger.strict_costs = ledger.strict_costs.saturating_add(entry.strict_cost());
            ledger.exposures =
                ledger.exposures.saturating_add(entry.exposure()).saturating_add(entry.self_deflation);
        }
        ledger.self_deflation = largest(entries.map(|entry| entry.self_deflation), config.self_deflations);
        ledger.surge = surge_peak.max(single).min(ledger.exposures);
        let at_ease = seen.host.share(config.states.soft()).mul_div(5, 4);
        ledger.keep_free = ledger.surge.max(at_ease);
        ledger.room = match config.commitment {
            Commitment::Strict => ledger.strict_room(),
            Commitment::Elastic => {
                let need = ledger.footprints.saturating_add(ledger.keep_free);
                Room::between(ledger.for_guests(), need)
            }
        };
        if config.commitment == Commitment::Elastic {
            ledger.tide = tide.min(ledger.exposures);
            let at_high_tide = Bytes::sum([ledger.footprints, ledger.tide, at_ease]);
            let short = at_high_tide.saturating_sub(ledger.for_guests());
            ledger.ahead = short.saturating_sub(ledger.room.short);
        }
        ledger
    }

    /// Counts guests that are helped with their full size, `whole` more than they hold, and keeps room for the `k` largest of
    /// the other self-deflations only (strict). Room for all is to come back, and nobody else is granted what it leaves.
    pub fn help(&mut self, whole: Bytes, others: impl Iterator<Item = Bytes>, k: u32) {
        let unhelped = self.room;
        self.strict_costs = self.strict_costs.saturating_add(whole);
        self.self_deflation = largest(others, k);
        self.room = Room { spare: unhelped.spare, short: self.strict_room().short };
        self.ahead = unhelped.short.saturating_sub(self.room.short);
    }

    fn strict_room(&self) -> Room {
        Room::between(self.for_guests(), self.strict_costs.saturating_add(self.self_deflation))
    }

    /// What is left of the capacity for guests and their VMMs.
    #[must_use]
    pub fn for_guests(&self) -> Bytes {
        self.capacity.saturating_sub(self.reserve).saturating_sub(self.other)
    }

    /// By how much guests hold more than the whole capacity leaves, the reserve not kept.
    #[must_use]
    pub fn over(&self) -> Bytes {
        self.strict_costs.saturating_add(self.other).saturating_sub(self.capacity)
    }

    /// What nobody uses, the reserve included: the host swaps or kills once it is gone.
    #[must_use]
    pub fn really_free(&self) -> Bytes {
        self.capacity.saturating_sub(self.other).saturating_sub(self.footprints)
    }

    /// What nobody uses, without the reserve.
    #[must_use]
    pub fn free(&self) -> Bytes {
        self.for_guests().saturating_sub(self.footprints)
    }
}

/// The sum of the `k` largest of `all`.
#[must_use]
pub fn largest(all: impl Iterator<Item = Bytes>, k: u32) -> Bytes {
    match k {
        0 => Bytes::ZERO,
        1 => all.max().unwrap_or_default(),
        k => {
            let mut all: Vec<Bytes> = all.collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            Bytes::sum(all.into_iter().take(usize::try_from(k).unwrap_or(usize::MAX)))
        }
    }
}
