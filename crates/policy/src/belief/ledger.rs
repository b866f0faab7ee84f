//! The ledger: each guest's cost and worst-case cost, and the room that the commitment leaves.
//!
//! For a capacity C, in bytes: `C = reserve + Σ footprint + torn + other + free`.
//!
//! - `held` = max(target, actual), or more if another request that is under way allows it: memory that the guest may use without asking; a
//!   lowered target returns no memory yet;
//! - `reach` = held + requested hot-plug + overhead bound;
//! - `exposure` = reach − footprint, not below zero;
//! - `self-deflation` = full − held if the guest may deflate its own balloon. Strict counts at most what a guest can take before memtide has
//!   answered ([`Config::self_deflation_within`]).
//!
//! *Torn* is the rest of torn huge pages. It is promised to nobody until the host has it back.
//!
//! **Strict**: Σ reach + torn + other + reserve + the k largest self-deflations ≤ C. A guest counts with its footprint if that is above
//! its reach (its balloon returns nothing to the host).
//! **Elastic**: the envelope (the growth that guests can show together before memtide has reacted, [`crate::belief::envelope`]) ≤ free.

use memtide_model::{Bytes, Commitment, Commits, Config, GuestSeen, GuestState, HostSeen};

use crate::constants::LINE_ENDS;

/// One guest's side of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The size that it was asked to keep; its actual if it was never asked.
    pub target: Bytes,
    /// The size that it keeps.
    pub actual: Bytes,
    /// The most that it may use without asking: max(target, actual), and each request under way at its worst.
    pub held: Bytes,
    /// Its cost now; its reach if that is unknown.
    pub footprint: Bytes,
    /// The part of the cost that is not the guest's own memory.
    pub overhead: Bytes,
    /// Its worst-case cost beyond held memory: overhead, and requested hot-plug.
    pub beyond: Bytes,
    /// Memory that it can still take by deflating its own balloon.
    pub self_deflation: Bytes,
    /// Pages that a pool of huge pages keeps for it: a part of its held memory that the ledger counts in the host's other use.
    pub kept_in_pool: Bytes,
}

impl Entry {
    /// The entry of a guest; `before` is its remembered state.
    #[must_use]
    pub fn new(seen: &GuestSeen, before: &GuestState) -> Self {
        let actual = seen.actual();
        let target = if seen.has_driver() {
            before.target.unwrap_or(actual).min(seen.told.full)
        } else {
            seen.told.full
        };
        let under_way = before.under_way.iter().map(|asked| asked.request.keeps_at_most(actual));
        let held = under_way.fold(target.max(actual), Bytes::max).min(seen.told.full.max(actual));
        let beyond = seen.cost.overhead_bound.saturating_add(seen.unplugged_request());
        let self_deflation =
            if seen.deflates_itself() { seen.told.full.saturating_sub(held) } else { Bytes::ZERO };
        let kept_in_pool = seen.cost.kept_in_pool().min(held);
        let reach = held.saturating_sub(kept_in_pool).saturating_add(beyond);
        let footprint = seen.cost.footprint.latest().copied().unwrap_or(reach);
        let footprint = match seen.capabilities.commits {
            Commits::WhenTouched => footprint,
            Commits::WhenGranted => footprint.max(held.saturating_add(seen.cost.overhead)),
        };
        assert!(
            actual <= held && target <= held,
            "a guest may use all that it keeps and all that it was asked to keep"
        );
        Self {
            target,
            actual,
            held,
            footprint,
            overhead: seen.cost.overhead,
            beyond,
            self_deflation,
            kept_in_pool,
        }
    }

    /// Its memory that the host backs. The rest of its held memory costs nothing, and taking that rest frees nothing.
    #[must_use]
    pub fn touched(&self) -> Bytes {
        self.footprint.saturating_sub(self.overhead).min(self.held)
    }

    /// Its worst-case cost without asking.
    #[must_use]
    pub fn reach(&self) -> Bytes {
        self.held.saturating_sub(self.kept_in_pool).saturating_add(self.beyond)
    }

    /// The same guest without its VMM's memory.
    #[must_use]
    pub fn own(&self) -> Self {
        let footprint = self.footprint.saturating_sub(self.overhead);
        Self { footprint, overhead: Bytes::ZERO, beyond: Bytes::ZERO, ..*self }
    }

    /// Its possible growth without asking.
    #[must_use]
    pub fn exposure(&self) -> Bytes {
        self.reach().saturating_sub(self.footprint)
    }

    /// Its cost in the strict rule.
    #[must_use]
    pub fn strict_cost(&self) -> Bytes {
        self.reach().max(self.footprint)
    }
}

/// Growth that is expected of the guests together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Their growth within one reaction time, at most.
    pub envelope: Bytes,
    /// Their present growth within one reaction time.
    pub present: Bytes,
    /// The rise of all memory in use to its high-water mark.
    pub rise: Bytes,
    /// The most of a guest's own deflation that counts (strict).
    pub self_deflation: Bytes,
}

