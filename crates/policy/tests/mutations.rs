//! `check` finds every violation that it names: a valid decision, then one change that breaks one promise.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

mod common;

use std::collections::BTreeSet;

use common::{but, config, elastic, guest, id, mib, proved, snapshot, told};
use memtide_model::{
    Absence, Action, Agent, AgentMemory, Bytes, Config, Fence, Hold, Keeps, KsmMode, KsmOrder, KsmReason,
    KsmSeen, KsmSettings, Missed, Mode, Moment, Order, Ordered, Plan, Polling, Proof, Reading, Reason,
    Request, Share, Snapshot, Space, Span, State, Subject, Tmpfs, TmpfsId, Withheld, Witness, Witnessed,
};
use memtide_policy::{Violation, check, decide, witness};

/// The input of `check`, valid until it is mutated.
#[derive(Clone)]
struct Given {
    config: Config,
    state: State,
    witness: Witness,
    seen: Snapshot,
    plan: Plan,
}

impl Given {
    /// A plan that sets the polling of "a", shrinks "donor" and grows "busy".
    fn valid(config: Config) -> Self {
        let seen = |millis, stalls| {
            let a = but(guest("a", 300, 250), |guest| guest.told.polling = Polling::Off);
            let busy = told(guest("busy", 600, 590), |s| s.alloc_stalls = Some(stalls));
            // 300 + 800 + 600 + 180 = 1880: 20 of room, of which "busy" needs 150.
            snapshot(millis, 1900, vec![a, guest("donor", 800, 100), busy])
        };
        let first = seen(1000, 0);
        let mut state = decide(&config, &proved(&State::default(), &first), &first).state;
        for guest in state.guests.values_mut() {
            (guest.target, guest.target_set_at) = (None, None);
        }
        let seen = seen(2000, 100);
        let plan = decide(&config, &state, &seen).plan;
        let witness = Witness::from(&state);
        Self { config, state, witness, seen, plan }
    }

    fn strict() -> Self {
        Self::valid(config())
    }

    /// The broken promises. The check has seen what `witness` remembers, and then the snapshot.
    fn found(&self) -> Vec<Violation> {
        self.refused().into_iter().map(|(_, violation)| violation).collect()
    }

    /// The same, with the place of each action.
    fn refused(&self) -> Vec<(usize, Violation)> {
        let mut witness = self.witness.clone();
        witness::looks(&mut witness, &self.config, &self.seen);
        check(&self.config, &witness, &self.seen, &self.plan)
    }

    /// What the check remembers of a guest.
    fn witnessed(&mut self, name: &str) -> &mut Witnessed {
        self.witness.guests.get_mut(&id(name)).unwrap()
    }

    /// The action that sets this guest's target.
    fn action(&mut self, name: &str) -> &mut Action {
        let sets = |action: &Action| matches!(action.request, Request::SetTarget(_));
        self.plan.actions.iter_mut().find(|action| action.guest() == Some(&id(name)) && sets(action)).unwrap()
    }

    fn set(&mut self, name: &str, target: Bytes) {
        self.action(name).request = Request::SetTarget(target);
    }

    fn target(&mut self, name: &str) -> Bytes {
        match self.action(name).request {
            Request::SetTarget(target) => target,
            other => unreachable!("found by its target: {other}"),
        }
    }

    fn guest(&mut self, name: &str) -> &mut memtide_model::GuestSeen {
        self.seen.guests.iter_mut().find(|guest| guest.id == id(name)).unwrap()
    }

    /// The same plan for a later snapshot.
    fn later(&mut self, millis: u64) {
        self.seen.taken_at = Moment::from_millis(millis);
        self.witness.seen_at = Some(Moment::from_millis(millis - 250));
    }

    /// Splits the huge pages of a guest.
    fn splits(&mut self, name: &str) {
        (self.seen.host.torn, self.seen.host.splits) = (Reading::now(mib(20)), true);
        let reason = Reason::Torn { torn: mib(20), wanted: mib(20) };
        self.plan.actions.push(Action::of(id(name), Request::Split, reason));
    }

    /// Lets the kernel scan for equal pages.
    fn merges(&mut self) {
        self.config.ksm.mode = KsmMode::Govern;
        self.seen.host.ksm = Reading::now(KsmSeen::default());
        let reason = Reason::Ksm(KsmReason::NewMemory { new: mib(100) });
        self.plan.actions.push(Action::of_host(Request::Merge(KsmOrder::Scan { smart: true }), reason));
    }

