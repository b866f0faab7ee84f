//! A guest within a decision: its snapshot, its remembered state, and the results of the stages.

use std::sync::Arc;

use memtide_model::{
    Absence, Bounds, Bytes, Class, Config, GuestId, GuestSeen, GuestState, Hold, Keeps, Moment, Order,
    PageSize, Polling, Reason, Span, Verdict,
};

use crate::demand::{self, Demand};
use crate::ledger::Entry;
use crate::{stuck, tide};

/// A guest that never gave statistics is left alone for this long after it was first seen, or after its polling began: it boots.
const BOOTS: Span = Span::from_secs(15);
/// A guest whose polling never begins is left alone for this long.
const NEVER_POLLED: Span = Span::from_secs(60);
/// A helped guest that grows is granted one part in this many of its full size ahead.
const AHEAD_PART: u64 = 4;
/// For this long after its first statistics, a guest has just begun to work; an inflation would halve its speed.
const BEGINS: Span = Span::from_secs(5);
/// "Soon" is within this many reaction times.
const SOON: u64 = 8;

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
    pub class: &'a Class,
    /// The smallest and the largest size that it may get.
    pub bounds: Bounds,
    /// Its side of the ledger.
    pub entry: Entry,
    /// The reason for leaving it alone; `None` for a guest that can be changed.
    pub left_alone: Option<Verdict>,
    /// Its hold after the operator's orders, before any foreign movement is detected.
    pub was_held: Option<Hold>,
    /// If its hold ends with this decision: the guest that lacks memory most, and how much.
    pub hold_ends: Option<(GuestId, Bytes)>,
    /// Stage 1.
    pub demand: Demand,
    /// If it squealed: the cache that it gets back and its back-off.
    pub squeal: Option<(Bytes, Span)>,
    /// Whether this decision squeezed its cache.
    pub squeezed: bool,
    /// Memory that its kernel may keep ready for the next allocation: see [`crate::touched`].
    pub ready: Bytes,
    /// It will soon need all of its target.
    pub needs_all_soon: bool,
    /// Whether this decision sets the interval of its statistics.
    pub polled_now: bool,
    /// Stage 2.
    pub entitlement: Bytes,
}

