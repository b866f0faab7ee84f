//! Snapshots for tests, and guests that live from one tick to the next.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]
#![allow(dead_code, reason = "each test file uses its part")]

use memtide_model::{
    Amount, Backend, Balloon, Budget, Bytes, Change, Commitment, Config, Decision, GuestId, GuestSeen,
    GuestStats, HostSeen, Mode, Moment, PAGE_4K, Reading, Snapshot, Span, State, StatsPolling, WallClock,
};
use memtide_policy::{check, decide};

pub const OVERHEAD: Bytes = Bytes::from_mib(60);

pub fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// Manage mode, a budget, no reserve, strict without self-deflations: the arithmetic of a test is its own.
pub fn config() -> Config {
    Config {
        mode: Mode::Manage,
        budget: Budget::Size(mib(2048)),
        reserve: Amount::Bytes(Bytes::ZERO),
        self_deflations: 0,
        ..Config::default()
    }
}

pub fn elastic() -> Config {
    Config { commitment: Commitment::Elastic, ..config() }
}

pub fn id(name: &str) -> GuestId {
    GuestId::new(name, 1, "boot")
}

pub fn host(capacity: Bytes) -> HostSeen {
    HostSeen {
        capacity,
        other: Bytes::ZERO,
        swap: Reading::absent(memtide_model::Absence::Unsupported),
        pressure: Reading::absent(memtide_model::Absence::Unsupported),
    }
}

/// A guest at rest: 1 GiB, `actual` kept, `used` used, the rest free, with a driver that offers everything.
pub fn guest(name: &str, actual: u64, used: u64) -> GuestSeen {
    let (actual, used) = (mib(actual), mib(used));
    GuestSeen {
        id: id(name),
        pid: 1,
        backend: Backend::Qemu,
        full: mib(1024),
        footprint: Reading::now(actual.saturating_add(OVERHEAD)),
        overhead: OVERHEAD,
        overhead_bound: OVERHEAD,
        balloon: Reading::now(Balloon { actual, deflate_on_oom: false, free_page_reporting: true }),
        hotplug: Reading::absent(memtide_model::Absence::Unsupported),
        stats: Reading::now(stats(actual, used, Bytes::ZERO)),
        polling: StatsPolling::Every(Span::from_secs(1)),
        reset: false,
        fence: None,
    }
}

pub fn stats(actual: Bytes, used: Bytes, cache: Bytes) -> GuestStats {
    let available = actual.saturating_sub(used);
    GuestStats {
        total: Some(mib(1024)),
        free: Some(available.saturating_sub(cache)),
        available: Some(available),
        disk_caches: Some(cache),
        alloc_stalls: Some(0),
        async_scans: Some(0),
        direct_scans: Some(0),
        major_faults: Some(0),
        oom_kills: Some(0),
        ..GuestStats::default()
    }
}

/// The same guest with other statistics.
pub fn told(mut guest: GuestSeen, change: impl FnOnce(&mut GuestStats)) -> GuestSeen {
    let Reading::Fresh { value, .. } = &mut guest.stats else { unreachable!("the builder's are fresh") };
    change(value);
    guest
}

/// The same guest with a balloon that it may deflate by itself.
pub fn deflating(mut guest: GuestSeen) -> GuestSeen {
    let Reading::Fresh { value, .. } = &mut guest.balloon else { unreachable!("the builder's is fresh") };
    value.deflate_on_oom = true;
    guest
}

pub fn snapshot(millis: u64, capacity: u64, mut guests: Vec<GuestSeen>) -> Snapshot {
    guests.sort_by(|a, b| a.id.cmp(&b.id));
    Snapshot {
        taken_at: Moment::from_millis(millis),
        wall: WallClock(0),
        host: host(mib(capacity)),
        guests,
        orders: Vec::new(),
    }
}

/// The plan as text, a line an action.
pub fn lines(decision: &Decision) -> Vec<String> {
    decision.plan.actions.iter().map(|a| format!("{} {}: {}", a.guest, a.change, a.reason)).collect()
}

/// A guest that lives: it uses, caches, stalls, inflates and deflates.
#[derive(Clone, Debug)]
pub struct Live {
    pub name: &'static str,
    pub full: u64,
    pub actual: u64,
    pub target: u64,
    /// What its programs use, MiB.
    pub used: u64,
    /// What they want to use.
    pub wants: u64,
    /// Page cache, MiB.
    pub cache: u64,
    /// Page cache below which it refaults.
    pub needs_cache: u64,
    /// MiB that its balloon moves in a tick of 250 ms.
    pub speed: u64,
    pub allocation: u64,
    pub resident: u64,
    pub counters: GuestStats,
    pub oom_kills: u64,
    /// Whether its driver deflates the balloon where it runs out of memory.
    pub deflates: bool,
    /// It did so, and looks at the target only when that is written again.
    pub deaf: bool,
}

