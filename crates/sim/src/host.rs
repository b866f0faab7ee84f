//! The host's own memory: capacity, other use, swap, pressure, and the events of a full host.
//!
//! **Rule.** Guests' footprints, torn huge pages and other use must fit. If they do not, the host first splits torn huge pages, as the
//! kernel does under pressure. Then it swaps if it can: the more is swapped, the slower every guest becomes. If that is not enough, its OOM
//! killer ends the largest guest ([`WhenFull`]).

use memtide_guest::Random;
use memtide_model::{Absence, Bytes, HostSeen, Missed, Moment, Pressure, Reading, Span, SwapCounters};

use crate::resident::Resident;
use crate::setup::{BEGINS, HostSpec, WhenFull};

/// The host's tasks stall while less than one part in this many of its memory is free.
const STALLS_BELOW: u64 = 100;
/// The pressure that wakes a daemon: stalls in microseconds per millisecond of a look (150 ms a second).
const WAKES: u64 = 150;

/// The host.
#[derive(Debug)]
pub(crate) struct Host {
    spec: HostSpec,
    random: Random,
    pub(crate) other: Bytes,
    changes_at: Moment,
    /// The resident part of the total cost.
    pub(crate) used: Bytes,
    pub(crate) swapped: Bytes,
    counters: SwapCounters,
    pressure: Pressure,
    last: Option<(HostSeen, Moment)>,
    /// Torn huge pages.
    torn: Bytes,
    /// The amount above capacity, including swapped memory.
    pub(crate) above: Bytes,
}

impl Host {
    pub(crate) fn new(spec: HostSpec, random: Random) -> Self {
        let other = spec.other;
        Self {
            spec,
            random,
            other,
            changes_at: Moment::default(),
            used: Bytes::ZERO,
            swapped: Bytes::ZERO,
            counters: SwapCounters::default(),
            pressure: Pressure::default(),
            last: None,
            torn: Bytes::ZERO,
            above: Bytes::ZERO,
        }
    }

    pub(crate) const fn capacity(&self) -> Bytes {
        self.spec.memory
    }

    /// Memory that is not in use.
    pub(crate) fn free(&self) -> Bytes {
        self.spec.memory.saturating_sub(self.used)
    }

    /// The next moment at which others' use changes.
    pub(crate) fn next_change(&self, now: Moment) -> Moment {
        if let Some(next) = self.recorded_at(now) {
            let (at, _) = self
                .spec
                .recorded_other
                .get(next)
                .copied()
                .unwrap_or((Span::from_millis(u64::MAX), Bytes::ZERO));
            return BEGINS.after(at);
        }
        match self.spec.other_most > self.spec.other {
            true => self.changes_at.max(now.after(Span::from_millis(1))),
            false => Moment::from_millis(u64::MAX),
        }
    }

    /// Adds up the total cost at `now`, after `dt`, and swaps or kills if it does not fit. Returns whether a daemon should wake.
    pub(crate) fn settle(&mut self, guests: &mut [Resident], dt: Span, now: Moment) -> bool {
        if let Some(next) = self.recorded_at(now) {
            self.other = next.checked_sub(1).map_or(self.spec.other, |last| self.spec.recorded_other[last].1);
        } else if self.spec.other_most > self.spec.other && self.changes_at <= now {
            let most = self.spec.other_most.get();
            self.other = Bytes::new(self.random.between(self.spec.other.get(), most));
            self.changes_at = now.after(self.spec.noise_every);
        }
        let mut cost = self.cost(guests);
        if cost > self.spec.memory && !self.torn.is_zero() {
            for resident in guests.iter_mut() {
                resident.alive(|guest| _ = guest.split_huge_pages());
            }
            cost = self.cost(guests);
        }
        let excess = cost.saturating_sub(self.spec.memory);
        let swapped = excess.min(self.spec.swap);
        self.swap(swapped, guests);
        self.above = excess;
        if excess > swapped && self.spec.when_full == WhenFull::Kill {
            self.kill(guests);
            cost = self.cost(guests);
            self.above = cost.saturating_sub(self.spec.memory);
        }
        self.used = cost.saturating_sub(swapped);
        self.stall(dt)
    }

