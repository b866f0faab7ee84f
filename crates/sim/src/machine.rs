//! The simulated host with its guests: a [`World`] whose time is virtual.
//!
//! **Rule.** Nothing happens outside [`Machine::live`]. It goes from event to event: a fault begins or ends, a guest comes or goes, others
//! use more or less. It advances all guests to each event and takes the measures. Between two events it looks at least every `SLICE`.

use std::collections::BTreeMap;
use std::time::Duration;

use memtide_engine::{ApplyError, Ask, Asking, Wake, World};
use memtide_guest::{Guest, Random};
use memtide_model::{
    Absence, Action, Balloon, Bytes, Change, GuestId, GuestSeen, GuestStats, Moment, Order, Reading,
    Snapshot, Span, StatsPolling, Told, WallClock,
};

use crate::host::Host;
use crate::measure::Measures;
use crate::setup::{Fault, FaultKind, GuestSetup, Lie, Setup};

/// Virtual time begins this long after the host's boot.
pub const BEGINS: Moment = Moment::from_millis(60_000);
/// The longest time between two looks at the host, in milliseconds.
const SLICE: u64 = 250;
/// With more guests than this, slices grow: nobody follows each guest that closely.
const CLOSE_LOOK: usize = 40;
/// A driver that has not answered for this long is silent, and its statistics are stale (`LEAST_FRESH` of the QEMU backend).
const FRESH_FOR: Span = Span::from_secs(3);
/// The wall clock at the beginning: the start of 2026 (UTC).
const WALL: u64 = 1_767_225_600_000;

/// A host, its guests and its time.
#[derive(Debug)]
pub struct Machine {
    now: Moment,
    ends: Moment,
    wall_offset: u64,
    pub(crate) host: Host,
    pub(crate) guests: Vec<Resident>,
    /// The index of each guest.
    names: BTreeMap<String, usize>,
    faults: Vec<Fault>,
    orders: Vec<Order>,
    random: Random,
    /// All measures taken.
    pub measures: Measures,
    /// Whether a manager should decide soon.
    woken: bool,
    slice: u64,
}

/// A guest of the setup, running or not.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) plan: GuestSetup,
    pub(crate) id: GuestId,
    /// `None` while it does not run.
    pub(crate) guest: Option<Guest>,
    /// When it started.
    started: Moment,
    /// The number of processes that have had its name.
    pub(crate) lives: u64,
    /// Whether the host's OOM killer has ended it.
    pub(crate) lost: bool,
    polled: StatsPolling,
    /// The last statistics, and their time.
    stats: Option<(GuestStats, Moment)>,
    /// The last answer of its VMM, and its time.
    told: Option<(Told, Moment)>,
    footprint: Option<(Bytes, Moment)>,
    seed: u64,
    /// The number of lies told; each lie adds to its counters.
    lied: u64,
}

