//! `check` finds every violation that it names: a valid decision, then one change that breaks one promise.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

#[path = "../common/mod.rs"]
mod common;
mod once_let_pass;

use std::collections::BTreeSet;

use common::{but, config, decide, elastic, guest, id, mib, proved, snapshot, told};
use memtide_model::{
    Absence, Action, Agent, AgentMemory, Bytes, Commitment, Config, Deed, Fence, Hold, Keeps, KsmMode,
    KsmOrder, KsmReason, KsmSeen, KsmSettings, Missed, Mode, Moment, Order, Ordered, Plan, Polling, Proof,
    Reading, Reason, Request, Share, Snapshot, Space, Span, State, Subject, Tier, TierOrder, Tmpfs, TmpfsId,
    Withheld, Witness, Witnessed,
};
use memtide_policy::{Violation, check, witness};

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
        self.plan.actions.push(Action::of(id(name), Request::Agent(Deed::Trim(mib(20))), reason));
    }

    /// Asks for something of a guest of 1 GiB that may have half of it in a tier. 50 MiB are in it, and take 40.
    fn tiers(&mut self, name: &str, request: Request) {
        self.seen.host.tiers = true;
        self.config.commitment = Commitment::Elastic;
        self.default_class().tier = Share::percent(50);
        let memory = AgentMemory {
            anon: mib(300),
            tier_total: mib(512),
            tier_free: mib(462),
            ..AgentMemory::default()
        };
        let tier = Tier { size: mib(512), stored: mib(50), held: mib(40), ..Tier::default() };
        let guest = self.guest(name);
        guest.told.agent = Reading::now(Agent { memory, tiers: true, ..Agent::default() });
        guest.cost.tier = Reading::now(tier);
        let reason = Reason::ToTier { anon: mib(300), wanted: mib(40) };
        self.plan.actions.retain(|action| action.guest() != Some(&id(name)));
        self.plan.actions.push(Action::of(id(name), request, reason));
    }

    /// Attaches a tier of this size.
    fn attaches(&mut self, name: &str, size: Bytes) {
        self.tiers(name, Request::Tier(TierOrder::Attach(size)));
        let guest = self.guest(name);
        guest.cost.tier = Reading::unsupported();
        if let Reading::Fresh { value, .. } = &mut guest.told.agent {
            (value.memory.tier_total, value.memory.tier_free) = Default::default();
        }
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
        Violation::TakesInUse { .. } => "TakesInUse",
        Violation::AsksForNothing { .. } => "AsksForNothing",
        Violation::PollsForNothing(_) => "PollsForNothing",
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
        Violation::TierNotAllowed { .. } => "TierNotAllowed",
        Violation::DetachesInUse(_) => "DetachesInUse",
        Violation::NoRoomToReadBack { .. } => "NoRoomToReadBack",
        Violation::NoRoomToWrite { .. } => "NoRoomToWrite",
    }
}