impl Live {
    pub fn new(name: &'static str, used: u64) -> Self {
        Self {
            name,
            full: 1024,
            actual: 1024,
            target: 1024,
            used,
            wants: used,
            cache: 0,
            needs_cache: 0,
            speed: 75,
            allocation: 40,
            resident: used,
            counters: stats(mib(0), mib(0), mib(0)),
            oom_kills: 0,
            deflates: false,
            deaf: false,
        }
    }

    fn tick(&mut self) {
        // The balloon takes free memory, then cache; what is used stays.
        let room = self.actual - self.actual.min(self.used + 4);
        if self.actual > self.target {
            let speed = if self.deaf { 0 } else { self.speed };
            self.actual -= speed.min(self.actual - self.target).min(room);
        } else {
            self.actual += (self.speed * 8).min(self.target - self.actual);
        }
        let grows = self.allocation.min(self.wants.saturating_sub(self.used));
        let fits = grows.min(self.actual.saturating_sub(self.used));
        self.used = if self.wants < self.used { self.wants } else { self.used + fits };
        let squeezed = self.cache.saturating_sub(self.actual - self.used);
        self.cache -= squeezed;
        let add = |counter: &mut Option<u64>, by: u64| *counter = counter.map(|c| c + by);
        if fits < grows {
            add(&mut self.counters.alloc_stalls, 100);
        }
        if squeezed > 0 || self.cache < self.needs_cache {
            add(&mut self.counters.async_scans, 256 * (squeezed + 40));
        }
        self.resident = self.resident.max(self.used + self.cache).min(self.actual);
    }

    /// Its programs take so much at once; where that does not fit, the driver takes it out of the balloon.
    pub fn take_by_itself(&mut self, mib: u64) {
        assert!(self.deflates, "only with deflate-on-oom");
        (self.used, self.wants) = (self.used + mib, self.used + mib);
        self.actual = self.actual.max(self.used + 4).min(self.full);
        self.deaf = true;
        self.resident = self.resident.max(self.used + self.cache);
    }

    /// Drops what it used; freed pages go back to the host.
    pub fn free_down_to(&mut self, used: u64) {
        (self.used, self.wants) = (used, used);
        self.resident = used + self.cache;
    }

    fn seen(&self) -> GuestSeen {
        let mut seen = guest(self.name, self.actual, self.used);
        seen.full = mib(self.full);
        let counted = stats(mib(self.actual), mib(self.used), mib(self.cache));
        let counters = self.counters;
        seen.stats = Reading::now(GuestStats {
            alloc_stalls: counters.alloc_stalls,
            async_scans: counters.async_scans,
            oom_kills: Some(self.oom_kills),
            ..counted
        });
        if self.deflates {
            seen = deflating(seen);
        }
        seen.footprint = Reading::now(mib(self.resident).saturating_add(OVERHEAD));
        seen
    }
}

/// A host of live guests under the policy. Each tick is 250 ms and is checked.
pub struct Host {
    pub config: Config,
    pub capacity: u64,
    pub state: State,
    pub guests: Vec<Live>,
    pub now: u64,
    pub log: Vec<String>,
}

impl Host {
    pub fn new(config: Config, capacity: u64, guests: Vec<Live>) -> Self {
        Self { config, capacity, state: State::default(), guests, now: 100_000, log: Vec::new() }
    }

    pub fn guest(&mut self, name: &str) -> &mut Live {
        self.guests.iter_mut().find(|g| g.name == name).unwrap()
    }

    pub fn tick(&mut self) -> Decision {
        self.now += 250;
        for guest in &mut self.guests {
            guest.tick();
        }
        let seen = snapshot(self.now, self.capacity, self.guests.iter().map(Live::seen).collect());
        let decision = decide(&self.config, &self.state, &seen);
        let violations = check(&self.config, &self.state, &seen, &decision.plan);
        assert_eq!(violations, [], "at {} ms: {:#?}", self.now, lines(&decision));
        for action in &decision.plan.actions {
            if let Change::SetTarget(target) = action.change {
                assert_eq!(target, target.round_down(PAGE_4K));
                let guest = self.guest(action.guest.name());
                (guest.target, guest.deaf) = (target.whole_mib(), false);
            }
        }
        let now = self.now - 100_000;
        self.log.extend(
            lines(&decision).into_iter().map(|line| format!("+{}.{:03}s {line}", now / 1000, now % 1000)),
        );
        self.state = decision.state.clone();
        decision
    }

    pub fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.tick();
        }
    }

    /// Ticks until the condition holds; the number of milliseconds it took.
    pub fn until(&mut self, most_seconds: u64, mut holds: impl FnMut(&Self) -> bool) -> u64 {
        let start = self.now;
        while !holds(self) {
            assert!(
                self.now - start < most_seconds * 1000,
                "not within {most_seconds} s:\n{}",
                self.log.join("\n")
            );
            self.tick();
        }
        self.now - start
    }
}