impl Machine {
    /// The machine of a setup at its beginning.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let random = Random::new(setup.seed);
        let guests: Vec<Resident> = setup
            .guests
            .iter()
            .zip(1_u64..)
            .map(|(plan, number)| Resident::new(plan.clone(), random.fork(number).next()))
            .collect();
        let slice = SLICE * (guests.len().div_ceil(CLOSE_LOOK) as u64).clamp(1, 8);
        let mut machine = Self {
            now: BEGINS,
            ends: BEGINS.after(setup.lasts),
            wall_offset: WALL - BEGINS.as_millis(),
            host: Host::new(setup.host.clone(), random.fork(0)),
            names: guests
                .iter()
                .enumerate()
                .map(|(index, guest)| (guest.id.name().to_owned(), index))
                .collect(),
            guests,
            faults: setup.faults.clone(),
            orders: Vec::new(),
            measures: Measures::new(setup),
            random,
            woken: false,
            slice,
        };
        machine.come_and_go();
        machine.begin_faults();
        machine
    }

    /// The time simulated.
    #[must_use]
    pub const fn elapsed(&self) -> Span {
        self.now.since(BEGINS)
    }

    /// Whether the setup's time is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.now >= self.ends
    }

    /// Whether a fault of this kind is active on the host or the daemon.
    #[must_use]
    pub fn suffers(&self, kind: FaultKind) -> bool {
        self.faults.iter().any(|fault| fault.kind == kind && fault.goes_on(self.elapsed()))
    }

    /// Whether the setup contains a fault of this kind.
    #[must_use]
    pub fn ever_suffers(&self, kind: FaultKind) -> bool {
        self.faults.iter().any(|fault| fault.kind == kind)
    }

    /// Advances until no fault of this kind is active.
    pub fn live_through(&mut self, kind: FaultKind) {
        while self.suffers(kind) && !self.is_over() {
            self.live(self.next_event(), false);
        }
    }

    /// Another manager writes a target. A guest that is absent or refuses stays as it is.
    pub fn set_target(&mut self, id: &GuestId, target: Bytes) {
        let Some(index) = self.index_of(id).filter(|&index| !self.ills(index).refuses) else { return };
        let resident = &mut self.guests[index];
        self.measures.note_target(index, resident.guest.as_ref().map(Guest::target), target);
        resident.alive(|guest| guest.set_target(target));
    }

    /// Adds an order of the operator to the next snapshot.
    pub fn order(&mut self, order: Order) {
        self.orders.push(order);
    }

    /// Advances everything to `until`, or to the next moment at which a manager should decide if `wakes`. While the host is suspended,
    /// nobody decides: time advances to the end of the suspension.
    pub fn live(&mut self, until: Moment, wakes: bool) {
        let until = until.min(self.ends);
        loop {
            let suspended = self.suffers(FaultKind::Suspended);
            let until = if suspended { self.ends } else { until };
            if self.now >= until {
                break;
            }
            let slice = self.now.after(Span::from_millis(self.slice));
            self.pass(self.next_event().min(until).min(slice));
            if wakes && !suspended && std::mem::take(&mut self.woken) {
                break;
            }
        }
    }

    /// Lets time pass up to `next`, with no event before it.
    fn pass(&mut self, next: Moment) {
        let dt = next.since(self.now);
        let suspended = self.suffers(FaultKind::Suspended);
        self.now = next;
        if suspended {
            self.guests.iter_mut().for_each(|resident| resident.sleep(dt));
        } else {
            for index in 0..self.guests.len() {
                let paused =
                    self.has(index, |kind| matches!(kind, FaultKind::Fenced(memtide_model::Fence::Paused)));
                self.guests[index].live(next, dt, paused);
            }
            self.woken |= self.host.settle(&mut self.guests, dt, next);
            self.measures.watch(&self.guests, &self.host, dt, next.since(BEGINS));
        }
        // Guests start first, so a fault that begins with its guest finds it running.
        self.come_and_go();
        self.begin_faults();
    }

    /// The next moment at which anything begins or ends.
    fn next_event(&self) -> Moment {
        let elapsed = self.elapsed().as_millis();
        let faults = self.faults.iter().flat_map(|fault| {
            let at = fault.at.as_millis();
            [at, at + fault.lasts.as_millis()]
        });
        let plans = self.guests.iter().flat_map(|resident| {
            let leaves = resident.plan.leaves.map_or(u64::MAX, Span::as_millis);
            [resident.plan.arrives.as_millis(), leaves]
        });
        let next = faults.chain(plans).filter(|&at| at > elapsed).min().unwrap_or(u64::MAX);
        let noise = match self.suffers(FaultKind::Suspended) {
            true => Moment::from_millis(u64::MAX),
            false => self.host.next_change(self.now),
        };
        Moment::from_millis(BEGINS.as_millis().saturating_add(next)).min(noise)
    }

    /// Applies the faults that begin at this moment, and ends hangs.
    fn begin_faults(&mut self) {
        let elapsed = self.elapsed();
        for index in 0..self.faults.len() {
            let fault = self.faults[index].clone();
            if fault.at != elapsed {
                if fault.kind == FaultKind::Stuck && fault.ends() == elapsed {
                    self.each(fault.guest, |resident| resident.alive(|guest| guest.hang(false)));
                }
                continue;
            }
            match fault.kind {
                FaultKind::Stuck => {
                    self.each(fault.guest, |resident| resident.alive(|guest| guest.hang(true)))
                }
                FaultKind::Reset => self.each(fault.guest, |resident| {
                    resident.stats = None;
                    resident.alive(|guest| guest.reset(fault.lasts));
                }),
                FaultKind::SelfDeflates => {
                    self.each(fault.guest, |resident| resident.alive(Guest::deflate_all))
                }
                FaultKind::Foreign(target) => {
                    self.each(fault.guest, |resident| resident.alive(|guest| guest.set_target(target)));
                }
                FaultKind::ClockJumps => self.wall_offset += fault.lasts.as_millis(),
                _ => continue,
            }
            self.woken = true;
        }
    }

    fn each(&mut self, guest: Option<usize>, change: impl FnOnce(&mut Resident)) {
        if let Some(resident) = guest.and_then(|index| self.guests.get_mut(index)) {
            change(resident);
        }
    }

    /// Starts, ends, removes and returns guests.
    fn come_and_go(&mut self) {
        let elapsed = self.elapsed();
        for index in 0..self.guests.len() {
            let gone = self.has(index, |kind| kind == FaultKind::Vanishes);
            let resident = &mut self.guests[index];
            let is_due =
                resident.plan.arrives <= elapsed && resident.plan.leaves.is_none_or(|at| elapsed < at);
            match (is_due && !gone && !resident.lost, resident.guest.is_some()) {
                (true, false) => resident.start(self.now),
                (false, true) => resident.end(),
                _ => continue,
            }
            self.woken = true;
        }
    }

    /// Whether a fault of this kind is active in a guest.
    fn has(&self, guest: usize, is: impl Fn(FaultKind) -> bool) -> bool {
        let elapsed = self.elapsed();
        self.faults.iter().any(|fault| fault.guest == Some(guest) && is(fault.kind) && fault.goes_on(elapsed))
    }

    /// The active faults of a guest.
    fn ills(&self, guest: usize) -> Ills {
        let mut ills = Ills::default();
        let elapsed = self.elapsed();
        for fault in self.faults.iter().filter(|f| f.guest == Some(guest) && f.goes_on(elapsed)) {
            match fault.kind {
                FaultKind::Refuses => ills.refuses = true,
                FaultKind::Lies(lie) => ills.lies = Some(lie),
                FaultKind::Silent => ills.silent = true,
                FaultKind::Fenced(fence) => ills.fence = Some(fence),
                FaultKind::Late => ills.late = true,
                FaultKind::Lost => ills.lost = true,
                FaultKind::Unreadable => ills.unreadable = true,
                _ => {}
            }
        }
        ills
    }

    fn index_of(&self, id: &GuestId) -> Option<usize> {
        let index = *self.names.get(id.name())?;
        let resident = &self.guests[index];
        (resident.guest.is_some() && resident.id == *id).then_some(index)
    }
}