    /// Lets KSM merge the memory of a guest, or not.
    fn shares(&mut self, name: &str, shares: bool) {
        self.config.ksm.mode = KsmMode::Govern;
        self.seen.host.ksm = Reading::now(KsmSeen::default());
        self.plan.actions.push(Action::of(id(name), Request::Share(shares), Reason::Ksm(KsmReason::Shares)));
    }

    /// Lets the agent of a guest drop 20 MiB of the 100 MiB of page cache that it has.
    fn trims(&mut self, name: &str) {
        let memory = AgentMemory { unmapped_cache: mib(100), ..AgentMemory::default() };
        let agent = Agent { memory, trims: true, least_cache: mib(64), ..Agent::default() };
        self.guest(name).told.agent = Reading::now(agent);
        let reason = Reason::ColdCache { droppable: mib(36), wanted: mib(20) };
        self.plan.actions.push(Action::of(id(name), Request::Trim(mib(20)), reason));
    }

    fn default_class(&mut self) -> &mut memtide_model::Class {
        self.config.classes.get_mut(Config::DEFAULT_CLASS).unwrap()
    }
}

/// The name of a variant. A new variant does not compile until it is named here, and [`every_violation_is_found`] requires its
/// mutation.
fn name(violation: &Violation) -> &'static str {
    match violation {
        Violation::ActsWhileObserving(_) => "ActsWhileObserving",
        Violation::UnknownGuest(_) => "UnknownGuest",
        Violation::AsksTwice(_) => "AsksTwice",
        Violation::NotOurs(_) => "NotOurs",
        Violation::TakesInVain { .. } => "TakesInVain",
        Violation::MoreThanAProbe { .. } => "MoreThanAProbe",
        Violation::BelowReservation { .. } => "BelowReservation",
        Violation::AboveLimit { .. } => "AboveLimit",
        Violation::NotWholePages { .. } => "NotWholePages",
        Violation::OverCommitted { .. } => "OverCommitted",
        Violation::Unbacked { .. } => "Unbacked",
        Violation::TmpfsFull { .. } => "TmpfsFull",
        Violation::Unwanted { .. } => "Unwanted",
        Violation::BelowShare { .. } => "BelowShare",
        Violation::TakesFromStuck(_) => "TakesFromStuck",
        Violation::HostNotRead(_) => "HostNotRead",
        Violation::GrowsBlind { .. } => "GrowsBlind",
        Violation::GrowsBeforeFreed(..) => "GrowsBeforeFreed",
        Violation::Interval { .. } => "Interval",
        Violation::NotOrdered(_) => "NotOrdered",
        Violation::NotForTheHost(_) => "NotForTheHost",
        Violation::NotForAGuest(..) => "NotForAGuest",
        Violation::KsmIsNotOurs => "KsmIsNotOurs",
        Violation::SharesAgainstItsClass { .. } => "SharesAgainstItsClass",
        Violation::NoRoomToUnmerge { .. } => "NoRoomToUnmerge",
        Violation::NothingTorn(_) => "NothingTorn",
        Violation::SplitsTooOften(_) => "SplitsTooOften",
        Violation::NoAgent(_) => "NoAgent",
        Violation::AsksTooOften(_) => "AsksTooOften",
        Violation::TrimsNeeded { .. } => "TrimsNeeded",
    }
}

const ALL: [&str; 30] = [
    "ActsWhileObserving",
    "UnknownGuest",
    "AsksTwice",
    "NotOurs",
    "TakesInVain",
    "MoreThanAProbe",
    "BelowReservation",
    "AboveLimit",
    "NotWholePages",
    "OverCommitted",
    "Unbacked",
    "TmpfsFull",
    "Unwanted",
    "BelowShare",
    "TakesFromStuck",
    "HostNotRead",
    "GrowsBlind",
    "GrowsBeforeFreed",
    "Interval",
    "NothingTorn",
    "SplitsTooOften",
    "NoAgent",
    "AsksTooOften",
    "TrimsNeeded",
    "NotOrdered",
    "NotForTheHost",
    "NotForAGuest",
    "KsmIsNotOurs",
    "SharesAgainstItsClass",
    "NoRoomToUnmerge",
];

/// The broken promise, the mutation in words, and the mutation.
type Mutation = (&'static str, &'static str, fn(&mut Given));

