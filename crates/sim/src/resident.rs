//! A guest of the setup: its life, its faults, and the answers of its VMM.

use memtide_engine::{Ask, Asking};
use memtide_guest::{Guest, Random, Size};
use memtide_model::{
    Absence, Agent, Backend, Balloon, Bytes, Capabilities, Cost, Deed, GuestId, GuestSeen, GuestStats,
    Moment, Polling, Reading, Span, Tier, TierOrder, Told, Withheld,
};

use crate::merged::Merged;
use crate::setup::{BEGINS, GuestSetup, Lie, TMPFS};

/// A driver that has not answered for this long is silent, and its statistics are stale (`LEAST_FRESH` of the QEMU backend).
const FRESH_FOR: Span = Span::from_secs(3);

/// A guest of the setup, running or not.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) plan: GuestSetup,
    pub(crate) id: GuestId,
    /// `None` while it does not run.
    pub(crate) guest: Option<Guest>,
    /// When it started.
    pub(crate) started: Moment,
    /// The number of processes that have had its name.
    pub(crate) lives: u64,
    /// Whether the host's OOM killer or a full tmpfs has ended it.
    pub(crate) lost: bool,
    pub(crate) polled: Polling,
    /// The last statistics, and their time.
    pub(crate) stats: Option<(GuestStats, Moment)>,
    /// The last answer of its VMM, and its time.
    pub(crate) told: Option<(Told, Moment)>,
    /// What it was found to cost, and when.
    pub(crate) weighed: Option<(Weighed, Moment)>,
    /// What its agent is about to do, and when it has.
    pub(crate) works: Option<(Deed, Moment)>,
    /// The requests that its agent has ended, and what the last one freed.
    pub(crate) deeds: (u64, Bytes),
    /// What KSM does with its memory.
    pub(crate) merged: Merged,
    /// Memory of its former processes that KSM had scanned.
    pub(crate) left: Bytes,
    pub(crate) seed: u64,
    /// The number of lies told; each lie adds to its counters.
    pub(crate) lied: u64,
}

/// What a guest costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighed {
    footprint: Bytes,
    cpu_time: Span,
    tier: Option<Tier>,
}

/// The faults of a guest at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ills {
    pub(crate) refuses: bool,
    pub(crate) lies: Option<Lie>,
    pub(crate) silent: bool,
    pub(crate) fence: Option<memtide_model::Fence>,
    pub(crate) late: bool,
    pub(crate) lost: bool,
    pub(crate) unreadable: bool,
    pub(crate) unknown: bool,
    pub(crate) tells_size: Option<Bytes>,
    pub(crate) said_pinned: bool,
}

impl Resident {
    pub(crate) fn new(plan: GuestSetup, seed: u64) -> Self {
        let id = GuestId::new(&plan.name, 0, "sim");
        Self {
            plan,
            id,
            guest: None,
            started: BEGINS,
            lives: 0,
            lost: false,
            polled: Polling::Off,
            stats: None,
            told: None,
            weighed: None,
            works: None,
            deeds: (0, Bytes::ZERO),
            merged: Merged::default(),
            left: Bytes::ZERO,
            seed,
            lied: 0,
        }
    }

    pub(crate) fn start(&mut self, now: Moment) {
        self.lives += 1;
        self.id = GuestId::new(&self.plan.name, now.as_millis() / 10 + self.lives, "sim");
        self.guest = Some(Guest::new(self.plan.spec.clone(), self.seed.wrapping_add(self.lives)));
        self.started = now;
        self.polled = Polling::Off;
        (self.stats, self.told, self.weighed, self.works) = (None, None, None, None);
        self.merged = Merged::default();
    }

    pub(crate) fn end(&mut self) {
        self.guest = None;
        self.left = self.left.saturating_add(self.merged.scanned());
        self.merged = Merged::default();
    }

    /// Its size, with the footprint that it has without what merging saves; `None` while it does not run.
    pub(crate) fn size(&self) -> Option<Size> {
        let size = self.guest.as_ref()?.size();
        Some(Size { footprint: size.footprint.saturating_sub(self.merged.saved), ..size })
    }

    /// Its cost to the host; zero while it does not run.
    pub(crate) fn footprint(&self) -> Bytes {
        self.size().map_or(Bytes::ZERO, |size| size.footprint)
    }

    /// The host ends it. It does not come back.
    pub(crate) fn lose(&mut self) {
        self.end();
        self.lost = true;
    }

    pub(crate) fn alive(&mut self, change: impl FnOnce(&mut Guest)) {
        if let Some(guest) = &mut self.guest {
            change(guest);
        }
    }

