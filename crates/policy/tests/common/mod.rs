//! Snapshots for tests, and guests that live from one tick to the next.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]
#![allow(dead_code, reason = "each test file uses its part")]

mod decide;

use std::sync::Arc;

pub use self::decide::decide;
use memtide_guest::{Guest, Program, Spec};
use memtide_model::{
    Absence, Amount, Answer, Backend, Balloon, Budget, Bytes, Capabilities, Commitment, Config, Cost,
    Decision, Gain, GuestId, GuestSeen, GuestState, GuestStats, HostSeen, Mode, Moment, PAGE_4K, Plan,
    Polling, Proof, Reading, Request, Snapshot, Span, State, Told, WallClock, Witness,
};
use memtide_policy::{Violation, check, witness};

pub const OVERHEAD: Bytes = Bytes::from_mib(60);

pub fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// Manage mode, a budget, no reserve, strict without self-deflations: each test does its own arithmetic.
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
    HostSeen::of(capacity, Bytes::ZERO)
}

/// A quiet guest: 1 GiB, `actual` kept, `used` used, the rest free; its driver offers everything.
pub fn guest(name: &str, actual: u64, used: u64) -> GuestSeen {
    let (actual, used) = (mib(actual), mib(used));
    GuestSeen {
        id: id(name),
        pid: 1,
        user: None,
        backend: Backend::new("QEMU"),
        capabilities: Capabilities::BALLOON,
        cost: Cost::of(
            Reading::now(actual.saturating_add(OVERHEAD)),
            OVERHEAD,
            OVERHEAD,
            &Absence::Unsupported,
        ),
        tmpfs: None,
        withheld: None,
        told: Told {
            claimed: false,
            full: mib(1024),
            balloon: Reading::now(Balloon { actual, deflate_on_oom: false, free_page_reporting: true }),
            hotplug: Reading::absent(memtide_model::Absence::Unsupported),
            stats: Reading::now(stats(actual, used, Bytes::ZERO)),
            agent: Reading::unsupported(),
            disks: Reading::unsupported(),
            merges: Reading::unsupported(),
            polling: Polling::Every(Span::from_secs(1)),
            reset: false,
            fence: None,
            terms: None,
        },
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
/// `guest` after `change`.
pub fn but(mut guest: GuestSeen, change: impl FnOnce(&mut GuestSeen)) -> GuestSeen {
    change(&mut guest);
    guest
}

/// `guest` whose statistics are changed.
pub fn told(mut guest: GuestSeen, change: impl FnOnce(&mut GuestStats)) -> GuestSeen {
    let Reading::Fresh { value, .. } = &mut guest.told.stats else { unreachable!("the builder's are fresh") };
    change(value);
    guest
}

/// The same guest with a balloon that it may deflate by itself.
pub fn deflating(mut guest: GuestSeen) -> GuestSeen {
    let Reading::Fresh { value, .. } = &mut guest.told.balloon else {
        unreachable!("the builder's is fresh")
    };
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
        tmpfs: Vec::new(),
        orders: Vec::new(),
    }
}

/// The same state, and the host is known to gain what each of these guests gives.
pub fn proved(state: &State, seen: &Snapshot) -> State {
    let mut state = state.clone();
    for guest in &seen.guests {
        let new = || Box::new(GuestState { first_seen: seen.taken_at, ..GuestState::default() });
        let gain = &mut state.guests.entry(guest.id.clone()).or_insert_with(new).gain;
        if gain.proof == Proof::None {
            *gain = Gain { full: guest.told.full, proof: Proof::Gained, ..*gain };
        }
    }
    state
}

/// The promises that a plan breaks, if the check has seen what `state` remembers.
pub fn broken(config: &Config, state: &State, seen: &Snapshot, plan: &Plan) -> Vec<Violation> {
    let mut witness = Witness::from(state);
    witness::looks(&mut witness, config, seen);
    check(config, &witness, seen, plan).into_iter().map(|(_, violation)| violation).collect()
}

/// The plan as text, one line for each action.
pub fn lines(decision: &Decision) -> Vec<String> {
    decision
        .plan
        .actions
        .iter()
        .map(|a| format!("{} {}: {}", a.guest().unwrap(), a.request, a.reason))
        .collect()
}

/// Kernel memory of every live guest.
const KERNEL: Bytes = Bytes::from_mib(60);

/// A live guest: one of the shared model, with a name.
#[derive(Clone, Debug)]
pub struct Resident {
    pub name: &'static str,
    pub model: Guest,
}

impl Resident {
    /// A guest of 1 GiB that uses `used` MiB, has a program that grows at 160 MiB/s, and leaves its balloon alone.
    pub fn new(name: &'static str, used: u64) -> Self {
        Self::with(name, used, |_| ())
    }

    /// The same with another spec.
    pub fn with(name: &'static str, used: u64, change: impl FnOnce(&mut Spec)) -> Self {
        let program = Program { rate: 160 << 20, ..Program::constant(mib(used).saturating_sub(KERNEL)) };
        let mut spec = Spec {
            kernel_size: KERNEL,
            slab: Bytes::ZERO,
            deflate_on_oom: false,
            overhead: OVERHEAD,
            overhead_bound: OVERHEAD,
            inflates: 300 << 20,
            deflates: 2_400 << 20,
            programs: vec![program],
            ..Spec::default()
        };
        change(&mut spec);
        Self { name, model: Guest::new(Arc::new(spec), 1) }
    }

    /// From now on, kernel and program want `used` MiB.
    pub fn wants(&mut self, used: u64) {
        self.model.wish(0, mib(used).saturating_sub(KERNEL));
    }

    pub fn actual(&self) -> u64 {
        self.model.size().actual.whole_mib()
    }

    pub fn used(&self) -> u64 {
        self.model.size().used.whole_mib()
    }

    pub fn cache(&self) -> u64 {
        self.model.size().cache.whole_mib()
    }

    fn lives(&mut self, time: Span) {
        self.model.advance(Span::from_millis(self.model.age().as_millis() + time.as_millis()));
    }

    fn seen(&self) -> GuestSeen {
        let (size, spec) = (self.model.size(), self.model.spec());
        let (actual, deflate_on_oom) = (size.actual, spec.deflate_on_oom);
        but(guest(self.name, 0, 0), |guest| {
            guest.told.full = spec.memory;
            guest.cost.footprint = Reading::now(size.footprint);
            guest.told.balloon = Reading::now(Balloon { actual, deflate_on_oom, free_page_reporting: true });
            guest.told.stats = Reading::now(self.model.stats());
        })
    }
}

/// Changes a snapshot.
pub type Place = Box<dyn FnMut(&mut Snapshot)>;

/// A host of live guests under the policy. Each tick is 250 ms and is checked.
pub struct Host {
    pub config: Config,
    pub capacity: u64,
    pub state: State,
    pub witness: Witness,
    pub guests: Vec<Resident>,
    pub now: u64,
    pub log: Vec<String>,
    /// Changes what is seen.
    pub place: Option<Place>,
    /// The most that a tmpfs held, in MiB.
    pub most_in_tmpfs: u64,
}

impl Host {
    pub fn new(config: Config, capacity: u64, guests: Vec<Resident>) -> Self {
        let (state, witness) = (State::default(), Witness::default());
        Self {
            config,
            capacity,
            state,
            witness,
            guests,
            now: 100_000,
            log: Vec::new(),
            place: None,
            most_in_tmpfs: 0,
        }
    }

    pub fn guest(&mut self, name: &str) -> &mut Resident {
        self.guests.iter_mut().find(|g| g.name == name).unwrap()
    }

    pub fn tick(&mut self) -> Decision {
        self.now += 250;
        for guest in &mut self.guests {
            guest.lives(Span::from_millis(250));
        }
        let mut seen = snapshot(self.now, self.capacity, self.guests.iter().map(Resident::seen).collect());
        if let Some(place) = &mut self.place {
            place(&mut seen);
            let own = |guest: &GuestSeen| guest.cost.footprint.latest().unwrap().saturating_sub(OVERHEAD);
            let held = Bytes::sum(seen.guests.iter().map(own));
            self.most_in_tmpfs = self.most_in_tmpfs.max(held.whole_mib());
        }
        let decision = decide(&self.config, &self.state, &seen);
        witness::looks(&mut self.witness, &self.config, &seen);
        let violations = check(&self.config, &self.witness, &seen, &decision.plan);
        assert_eq!(violations, [], "at {} ms: {:#?}", self.now, lines(&decision));
        for action in &decision.plan.actions {
            if let Request::SetTarget(target) = action.request {
                assert_eq!(target, target.round_down(PAGE_4K));
                self.guest(action.guest().unwrap().name()).model.set_target(target);
            }
        }
        let answers = vec![Answer::Accepted; decision.plan.actions.len()];
        witness::hears(&mut self.witness, &seen, &decision.plan, &answers);
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

    /// Runs ticks until the condition holds; returns the milliseconds that it took.
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