const MUTATIONS: &[Mutation] = &[
    ("ActsWhileObserving", "the mode is observe", |g| g.config.mode = Mode::Observe),
    ("UnknownGuest", "another guest is changed", |g| {
        g.action("donor").subject = Subject::Guest(id("stranger"))
    }),
    ("UnknownGuest", "the guest is gone", |g| g.seen.guests.retain(|guest| guest.id != id("donor"))),
    ("AsksTwice", "an action stands twice", |g| {
        let action = g.action("busy").clone();
        g.plan.actions.push(action);
    }),
    ("NotOurs", "the guest is paused", |g| g.guest("donor").told.fence = Some(Fence::Paused)),
    ("NotOurs", "the operator holds the guest", |g| {
        let hold = Hold { keeps: Keeps::Size, until: None };
        g.seen.orders.push(Order { guest: id("donor"), ordered: Ordered::Leave(hold) });
    }),
    ("NotOurs", "the operator released the guest a while ago", |g| {
        g.witnessed("donor").hold = Some(Hold { keeps: Keeps::Limit, until: None });
    }),
    ("NotOurs", "somebody else moved its balloon", |g| {
        g.witnessed("busy").hold =
            Some(Hold { keeps: Keeps::Foreign { from: mib(600), held_until: None }, until: None });
    }),
    ("NotOurs", "the guest migrates", |g| g.guest("donor").told.fence = Some(Fence::Migrating)),
    ("NotOurs", "somebody else owns the guest", |g| g.guest("donor").capabilities.can_be_set = false),
    ("NotOurs", "the guest was reset", |g| g.guest("donor").told.reset = true),
    ("NotOurs", "the balloon was not read", |g| {
        g.guest("donor").told.balloon = Reading::absent(Absence::Timeout);
    }),
    ("NotOurs", "the class is not managed", |g| g.default_class().manage = false),
    ("TakesInVain", "the guest's memory is locked", |g| g.guest("donor").withheld = Some(Withheld::Locked)),
    ("TakesInVain", "its agent would drop page cache for nothing", |g| {
        g.plan.actions.clear();
        g.trims("donor");
        g.guest("donor").withheld = Some(Withheld::Locked);
    }),
    ("TakesInVain", "its huge pages are no torn ones", |g| {
        g.plan.actions.clear();
        g.splits("donor");
        g.guest("donor").withheld = Some(Withheld::HugePages);
    }),
    ("TakesInVain", "the host has gained nothing from it", |g| {
        g.witnessed("donor").gain.proof = Proof::Vain { size: mib(700), resident: mib(800) };
        g.witnessed("donor").gain.full = mib(1024);
    }),
    ("MoreThanAProbe", "nothing is known of it", |g| g.witnessed("donor").gain.proof = Proof::None),
    ("BelowReservation", "more is guaranteed", |g| g.default_class().reservation = mib(790)),
    ("BelowReservation", "no kernel lives on 16 MiB", |g| g.set("donor", mib(16))),
    ("AboveLimit", "less is allowed", |g| {
        g.default_class().limit = memtide_model::Limit::At(mib(600));
    }),
    ("AboveLimit", "more than the full size", |g| g.set("busy", mib(1025))),
    ("NotWholePages", "a byte more", |g| {
        let more = g.target("donor").saturating_add(Bytes::new(1));
        g.set("donor", more);
    }),
    ("OverCommitted", "a page more than there is", |g| {
        let more = g.target("busy").saturating_add(Bytes::from_kib(4));
        g.set("busy", more);
    }),
    ("TmpfsFull", "the memory of the guest that grows is in a tmpfs without room", |g| {
        let (tmpfs, space) = (TmpfsId(26), Space { size: mib(700), free: mib(5) });
        g.guest("busy").tmpfs = Some(tmpfs);
        g.seen.tmpfs = vec![Tmpfs { id: tmpfs, at: "/dev/shm".to_owned(), space: Reading::now(space) }];
    }),
    ("OverCommitted", "others came to need memory", |g| g.seen.host.other = mib(20)),
    ("OverCommitted", "a self-deflation must fit besides, and the guest has enough", |g| {
        g.config.self_deflations = 1;
        if let Reading::Fresh { value, .. } = &mut g.guest("busy").told.stats {
            value.available = Some(mib(500));
        }
        let a = g.guest("a");
        if let Reading::Fresh { value, .. } = &mut a.told.balloon {
            value.deflate_on_oom = true;
        }
    }),
    ("OverCommitted", "a grant leans on what is not yet returned", |g| {
        let more = g.target("busy").saturating_add(mib(100));
        g.set("busy", more);
        g.set("donor", mib(400));
    }),
    ("GrowsBlind", "the statistics are gone", |g| {
        g.guest("busy").told.stats = Reading::absent(Absence::Silent);
    }),
    ("GrowsBlind", "the statistics do not tell what is available", |g| {
        let busy = g.guest("busy");
        *busy = told(busy.clone(), |stats| stats.available = None);
    }),
    ("GrowsBeforeFreed", "the order is turned", |g| g.plan.actions.reverse()),
    ("NotOrdered", "memory of a guest is reclaimed", |g| {
        g.plan.actions.push(Action::of(id("donor"), Request::Reclaim(mib(8)), Reason::Ordered));
    }),
    ("NotOrdered", "memory of the host is reclaimed", |g| {
        let reclaim = Action::of(id("donor"), Request::Reclaim(mib(8)), Reason::Ordered);
        g.plan.actions.push(Action { subject: Subject::Host, ..reclaim });
    }),
    ("NotOrdered", "more is reclaimed than ordered", |g| {
        g.seen.orders.push(Order { guest: id("donor"), ordered: Ordered::Reclaim(mib(7)) });
        g.plan.actions.push(Action::of(id("donor"), Request::Reclaim(mib(8)), Reason::Ordered));
    }),
    ("NothingTorn", "the host sees no torn huge pages", |g| {
        g.splits("donor");
        g.seen.host.torn = Reading::now(Bytes::ZERO);
    }),
    ("NothingTorn", "nobody knows whether huge pages are torn", |g| {
        g.splits("donor");
        g.seen.host.torn = Reading::unsupported();
    }),
    ("NothingTorn", "this host cannot split", |g| {
        g.splits("donor");
        g.seen.host.splits = false;
    }),
    ("NoAgent", "trims a guest without an agent", |g| {
        g.trims("donor");
        g.guest("donor").told.agent = Reading::unsupported();
    }),
    ("NoAgent", "trims a guest whose agent is silent", |g| {
        g.trims("donor");
        let reading = g.guest("donor").told.agent.clone();
        g.guest("donor").told.agent = reading.aged(Span::from_secs(9), &Absence::Silent);
    }),
    ("NoAgent", "compacts where the agent may not", |g| {
        g.trims("donor");
        g.plan.actions.last_mut().unwrap().request = Request::Compact;
    }),
    ("TrimsNeeded", "trims into the least cache", |g| {
        g.trims("donor");
        g.plan.actions.last_mut().unwrap().request = Request::Trim(mib(37));
    }),
    ("NotOrdered", "a limit of page cache that no class sets", |g| {
        g.trims("donor");
        g.plan.actions.last_mut().unwrap().request = Request::LimitCache(Share::percent(40));
    }),
    ("AsksTwice", "trims twice in a plan", |g| {
        g.trims("donor");
        g.trims("donor");
    }),
    ("AsksTooOften", "again after 40 ms", |g| {
        g.trims("donor");
        let at = Moment::from_millis(g.seen.taken_at.as_millis() - 40);
        g.witnessed("donor").agent_asked_at = Some(at);
    }),
    ("NotOurs", "page cache of a guest that is held", |g| {
        g.trims("donor");
        let hold = Hold { keeps: Keeps::Size, until: None };
        g.seen.orders.push(Order { guest: id("donor"), ordered: Ordered::Leave(hold) });
    }),
    ("AsksTwice", "splits twice in a plan", |g| {
        g.splits("donor");
        g.splits("donor");
    }),
    ("SplitsTooOften", "again after half a second", |g| {
        g.splits("donor");
        let at = Moment::from_millis(1500);
        g.witnessed("donor").split_at = Some(at);
    }),
    ("NotOurs", "huge pages of a guest that is held", |g| {
        g.splits("donor");
        let hold = Hold { keeps: Keeps::Size, until: None };
        g.seen.orders.push(Order { guest: id("donor"), ordered: Ordered::Leave(hold) });
        g.plan
            .actions
            .retain(|action| action.guest() != Some(&id("donor")) || action.request == Request::Split);
    }),
    ("NotForTheHost", "the host's huge pages", |g| {
        g.splits("donor");
        g.plan.actions.last_mut().unwrap().subject = Subject::Host;
    }),
    ("NotForAGuest", "a guest is to scan for equal pages", |g| {
        g.merges();
        g.plan.actions.last_mut().unwrap().subject = Subject::Guest(id("donor"));
    }),
    ("KsmIsNotOurs", "KSM is only observed", |g| {
        g.merges();
        g.config.ksm.mode = KsmMode::Observe;
    }),
    ("KsmIsNotOurs", "KSM was not read", |g| {
        g.merges();
        g.seen.host.ksm = Reading::absent(Absence::Timeout);
    }),
    ("KsmIsNotOurs", "somebody else has set it since", |g| {
        g.merges();
        g.witness.ksm_seen = true;
        g.witness.ksm_written = Some(KsmSettings { pages_to_scan: 1, ..KsmSettings::default() });
    }),
    ("KsmIsNotOurs", "a guest shares although KSM is only observed", |g| {
        g.shares("donor", false);
        g.config.ksm.mode = KsmMode::Observe;
    }),
    ("SharesAgainstItsClass", "a guest shares that must not", |g| g.shares("donor", true)),
    ("NoRoomToUnmerge", "more comes apart than is free", |g| {
        g.shares("donor", false);
        g.guest("donor").cost.merged = Reading::now(mib(8192));
    }),
    ("NotForTheHost", "the host gets a target", |g| g.action("donor").subject = Subject::Host),
    ("Unwanted", "the host has room for all limits", |g| g.seen.host.capacity = mib(8192)),
    ("Unwanted", "nobody else lacks anything", |g| {
        for name in ["a", "busy"] {
            g.guest(name).told.stats = Reading::absent(Absence::Silent);
        }
    }),
    ("BelowShare", "a guest that says nothing is squeezed", |g| {
        g.guest("donor").told.stats = Reading::absent(Absence::Silent);
        g.set("donor", mib(400));
    }),
    ("TakesFromStuck", "its balloon has not moved for seven seconds", |g| {
        g.later(10_000);
        let target = g.target("donor").saturating_add(mib(1));
        let donor = g.witnessed("donor");
        (donor.target, donor.distance) = (Some(target), mib(800).saturating_sub(target));
        donor.tries_since = Some(Moment::from_millis(3_000));
    }),
    ("HostNotRead", "the host's memory cannot be read", |g| {
        g.seen.host.missed = Some(Missed { why: Absence::Forbidden, age: Some(Span::from_secs(1)) });
    }),
    ("Interval", "an interval of zero", |g| {
        for action in &mut g.plan.actions {
            if let Request::PollStats(every) = &mut action.request {
                *every = Span::ZERO;
            }
        }
    }),
];

