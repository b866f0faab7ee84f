//! The simulated host with its guests: a [`World`] whose time is virtual.
//!
//! **Rule.** Nothing happens outside [`Machine::live`]. It goes from event to event: a fault begins or ends, a guest comes or goes, others
//! use more or less. It advances all guests to each event and takes the measures. Between two events it looks at least every `SLICE`.

use std::collections::BTreeMap;
use std::time::Duration;

use memtide_engine::{Applied, ApplyError, Ask, Asking, Wake, World};
use memtide_guest::{Guest, Random};
use memtide_model::{
    Absence, Action, Bytes, Deed, GuestId, GuestSeen, HostSeen, KsmMode, Moment, Order, Polling, Reading,
    Request, Snapshot, Span, Told, WallClock,
};

use crate::host::Host;
use crate::measure::Measures;
use crate::merging::Merging;
use crate::processors::Processors;
use crate::resident::{Ills, Resident};
use crate::setup::{BEGINS, Fault, FaultKind, Setup};
use crate::tmpfs::SmallTmpfs;

/// The longest time between two looks at the host, in milliseconds.
const SLICE: u64 = 250;
/// With more guests than this, slices grow: nobody follows each guest that closely.
const CLOSE_LOOK: usize = 40;
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
    /// KSM, if guests have memory that it can merge.
    merging: Option<Merging>,
    tmpfs: Option<SmallTmpfs>,
    processors: Option<Processors>,
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
            merging: has_ksm(setup).then(Merging::new),
            tmpfs: setup.host.tmpfs.map(SmallTmpfs::new),
            processors: setup.host.processors.map(Processors::new),
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
            if let Some(processors) = &mut self.processors {
                processors.share(&mut self.guests, dt.as_millis());
            }
            if let Some(merging) = &mut self.merging {
                merging.pass(&mut self.guests, dt, next);
                self.measures.watch_merging(merging, dt);
            }
            if let Some(tmpfs) = &mut self.tmpfs {
                let held = tmpfs.settle(&mut self.guests);
                self.measures.watch_tmpfs(held);
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
                FaultKind::DaemonKilled => {
                    self.merging.iter_mut().for_each(Merging::put_back);
                    continue;
                }
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
                FaultKind::Unknown => ills.unknown = true,
                FaultKind::TellsSize(size) => ills.tells_size = Some(size),
                FaultKind::SaidPinned => ills.said_pinned = true,
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

/// Whether the host has KSM: if anything in the setup is about it.
fn has_ksm(setup: &Setup) -> bool {
    setup.config.ksm.mode == KsmMode::Govern || setup.guests.iter().any(|plan| plan.equal.is_some())
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

impl World for Machine {
    fn observe(&mut self, asking: &mut Asking) -> Snapshot {
        let unreadable = self.suffers(FaultKind::HostUnreadable);
        let stale = self.merging.as_ref().map_or(Bytes::ZERO, Merging::stale);
        let host = self.host.seen(unreadable, stale, self.now);
        let ksm = self.merging.as_ref().map_or_else(Reading::unsupported, |ksm| Reading::now(ksm.seen()));
        let host = HostSeen { ksm, ..host };
        // Some hosts are parts of a machine: their guests may be larger than they are.
        let largest = self.guests.iter().map(|resident| resident.plan.spec.memory).max();
        let memory = self.host.capacity().max(largest.unwrap_or_default());
        let mut guests: Vec<GuestSeen> = Vec::with_capacity(self.guests.len());
        for index in 0..self.guests.len() {
            let ills = if self.faults.is_empty() { Ills::default() } else { self.ills(index) };
            guests.extend(self.guests[index].seen(asking, ills, memory, self.now));
        }
        if !guests.is_sorted_by(|a, b| a.id < b.id) {
            guests.sort_by(|a, b| a.id.cmp(&b.id));
        }
        Snapshot {
            taken_at: self.now,
            wall: WallClock(self.now.as_millis() + self.wall_offset),
            host,
            guests,
            tmpfs: self.tmpfs.iter().filter_map(|tmpfs| tmpfs.seen(&self.guests)).collect(),
            orders: std::mem::take(&mut self.orders),
        }
    }

    fn apply(&mut self, action: &Action) -> Result<Applied, ApplyError> {
        let failed = |why| Err(ApplyError { why });
        if let (Request::Merge(order), Some(merging)) = (action.request, &mut self.merging) {
            merging.obey(order);
            return Ok(Applied::Accepted);
        }
        let Some(id) = action.guest() else { return failed(Absence::Unsupported) };
        let Some(index) = self.index_of(id) else { return failed(Absence::Gone) };
        let ills = self.ills(index);
        if ills.refuses {
            return failed(Absence::Refused("not now".to_owned()));
        }
        if ills.unknown {
            return failed(Absence::NoControl);
        }
        // The outcome is unknown: half of the changes are carried out although their answer comes too late.
        if ills.late && self.random.chance(1, 2) {
            return failed(Absence::Timeout);
        }
        let resident = &mut self.guests[index];
        match action.request {
            Request::SetTarget(target) => {
                self.measures.note_target(index, resident.guest.as_ref().map(Guest::target), target);
                resident.alive(|guest| guest.set_target(target));
            }
            Request::PollStats(Span::ZERO) => resident.polled = Polling::Off,
            Request::PollStats(every) => resident.polled = Polling::Every(every),
            // Guest RAM is anonymous memory, which cannot be reclaimed without swap.
            Request::Reclaim(_) => return Ok(Applied::Yielded(Bytes::ZERO)),
            Request::Agent(Deed::ReportPieces(on)) => resident.report_pieces(on),
            // The model has none of it.
            Request::Agent(Deed::Compact | Deed::LimitCache(_)) | Request::Merge(_) => {
                return failed(Absence::Unsupported);
            }
            Request::Agent(deed) => resident.works(deed, self.now),
            Request::Tier(order) if !resident.tier(order) => {
                return failed(Absence::Refused("its tier is in use, or there is none".to_owned()));
            }
            Request::Tier(_) => {}
            Request::Share(share) => resident.merged.may = share,
            Request::Split => resident.alive(|guest| _ = guest.split_huge_pages()),
        }
        if ills.lost || ills.late { failed(Absence::Timeout) } else { Ok(Applied::Accepted) }
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
