//! Facts about all guests at a decision: the ledger, the host's state, and the wanted memory.
//!
//! **Terms.** *Wanted* memory must come from other guests. It has three degrees:
//! - *urgent*: a guest starves and cannot be granted memory now, or the host is in danger. It is worth all page cache that nobody was seen
//!   to need, at once;
//! - *for use*: guests lack memory in use and cannot be granted it now, or the host needs it in an emergency. Without the headroom of their
//!   growth, it is worth needed cache, and memory in use beyond the fair shares;
//! - *wanted at all*: a guest lacks needed cache, or the commitment is not kept. It is worth idle memory, and page cache that a search finds
//!   to be cold.

use memtide_model::{Bytes, Commitment, Config, HostSeen, HostState, Moment, PAGE_4K, Snapshot, Span, State};

use crate::belief::envelope::{self, Growth};
use crate::belief::guest::Guest;
use crate::belief::host_state;
use crate::belief::ledger::{Expected, Ledger};

/// Facts about all guests at this decision.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The moment of the snapshot.
    pub now: Moment,
    /// The kind of promise that the ledger makes.
    pub commitment: Commitment,
    /// Strict: the number of self-deflations that must fit.
    pub self_deflations: u32,
    /// The time between two rounds of squeezes of a guest while nothing is wanted.
    pub squeeze_every: Option<Span>,
    /// The ledger before the decision.
    pub ledger: Ledger,
    /// What is missing, for each guest alike, in whole pages.
    pub short_each: Bytes,
    /// The host's shortage.
    pub host: HostState,
    /// The host is low and not covered.
    pub emergency: bool,
    /// Memory that the host lacks if the guests grow on as they do.
    pub overrun: Bytes,
    /// The same, to have as much free as at the state low, and in an emergency as at the state hard.
    pub danger: Bytes,
    /// Free memory of the host above the state low.
    pub until_danger: Bytes,
    /// The present growth of the guests within a reaction time.
    pub growing: Bytes,
    /// What the guests' memory in use lacks of its high-water mark.
    pub rise: Bytes,
    /// The reaction time.
    pub reaction: Span,
    /// Memory in use that starving guests lack.
    pub starving: Bytes,
    /// The same without headroom for their growth: it is worth the needed cache of others.
    pub lacking_used: Bytes,
    /// The same, with the whole headroom of guests that would kill a program for want of it: they cannot deflate their own balloons.
    pub lacking_at_once: Bytes,
    /// Memory in use that guests lack.
    pub lacking: Bytes,
    /// The same, with the cache that they were seen to need.
    pub unmet: Bytes,
    /// Memory that guests keep beyond what their shares alone would give them, because somebody else deflated their balloons.
    pub unordered: Bytes,
    /// Torn memory that splits should return in a moment: no guest gives page cache for it.
    pub returning: Bytes,
}

/// The facts about a host from which its scene is made.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// Its ledger.
    pub ledger: Ledger,
    /// The number of its guests.
    pub guests: usize,
    /// Its state.
    pub state: HostState,
    /// The growth that is expected of its guests.
    pub expected: Expected,
    /// The reaction time.
    pub reaction: Span,
}