const ELASTIC: &[Mutation] = &[
    ("Unbacked", "the guests grew together before", |g| {
        g.witness.growth = mib(2000);
        for guest in &mut g.seen.guests {
            guest.told.full = mib(4096);
            guest.cost.footprint = Reading::now(mib(100));
        }
        g.seen.host.other = mib(1590);
    }),
    ("Unbacked", "nothing is free", |g| {
        g.seen.host.other = mib(1900);
        g.guest("busy").cost.footprint = Reading::now(mib(600));
    }),
];

#[test]
fn the_decision_itself_is_valid_and_holds_what_is_mutated() {
    let mut given = Given::strict();
    assert_eq!(given.found(), []);
    assert!(given.target("donor") < mib(800) && given.target("busy") == mib(620), "{:#?}", given.plan);
    assert!(given.plan.actions.iter().any(|action| action.reason == Reason::NeedStats));
    assert_eq!(Given::elastic().found(), []);
}

#[test]
fn each_mutation_is_found() {
    let strict = MUTATIONS.iter().map(|mutation| (Given::strict(), mutation));
    let elastic = ELASTIC.iter().map(|mutation| (Given::elastic(), mutation));
    for (mut given, (violation, what, mutate)) in strict.chain(elastic) {
        mutate(&mut given);
        let found = given.found();
        assert!(found.iter().any(|found| name(found) == *violation), "{violation}, {what}: {found:?}");
    }
}

