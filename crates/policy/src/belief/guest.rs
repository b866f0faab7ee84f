//! A guest within a decision: its snapshot, its remembered state, and the results of the stages.

use std::borrow::Cow;
use std::sync::Arc;

use memtide_model::{
    Absence, AgentAsked, Bounds, Bytes, Class, Config, Deed, GuestId, GuestSeen, GuestState, Hold, Keeps,
    Moment, Order, PAGE_4K, PageSize, Span, Spared, Verdict, Withheld,
};

use crate::belief::gain;
use crate::belief::ledger::Entry;
use crate::belief::need::{self, Need};
use crate::belief::search::Heard;
use crate::belief::stuck;
use crate::constants::{BOOTS, REACTS_WITH, RESET_SETTLES, SWAPS, TIER_LEAST, TOLERANCE};

/// The tiers of a guest's need, in the order in which they are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Guaranteed memory.
    Reservation,
    /// Memory in use, with headroom.
    InUse,
    /// Page cache that the guest was seen to need.
    Cache,
    /// Growth that the guest has shown before.
    Ahead,
    /// Everything else, up to the limit.
    Limit,
}

/// The number of tiers.
pub const TIERS: usize = 5;

/// A guest and the results of all stages for it.
#[derive(Debug)]
pub struct Guest<'a> {
    /// The guest in the snapshot.
    pub seen: &'a GuestSeen,
    /// Its remembered state.
    pub before: &'a GuestState,
    /// The state to remember.
    pub next: Box<GuestState>,
    /// The name of its class.
    pub class_name: &'a Arc<str>,
    /// Its class.
    pub class: Cow<'a, Class>,
    /// Memory that it uses and that its kernel swaps to its tier now; zero if it does not swap.
    pub swaps: Bytes,
    /// The most of its memory that may lie in a compressed tier; zero: it gets none.
    pub tier_allowed: Bytes,
    /// The smallest and the largest size that it may get.
    pub bounds: Bounds,
    /// Its side of the ledger.
    pub entry: Entry,
    /// The memory that it keeps with an empty balloon. Like the next three, it is read for each guest many times, and the snapshot of
    /// thousands of guests fits into no cache of a processor.
    pub full: Bytes,
    step: PageSize,
    dead_band: Bytes,
    deflates_itself: bool,
    /// Why the host gains nothing from memory that it gives, or others lose some.
    pub withheld: Option<Withheld>,
    /// The reason for leaving it alone; `None` for a guest that can be changed.
    pub left_alone: Option<Verdict>,
    /// Its hold after the operator's orders, before any foreign movement is detected.
    pub was_held: Option<Hold>,
    /// If its hold ends with this decision: the guest that lacks memory most (`None` for the host), and how much.
    pub hold_ends: Option<(Option<GuestId>, Bytes)>,
    /// What it needs.
    pub need: Need,
    /// What its search for page cache heard.
    pub heard: Option<Heard>,
    /// What its tmpfs can spare for comfort.
    pub calm: Bytes,
    /// The size that its shares alone would give it if every guest needed all that it could get.
    pub by_shares: Bytes,
    /// Its fair share. It may grow to this size at once.
    pub entitlement: Bytes,
}

