//! A world of a few guests, and very simple policies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memtide_engine::{Applied, ApplyError, Asking, Killed, Policy, Wake, World, resume};
use memtide_guest::{Program, Spec};
use memtide_model::{
    Absence, Action, Backend, Balloon, Bytes, Capabilities, Config, Cost, Decision, Fence, GuestId,
    GuestReport, GuestSeen, Hold, HostSeen, KsmOrder, KsmReason, KsmRun, KsmSeen, KsmSettings, KsmState,
    Mode, Moment, OnExit, Order, Plan, Polling, Reading, Reason, Refusal, Report, Request, Snapshot, Span,
    State, Told, Verdict, WallClock, Witness,
};

pub const FULL: Bytes = Bytes::from_mib(1024);
pub const HALF: Bytes = Bytes::from_mib(512);
const REASON: Reason = Reason::IdleMemory { idle: HALF, demand: HALF, wanted: HALF };

/// Guests that follow their target at once.
#[derive(Debug, Default)]
pub struct Toy {
    pub now: Moment,
    pub guests: BTreeMap<GuestId, Guest>,
    /// The actions that were tried, including refused ones.
    pub asked: Vec<Action>,
    /// The ends of the next waits. If empty, a wait ends with a timeout.
    pub wakes: VecDeque<(Span, Wake)>,
    /// The moments of the snapshots.
    pub observed: Vec<Moment>,
    /// The operator's orders since the last snapshot.
    pub orders: Vec<Order>,
    /// KSM, if this host has it.
    pub ksm: Option<KsmSettings>,
    /// Where the journal is, and what the next run would know of KSM if this one were killed while it carries out an order to it.
    pub journal: PathBuf,
    pub known: Vec<KsmState>,
    /// Whether KSM is put back at the end.
    pub puts_back: bool,
    /// The guests that were killed since the last tick.
    pub killed: Vec<Killed>,
    /// What the status should show.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Guest {
    pub model: memtide_guest::Guest,
    pub refuses: bool,
    pub fence: Option<Fence>,
}

impl Guest {
    /// Sets the guest's target, and gives the guest all the time that it needs to follow.
    pub fn keep(&mut self, target: Bytes) {
        self.model.set_target(target);
        self.model.advance(Span::from_millis(self.model.age().as_millis() + 10_000));
    }
}

pub fn id(name: &str) -> GuestId {
    GuestId::new(name, 100, "boot")
}

impl Toy {
    pub fn with(names: &[&str]) -> Self {
        let programs = vec![Program::constant(Bytes::from_mib(100))];
        let spec = Arc::new(Spec { programs, full_of_cold: true, ..Spec::default() });
        let guest = Guest { model: memtide_guest::Guest::new(spec, 1), refuses: false, fence: None };
        let guests = names.iter().map(|name| (id(name), guest.clone())).collect();
        Self { now: Moment::from_millis(60_000), guests, ..Self::default() }
    }

    pub fn guest(&mut self, name: &str) -> &mut Guest {
        self.guests.get_mut(&id(name)).expect("a guest of this world")
    }

    /// The guests of the tried actions, in order.
    pub fn asked_names(&self) -> Vec<&str> {
        self.asked.iter().map(|action| action.guest().unwrap().name()).collect()
    }

    fn seen(id: &GuestId, guest: &Guest) -> GuestSeen {
        let size = guest.model.size();
        let balloon = Balloon { actual: size.actual, deflate_on_oom: true, free_page_reporting: true };
        GuestSeen {
            id: id.clone(),
            pid: 4242,
            user: None,
            backend: Backend::new("QEMU"),
            capabilities: Capabilities::BALLOON,
            cost: Cost::of(
                Reading::now(size.footprint),
                guest.model.spec().overhead,
                Bytes::from_mib(60),
                &Absence::Unsupported,
            ),
            tmpfs: None,
            withheld: None,
            told: Told {
                claimed: false,
                full: FULL,
                balloon: Reading::now(balloon),
                hotplug: Reading::absent(Absence::Unsupported),
                stats: Reading::now(guest.model.stats()),
                agent: Reading::unsupported(),
                disks: Reading::unsupported(),
                merges: Reading::unsupported(),
                polling: Polling::Every(Span::from_secs(1)),
                reset: false,
                fence: guest.fence,
                terms: None,
            },
        }
    }
}