#[test]
fn every_violation_is_found() {
    let mutated: BTreeSet<&str> = MUTATIONS.iter().chain(ELASTIC).map(|(violation, ..)| *violation).collect();
    assert_eq!(mutated, BTreeSet::from(ALL));
}

#[test]
fn what_goes_back_towards_its_bounds_is_no_violation() {
    // Somebody else gave a guest less than its reservation; it grows towards it as memory comes back.
    let mut given = Given::strict();
    given.default_class().reservation = mib(700);
    given.plan.actions.retain(|action| action.guest() == Some(&id("busy")));
    assert_eq!(given.found(), []);
    // A guest above a new limit gives step by step.
    let mut given = Given::strict();
    given.default_class().limit = memtide_model::Limit::At(mib(500));
    given.plan.actions.retain(|action| action.guest() == Some(&id("donor")));
    assert_eq!(given.found(), []);
}

impl Given {
    /// The same on an elastic host; much of the guests' memory is not resident, but "busy" uses all that it has.
    fn elastic() -> Self {
        let mut given = Self::valid(elastic());
        for guest in &mut given.seen.guests {
            guest.cost.footprint = Reading::now(mib(if guest.id == id("busy") { 660 } else { 300 }));
        }
        given.plan = decide(&given.config, &given.state, &given.seen).plan;
        given
    }
}