/// The faults of a guest at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Ills {
    refuses: bool,
    lies: Option<Lie>,
    silent: bool,
    fence: Option<memtide_model::Fence>,
    late: bool,
    lost: bool,
    unreadable: bool,
}

impl Fault {
    /// When it ends.
    fn ends(&self) -> Span {
        Span::from_millis(self.at.as_millis().saturating_add(self.lasts.as_millis()))
    }

    /// Whether it is active `elapsed` after the beginning.
    fn goes_on(&self, elapsed: Span) -> bool {
        self.at <= elapsed && elapsed < self.ends()
    }
}

impl Resident {
    fn new(plan: GuestSetup, seed: u64) -> Self {
        let id = GuestId::new(&plan.name, 0, "sim");
        Self {
            plan,
            id,
            guest: None,
            started: BEGINS,
            lives: 0,
            lost: false,
            polled: StatsPolling::Off,
            stats: None,
            told: None,
            footprint: None,
            seed,
            lied: 0,
        }
    }

    fn start(&mut self, now: Moment) {
        self.lives += 1;
        self.id = GuestId::new(&self.plan.name, now.as_millis() / 10 + self.lives, "sim");
        self.guest = Some(Guest::new(self.plan.spec.clone(), self.seed.wrapping_add(self.lives)));
        self.started = now;
        self.polled = StatsPolling::Off;
        (self.stats, self.told, self.footprint) = (None, None, None);
    }

    fn end(&mut self) {
        self.guest = None;
    }

    pub(crate) fn alive(&mut self, change: impl FnOnce(&mut Guest)) {
        if let Some(guest) = &mut self.guest {
            change(guest);
        }
    }

    /// Advances to `next`, unless its processors are stopped.
    fn live(&mut self, next: Moment, dt: Span, paused: bool) {
        match &mut self.guest {
            Some(_) if paused => self.sleep(dt),
            Some(guest) => guest.advance(next.since(self.started)),
            None => {}
        }
    }

    /// Stops its processors for `dt`. It does not catch up later, because its start moves by `dt`.
    fn sleep(&mut self, dt: Span) {
        self.started = self.started.after(dt);
    }