/// The host's side of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// All memory that the ledger counts.
    pub capacity: Bytes,
    /// Kept free of guests.
    pub reserve: Bytes,
    /// The cost of everything except guests.
    pub other: Bytes,
    /// The rest of torn huge pages.
    pub torn: Bytes,
    /// The guests' cost now.
    pub footprints: Bytes,
    /// The guests' worst-case cost without asking.
    pub reach: Bytes,
    /// The guests' cost in the strict rule.
    pub strict_costs: Bytes,
    /// The possible growth of all guests without asking; elastic: including their own deflations.
    pub exposures: Bytes,
    /// The k largest self-deflations, as far as each counts.
    pub self_deflation: Bytes,
    /// The most of a guest's own deflation that counts (strict).
    pub within: Bytes,
    /// The envelope of growth that must fit into free memory (elastic).
    pub envelope: Bytes,
    /// The room that the commitment leaves.
    pub room: Room,
    /// Memory for grants to guests that lack memory in use or needed cache. Elastic: all that is free above 5/4 of the line of the state
    /// low, less the present growth.
    pub in_need: Bytes,
    /// The spare memory that is left if the host's use rises to its high-water mark again: for comfort.
    pub calm: Bytes,
}

/// The room for grants, or the lack of it. At most one of the two is above zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Memory that may be granted.
    pub spare: Bytes,
    /// Memory that must come back.
    pub short: Bytes,
}

impl Room {
    /// The rest of `have` after `need`, or the part of `need` that it does not cover.
    #[must_use]
    pub fn between(have: Bytes, need: Bytes) -> Self {
        Self { spare: have.saturating_sub(need), short: need.saturating_sub(have) }
    }
}

impl Ledger {
    /// The ledger of a host, with the guests' growth that is expected of them together.
    #[must_use]
    pub fn new<'a>(
        config: &Config,
        host: &HostSeen,
        reserve: Bytes,
        entries: impl Iterator<Item = &'a Entry> + Clone,
        expected: Expected,
    ) -> Self {
        let capacity = host.capacity;
        let torn = host.torn.latest().copied().unwrap_or_default();
        let within = expected.self_deflation;
        let mut ledger = Self { capacity, reserve, other: host.other, torn, within, ..Self::default() };
        for entry in entries.clone() {
            ledger.footprints = ledger.footprints.saturating_add(entry.footprint);
            ledger.reach = ledger.reach.saturating_add(entry.reach());
            ledger.strict_costs = ledger.strict_costs.saturating_add(entry.strict_cost());
            // Strict: growth by self-deflation has a room of its own.
            let own = match config.commitment {
                Commitment::Strict => Bytes::ZERO,
                Commitment::Elastic => entry.self_deflation,
            };
            let most = entry.reach().saturating_add(own);
            ledger.exposures = ledger.exposures.saturating_add(most.saturating_sub(entry.footprint));
        }
        let own = entries.map(|entry| entry.self_deflation.min(within));
        ledger.self_deflation = largest(own, config.self_deflations);
        ledger.envelope = expected.envelope.min(ledger.exposures);
        let line = LINE_ENDS.of(host.share(config.states.low()));
        match config.commitment {
            Commitment::Strict => {
                ledger.room = ledger.strict_room();
                let all = capacity.saturating_sub(Bytes::sum([ledger.other, torn, line]));
                ledger.in_need = ledger.room.spare.max(all.saturating_sub(ledger.strict_costs));
            }
            Commitment::Elastic => {
                let need = ledger.footprints.saturating_add(ledger.envelope);
                ledger.room = Room::between(ledger.for_guests(), need);
                let kept = line.saturating_add(expected.present.min(ledger.exposures));
                ledger.in_need = ledger.really_free().saturating_sub(kept);
            }
        }
        ledger.calm = ledger.room.spare.saturating_sub(expected.rise);
        ledger
    }

    fn strict_room(&self) -> Room {
        Room::between(self.for_guests(), self.strict_costs.saturating_add(self.self_deflation))
    }

    /// The capacity that is left for guests and their VMMs.
    #[must_use]
    pub fn for_guests(&self) -> Bytes {
        self.capacity.saturating_sub(self.reserve).saturating_sub(self.other).saturating_sub(self.torn)
    }

    /// The excess of the guests' strict costs over the capacity that others leave, with the reserve counted as available.
    #[must_use]
    pub fn over(&self) -> Bytes {
        Bytes::sum([self.strict_costs, self.other, self.torn]).saturating_sub(self.capacity)
    }

    /// Unused memory, including the reserve: the host swaps or kills once it is gone.
    #[must_use]
    pub fn really_free(&self) -> Bytes {
        self.capacity.saturating_sub(Bytes::sum([self.other, self.torn, self.footprints]))
    }

    /// Unused memory without the reserve.
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