impl Scene {
    /// The ledger and the host's state. The guests' lack is counted once their fair shares are known.
    #[must_use]
    pub fn new(
        config: &Config,
        state: &State,
        seen: &Snapshot,
        guests: &[Guest<'_>],
        growth: Growth,
    ) -> Self {
        let expected = envelope::expected(config, guests, growth);
        let reserve = config.reserve_of(seen.host.capacity);
        let entries = guests.iter().map(|guest| &guest.entry);
        let ledger = Ledger::new(config, &seen.host, reserve, entries, expected);
        let host = host_state::judge(config, state, &seen.host, &ledger, seen.taken_at);
        let facts =
            HostFacts { ledger, guests: guests.len(), state: host, expected, reaction: growth.reaction };
        Self::of(config, seen.taken_at, &seen.host, facts)
    }

    /// The scene of a host.
    #[must_use]
    pub fn of(config: &Config, now: Moment, seen: &HostSeen, facts: HostFacts) -> Self {
        let HostFacts { ledger, guests, state: host, expected, reaction } = facts;
        let growing = expected.present.min(ledger.exposures);
        let covered = config.commitment == Commitment::Strict && ledger.room.short.is_zero();
        let emergency = host == HostState::Low && !covered;
        let safe = seen.share(if emergency { config.states.hard() } else { config.states.low() });
        Self {
            now,
            commitment: config.commitment,
            self_deflations: config.self_deflations,
            squeeze_every: config.squeeze_every,
            short_each: even_part(ledger.room.short, guests),
            ledger,
            host,
            emergency,
            overrun: soon_in_use(&ledger, growing).saturating_sub(ledger.capacity),
            danger: soon_in_use(&ledger, growing).saturating_add(safe).saturating_sub(ledger.capacity),
            until_danger: ledger.really_free().saturating_sub(seen.share(config.states.low())),
            growing,
            rise: expected.rise,
            reaction,
            starving: Bytes::ZERO,
            lacking_used: Bytes::ZERO,
            lacking_at_once: Bytes::ZERO,
            lacking: Bytes::ZERO,
            unmet: Bytes::ZERO,
            unordered: Bytes::ZERO,
            returning: Bytes::ZERO,
        }
    }

    /// Counts the guests' lack.
    pub fn count(&mut self, guests: &[Guest<'_>]) {
        for guest in guests {
            self.unordered = self.unordered.saturating_add(guest.unordered());
            // In an emergency, headroom of a quiet guest waits.
            let in_use = if self.emergency && !guest.starves() { Bytes::ZERO } else { guest.lacks_in_use() };
            self.lacking = self.lacking.saturating_add(in_use);
            // No guest gives memory for page cache that its guest's free memory has room for.
            let cache = if guest.is_full() { guest.lacks_cache() } else { Bytes::ZERO };
            self.unmet = self.unmet.saturating_add(cache.max(in_use));
            if guest.starves() {
                self.starving = self.starving.saturating_add(in_use);
                let used = in_use.min(guest.lacks_used());
                let at_once = if guest.deflates_itself() { used } else { in_use };
                self.lacking_used = self.lacking_used.saturating_add(used);
                self.lacking_at_once = self.lacking_at_once.saturating_add(at_once);
            }
        }
    }

    /// Urgently wanted memory.
    #[must_use]
    pub fn urgent(&self) -> Bytes {
        self.starving.saturating_sub(self.ledger.in_need).saturating_add(self.danger)
    }

    /// Strict: memory that the guests can take beyond all that there is.
    #[must_use]
    pub fn over(&self) -> Bytes {
        match self.commitment {
            Commitment::Strict => self.ledger.over().saturating_sub(self.forgiven()),
            Commitment::Elastic => Bytes::ZERO,
        }
    }

    /// Memory that is wanted for use. In an emergency, that is also all that is urgent.
    #[must_use]
    pub fn wanted_for_use(&self) -> Bytes {
        let urgent = if self.emergency { self.urgent() } else { Bytes::ZERO };
        self.lacking.saturating_sub(self.ledger.in_need).max(urgent)
    }

    /// The same without headroom for the growth of guests.
    #[must_use]
    pub fn wanted_for_used(&self) -> Bytes {
        let danger = if self.emergency { self.danger } else { Bytes::ZERO };
        self.lacks_used().saturating_add(danger)
    }

    /// Urgently wanted memory without headroom for the growth of guests that can deflate their own balloons.
    #[must_use]
    pub fn pressing(&self) -> Bytes {
        self.lacking_at_once.saturating_sub(self.ledger.in_need).saturating_add(self.danger)
    }

    /// Used memory that cannot be granted now.
    fn lacks_used(&self) -> Bytes {
        self.lacking_used.saturating_sub(self.ledger.in_need)
    }

    /// Strict: the part of the breach that no guest must make good: what guests keep although nobody ordered it, as long as no guest lacks anything.
    fn forgiven(&self) -> Bytes {
        match self.commitment {
            Commitment::Strict if self.unmet.is_zero() => self.unordered,
            _ => Bytes::ZERO,
        }
    }

    /// All wanted memory.
    #[must_use]
    pub fn wanted(&self) -> Bytes {
        let room = self.ledger.room;
        let short = room.short.saturating_sub(self.forgiven());
        let lacks = self.unmet.saturating_sub(room.spare).saturating_add(short);
        lacks.max(self.wanted_for_use()).max(self.urgent())
    }
}

/// An even part of `short` for each of the `guests`, in whole pages, and at least one.
fn even_part(short: Bytes, guests: usize) -> Bytes {
    let part = short.mul_div(1, guests.max(1) as u64).round_down(PAGE_4K);
    if short.is_zero() { Bytes::ZERO } else { part.max(PAGE_4K.bytes()) }
}

/// The host's memory in use once the guests have grown on as they do for a reaction time.
fn soon_in_use(ledger: &Ledger, growing: Bytes) -> Bytes {
    Bytes::sum([ledger.footprints, ledger.torn, ledger.other, growing])
}