impl<'a> Guest<'a> {
    /// A guest before the first stage; `blank` is the state of a guest that was never seen, `orders` are the operator's.
    #[must_use]
    pub fn new(
        config: &'a Config,
        seen: &'a GuestSeen,
        orders: &[Order],
        before: Option<&'a GuestState>,
        blank: &'a GuestState,
        now: Moment,
    ) -> Self {
        let (class_name, class) = config.class_of_seen(seen);
        let first_seen = before.map_or(now, |before| before.first_seen);
        let before = before.unwrap_or(blank);
        let gain = gain::judge(before, seen, now);
        let in_vain = gain::why_withheld(&gain);
        let mut entry = believed(Entry::new(seen, before), seen, before, now);
        if in_vain.is_some() {
            // The host pays for all of it, whatever its balloon says.
            (entry.held, entry.self_deflation) = (entry.held.max(seen.told.full), Bytes::ZERO);
        }
        let hold = Hold::in_force(before.hold, orders.iter().filter(|order| order.guest == seen.id), now);
        let withheld = seen.withheld.clone().or(in_vain);
        let bounds = bounds(&class, seen, withheld.is_some(), hold);
        // A held guest that has arrived follows no target any more.
        let is_held = hold.is_some_and(|hold| hold.keeps == Keeps::Size);
        let mut next = Box::new(before.clone());
        next.target = before.target.filter(|_| !(is_held && stuck::at_target(&entry)));
        next.first_seen = first_seen;
        next.actual = seen.actual();
        next.footprint = seen.cost.footprint.fresh().copied().or(before.footprint);
        next.hold = hold;
        next.gain = gain;
        if seen.told.reset {
            (next.reset_at, next.told_since) = (Some(now), None);
        }
        let stays = hold.filter(|hold| !is_on_its_way(*hold, &entry, bounds, seen.told.full));
        let left_alone = why_left_alone(seen, &class, stays);
        Self {
            seen,
            before,
            next,
            class_name,
            swaps: Bytes::ZERO,
            tier_allowed: config
                .tier_of(&class)
                .map_or(Bytes::ZERO, |tier| tier.of(seen.told.full))
                .round_down(PAGE_4K),
            class,
            bounds,
            entry,
            full: seen.told.full,
            step: seen.capabilities.step,
            dead_band: need::dead_band(seen.told.full),
            deflates_itself: seen.deflates_itself(),
            withheld,
            left_alone,
            was_held: hold,
            hold_ends: None,
            need: Need::default(),
            heard: None,
            calm: Bytes::MAX,
            by_shares: entry.held,
            entitlement: entry.held,
        }
    }

    /// A target must be a multiple of this.
    #[must_use]
    pub const fn step(&self) -> PageSize {
        self.step
    }

    /// Whether its size may be changed.
    #[must_use]
    pub const fn is_managed(&self) -> bool {
        self.left_alone.is_none()
    }

    /// What lies in its tier and counts as used: what its kernel wrote there without being asked, and all of it if the tier was in vain or is allowed no more.
    /// Otherwise, to take what the guest uses would only write more of it there.
    #[must_use]
    pub fn used_in_tier(&self, now: Moment) -> Bytes {
        let must_go = self.next.tier.vain.lasts(now) || self.tier_allowed.is_zero();
        let trusted = if must_go { Bytes::ZERO } else { self.next.tier.trusted };
        let stored = self.seen.cost.tier.latest().map_or(Bytes::ZERO, |tier| tier.stored);
        stored.saturating_sub(trusted)
    }

    /// Memory that it uses and that its kernel swaps to its tier now: it writes without being asked, or reads such memory back.
    #[must_use]
    pub fn swaps_in_use(&self, now: Moment) -> Bytes {
        let (Some(tier), Some((wrote, read))) = (self.seen.cost.tier.fresh(), self.before.tier.seen) else {
            return Bytes::ZERO;
        };
        let used = self.used_in_tier(now);
        let reads = used >= TIER_LEAST && tier.read > read.saturating_add(SWAPS);
        let swaps = !self.next.tier.vain.lasts(now) && (used > wrote.saturating_add(SWAPS) || reads);
        if swaps { used } else { Bytes::ZERO }
    }