    /// Asks its VMM. Out of turn, the driver reports at once; otherwise the answer is its report from the last interval.
    fn answer(&mut self, ask: Ask, ills: Ills, now: Moment) {
        self.report(ask, ills, now);
        let Some(guest) = &self.guest else { return };
        let spec = guest.spec();
        let told = Told {
            balloon: self.balloon(guest, ills),
            hotplug: Reading::absent(Absence::Unsupported),
            stats: self.statistics(guest, ills, now),
            polling: if spec.balloon { self.polled } else { StatsPolling::Unknown },
            ..Told::nothing(spec.memory, Absence::NotYet)
        };
        self.told = Some((told, now));
    }

    /// Lets the driver report if it is asked and able to.
    fn report(&mut self, ask: Ask, ills: Ills, now: Moment) {
        let Some(guest) = &self.guest else { return };
        let StatsPolling::Every(every) = self.polled else { return };
        let due = ask == Ask::OutOfTurn || self.stats.is_none_or(|(_, at)| now.since(at) >= every);
        let stopped = ills.fence == Some(memtide_model::Fence::Paused);
        if !due || ills.silent || ills.late || stopped || !guest.has_driver() {
            return;
        }
        let mut stats = guest.stats();
        if let Some(lie) = ills.lies {
            self.lied += 1;
            tell_a_lie(&mut stats, lie, guest.size().actual, self.seed, self.lied);
        }
        self.stats = Some((stats, now));
    }

    /// The reading of the guest, with the questions that `asking` chooses. A VMM reports a reset and a fence by itself.
    fn seen(&mut self, asking: &mut Asking, ills: Ills, now: Moment) -> Option<GuestSeen> {
        self.guest.as_ref()?;
        if let Some(ask) = asking.ask(&self.id) {
            self.answer(ask, ills, now);
        }
        let footprint = self.weigh(asking.weigh(&self.id), ills, now);
        let guest = self.guest.as_ref()?;
        let spec = guest.spec();
        let told = match &self.told {
            Some((told, at)) => told.clone().later(now.since(*at)),
            None => Told::nothing(spec.memory, Absence::NotYet),
        };
        Some(GuestSeen {
            id: self.id.clone(),
            pid: 1_000,
            backend: memtide_model::Backend::Qemu,
            full: told.full,
            footprint,
            overhead: spec.overhead,
            overhead_bound: spec.overhead_bound,
            balloon: told.balloon,
            hotplug: told.hotplug,
            stats: told.stats,
            polling: told.polling,
            reset: guest.was_reset(),
            fence: ills.fence,
        })
    }

    /// Its footprint, read again if it is `due`.
    fn weigh(&mut self, due: bool, ills: Ills, now: Moment) -> Reading<Bytes> {
        if let Some(guest) = self.guest.as_ref().filter(|_| due && !ills.unreadable) {
            self.footprint = Some((guest.size().footprint, now));
        }
        match self.footprint {
            Some((value, at)) if !ills.unreadable => Reading::Fresh { value, age: now.since(at) },
            Some((value, at)) => Reading::Stale { value, age: now.since(at), why: Absence::Forbidden },
            None => Reading::absent(Absence::Forbidden),
        }
    }

    fn balloon(&self, guest: &Guest, ills: Ills) -> Reading<Balloon> {
        let spec = guest.spec();
        if !spec.balloon {
            return Reading::absent(Absence::NoBalloon);
        }
        let Some(actual) = guest.reported_actual() else { return Reading::absent(Absence::NoDriver) };
        let balloon = Balloon {
            actual,
            deflate_on_oom: spec.deflate_on_oom,
            free_page_reporting: spec.free_page_reporting,
        };
        if ills.late {
            return Reading::Stale { value: balloon, age: Span::from_secs(1), why: Absence::Timeout };
        }
        Reading::now(balloon)
    }

    fn statistics(&self, guest: &Guest, ills: Ills, now: Moment) -> Reading<GuestStats> {
        if !guest.spec().balloon {
            return Reading::absent(Absence::NoBalloon);
        }
        let Some((value, at)) = self.stats else {
            return Reading::absent(match (guest.has_driver(), self.polled) {
                (false, _) => Absence::NoDriver,
                (true, StatsPolling::Off) => Absence::NotPolled,
                (true, _) => Absence::NotYet,
            });
        };
        let age = now.since(at);
        match age <= FRESH_FOR && !ills.late && guest.has_driver() {
            true => Reading::Fresh { value, age },
            false if ills.late => Reading::Stale { value, age, why: Absence::Timeout },
            false if !guest.has_driver() => Reading::Stale { value, age, why: Absence::NoDriver },
            false => Reading::Stale { value, age, why: Absence::Silent },
        }
    }
}