    /// Advances to `next`, unless its processors are stopped.
    pub(crate) fn live(&mut self, next: Moment, dt: Span, paused: bool) {
        match &mut self.guest {
            Some(_) if paused => self.sleep(dt),
            Some(guest) => guest.advance(next.since(self.started)),
            None => {}
        }
        self.end_work(next);
    }

    /// Stops its processors for `dt`. It does not catch up later, because its start moves by `dt`.
    pub(crate) fn sleep(&mut self, dt: Span) {
        self.started = self.started.after(dt);
    }

    /// Asks its VMM. Out of turn, the driver reports at once; otherwise the answer is its report from the last interval.
    pub(crate) fn answer(&mut self, ask: Ask, ills: Ills, now: Moment) {
        self.report(ask, ills, now);
        let Some(guest) = &self.guest else { return };
        let spec = guest.spec();
        let told = Told {
            balloon: self.balloon(guest, ills),
            hotplug: Reading::absent(Absence::Unsupported),
            stats: self.statistics(guest, ills, now),
            disks: if spec.counts_reads { Reading::now(guest.disks()) } else { Reading::unsupported() },
            polling: if spec.balloon { self.polled } else { Polling::Unknown },
            ..Told::nothing(spec.memory, Absence::NotYet)
        };
        let merges = self.plan.equal.map_or_else(Reading::unsupported, |_| Reading::now(self.merged.may));
        let told = Told { agent: self.agent(guest, ills), merges, ..told };
        self.told = Some((told, now));
    }

    /// What its agent told. A guest that is silent has a silent agent.
    fn agent(&self, guest: &Guest, ills: Ills) -> Reading<Agent> {
        let (ended, freed) = self.deeds;
        match guest.agent() {
            Some(_) if ills.silent => Reading::absent(Absence::Silent),
            Some(agent) => {
                let mut told = Agent { ended, freed, busy: self.works.is_some(), ..agent };
                if let Some(lie) = ills.lies {
                    tell_a_lie_as_agent(&mut told, lie, guest.size().actual, self.seed, self.lied);
                }
                Reading::now(told)
            }
            None => Reading::unsupported(),
        }
    }

    /// Asks its agent to drop page cache, or to do something with its tier. It works on one request at a time.
    pub(crate) fn works(&mut self, deed: Deed, now: Moment) {
        if self.works.is_none() {
            self.works = Some((deed, now.after(self.plan.spec.agent_takes)));
            self.end_work(now);
        }
    }

    /// Does something with its tier. Returns false if that cannot be done.
    pub(crate) fn tier(&mut self, order: TierOrder) -> bool {
        let Some(guest) = &mut self.guest else { return false };
        match order {
            TierOrder::Attach(size) => guest.attach_tier(size),
            TierOrder::Detach => guest.detach_tier(),
        }
    }

    /// Asks its agent to let free page reporting return pieces, or not. It works on one request at a time.
    pub(crate) fn report_pieces(&mut self, on: bool) {
        let Some(guest) = self.guest.as_mut().filter(|_| self.works.is_none()) else { return };
        guest.report_pieces(on);
        self.deeds = (self.deeds.0 + 1, Bytes::ZERO);
    }

    /// Its agent has done what it was asked for, if it had the time.
    fn end_work(&mut self, now: Moment) {
        let Some((deed, at)) = self.works else { return };
        let Some(guest) = self.guest.as_mut().filter(|_| now >= at) else { return };
        let freed = match deed {
            Deed::Trim(bytes) => guest.trim(bytes),
            Deed::PageOut(bytes) => guest.page_out(bytes),
            Deed::UseTier(on) => guest.use_tier(on),
            Deed::Compact | Deed::LimitCache(_) | Deed::ReportPieces(_) => Bytes::ZERO,
        };
        self.deeds = (self.deeds.0 + 1, freed);
        self.works = None;
    }

