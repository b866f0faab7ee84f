//! A guest as the promises see it.

use std::borrow::Cow;

use memtide_model::{
    Bytes, Class, Commits, Config, GuestSeen, Hold, Keeps, Limit, Moment, Snapshot, Span, Withheld, Witness,
    Witnessed,
};

use super::gain;
use super::witness::RESET;

/// A guest that has been content for this long lacks nothing.
const CONTENT: Span = Span::from_secs(30);

/// A guest in a snapshot, with the check's own record of it.
pub struct Known<'a> {
    pub seen: &'a GuestSeen,
    pub record: Witnessed,
    pub class: Cow<'a, Class>,
    /// The memory that it keeps.
    pub keeps: Bytes,
    /// The last target that it was asked to keep.
    pub pending: Bytes,
    /// Memory that it was granted, until somebody else has just moved its balloon.
    pub void: Bytes,
}

/// The guests of a snapshot.
pub fn known<'a>(config: &'a Config, witness: &Witness, seen: &'a Snapshot) -> Vec<Known<'a>> {
    let mut records = witness.guests.iter().peekable();
    let guests = seen.guests.iter().map(|guest| {
        // Both are in order of identity.
        while records.next_if(|(id, _)| **id < guest.id).is_some() {}
        let record = records.next_if(|(id, _)| **id == guest.id).map(|(_, record)| *record);
        Known::new(config, record.unwrap_or_default(), guest, seen.taken_at)
    });
    guests.collect()
}

impl<'a> Known<'a> {
    fn new(config: &'a Config, record: Witnessed, seen: &'a GuestSeen, now: Moment) -> Self {
        let keeps = seen.actual();
        // It is doubtful if more than the reported actual is available in the guest; without statistics, as long as it does not change.
        let lately = record.reset_at.is_some_and(|at| now.since(at) < RESET);
        let keeps = if lately && !seen.told.reset {
            let available = seen.told.stats.fresh().and_then(|stats| stats.available);
            let unmoved = record.was == keeps || record.was == seen.told.full;
            let doubtful = available.map_or(unmoved, |available| available > keeps);
            if doubtful { seen.told.full } else { keeps }
        } else {
            keeps
        };
        let asked = record.target.filter(|_| seen.has_driver());
        // Somebody else has just moved its balloon: memtide's target is void.
        let is_void = matches!(record.hold, Some(Hold { keeps: Keeps::Foreign { .. }, .. }));
        let void = asked.filter(|_| is_void).map_or(Bytes::ZERO, |target| target.saturating_sub(keeps));
        let asked = asked.filter(|_| !is_void);
        Self {
            seen,
            record,
            class: config.class_of_seen(seen).1,
            keeps,
            pending: asked.map_or(keeps, |target| target.min(seen.told.full)),
            void,
        }
    }

    /// The memory that it may use without asking, before the plan.
    pub fn held(&self) -> Bytes {
        let all = if gain::is_vain(&self.record) { self.seen.told.full } else { Bytes::ZERO };
        self.pending.max(self.keeps).max(all)
    }

    /// Why the host gains nothing from it, if that is known or was seen.
    pub fn why_withheld(&self) -> Option<Withheld> {
        gain::why_withheld(self.seen, &self.record)
    }

    /// The most recent order or event that makes memtide leave it alone.
    pub const fn hold(&self) -> Option<Hold> {
        self.record.hold
    }

    /// Whether the operator released it.
    pub fn is_released(&self) -> bool {
        self.hold().is_some_and(|hold| hold.keeps == Keeps::Limit)
    }

    /// Whether nobody may change it, whatever was ordered.
    pub fn must_be_left_alone(&self) -> bool {
        !self.class.manage
            || !self.seen.capabilities.can_be_set
            || self.seen.told.fence.is_some()
            || self.seen.told.reset
            || self.seen.told.balloon.fresh().is_none()
    }

    /// Whether its size may not follow from anything but its hold.
    pub fn stands_outside(&self) -> bool {
        self.must_be_left_alone() || (self.hold().is_some() && !self.is_released())
    }

    /// Its free memory, without page cache; zero without fresh statistics.
    pub fn free(&self) -> u128 {
        let stats = self.seen.told.stats.fresh();
        u128::from(stats.and_then(|stats| stats.free).unwrap_or_default().get())
    }

    /// The memory available in it; unknown without fresh statistics.
    pub fn available(&self) -> Option<Bytes> {
        self.seen.told.stats.fresh()?.available
    }

    /// Its available memory plus its pending grant.
    pub fn left(&self) -> Option<u128> {
        let pending = self.held().saturating_sub(self.keeps);
        Some(u128::from(self.available()?.get()) + u128::from(pending.get()))
    }