/// Falsifies a driver's report, for the `nth` time.
fn tell_a_lie(stats: &mut GuestStats, lie: Lie, actual: Bytes, seed: u64, nth: u64) {
    // Far above every threshold, for each report.
    let many = nth * 100_000;
    match lie {
        Lie::NothingAvailable => (stats.available, stats.free) = (Some(Bytes::ZERO), Some(Bytes::ZERO)),
        Lie::AllAvailable => (stats.available, stats.free) = (Some(actual), Some(actual)),
        Lie::Stalls => stats.alloc_stalls = Some(many),
        Lie::Kills => stats.oom_kills = Some(nth),
        Lie::Scans => stats.async_scans = Some(many),
        Lie::Random => {
            let mut random = Random::new(seed ^ nth);
            let mut number = || match random.between(0, 5) {
                0 => None,
                1 => Some(0),
                2 => Some(u64::MAX),
                3 => Some(random.next() % (1 << 40)),
                _ => Some(random.next() % (4 << 30)),
            };
            let size = |value: Option<u64>| value.map(Bytes::new);
            *stats = GuestStats {
                total: size(number()),
                free: size(number()),
                available: size(number()),
                disk_caches: size(number()),
                swapped_in: size(number()),
                swapped_out: size(number()),
                major_faults: number(),
                minor_faults: number(),
                htlb_pgalloc: number(),
                htlb_pgfail: number(),
                oom_kills: number(),
                alloc_stalls: number(),
                async_scans: number(),
                direct_scans: number(),
                async_reclaims: number(),
                direct_reclaims: number(),
            };
        }
    }
}

impl World for Machine {
    fn observe(&mut self, asking: &mut Asking) -> Snapshot {
        let unreadable = self.suffers(FaultKind::HostUnreadable);
        let host = self.host.seen(unreadable);
        let mut guests: Vec<GuestSeen> = Vec::with_capacity(self.guests.len());
        for index in 0..self.guests.len() {
            let ills = if self.faults.is_empty() { Ills::default() } else { self.ills(index) };
            guests.extend(self.guests[index].seen(asking, ills, self.now));
        }
        if !guests.is_sorted_by(|a, b| a.id < b.id) {
            guests.sort_by(|a, b| a.id.cmp(&b.id));
        }
        Snapshot {
            taken_at: self.now,
            wall: WallClock(self.now.as_millis() + self.wall_offset),
            host,
            guests,
            orders: std::mem::take(&mut self.orders),
        }
    }

    fn apply(&mut self, action: &Action) -> Result<(), ApplyError> {
        let failed = |why| Err(ApplyError { guest: action.guest.clone(), why });
        let Some(index) = self.index_of(&action.guest) else { return failed(Absence::Gone) };
        let ills = self.ills(index);
        if ills.refuses {
            return failed(Absence::Refused("not now".to_owned()));
        }
        // The outcome is unknown: half of the changes are carried out although their answer comes too late.
        if ills.late && self.random.chance(1, 2) {
            return failed(Absence::Timeout);
        }
        let resident = &mut self.guests[index];
        match action.change {
            Change::SetTarget(target) => {
                self.measures.note_target(index, resident.guest.as_ref().map(Guest::target), target);
                resident.alive(|guest| guest.set_target(target));
            }
            Change::PollStats(Span::ZERO) => resident.polled = StatsPolling::Off,
            Change::PollStats(every) => resident.polled = StatsPolling::Every(every),
        }
        if ills.lost || ills.late { failed(Absence::Timeout) } else { Ok(()) }
    }

    fn look(&mut self, due: &[GuestId]) -> Vec<(GuestId, Told)> {
        let indices: Vec<usize> = due.iter().filter_map(|id| self.index_of(id)).collect();
        let mut looks = Vec::with_capacity(indices.len());
        for index in indices {
            let (ills, now) = (self.ills(index), self.now);
            let resident = &mut self.guests[index];
            resident.answer(Ask::InTurn, ills, now);
            looks.extend(resident.told.clone().map(|(told, _)| (resident.id.clone(), told)));
        }
        looks
    }

    fn wait(&mut self, at_most: Duration) -> Wake {
        let until = self.now.after(at_most.into());
        self.woken = false;
        self.live(until, true);
        match (self.is_over(), self.now < until) {
            (true, _) => Wake::Stop,
            (false, true) => Wake::Event,
            (false, false) => Wake::Timeout,
        }
    }

    fn now(&self) -> Moment {
        self.now
    }
}