const ALL: [&str; 37] = [
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
    "TakesInUse",
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
    "AsksForNothing",
    "PollsForNothing",
    "NotOrdered",
    "NotForTheHost",
    "NotForAGuest",
    "KsmIsNotOurs",
    "SharesAgainstItsClass",
    "NoRoomToUnmerge",
    "TierNotAllowed",
    "DetachesInUse",
    "NoRoomToReadBack",
    "NoRoomToWrite",
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
    ("MoreThanAProbe", "nothing is known of it", |g| {
        g.witnessed("donor").gain.proof = Proof::None;
        g.set("donor", mib(783));
    }),
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
        g.plan.actions.last_mut().unwrap().request = Request::Agent(Deed::Compact);
    }),
    ("NoAgent", "reports pieces where the agent may not", |g| {
        g.trims("donor");
        g.plan.actions.last_mut().unwrap().request = Request::Agent(Deed::ReportPieces(true));
    }),
    ("TrimsNeeded", "trims into the least cache", |g| {
        g.trims("donor");
        g.plan.actions.last_mut().unwrap().request = Request::Agent(Deed::Trim(mib(37)));
    }),
    ("NotOrdered", "a limit of page cache that no class sets", |g| {
        g.trims("donor");
        g.plan.actions.last_mut().unwrap().request = Request::Agent(Deed::LimitCache(Share::percent(40)));
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
        g.seen.host.capacity = mib(2100);
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
    ("TakesInUse", "half of what a guest uses, for one that lacks 11 MiB", |g| {
        g.witness.guests.get_mut(&id("donor")).unwrap().uses_at_least = mib(600);
        *g.guest("donor") = guest("donor", 800, 600);
        g.set("donor", mib(300));
    }),
    ("AsksForNothing", "an agent would drop page cache that nobody lacks", |g| {
        g.trims("donor");
        g.seen.host.capacity = mib(8000);
    }),
    ("AsksForNothing", "more goes to a tier than it has room for", |g| {
        g.tiers("donor", Request::Agent(Deed::PageOut(mib(40))));
        if let Reading::Fresh { value, .. } = &mut g.guest("donor").cost.tier {
            value.size = mib(89);
        }
    }),
    ("AsksForNothing", "more goes to a tier than the class allows", |g| {
        g.tiers("donor", Request::Agent(Deed::PageOut(mib(40))));
        g.default_class().tier = Share::percent(8);
    }),
    ("AsksForNothing", "memory goes to a tier that is not there", |g| {
        g.tiers("donor", Request::Agent(Deed::PageOut(mib(40))));
        g.guest("donor").cost.tier = Reading::unsupported();
    }),
    ("AsksForNothing", "memory goes to a tier although nobody lacks any", |g| {
        g.tiers("donor", Request::Agent(Deed::PageOut(mib(40))));
        g.seen.host.capacity = mib(8192);
    }),
    ("TakesInVain", "the host gains nothing by what goes to a tier", |g| {
        g.tiers("donor", Request::Agent(Deed::PageOut(mib(40))));
        g.guest("donor").withheld = Some(Withheld::Locked);
    }),
    ("NoAgent", "an agent writes to a tier that cannot", |g| {
        g.trims("donor");
        g.plan.actions.last_mut().unwrap().request = Request::Agent(Deed::PageOut(mib(40)));
    }),
    ("TierNotAllowed", "its class allows no tier", |g| {
        g.attaches("donor", mib(16));
        g.default_class().tier = None;
    }),
    ("TierNotAllowed", "the host makes none", |g| {
        g.attaches("donor", mib(16));
        g.seen.host.tiers = false;
    }),
    ("TierNotAllowed", "its agent cannot swap to one", |g| {
        g.attaches("donor", mib(16));
        g.guest("donor").told.agent = Reading::unsupported();
    }),
    ("TierNotAllowed", "it has one", |g| {
        g.tiers("donor", Request::Tier(TierOrder::Attach(mib(16))));
    }),
    ("TierNotAllowed", "larger than its class allows", |g| g.attaches("donor", mib(801))),
    ("TierNotAllowed", "strict counts it with all of its size", |g| {
        g.attaches("donor", mib(16));
        g.config.commitment = Commitment::Strict;
    }),
    ("TierNotAllowed", "a tier that is not there is detached", |g| {
        g.attaches("donor", mib(16));
        g.plan.actions.last_mut().unwrap().request = Request::Tier(TierOrder::Detach);
    }),
    ("DetachesInUse", "the guest swaps to it", |g| g.tiers("donor", Request::Tier(TierOrder::Detach))),
    ("DetachesInUse", "its agent is silent, and may swap to it", |g| {
        g.tiers("donor", Request::Tier(TierOrder::Detach));
        g.guest("donor").told.agent = Reading::absent(Absence::Silent);
    }),
    ("NoRoomToWrite", "20 MiB are free, and the guest's memory compresses to four fifths", |g| {
        g.tiers("donor", Request::Agent(Deed::PageOut(mib(30))));
    }),
    ("NoRoomToReadBack", "nothing is free", |g| {
        g.tiers("donor", Request::Agent(Deed::UseTier(false)));
        g.seen.host.other = mib(1900);
    }),
    ("PollsForNothing", "the statistics are polled each second already", |g| {
        g.witnessed("a").is_polled = true;
        g.guest("a").told.polling = Polling::Every(Span::from_secs(1));
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
fn a_tier_within_its_class_and_the_room_is_no_violation() {
    for request in [Request::Agent(Deed::PageOut(mib(20))), Request::Agent(Deed::UseTier(false))] {
        let mut given = Given::strict();
        given.plan.actions.clear();
        given.tiers("donor", request);
        assert_eq!(given.found(), []);
    }
    let mut given = Given::strict();
    given.plan.actions.clear();
    given.attaches("donor", mib(20));
    assert_eq!(given.found(), []);
    // Let go, it is detached.
    given.guest("donor").cost.tier = Reading::now(Tier { limit: mib(578), ..Tier::default() });
    given.plan.actions.last_mut().unwrap().request = Request::Tier(TierOrder::Detach);
    assert_eq!(given.found(), []);
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