    /// The index of the first recorded amount after `now`; `None` if nothing was recorded.
    fn recorded_at(&self, now: Moment) -> Option<usize> {
        let recorded = &self.spec.recorded_other;
        (!recorded.is_empty()).then(|| recorded.partition_point(|(at, _)| *at <= now.since(BEGINS)))
    }

    fn cost(&mut self, guests: &[Resident]) -> Bytes {
        let (mut footprints, mut torn) = (Bytes::ZERO, Bytes::ZERO);
        for size in guests.iter().filter_map(Resident::size) {
            footprints = footprints.saturating_add(size.footprint);
            torn = torn.saturating_add(size.torn);
        }
        self.torn = torn;
        Bytes::sum([footprints, torn, self.other])
    }

    /// Swaps this much of the guests: writes the new part, and reads back the pages that guests touch.
    fn swap(&mut self, swapped: Bytes, guests: &mut [Resident]) {
        if swapped.is_zero() && self.swapped.is_zero() {
            return;
        }
        let new = swapped.saturating_sub(self.swapped);
        self.counters.swapped_out = self.counters.swapped_out.saturating_add(new);
        // A tenth of the swapped memory is read back at each look. Writing it out again is not counted.
        let back = swapped.mul_div(1, 10).saturating_add(self.swapped.saturating_sub(swapped));
        self.counters.swapped_in = self.counters.swapped_in.saturating_add(back);
        self.swapped = swapped;
        let all = Bytes::sum(guests.iter().map(Resident::footprint));
        // If a tenth of the guests is in swap, everything on the host takes twice as long.
        let times = 1_000 + swapped.mul_div(10_000, all.get().max(1)).get();
        for resident in guests {
            resident.alive(|guest| guest.slow_down(times));
        }
    }

    fn kill(&mut self, guests: &mut [Resident]) {
        let largest = (0..guests.len()).max_by_key(|&index| guests[index].footprint());
        if let Some(resident) = largest.map(|index| &mut guests[index]) {
            resident.lose();
        }
    }

    fn stall(&mut self, dt: Span) -> bool {
        let line = self.spec.memory.mul_div(1, STALLS_BELOW);
        let free = self.free();
        if free >= line && self.swapped.is_zero() {
            return false;
        }
        let lacking = line.saturating_sub(free).max(self.swapped.min(line));
        let stalled = dt.as_millis() * 1_000 * lacking.get() / line.get().max(1);
        self.pressure.some_us += stalled;
        self.pressure.full_us += stalled / 2;
        stalled >= WAKES * dt.as_millis()
    }

    /// The daemon's reading of the host at `now`; the last reading, which ages, if the host is `unreadable`. The guests' processes are credited with
    /// `stale` savings. The host's own count knows better, so it looks like others' use.
    pub(crate) fn seen(&mut self, unreadable: bool, stale: Bytes, now: Moment) -> HostSeen {
        if let (true, Some((last, at))) = (unreadable, &self.last) {
            let why = Absence::Refused("cannot be read".to_owned());
            let missed = Some(Missed { why, age: Some(now.since(*at)) });
            return HostSeen { missed, ..last.clone() };
        }
        let swap = match self.spec.swap.is_zero() {
            true => Reading::absent(Absence::Unsupported),
            false => Reading::now(self.counters),
        };
        let seen = HostSeen {
            capacity: self.spec.memory,
            other: self.other.saturating_add(stale),
            ending: Bytes::ZERO,
            torn: Reading::now(self.torn),
            splits: self.spec.splits,
            tiers: self.spec.tiers,
            swap,
            pressure: Reading::now(self.pressure),
            ksm: Reading::unsupported(),
            missed: None,
        };
        self.last = Some((seen.clone(), now));
        seen
    }
}