    /// Lets the driver report if it is asked and able to.
    pub(crate) fn report(&mut self, ask: Ask, ills: Ills, now: Moment) {
        let Some(guest) = &self.guest else { return };
        let Polling::Every(every) = self.polled else { return };
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

    /// The reading of the guest on a host with `memory`, with the questions that `asking` chooses. A VMM reports a reset and a fence by itself.
    pub(crate) fn seen(
        &mut self,
        asking: &mut Asking,
        ills: Ills,
        memory: Bytes,
        now: Moment,
    ) -> Option<GuestSeen> {
        self.guest.as_ref()?;
        if let Some(ask) = asking.ask(&self.id) {
            self.answer(ask, ills, now);
        }
        let weighed = self.weigh(asking.weigh(&self.id), ills, now);
        let footprint = weighed.clone().map(|weighed| weighed.footprint);
        let tier = weighed.latest().and_then(|weighed| weighed.tier);
        let merged = match self.plan.equal {
            Some(_) => footprint.clone().map(|_| self.merged.told),
            None => Reading::unsupported(),
        };
        let guest = self.guest.as_ref()?;
        let spec = guest.spec();
        let told = match &self.told {
            _ if ills.unknown => Told::claimed(spec.memory, Absence::NotYet),
            Some((told, at)) => told.clone().later(now.since(*at)),
            None => Told::nothing(spec.memory, Absence::NotYet),
        };
        let Tier { held, limit, .. } = tier.unwrap_or_default();
        let (overhead, overhead_bound) =
            (spec.overhead.saturating_add(held), spec.overhead_bound.saturating_add(limit.max(held)));
        let mut seen = GuestSeen {
            id: self.id.clone(),
            pid: 1_000,
            // A scenario names no users: all guests are root's.
            user: Some(0),
            backend: Backend::new("simulated"),
            capabilities: Capabilities::BALLOON,
            cost: Cost {
                tier: tier.map_or_else(Reading::unsupported, |tier| weighed.clone().map(|_| tier)),
                cpu_time: weighed.map(|weighed| weighed.cpu_time),
                merged,
                ..Cost::of(footprint, overhead, overhead_bound, &Absence::Unsupported)
            },
            tmpfs: self.plan.in_tmpfs.then_some(TMPFS),
            withheld: ills.said_pinned.then(|| Withheld::Pinned("vfio-pci".to_owned())),
            told: Told {
                full: ills.tells_size.unwrap_or(told.full),
                reset: guest.was_reset(),
                fence: ills.fence,
                ..told
            },
        };
        seen.bound_claims(if ills.unknown { None } else { Some(spec.memory) }, memory);
        Some(seen)
    }

    /// What it costs, read again if that is `due`.
    pub(crate) fn weigh(&mut self, due: bool, ills: Ills, now: Moment) -> Reading<Weighed> {
        if let Some(guest) = self.guest.as_ref().filter(|_| due && !ills.unreadable) {
            let cpu_time = Span::from_millis(guest.progress().cpu_us / 1_000);
            let footprint = guest.size().footprint.saturating_sub(self.merged.told);
            self.weighed = Some((Weighed { footprint, cpu_time, tier: guest.tier() }, now));
        }
        match self.weighed {
            Some((value, at)) if !ills.unreadable => Reading::Fresh { value, age: now.since(at) },
            Some((value, at)) => Reading::Stale { value, age: now.since(at), why: Absence::Forbidden },
            None => Reading::absent(Absence::Forbidden),
        }
    }

    pub(crate) fn balloon(&self, guest: &Guest, ills: Ills) -> Reading<Balloon> {
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

    pub(crate) fn statistics(&self, guest: &Guest, ills: Ills, now: Moment) -> Reading<GuestStats> {
        if !guest.spec().balloon {
            return Reading::absent(Absence::NoBalloon);
        }
        let Some((value, at)) = self.stats else {
            return Reading::absent(match (guest.has_driver(), self.polled) {
                (false, _) => Absence::NoDriver,
                (true, Polling::Off) => Absence::NotPolled,
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

/// Falsifies an agent's report in the same way.
fn tell_a_lie_as_agent(told: &mut Agent, lie: Lie, actual: Bytes, seed: u64, nth: u64) {
    let many = Bytes::from_mib(nth * 1_000);
    let (memory, counters) = (&mut told.memory, &mut told.counters);
    match lie {
        Lie::NothingAvailable => (memory.available, memory.free, memory.free_blocks) = Default::default(),
        Lie::AllAvailable => (memory.available, memory.free, memory.free_blocks) = (actual, actual, actual),
        Lie::Stalls => counters.alloc_stalls = nth * 100_000,
        Lie::Kills => counters.oom_kills = nth,
        Lie::Scans => (counters.refaults_file, counters.activations_file) = (many, many),
        Lie::Random => {
            let mut random = Random::new(seed ^ nth ^ u64::MAX);
            let mut number = || match random.between(0, 4) {
                0 => 0,
                1 => u64::MAX,
                2 => random.next() % (1 << 40),
                _ => random.next() % (4 << 30),
            };
            for size in [
                &mut memory.total,
                &mut memory.free,
                &mut memory.free_blocks,
                &mut memory.pieces,
                &mut memory.available,
                &mut memory.unmapped_cache,
                &mut memory.dirty,
                &mut counters.refaults_file,
                &mut counters.activations_file,
                &mut counters.swapped_in,
            ] {
                *size = Bytes::new(number());
            }
            (counters.oom_kills, counters.alloc_stalls) = (number(), number());
            told.freed = Bytes::new(number());
            for size in [&mut memory.anon, &mut memory.tier_total, &mut memory.tier_free] {
                *size = Bytes::new(number());
            }
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
