//! The rules of the policy, one behaviour in each test, with the arithmetic in the comments.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

#[path = "../common/mod.rs"]
mod common;

mod activity;
mod agent;
mod alone;
mod claims;
mod clock;
mod emergency;
mod fetch;
mod gain;
mod hold;
mod host_state;
mod ksm;
mod ledger;
mod need;
mod no_harm;
mod offers;
mod own_lack;
mod phases;
mod pieces;
mod search;
mod sharing;
mod split;
mod stuck;
mod tier;
mod tmpfs;

use common::{broken, config, decide, deflating, id, proved, told};
use memtide_model::{
    Budget, Bytes, Class, Config, Decision, GuestReport, GuestState, Mode, Request, Snapshot, State,
};

/// Decides, and checks the plan.
fn tick(config: &Config, state: &State, seen: &Snapshot) -> Decision {
    let state = &proved(state, seen);
    let decision = decide(config, state, seen);
    assert_eq!(broken(config, state, seen, &decision.plan), [], "{:#?}", decision.plan);
    decision
}

/// The state after the guests of `seen` were only observed: five seconds later none of them has just begun.
fn known(config: &Config, seen: &Snapshot) -> State {
    tick(&Config { mode: Mode::Observe, ..config.clone() }, &State::default(), seen).state
}

/// One guest's line of the report.
fn line<'a>(decision: &'a Decision, name: &str) -> &'a GuestReport {
    decision.report.guests.iter().find(|guest| guest.id.name() == name).unwrap()
}

/// The names and targets of a plan in its order, in whole MiB.
fn targets(decision: &Decision) -> Vec<(&str, u64)> {
    let target = |request| match request {
        Request::SetTarget(target) => Some(target.whole_mib()),
        _ => None,
    };
    let actions = decision.plan.actions.iter();
    actions.filter_map(|action| Some((action.guest().unwrap().name(), target(action.request)?))).collect()
}

/// The remembered state of one guest.
fn memory<'a>(state: &'a mut State, name: &str) -> &'a mut GuestState {
    state.guests.get_mut(&id(name)).unwrap()
}

/// An unlimited budget without a reserve, and a class for each of the given names.
fn with_classes(classes: &[(&str, Class)]) -> Config {
    let mut config = Config { budget: Budget::Size(Bytes::MAX), ..config() };
    for (name, class) in classes {
        let class = Class { patterns: vec![(*name).to_owned()], ..class.clone() };
        config.classes.insert((*name).into(), class);
    }
    config
}