    /// Whether it is managed, and no hold stands or ends now.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.is_managed() && self.next.hold.is_none() && self.hold_ends.is_none()
    }

    /// Whether its memory is withheld.
    #[must_use]
    pub const fn is_withheld(&self) -> bool {
        self.withheld.is_some()
    }

    /// Whether it may deflate its own balloon.
    #[must_use]
    pub const fn deflates_itself(&self) -> bool {
        self.deflates_itself
    }

    /// Whether its freed memory returns to the host by itself.
    #[must_use]
    pub fn reports_freed(&self) -> bool {
        let balloon = self.seen.told.balloon.latest();
        self.seen.capabilities.reports_freed && balloon.is_some_and(|balloon| balloon.free_page_reporting)
    }

    /// Whether it gets its limit, regardless of its need.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.next.hold.is_some_and(|hold| hold.keeps == Keeps::Limit)
    }

    /// Leaves it alone with the size that somebody else gave it: memtide's own target is void.
    pub(crate) fn leave_as_it_is(&mut self, hold: Hold) {
        self.next.hold = Some(hold);
        self.next.target = None;
        self.next.target_set_at = None;
        self.left_alone = Some(Verdict::Held(hold));
    }

    /// Whether only its hold keeps it from being managed.
    #[must_use]
    pub const fn ends_free(&self) -> bool {
        matches!(self.left_alone, Some(Verdict::Held(_)))
    }

    /// Ends its hold for the guest (`None` for the host) and the lack in `lacking`.
    pub(crate) fn is_managed_again(&mut self, lacking: (Option<GuestId>, Bytes)) {
        self.left_alone = None;
        self.hold_ends = Some(lacking);
    }

    /// Memory beyond what its shares alone would give it, which it keeps because somebody else deflated its balloon. A guest that may
    /// deflate its own balloon may have done so itself.
    #[must_use]
    pub fn unordered(&self) -> Bytes {
        match self.next.hold.filter(|_| self.hold_ends.is_none()) {
            Some(Hold { keeps: Keeps::Foreign { from, .. }, .. }) if !self.deflates_itself() => {
                self.entry.held.saturating_sub(from.max(self.by_shares))
            }
            _ => Bytes::ZERO,
        }
    }

    /// The time since it was asked for memory: its balloon, if it has just given the last of it; its agent, if it still trims. Of an inflation, the
    /// time for [`REACTS_WITH`] counts: a guest that grows does not wait for the rest.
    pub fn reacts_after(&self, now: Moment) -> Option<Span> {
        let arrived = self.before.stuck.progress_at.is_some()
            && self.before.actual > self.entry.target
            && stuck::at_target(&self.entry);
        let given = self.before.target_set_from.saturating_sub(self.entry.target);
        let counts = |since: Span| match given > REACTS_WITH {
            true => Span::from_millis(REACTS_WITH.mul_div(since.as_millis(), given.get()).get()),
            false => since,
        };
        let balloon = self.before.target_set_at.filter(|_| arrived).map(|at| counts(now.since(at)));
        let works = self.seen.told.agent.latest().is_some_and(|agent| agent.busy);
        let trims = |asked: &AgentAsked| works && matches!(asked.deed, Deed::Trim(_));
        let agent = self.before.agent.asked.filter(trims).map(|asked| asked.at);
        balloon.max(agent.map(|at| now.since(at)))
    }

    /// The growth of its footprint since the last decision.
    pub fn growth(&self) -> Bytes {
        match (self.seen.cost.footprint.fresh(), self.before.footprint) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => Bytes::ZERO,
        }
    }

    /// What it took by deflating its own balloon since the last decision. A size that was not told before is no deflation.
    pub fn deflated_itself_by(&self) -> Bytes {
        let is_same = self.before.gain.full == self.full && !self.seen.told.reset;
        let is_known = self.deflates_itself && self.before.told_since.is_some() && is_same;
        let asked = self.before.target.unwrap_or(self.before.actual).max(self.before.actual);
        if is_known { self.seen.actual().saturating_sub(asked) } else { Bytes::ZERO }
    }

    /// Whether it may be asked for memory.
    #[must_use]
    pub fn may_give(&self, now: Moment) -> bool {
        self.spared(now).is_none()
    }

    /// Why it may not be asked for memory.
    #[must_use]
    pub fn spared(&self, now: Moment) -> Option<Spared> {
        match () {
            () if !self.is_managed() => Some(Spared::LeftAlone),
            () if self.is_withheld() => Some(Spared::Withheld),
            () if gain::is_in_doubt(&self.next.gain, now) => Some(Spared::InDoubt),
            () if self.is_awaited(now) => Some(Spared::Awaited),
            () if self.is_stuck(now) => Some(Spared::Stuck),
            () if self.next.lifted_at.is_some() => Some(Spared::Lifted),
            () => None,
        }
    }

    /// Whether its balloon inflates at memtide's request.
    #[must_use]
    pub fn inflates(&self) -> bool {
        let under_way = self.entry.actual > self.entry.target.saturating_add(TOLERANCE);
        under_way || (self.before.target.is_some() && self.before.actual > self.entry.actual)
    }

    /// Whether it makes no progress and is left out.
    #[must_use]
    pub fn is_stuck(&self, now: Moment) -> bool {
        stuck::is_stuck(&self.next.stuck, now)
    }

    /// Whether its balloon did not deflate when it was asked to, so that it is granted nothing.
    #[must_use]
    pub fn is_stuck_taking(&self, now: Moment) -> bool {
        stuck::is_stuck_taking(&self.next.stuck, now)
    }

    /// Whether it can give memory.
    #[must_use]
    pub fn is_donor(&self, now: Moment) -> bool {
        matches!(self.spared(now), None | Some(Spared::Lifted))
    }

    /// Whether its first statistics are on their way.
    #[must_use]
    pub fn is_awaited(&self, now: Moment) -> bool {
        let silent = self.before.counters.is_none() && self.need.used.is_none();
        let booting = now.since(self.before.polled_at.unwrap_or(self.next.first_seen)) < BOOTS;
        self.is_managed() && silent && booting
    }

    /// The sizes that meet each tier of its need, within its bounds in the order of [`Tier`].
    #[must_use]
    pub fn tiers(&self) -> [Bytes; TIERS] {
        let (least, most) = (self.bounds.reservation(), self.bounds.limit());
        if self.is_released() {
            return [least, most, most, most, most];
        }
        if self.need.used.is_none() {
            let held = self.entry.held.min(most);
            return [least.min(held), held, held, held, held];
        }
        let clamp = |size| self.bounds.clamp(size);
        let (in_use, cache) = (clamp(self.need.in_use()), clamp(self.need.with(self.need.cache)));
        [least, in_use, cache, clamp(self.need.total()), most]
    }

    /// Memory in use with headroom, within its bounds; without fresh statistics, the memory that it holds.
    #[must_use]
    pub fn in_use(&self) -> Bytes {
        self.tiers()[1]
    }

    /// Memory in use that it does not hold, up to its fair share.
    #[must_use]
    pub fn lacks_in_use(&self) -> Bytes {
        self.lacks(self.in_use())
    }

    /// Used memory, the free memory that its kernel cannot use, and the least headroom that it does not hold.
    #[must_use]
    pub fn lacks_used(&self) -> Bytes {
        let least = need::headroom_floor(self.full);
        let used = self.need.used.map(|used| used.max(self.need.uses.saturating_sub(self.need.headroom)));
        used.unwrap_or_default().saturating_add(least).saturating_sub(self.entry.held)
    }

    /// Memory in use and needed cache that it does not hold, up to its fair share.
    #[must_use]
    pub fn lacks_cache(&self) -> Bytes {
        self.lacks(self.tiers()[2])
    }

    /// The part of `need` that it does not hold, up to its fair share. Less than a dead band is nothing, except to a guest that has hardly any
    /// headroom left. A guest whose hold ends is granted nothing yet.
    fn lacks(&self, need: Bytes) -> Bytes {
        if !self.is_managed() || self.hold_ends.is_some() || (self.need.used.is_none() && !self.is_released())
        {
            return Bytes::ZERO;
        }
        // What it swaps, another guest would have taken by deflating its balloon.
        let share = self.entitlement.max(self.entry.held.saturating_add(self.swaps));
        let lacks = need.min(share).saturating_sub(self.entry.held);
        if lacks > self.least_grant() { lacks } else { Bytes::ZERO }
    }

    /// A grant must be larger than this: a dead band, or next to nothing for a guest whose headroom is smaller than a dead band. Its programs may
    /// die for want of what its share still has, unless it can deflate its own balloon.
    pub(crate) fn least_grant(&self) -> Bytes {
        let has_used = |used: Bytes| used.saturating_add(self.dead_band()) > self.entry.held;
        let is_dry = !self.deflates_itself && self.need.used.is_some_and(has_used);
        if is_dry { TOLERANCE } else { self.dead_band() }
    }

    /// Whether it lacks memory in use and takes more, or has stalled in the last seconds. A quiet guest that lacks only headroom can
    /// wait. One whose want would not show cannot.
    #[must_use]
    pub fn starves(&self) -> bool {
        let in_want = self.takes_more() || self.next.stalled.is_some() || !self.need.shows_refaults();
        in_want && !self.lacks_in_use().is_zero()
    }

    /// Whether it has been seen to grow.
    #[must_use]
    pub fn has_shown_growth(&self) -> bool {
        self.next.surge.peak > self.dead_band()
    }

    /// Whether it takes more memory: its cost grows, or the used part of it.
    pub(crate) fn takes_more(&self) -> bool {
        self.next.surge.recent.max(self.next.growth.recent) > self.dead_band()
    }

    /// Too little to act on.
    #[must_use]
    pub const fn dead_band(&self) -> Bytes {
        self.dead_band
    }

    /// Whether its free memory is filled: little more is free than its kernel keeps.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.seen.told.stats.fresh().is_some_and(|stats| need::is_full(stats, self.full))
    }
}

