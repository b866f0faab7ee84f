//! `check` finds every violation that it names: a valid decision, then one change that breaks one promise.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

mod common;

use std::collections::BTreeSet;

use common::{but, config, elastic, guest, id, mib, snapshot, told};
use memtide_model::{
    Absence, Action, Bytes, Config, Fence, Hold, Keeps, Mode, Order, Ordered, Plan, Polling, Reading, Reason,
    Request, Snapshot, Span, State, Subject, Surge, Witness, Witnessed,
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
        let mut state = decide(&config, &State::default(), &seen(1000, 0)).state;
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
            Request::PollStats(_) | Request::Reclaim(_) => unreachable!("found by its target"),
        }
    }

    fn guest(&mut self, name: &str) -> &mut memtide_model::GuestSeen {
        self.seen.guests.iter_mut().find(|guest| guest.id == id(name)).unwrap()
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
        Violation::BelowReservation { .. } => "BelowReservation",
        Violation::AboveLimit { .. } => "AboveLimit",
        Violation::NotWholePages { .. } => "NotWholePages",
        Violation::OverCommitted { .. } => "OverCommitted",
        Violation::Unbacked { .. } => "Unbacked",
        Violation::Unwanted { .. } => "Unwanted",
        Violation::BelowShare { .. } => "BelowShare",
        Violation::TakesFromStuck(_) => "TakesFromStuck",
        Violation::HostNotRead(_) => "HostNotRead",
        Violation::GrowsBlind { .. } => "GrowsBlind",
        Violation::GrowsBeforeFreed(..) => "GrowsBeforeFreed",
        Violation::Interval { .. } => "Interval",
        Violation::NotOrdered(_) => "NotOrdered",
        Violation::NotForTheHost(_) => "NotForTheHost",
    }
}

const ALL: [&str; 18] = [
    "ActsWhileObserving",
    "UnknownGuest",
    "AsksTwice",
    "NotOurs",
    "BelowReservation",
    "AboveLimit",
    "NotWholePages",
    "OverCommitted",
    "Unbacked",
    "Unwanted",
    "BelowShare",
    "TakesFromStuck",
    "HostNotRead",
    "GrowsBlind",
    "GrowsBeforeFreed",
    "Interval",
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
        g.witnessed("busy").hold = Some(Hold { keeps: Keeps::Foreign { from: mib(600), held_until: None }, until: None });
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
    ("NotForTheHost", "the host gets a target", |g| g.action("donor").subject = Subject::Host),
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