impl World for Toy {
    fn observe(&mut self, _asking: &mut Asking) -> Snapshot {
        self.observed.push(self.now);
        self.guests.values_mut().for_each(|guest| guest.model.advance(self.now.since(Moment::default())));
        Snapshot {
            taken_at: self.now,
            wall: WallClock(self.now.as_millis()),
            host: HostSeen {
                ksm: match self.ksm {
                    Some(settings) => Reading::now(KsmSeen { settings, ..KsmSeen::default() }),
                    None => Reading::unsupported(),
                },
                ..HostSeen::of(Bytes::from_mib(2048), Bytes::from_mib(100))
            },
            guests: self.guests.iter().map(|(id, guest)| Self::seen(id, guest)).collect(),
            tmpfs: Vec::new(),
            orders: std::mem::take(&mut self.orders),
        }
    }

    fn apply(&mut self, action: &Action) -> Result<Applied, ApplyError> {
        self.asked.push(action.clone());
        // The host, and each guest's cgroup, give half of what is asked, at once.
        if let Request::Reclaim(bytes) = action.request {
            return Ok(Applied::Yielded(bytes.mul_div(1, 2)));
        }
        if let Request::Merge(order) = action.request {
            let memory = resume(&self.journal, self.now).unwrap().memory;
            self.known.push(memory.map(|(state, _)| *state.ksm).unwrap_or_default());
            self.ksm = self.ksm.map(|settings| order.after(settings));
            return Ok(Applied::Accepted);
        }
        match action.guest().and_then(|guest| self.guests.get_mut(guest)) {
            None => Err(Absence::Gone.into()),
            Some(guest) if guest.refuses => Err(Absence::Refused("not\nnow".to_owned()).into()),
            Some(guest) => {
                if let Request::SetTarget(target) = action.request {
                    guest.keep(target);
                }
                Ok(Applied::Accepted)
            }
        }
    }

    fn look(&mut self, _due: &[GuestId]) -> Vec<(GuestId, Told)> {
        Vec::new()
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn killed(&mut self) -> Vec<Killed> {
        std::mem::take(&mut self.killed)
    }

    fn puts_ksm_back(&mut self) -> bool {
        self.puts_back
    }

    fn wait(&mut self, at_most: Duration) -> Wake {
        let (after, wake) = self.wakes.pop_front().unwrap_or((at_most.into(), Wake::Timeout));
        self.now = self.now.after(after.min(at_most.into()));
        wake
    }

    fn now(&self) -> Moment {
        self.now
    }
}

pub fn manage() -> Config {
    Config { mode: Mode::Manage, ..Config::default() }
}

pub fn release() -> Config {
    Config { on_exit: OnExit::Release, ..manage() }
}

/// A policy made of two functions.
#[derive(Clone, Copy, Debug)]
struct Simple {
    name: &'static str,
    decide: fn(&State, &Snapshot) -> Decision,
    check: fn(&Witness, &Snapshot, &Plan) -> Vec<Refusal>,
}

impl Policy for Simple {
    fn identity(&self) -> &str {
        self.name
    }

    fn decide(&self, _: &Config, state: &State, seen: &Snapshot) -> Decision {
        (self.decide)(state, seen)
    }