/// After a reset, QEMU keeps reporting the old actual until the new driver has moved the balloon. For [`RESET_SETTLES`],
/// the actual is believed only if the guest has no more than that available, or, without statistics, if the actual has changed.
/// Otherwise the guest counts with its full size.
fn believed(entry: Entry, seen: &GuestSeen, before: &GuestState, now: Moment) -> Entry {
    let doubtful = match seen.told.stats.fresh().and_then(|stats| stats.available) {
        Some(available) => available > entry.actual,
        None => entry.actual == before.actual || before.actual == seen.told.full,
    };
    let lately = before.reset_at.is_some_and(|at| now.since(at) < RESET_SETTLES);
    if seen.told.reset || !lately || !doubtful {
        return entry;
    }
    let target = before.target.map_or(seen.told.full, |_| entry.target);
    let footprint =
        seen.cost.footprint.latest().copied().unwrap_or(seen.told.full.saturating_add(entry.beyond));
    let self_deflation = Bytes::ZERO;
    Entry { target, actual: seen.told.full, held: seen.told.full, footprint, self_deflation, ..entry }
}

/// A guest's bounds: those of its class, and at least the memory that a balloon must leave. Memory plugged by virtio-mem is
/// outside the balloon's reach. A released guest gets all that it may have. A guest whose memory is withheld gets its full size, since the host
/// pays for all of it in any case.
fn bounds(class: &Class, seen: &GuestSeen, is_withheld: bool, hold: Option<Hold>) -> Bounds {
    if is_withheld {
        return Bounds::new(seen.told.full, seen.told.full).expect("a size is not above itself");
    }
    let of_class = Bounds::of(class, seen.told.full);
    let plugged = seen.told.hotplug.latest().map_or(Bytes::ZERO, |hotplug| hotplug.plugged);
    let least = plugged.saturating_add(Config::LEAST_TARGET).min(seen.told.full);
    let limit = of_class.limit().max(least);
    let reservation = match hold {
        Some(Hold { keeps: Keeps::Limit, .. }) => limit,
        _ => of_class.reservation().max(least),
    };
    Bounds::new(reservation, limit).expect("both were raised to the same least size")
}

/// Whether a released guest is still more than a dead band below its limit.
fn is_on_its_way(hold: Hold, entry: &Entry, bounds: Bounds, full: Bytes) -> bool {
    let has_it = entry.target.min(entry.actual).saturating_add(need::dead_band(full)) >= bounds.limit();
    hold.keeps == Keeps::Limit && !has_it
}

fn why_left_alone(seen: &GuestSeen, class: &Class, hold: Option<Hold>) -> Option<Verdict> {
    if !seen.capabilities.can_be_set {
        return Some(Verdict::NoBalloon(
            seen.told.balloon.why_not().cloned().unwrap_or(Absence::Unsupported),
        ));
    }
    if !class.manage {
        return Some(Verdict::NotManaged);
    }
    if seen.told.reset {
        return Some(Verdict::Reset);
    }
    if let Some(fence) = seen.told.fence {
        return Some(Verdict::Fenced(fence));
    }
    if let Some(why) = seen.told.balloon.why_not() {
        return Some(Verdict::NoBalloon(why.clone()));
    }
    hold.map(Verdict::Held)
}