/// Plans that an earlier check let pass, one for each rule. Their reasons are those of honest plans.
mod once_let_pass {
    use memtide_model::{Limit, PAGE_4K};

    use super::*;

    const SECOND: u64 = 1000;

    fn sets(name: &str, target: u64, reason: Reason) -> Action {
        Action::of(id(name), Request::SetTarget(mib(target)), reason)
    }

    fn needs(mib: u64) -> Reason {
        let bytes = super::mib(mib);
        Reason::Demand { used: bytes, demand: bytes, entitlement: bytes }
    }

    /// The check has seen these guests for a while, quiet, with these targets.
    fn given(config: Config, seen: Snapshot, plan: Vec<Action>) -> Given {
        let mut witness = Witness::default();
        let mut before = seen.clone();
        before.taken_at = Moment::from_millis(seen.taken_at.as_millis() - 60 * SECOND);
        while before.taken_at < seen.taken_at {
            witness::looks(&mut witness, &config, &before);
            before.taken_at = before.taken_at.after(Span::from_secs(1));
        }
        witness.guests.values_mut().for_each(|guest| guest.gain.proof = Proof::Gained);
        Given { config, state: State::default(), witness, seen, plan: Plan { actions: plan } }
    }

    /// The names of the broken promises, each with the place of its action.
    fn refused(given: &Given) -> Vec<(usize, &'static str)> {
        given.refused().iter().map(|(place, violation)| (*place, name(violation))).collect()
    }

    fn at_a_minute(capacity: u64, guests: Vec<memtide_model::GuestSeen>) -> Snapshot {
        snapshot(100 * SECOND, capacity, guests)
    }

    #[test]
    fn everybody_to_32_mib_on_an_ample_host() {
        let idle = Reason::IdleMemory { idle: mib(900), demand: mib(100), wanted: mib(900) };
        let guests = || ["a", "b", "c"].map(|name| guest(name, 1024, 100)).to_vec();
        let plan = || ["a", "b", "c"].map(|name| sets(name, 32, idle)).to_vec();
        for config in [config(), elastic()] {
            let given = given(config, at_a_minute(8192, guests()), plan());
            assert_eq!(refused(&given), [(0, "Unwanted"), (1, "Unwanted"), (2, "Unwanted")]);
        }
        // Their limits do not fit, but each has had plenty for a minute, and the commitment is kept.
        let smaller = || ["a", "b", "c"].map(|name| guest(name, 600, 100)).to_vec();
        let given = given(config(), at_a_minute(2048, smaller()), plan());
        assert_eq!(refused(&given), [(0, "Unwanted"), (1, "Unwanted"), (2, "Unwanted")]);
    }