    fn check(&self, _: &Config, witness: &Witness, seen: &Snapshot, plan: &Plan) -> Vec<Refusal> {
        (self.check)(witness, seen, plan)
    }
}

const HALVES: Simple = Simple {
    name: "halves",
    decide: |state, seen| decide(state, seen, |_| HALF),
    check: |_, _, _| Vec::new(),
};

/// Every guest gets half. The check never complains.
pub fn halves() -> Arc<dyn Policy> {
    Arc::new(HALVES)
}

/// Every guest gets half, and nobody polled the statistics before.
pub fn polled_halves() -> Arc<dyn Policy> {
    let decide = |state: &State, seen: &Snapshot| {
        let mut decision = decide(state, seen, |_| HALF);
        for guest in decision.state.guests.values_mut() {
            guest.polled_before = Some(Polling::Off);
        }
        decision
    };
    Arc::new(Simple { name: "polled halves", decide, ..HALVES })
}

/// Every guest gets half, and KSM was found stopped.
pub fn merging_halves() -> Arc<dyn Policy> {
    let decide = |state: &State, seen: &Snapshot| {
        let mut decision = decide(state, seen, |_| HALF);
        decision.state.ksm.found = Some(KsmSettings::default());
        decision
    };
    Arc::new(Simple { name: "merging halves", decide, ..HALVES })
}

/// KSM scans, and then rests, and so on.
pub fn merges() -> Arc<dyn Policy> {
    let decide = |state: &State, seen: &Snapshot| {
        let mut decision = decide(state, seen, |_| FULL);
        let present = seen.host.ksm.fresh().expect("this host has KSM").settings;
        let order = match present.run {
            KsmRun::Scanning => KsmOrder::Stop,
            _ => KsmOrder::Scan { smart: true },
        };
        let reason = Reason::Ksm(KsmReason::GoesOn);
        decision.plan.actions.push(Action::of_host(Request::Merge(order), reason));
        let ksm = &mut decision.state.ksm;
        ksm.found.get_or_insert(present.to_put_back());
        ksm.written = Some(order.after(present));
        decision
    };
    Arc::new(Simple { name: "merges", decide, ..HALVES })
}

/// Every guest gets half, and no guest must shrink.
pub fn wrong_halves() -> Arc<dyn Policy> {
    let check = |_: &Witness, _: &Snapshot, plan: &Plan| refused(plan, |_| true);
    Arc::new(Simple { name: "wrong halves", check, ..HALVES })
}

/// Every guest gets half, but those whose name begins with `b` must not shrink.
pub fn half_wrong_halves() -> Arc<dyn Policy> {
    let check = |_: &Witness, _: &Snapshot, plan: &Plan| refused(plan, |id| id.name().starts_with('b'));
    Arc::new(Simple { name: "half wrong halves", check, ..HALVES })
}

fn refused(plan: &Plan, is_refused: impl Fn(&GuestId) -> bool) -> Vec<Refusal> {
    let refusal = |(action, of): (usize, &Action)| {
        let id = of.guest().filter(|id| is_refused(id))?;
        Some(Refusal { action, why: format!("{id} must not shrink") })
    };
    plan.actions.iter().enumerate().filter_map(refusal).collect()
}

/// Every guest gets a quarter.
pub fn quarters() -> Arc<dyn Policy> {
    let decide = |state: &State, seen: &Snapshot| decide(state, seen, |_| Bytes::from_mib(256));
    Arc::new(Simple { name: "quarters", decide, ..HALVES })
}

/// Guests whose name begins with `d` give half, the others get everything; together at most 1.5 GiB.
pub fn donors() -> Arc<dyn Policy> {
    let decide = |state: &State, seen: &Snapshot| {
        let target = |id: &GuestId| if id.name().starts_with('d') { HALF } else { FULL };
        decide(state, seen, target)
    };
    let check = |witness: &Witness, seen: &Snapshot, plan: &Plan| {
        let reach = seen.guests.iter().map(|guest| {
            let asked = plan.actions.iter().find(|action| action.guest() == Some(&guest.id));
            match asked.map(|action| action.request) {
                Some(Request::SetTarget(target)) => target,
                _ => {
                    let target = witness.guests.get(&guest.id).and_then(|guest| guest.target);
                    target.unwrap_or_default().max(guest.actual())
                }
            }
        });
        let fits = Bytes::sum(reach) <= Bytes::from_mib(1536);
        let last = plan.actions.len().saturating_sub(1);
        if fits { Vec::new() } else { vec![Refusal { action: last, why: "more than 1.5 GiB".to_owned() }] }
    };
    Arc::new(Simple { name: "donors", decide, check })
}

fn decide(state: &State, seen: &Snapshot, target_of: impl Fn(&GuestId) -> Bytes) -> Decision {
    let mut next = State { decided_at: Some(seen.taken_at), ..state.clone() };
    let here: BTreeSet<&GuestId> = seen.guests.iter().map(|guest| &guest.id).collect();
    next.guests.retain(|id, _| here.contains(id));
    for order in &seen.orders {
        let guest = next.guests.entry(order.guest.clone()).or_default();
        guest.hold = Hold::in_force(guest.hold, [order].into_iter(), seen.taken_at);
    }
    let (mut plan, mut report) = (Plan::default(), Report::default());
    for guest in &seen.guests {
        let target = target_of(&guest.id);
        let remembered = next.guests.entry(guest.id.clone()).or_default();
        remembered.actual = guest.actual();
        let changes = remembered.target.unwrap_or(guest.actual()) != target;
        if changes {
            plan.actions.push(Action::of(guest.id.clone(), Request::SetTarget(target), REASON));
        }
        let verdict = if changes { Verdict::Shrunk } else { Verdict::Steady };
        let target = if changes { Some(target) } else { remembered.target };
        report.guests.push(reported(guest, target, verdict));
    }
    Decision { plan, state: next, report }
}

fn reported(guest: &GuestSeen, target: Option<Bytes>, verdict: Verdict) -> GuestReport {
    GuestReport {
        id: guest.id.clone(),
        class: Config::DEFAULT_CLASS.into(),
        footprint: Some(guest.actual()),
        merged: None,
        reach: guest.actual(),
        actual: guest.actual(),
        full: guest.told.full,
        used: None,
        cache: Bytes::ZERO,
        headroom: Bytes::ZERO,
        demand: HALF,
        entitlement: HALF,
        target,
        unordered: Bytes::ZERO,
        bound_by: None,
        verdict,
    }
}
