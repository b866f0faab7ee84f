//! `check` finds every violation that it names: a valid decision, then one change that breaks one promise.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

mod common;

use std::collections::BTreeSet;

use common::{but, config, elastic, guest, id, mib, snapshot, told};
use memtide_model::{
    Absence, Action, Asked, Bytes, Config, Fence, Hold, Keeps, Mode, Moment, Order, Ordered, Plan, Polling,
    Reading, Reason, Request, Snapshot, Span, State, Subject,
};
use memtide_policy::{Violation, check, decide};

/// The input of `check`, valid until it is mutated.
#[derive(Clone)]
struct Given {
    config: Config,
    state: State,
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
        let mut state = decide(&config, &State::default(), &seen(1000, 0)).state;
        for guest in state.guests.values_mut() {
            (guest.target, guest.target_set_at) = (None, None);
        }
        let seen = seen(2000, 100);
        let plan = decide(&config, &state, &seen).plan;
        Self { config, state, seen, plan }
    }

    fn strict() -> Self {
        Self::valid(config())
    }

    fn found(&self) -> Vec<Violation> {
        check(&self.config, &self.state, &self.seen, &self.plan)
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
            Request::PollStats(_) | Request::Reclaim(_) | Request::Split => {
                unreachable!("found by its target")
            }
        }
    }

    fn guest(&mut self, name: &str) -> &mut memtide_model::GuestSeen {
        self.seen.guests.iter_mut().find(|guest| guest.id == id(name)).unwrap()
    }

    /// Splits the huge pages of a guest.
    fn splits(&mut self, name: &str) {
        (self.seen.host.torn, self.seen.host.splits) = (Reading::now(mib(20)), true);
        let reason = Reason::Torn { torn: mib(20), wanted: mib(20) };
        self.plan.actions.push(Action::of(id(name), Request::Split, reason));
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
        Violation::TwoTargets(_) => "TwoTargets",
        Violation::NotOurs(_) => "NotOurs",
        Violation::BelowReservation { .. } => "BelowReservation",
        Violation::AboveLimit { .. } => "AboveLimit",
        Violation::NotWholePages { .. } => "NotWholePages",
        Violation::OverCommitted { .. } => "OverCommitted",
        Violation::SurgeUnbacked { .. } => "SurgeUnbacked",
        Violation::GrowsBlind { .. } => "GrowsBlind",
        Violation::GrowsBeforeFreed(..) => "GrowsBeforeFreed",
        Violation::PollsNever(_) => "PollsNever",
        Violation::NotOrdered(_) => "NotOrdered",
        Violation::NotForTheHost(_) => "NotForTheHost",
        Violation::NothingTorn(_) => "NothingTorn",
        Violation::SplitsTooOften(_) => "SplitsTooOften",
    }
}

const ALL: [&str; 16] = [
    "ActsWhileObserving",
    "UnknownGuest",
    "TwoTargets",
    "NotOurs",
    "BelowReservation",
    "AboveLimit",
    "NotWholePages",
    "OverCommitted",
    "SurgeUnbacked",
    "GrowsBlind",
    "GrowsBeforeFreed",
    "PollsNever",
    "NothingTorn",
    "SplitsTooOften",
    "NotOrdered",
    "NotForTheHost",
];

/// The broken promise, the mutation in words, and the mutation.
type Mutation = (&'static str, &'static str, fn(&mut Given));

const MUTATIONS: &[Mutation] = &[
    ("ActsWhileObserving", "the mode is observe", |g| g.config.mode = Mode::Observe),
    ("UnknownGuest", "another guest is changed", |g| {
        g.action("donor").subject = Subject::Guest(id("stranger"))
    }),
    ("UnknownGuest", "the guest is gone", |g| g.seen.guests.retain(|guest| guest.id != id("donor"))),
    ("TwoTargets", "an action stands twice", |g| {
        let action = g.action("busy").clone();
        g.plan.actions.push(action);
    }),
    ("NotOurs", "the guest is paused", |g| g.guest("donor").told.fence = Some(Fence::Paused)),
    ("NotOurs", "the operator holds the guest", |g| {
        let hold = Hold { keeps: Keeps::Size, until: None };
        g.seen.orders.push(Order { guest: id("donor"), ordered: Ordered::Leave(hold) });
    }),
    ("NotOurs", "the operator released the guest a while ago", |g| {
        let donor = g.state.guests.get_mut(&id("donor")).unwrap();
        donor.hold = Some(Hold { keeps: Keeps::Limit, until: None });
    }),
    ("NotOurs", "somebody else moved its balloon", |g| {
        let donor = g.state.guests.get_mut(&id("busy")).unwrap();
        donor.hold = Some(Hold { keeps: Keeps::Foreign { from: mib(600), held_until: None }, until: None });
    }),
    ("NotOurs", "the guest migrates", |g| g.guest("donor").told.fence = Some(Fence::Migrating)),
    ("NotOurs", "somebody else owns the guest", |g| g.guest("donor").capabilities.can_be_set = false),
    ("NotOurs", "the guest was reset", |g| g.guest("donor").told.reset = true),
    ("NotOurs", "the balloon was not read", |g| {
        g.guest("donor").told.balloon = Reading::absent(Absence::Timeout);
    }),
    ("NotOurs", "the class is not managed", |g| g.default_class().manage = false),
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
    ("OverCommitted", "others came to need memory", |g| g.seen.host.other = mib(20)),
    ("OverCommitted", "a self-deflation must fit besides", |g| {
        g.config.self_deflations = 1;
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
    ("SplitsTooOften", "twice in a plan", |g| {
        g.splits("donor");
        g.splits("donor");
    }),
    ("SplitsTooOften", "again after a second", |g| {
        g.splits("donor");
        let at = Moment::from_millis(1000);
        let asked = Asked { at, torn: mib(20), least: mib(20) };
        g.state.guests.get_mut(&id("donor")).unwrap().splits.asked = Some(asked);
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
    ("NotForTheHost", "the host gets a target", |g| g.action("donor").subject = Subject::Host),
    ("PollsNever", "an interval of zero", |g| {
        for action in &mut g.plan.actions {
            if let Request::PollStats(every) = &mut action.request {
                *every = Span::ZERO;
            }
        }
    }),
];

const ELASTIC: &[Mutation] = &[
    ("SurgeUnbacked", "the guests grew together before", |g| {
        g.state.growth.recent = mib(2000);
        for guest in &mut g.seen.guests {
            guest.told.full = mib(4096);
            guest.cost.footprint = Reading::now(mib(100));
        }
        g.seen.host.other = mib(1590);
    }),
    ("SurgeUnbacked", "nothing is free", |g| {
        g.state.growth.recent = mib(1);
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
    /// The same on an elastic host; most of the guests' memory is not resident.
    fn elastic() -> Self {
        let mut given = Self::valid(elastic());
        for guest in &mut given.seen.guests {
            guest.cost.footprint = Reading::now(mib(300));
        }
        given.plan = decide(&given.config, &given.state, &given.seen).plan;
        given
    }
}