    /// Its worst-case cost if it holds `held`.
    pub fn reach(&self, held: Bytes) -> u128 {
        let plug = self.seen.told.hotplug.latest().map_or(0, |plug| {
            u128::from(plug.requested.get()).saturating_sub(u128::from(plug.plugged.get()))
        });
        // The pages that a pool keeps for it are in the host's other use.
        let counted = held.saturating_sub(self.seen.cost.kept_in_pool());
        u128::from(counted.get()) + u128::from(self.seen.cost.overhead_bound.get()) + plug
    }

    /// The same, or its footprint if that is larger.
    pub fn strict_cost(&self, held: Bytes) -> u128 {
        let footprint = self.seen.cost.footprint.latest().map_or(0, |bytes| u128::from(bytes.get()));
        self.reach(held).max(footprint)
    }

    /// Its cost now; its worst-case cost if that is unknown.
    pub fn costs(&self) -> u128 {
        let reach = self.reach(self.held());
        let seen = self.seen.cost.footprint.latest().map_or(reach, |bytes| u128::from(bytes.get()));
        match self.seen.capabilities.commits {
            Commits::WhenTouched => seen,
            Commits::WhenGranted => {
                seen.max(u128::from(self.held().get()) + u128::from(self.seen.cost.overhead.get()))
            }
        }
    }

    /// The memory of it that the host backs.
    pub fn touched(&self) -> u128 {
        let own = self.costs().saturating_sub(u128::from(self.seen.cost.overhead.get()));
        own.min(u128::from(self.held().get()))
    }

    /// The growth that it can show without asking, its own deflation included.
    pub fn exposure(&self) -> u128 {
        let itself = u128::from(self.self_deflation());
        (self.reach(self.held()) + itself).saturating_sub(self.costs())
    }

    pub fn deflates_itself(&self) -> bool {
        !gain::is_vain(&self.record) && self.seen.deflates_itself()
    }

    /// The memory that it can still take by deflating its own balloon.
    pub fn self_deflation(&self) -> u64 {
        let rest = self.seen.told.full.saturating_sub(self.held()).get();
        if self.deflates_itself() { rest } else { 0 }
    }

    /// The memory that no balloon may take: memory plugged by virtio-mem, and 32 MiB for the kernel.
    fn least(&self) -> Bytes {
        let plugged = self.seen.told.hotplug.latest().map_or(0, |plug| plug.plugged.get());
        Bytes::new(plugged).saturating_add(Config::LEAST_TARGET).min(self.seen.told.full)
    }

    /// The least that it may be asked to keep.
    pub fn reservation(&self) -> Bytes {
        if self.why_withheld().is_some() {
            return self.whole_pages(self.seen.told.full);
        }
        self.whole_pages(self.class.reservation.min(self.seen.told.full).max(self.least()))
    }

    /// The most that it may be given.
    pub fn limit(&self) -> Bytes {
        if self.why_withheld().is_some() {
            return self.seen.told.full;
        }
        match self.class.limit {
            Limit::At(limit) if limit < self.seen.told.full => {
                limit.max(self.reservation()).max(self.least())
            }
            _ => self.seen.told.full,
        }
    }

    /// The largest multiple of its step that is not above `bytes`.
    pub fn whole_pages(&self, bytes: Bytes) -> Bytes {
        Bytes::new(bytes.get() - bytes.get() % self.seen.capabilities.step.bytes().get())
    }

    /// The most memory that it can want beyond what it holds.
    pub fn can_want(&self, now: Moment) -> u128 {
        let is_content = self.record.content_since.is_some_and(|since| now.since(since) >= CONTENT);
        let wants = self.is_released() || (self.available().is_some() && !is_content);
        let wanted = match wants {
            _ if self.stands_outside() => return 0,
            true => self.limit(),
            // It may have a larger one than it had: a reload, or memory that turned out to be pinned.
            false => self.reservation(),
        };
        u128::from(wanted.saturating_sub(self.held()).get())
    }

    /// Whether its size follows from its target: it may be stuck otherwise, or somebody else moves its balloon.
    pub fn is_at_target(&self) -> bool {
        self.keeps.abs_diff(self.pending) <= Bytes::from_mib(1)
    }

    /// The headroom of a guest that does not grow.
    pub fn headroom(&self) -> u128 {
        (u128::from(self.seen.told.full.get()) / 32).clamp(16 << 20, 512 << 20)
    }

    /// The time for which it has made no progress towards its target.
    pub fn stuck_for(&self, now: Moment) -> Option<Span> {
        self.record.tries_since.map(|since| now.since(since))
    }
}

/// A sum for a message, at most what 64 bits hold.
pub fn narrow(bytes: u128) -> Bytes {
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
}