    #[test]
    fn more_than_a_small_step_of_one_guest_by_the_clock() {
        let by_clock = Reason::SqueezeStep { cache: mib(0), demand: mib(132), wanted: mib(0) };
        let clocked = || Config { squeeze_every: Some(Span::from_secs(3600)), ..config() };
        let refused = |config, used, targets: &[(&'static str, u64)]| {
            let plan = targets.iter().map(|(name, target)| sets(name, *target, by_clock)).collect();
            let guests = vec![guest("a", 1024, used), guest("b", 1024, 100)];
            refused(&given(config, at_a_minute(8192, guests), plan))
        };
        assert_eq!(refused(clocked(), 100, &[("a", 896)]), []);
        assert_eq!(refused(config(), 100, &[("a", 896)]), [(0, "Unwanted")]);
        assert_eq!(refused(clocked(), 100, &[("a", 895)]), [(0, "Unwanted")]);
        assert_eq!(refused(clocked(), 100, &[("a", 896), ("b", 896)]), [(1, "Unwanted")]);
        assert_eq!(refused(clocked(), 900, &[("a", 896)]), [(0, "Unwanted")]);
        let mut without = clocked();
        without.classes.values_mut().for_each(|class| class.squeeze = false);
        assert_eq!(refused(without, 100, &[("a", 896)]), [(0, "Unwanted")]);
    }

    #[test]
    fn more_than_was_ordered_or_is_available_is_fetched() {
        let fetches = |bytes, target| {
            let guests = vec![guest("a", 1024, 900), guest("b", 1024, 100)];
            let plan = vec![sets("a", target, Reason::Ordered)];
            let mut given = given(config(), at_a_minute(8192, guests), plan);
            given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Fetch(mib(bytes)) });
            refused(&given)
        };
        assert_eq!(fetches(100, 924), []);
        assert_eq!(fetches(100, 923), [(0, "Unwanted")]);
        assert_eq!(fetches(124, 900), []);
        assert_eq!(fetches(500, 899), [(0, "Unwanted")], "it calls 124 available");
        // 100 are on their way already, and only 24 of the 124 are left.
        let giving = |target| {
            let guests = vec![guest("a", 1024, 900), guest("b", 1024, 100)];
            let mut given =
                given(config(), at_a_minute(8192, guests), vec![sets("a", target, Reason::Ordered)]);
            given.witnessed("a").target = Some(mib(924));
            given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Fetch(mib(100)) });
            refused(&given)
        };
        assert_eq!(giving(900), []);
        assert_eq!(giving(899), [(0, "Unwanted")]);
    }

    #[test]
    fn a_guest_without_statistics_is_squeezed_to_32_mib() {
        let silent = but(guest("a", 800, 100), |a| a.told.stats = Reading::absent(Absence::Silent));
        let guests = vec![silent, guest("b", 600, 590)];
        let short = Reason::OverShare { entitlement: mib(32), short: mib(700) };
        // 1400 + 120 of 1500. Its share is at least (1500 - 120 - 64) / 2, less a 64th of its size: 642.
        let mut given = given(config(), at_a_minute(1500, guests), vec![sets("a", 32, short)]);
        assert_eq!(refused(&given), [(0, "BelowShare")]);
        given.set("a", mib(642));
        assert_eq!(refused(&given), []);
    }

    #[test]
    fn a_blind_guest_grows_as_if_it_were_released() {
        let silent = but(guest("a", 500, 100), |a| a.told.stats = Reading::absent(Absence::Silent));
        let plan = vec![sets("a", 900, Reason::Release)];
        for config in [config(), elastic()] {
            let mut given = given(config, at_a_minute(4096, vec![silent.clone()]), plan.clone());
            assert_eq!(refused(&given), [(0, "GrowsBlind")]);
            let hold = Hold { keeps: Keeps::Limit, until: None };
            given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Leave(hold) });
            assert_eq!(refused(&given), [], "the operator released it");
        }
    }

    #[test]
    fn a_reservation_is_broken_as_if_the_guest_were_held() {
        let plan = vec![sets("a", 600, Reason::Held { target: mib(700) })];
        let mut given = given(config(), at_a_minute(4096, vec![guest("a", 600, 300)]), plan);
        given.default_class().reservation = mib(700);
        let a = given.witnessed("a");
        let a_second_ago = Some(Moment::from_millis(99 * SECOND));
        (a.target, a.written_at) = (Some(mib(700)), a_second_ago);
        (a.distance, a.tries_since) = (mib(100), a_second_ago);
        assert_eq!(refused(&given), [(0, "BelowReservation")]);
        let hold = Hold { keeps: Keeps::Size, until: None };
        given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Leave(hold) });
        assert_eq!(refused(&given), [], "the operator holds it");
    }

    #[test]
    fn a_stuck_guest_is_asked_for_more_10_ms_after_its_last_change() {
        let idle = Reason::IdleMemory { idle: mib(400), demand: mib(100), wanted: mib(400) };
        let guests = vec![guest("a", 800, 100), guest("b", 600, 598)];
        let mut given = given(config(), at_a_minute(1500, guests), vec![sets("a", 400, idle)]);
        assert_eq!(refused(&given), []);
        let a = given.witnessed("a");
        (a.target, a.distance) = (Some(mib(500)), mib(300));
        a.tries_since = Some(Moment::from_millis(93 * SECOND));
        a.written_at = Some(Moment::from_millis(100 * SECOND - 10));
        assert_eq!(refused(&given), [(0, "TakesFromStuck")]);
    }

    #[test]
    fn elastic_grants_four_guests_what_is_not_there() {
        let large = |name| but(guest(name, 300, 290), |guest| guest.told.full = mib(4096));
        let names = ["a", "b", "c", "d"];
        // 4 × 360 of 1500: 60 are free, and the guests grew by 3000 together.
        let plan = names.map(|name| sets(name, 4096, needs(4096))).to_vec();
        let mut given = given(elastic(), at_a_minute(1500, names.map(large).to_vec()), plan);
        given.witness.surge.peak = mib(3000);
        assert_eq!(refused(&given), [0, 1, 2, 3].map(|place| (place, "Unbacked")));
    }

    #[test]
    fn a_host_with_1_mib_free_grants_124() {
        let guests = vec![guest("a", 500, 490)];
        let mut given = given(elastic(), at_a_minute(561, guests), vec![sets("a", 624, needs(624))]);
        assert_eq!(refused(&given), [(0, "Unbacked")]);
        given.set("a", mib(501));
        assert_eq!(refused(&given), []);
    }

    #[test]
    fn one_guest_gets_three_intervals() {
        let polls = |every| Action::of(id("a"), Request::PollStats(every), Reason::NeedStats);
        let spans = [Span::from_secs(1), Span::from_millis(1), Span::from_millis(u64::MAX)];
        let given = given(config(), at_a_minute(4096, vec![guest("a", 600, 300)]), spans.map(polls).to_vec());
        let both = |place| [(place, "AsksTwice"), (place, "Interval")];
        assert_eq!(refused(&given), [both(1), both(2)].concat());
    }

    #[test]
    fn strict_raises_reach_above_the_capacity_because_a_self_deflation_falls() {
        let guests =
            vec![guest("a", 600, 300), guest("b", 600, 300), common::deflating(guest("c", 600, 590))];
        // 3 × 660 = 1980 of 1700; with "c" at 900, 2280. The room for its own deflation falls by as much.
        let config = Config { self_deflations: 1, ..config() };
        let plan = vec![sets("a", 500, needs(500)), sets("c", 900, needs(900))];
        let given = given(config, at_a_minute(1700, guests), plan);
        assert_eq!(refused(&given), [(1, "OverCommitted")]);
    }

    #[test]
    fn a_grant_too_many_costs_that_grant_and_not_the_memory_that_others_free() {
        let guests = vec![guest("a", 800, 100), guest("b", 400, 390), guest("c", 400, 390)];
        // 1600 + 180 of 1880: 100 are spare. "b" may have 80 of them, "c" then 20.
        let plan = vec![
            sets("a", 500, needs(500)),
            sets("b", 480, needs(480)),
            sets("c", 480, needs(480)),
            sets("a", 400, needs(400)),
        ];
        let mut given = given(config(), at_a_minute(1880, guests), plan);
        let early = "GrowsBeforeFreed";
        assert_eq!(refused(&given), [(1, early), (2, early), (3, "AsksTwice")]);
        given.plan.actions.pop();
        assert_eq!(refused(&given), [(2, "OverCommitted")]);
        given.set("c", mib(420));
        assert_eq!(refused(&given), []);
    }

    #[test]
    fn without_a_reading_of_the_host_only_a_limit_is_enforced() {
        let guests = vec![guest("a", 800, 100), guest("b", 400, 390)];
        let plan = vec![sets("a", 600, needs(600)), sets("b", 500, needs(500))];
        let mut given = given(config(), at_a_minute(1880, guests), plan);
        given.seen.host.missed = Some(Missed { why: Absence::Forbidden, age: None });
        assert_eq!(refused(&given), [(0, "HostNotRead"), (1, "HostNotRead")]);
        given.default_class().limit = Limit::At(mib(600).saturating_sub(PAGE_4K.bytes()));
        assert_eq!(refused(&given), [(1, "HostNotRead")]);
    }
}