impl<'a> Guest<'a> {
    /// A guest before the first stage; `blank` is the state of a guest that was never seen, `orders` are the operator's.
    #[must_use]
    pub fn new(
        config: &'a Config,
        (seen, orders): (&'a GuestSeen, &[Order]),
        before: Option<&'a GuestState>,
        blank: &'a GuestState,
        now: Moment,
    ) -> Self {
        let (class_name, class) = config.class_of(seen.id.name());
        let first_seen = before.map_or(now, |before| before.first_seen);
        let before = before.unwrap_or(blank);
        let entry = believed(Entry::new(seen, before), seen, before, now);
        let footprint = seen.cost.footprint.fresh().copied().or(before.footprint);
        let reset_at = if seen.told.reset { Some(now) } else { before.reset_at };
        let told_since = before.told_since.filter(|_| !seen.told.reset);
        let hold = Hold::in_force(before.hold, orders.iter().filter(|order| order.guest == seen.id), now);
        let bounds = bounds(class, seen, hold);
        // A held guest that has arrived follows no target any more.
        let is_held = hold.is_some_and(|hold| hold.keeps == Keeps::Size);
        let next = GuestState {
            target: before.target.filter(|_| !(is_held && stuck::at_target(&entry))),
            first_seen,
            actual: seen.actual(),
            footprint,
            reset_at,
            told_since,
            hold,
            ..before.clone()
        };
        Self {
            seen,
            before,
            next: Box::new(next),
            class_name,
            class,
            bounds,
            entry,
            left_alone: why_left_alone(
                seen,
                class,
                hold.filter(|hold| !is_on_its_way(*hold, &entry, bounds, seen.told.full)),
            ),
            was_held: hold,
            hold_ends: None,
            demand: Demand::default(),
            squeal: None,
            squeezed: false,
            ready: Bytes::ZERO,
            needs_all_soon: false,
            polled_now: false,
            entitlement: entry.held,
        }
    }

    /// A target must be a multiple of this.
    #[must_use]
    pub const fn step(&self) -> PageSize {
        self.seen.capabilities.step
    }

    /// Whether its size may be changed.
    #[must_use]
    pub const fn is_managed(&self) -> bool {
        self.left_alone.is_none()
    }

    /// Whether it may deflate its own balloon.
    #[must_use]
    pub fn deflates_itself(&self) -> bool {
        self.seen.told.balloon.latest().is_some_and(|balloon| balloon.deflate_on_oom)
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

    /// Ends its hold for the guest and the lack in `lacking`.
    pub(crate) fn is_managed_again(&mut self, lacking: (GuestId, Bytes)) {
        self.next.hold = None;
        self.left_alone = None;
        self.hold_ends = Some(lacking);
    }

    /// The time since it was asked for memory, if it has just given the last of it.
    pub fn arrived_after(&self, now: Moment) -> Option<Span> {
        let arrived = self.before.stuck.progress_at.is_some()
            && self.before.actual > self.entry.target
            && stuck::at_target(&self.entry);
        self.before.target_set_at.filter(|_| arrived).map(|at| now.since(at))
    }

    /// The growth of its footprint since the last decision.
    pub fn growth(&self) -> Bytes {
        match (self.seen.cost.footprint.fresh(), self.before.footprint) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => Bytes::ZERO,
        }
    }

    /// Whether it is taking more memory: more than a dead band within a reaction time.
    pub fn grows(&self) -> bool {
        self.next.surge.recent > demand::dead_band(self.seen.told.full)
    }

    /// Notes whether it grows so fast that it will soon need all of its target. Memory that it touched and freed is ready for it.
    pub fn look_ahead(&mut self) {
        let touched = self.entry.touched();
        let needs =
            self.demand.used.map_or(touched, |used| used.saturating_add(self.demand.cache).min(touched));
        let soon = self.next.surge.recent.mul_div(SOON, 1).saturating_add(needs);
        self.needs_all_soon = self.grows() && soon > self.entry.target;
    }

    /// Whether it may be asked for memory. Without urgency, not if it will need that memory itself or has just begun.
    #[must_use]
    pub fn may_give(&self, now: Moment, urgent: bool) -> bool {
        self.is_donor(now)
            && self.next.lifted_at.is_none()
            && (urgent || !(self.needs_all_soon || self.has_just_begun(now)))
    }

    /// Whether its statistics have only just begun.
    fn has_just_begun(&self, now: Moment) -> bool {
        self.next.told_since.is_some_and(|at| now.since(at) < BEGINS)
    }

    /// Memory granted ahead to a helped guest: a quarter of its full size while it grows. A grant costs it two ticks, and its
    /// growth must not wait for each.
    #[must_use]
    pub fn granted_ahead(&self) -> Bytes {
        match self.next.helped {
            Some(_) if self.takes_more() => self.seen.told.full.mul_div(1, AHEAD_PART),
            _ => Bytes::ZERO,
        }
    }

    /// The fall of its actual since the last decision.
    pub fn taken(&self) -> Bytes {
        self.before.actual.saturating_sub(self.entry.actual)
    }

    /// Memory that came back since the last decision because memtide inflated its balloon.
    pub fn returned(&self) -> Bytes {
        let taken = self.taken();
        match (self.next.footprint, self.before.footprint) {
            (Some(now), Some(before)) if self.inflates() => before.saturating_sub(now).min(taken),
            _ => Bytes::ZERO,
        }
    }

    /// Its cost above its baseline; updates the baseline. A guest has a baseline once it has given statistics: it has booted.
    pub fn rise(&mut self, elapsed: Span, memory: Span) -> Bytes {
        let Some(footprint) = self.next.footprint.filter(|_| self.next.stats_at.is_some()) else {
            return Bytes::ZERO;
        };
        let baseline = tide::baseline(self.before.baseline, footprint, elapsed, memory);
        self.next.baseline = Some(baseline);
        footprint.saturating_sub(baseline)
    }

    /// Whether its balloon inflates at memtide's request.
    #[must_use]
    pub fn inflates(&self) -> bool {
        let under_way = self.entry.actual > self.entry.target.saturating_add(stuck::TOLERANCE);
        under_way || (self.before.target.is_some() && self.before.actual > self.entry.actual)
    }

    /// Whether it makes no progress and is left out.
    #[must_use]
    pub fn is_stuck(&self, now: Moment) -> bool {
        stuck::is_stuck(&self.next.stuck, now)
    }

    /// Whether it can give memory.
    #[must_use]
    pub fn is_donor(&self, now: Moment) -> bool {
        let silent = self.before.stats_at.is_none() && self.demand.used.is_none();
        let polled_since = match self.before.polled_at {
            None if self.seen.told.polling == Polling::Unknown => Some(self.next.first_seen),
            polled_at => polled_at,
        };
        let booting = match polled_since {
            Some(at) => now.since(at) < BOOTS,
            None => now.since(self.next.first_seen) < NEVER_POLLED,
        };
        self.is_managed() && !(silent && booting) && !self.is_stuck(now)
    }

    /// Remembers that it was asked to keep `target`.
    pub fn is_asked(&mut self, target: Bytes, reason: Reason, now: Moment) {
        if self.before.target != Some(target) {
            let distance = self.entry.actual.abs_diff(target);
            // A guest that makes no progress does not start anew when its target is corrected in the same direction.
            let same_way = (target > self.entry.actual) == (self.entry.target > self.entry.actual);
            let since = self.next.stuck.progress_at.filter(|_| same_way).unwrap_or(now);
            self.next.stuck.distance = distance;
            self.next.stuck.progress_at = (distance > stuck::TOLERANCE).then_some(since);
        }
        self.next.target = Some(target);
        self.next.target_set_at = Some(now);
        self.next.last_reason = Some((now, reason));
    }

    /// Needed or guaranteed memory that it does not hold, within its limit and without headroom for past growth: the memory that
    /// may be taken from others for it.
    #[must_use]
    pub fn lacks(&self) -> Bytes {
        if !self.is_managed() || (self.demand.used.is_none() && !self.is_released()) {
            return Bytes::ZERO;
        }
        self.bounds.clamp(self.demand.lean()).saturating_sub(self.entry.held)
    }

    /// Used memory and the headroom that every guest needs; zero if used memory is not known.
    pub fn modest(&self) -> Bytes {
        match self.demand.used {
            Some(used) => {
                used.saturating_add(demand::headroom_floor(self.seen.told.full)).min(self.entry.held)
            }
            None => Bytes::ZERO,
        }
    }

    /// Whether it lacks more than a sliver of used memory, or stalls for lack of memory.
    #[must_use]
    pub fn lacks_firmly(&self) -> bool {
        let held = self.entry.held.saturating_add(self.sliver());
        !self.lacks().is_zero() && (self.demand.stalls || self.demand.firm() > held)
    }

    /// Its firm lack: used memory and headroom for present growth. Zero if it is helped: its memory is paid for already.
    #[must_use]
    pub fn lacks_of_use(&self) -> Bytes {
        if self.next.helped.is_some() || !self.lacks_firmly() {
            return Bytes::ZERO;
        }
        // Less than a dead band is not granted, and nobody gives for it.
        let lacks = self.firm().saturating_sub(self.entry.held);
        if lacks > demand::dead_band(self.seen.told.full) { lacks } else { Bytes::ZERO }
    }

    /// Demand that cannot wait, within its bounds.
    #[must_use]
    pub fn firm(&self) -> Bytes {
        self.bounds.clamp(self.demand.firm())
    }

    /// Whether it starves for used memory. Stalls for missing page cache do not count.
    #[must_use]
    pub fn starves_for_use(&self) -> bool {
        let uses = self.demand.used.unwrap_or_default().saturating_add(self.demand.headroom_now);
        self.starves() && uses > self.entry.held.saturating_add(self.sliver())
    }

    /// Whether it is in want: it lacks memory firmly, and takes more or has stalled in the last seconds. A quiet guest that
    /// lacks only headroom can wait.
    #[must_use]
    pub fn is_in_want(&self) -> bool {
        (self.takes_more() || self.next.stalled.is_some()) && self.lacks_firmly()
    }

    /// Whether its lack cannot wait: it is in want, or it lacks memory and its driver cannot report stalls.
    #[must_use]
    pub fn cannot_wait(&self) -> bool {
        self.is_in_want() || (!self.demand.shows_squeals() && self.lacks_firmly())
    }

    /// Whether it lacks memory that cannot wait, and is not helped.
    #[must_use]
    pub fn starves(&self) -> bool {
        self.next.helped.is_none() && self.cannot_wait()
    }

    /// Its lack; zero if it is helped: its memory is paid for already.
    #[must_use]
    pub fn unpaid(&self) -> Bytes {
        if self.next.helped.is_some() { Bytes::ZERO } else { self.lacks() }
    }

    /// Whether it takes more memory: its cost grows, or the used part of it.
    fn takes_more(&self) -> bool {
        self.next.surge.recent.max(self.next.growth.recent) > self.sliver()
    }

    /// Too little to act on in a hurry: half of the least headroom, at most a dead band.
    fn sliver(&self) -> Bytes {
        demand::dead_band(self.seen.told.full).min(demand::headroom_floor(self.seen.told.full).mul_div(1, 2))
    }
}

/// After a reset, QEMU keeps reporting the old actual until the new driver has moved the balloon. For [`demand::RESET_SETTLES`],
/// the actual is believed only if the guest has no more than that available, or, without statistics, if the actual has changed.
/// Otherwise the guest counts with its full size.
fn believed(entry: Entry, seen: &GuestSeen, before: &GuestState, now: Moment) -> Entry {
    let doubtful = match seen.told.stats.fresh().and_then(|stats| stats.available) {
        Some(available) => available > entry.actual,
        None => entry.actual == before.actual || before.actual == seen.told.full,
    };
    let lately = before.reset_at.is_some_and(|at| now.since(at) < demand::RESET_SETTLES);
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
/// outside the balloon's reach. A released guest gets all that it may have.
fn bounds(class: &Class, seen: &GuestSeen, hold: Option<Hold>) -> Bounds {
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
    let has_it = entry.target.min(entry.actual).saturating_add(demand::dead_band(full)) >= bounds.limit();
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
