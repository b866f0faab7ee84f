//! Requests: several mechanisms at work for one guest and for the host, and what becomes of each.

use std::sync::Arc;

use memtide_engine::journal::{Reader, Writer};
use memtide_engine::{Engine, Policy, Replay};
use memtide_model::{
    Action, Answer, Bytes, Config, Decision, GuestState, Mechanism, Plan, Reason, Refusal, Report, Request,
    Snapshot, Span, State, Subject, Witness, Yield,
};

use crate::toy::{HALF, Toy, id, manage};

/// More than the balloon gives.
const EXPECTED: Bytes = Bytes::from_mib(900);

/// Asks the guest `a` once: to keep half, and to let the kernel reclaim 64 MiB. Asks the host, too.
#[derive(Debug)]
struct Everything;

impl Policy for Everything {
    fn identity(&self) -> &str {
        "everything"
    }

    fn decide(&self, _: &Config, state: &State, seen: &Snapshot) -> Decision {
        let mut next = State { decided_at: Some(seen.taken_at), ..state.clone() };
        let mut plan = Plan::default();
        if state.decided_at.is_none() {
            let half = Action::of(id("a"), Request::SetTarget(HALF), Reason::Release);
            let reclaim = Action::of(id("a"), Request::Reclaim(Bytes::from_mib(64)), Reason::Ordered);
            let expects = Some(Yield { bytes: EXPECTED, within: Span::from_secs(20) });
            plan.actions.push(Action { expects, ..half });
            plan.actions.push(reclaim.clone());
            plan.actions.push(Action { subject: Subject::Host, ..reclaim });
            next.guests.insert(id("a"), Box::new(GuestState { target: Some(HALF), ..GuestState::default() }));
        }
        Decision { plan, state: next, report: Report::default() }
    }

    fn check(&self, _: &Config, _: &Witness, _: &Snapshot, _: &Plan) -> Vec<Refusal> {
        Vec::new()
    }
}

#[test]
fn each_mechanism_of_a_guest_and_of_the_host_answers_for_itself() {
    let mut engine = Engine::new(Toy::with(&["a"]), manage()).with_policy(Arc::new(Everything));
    engine.tick();
    let half = Bytes::from_mib(32);
    let published = engine.board().latest();
    let answers = &published.last.as_ref().unwrap().answers;
    assert_eq!(*answers, [Answer::Accepted, Answer::Yielded(half), Answer::Yielded(half)]);
    // A reclaim is over when it is answered. A balloon has only accepted its target.
    let [asked] = engine.state().guests[&id("a")].under_way[..] else { panic!("one request is under way") };
    assert_eq!((asked.request.mechanism(), asked.yielded), (Mechanism::Balloon, Bytes::ZERO));

    engine.tick();
    let [asked] = engine.state().guests[&id("a")].under_way[..] else { panic!("more is expected") };
    assert!(asked.yielded > Bytes::from_mib(400) && asked.yielded < EXPECTED, "{asked:?}");

    engine.world_mut().now = asked.until;
    engine.tick();
    assert!(engine.state().guests[&id("a")].under_way.is_empty(), "nothing is expected any more");
}

#[test]
fn requests_under_way_are_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(dir.path(), Bytes::from_mib(16)).unwrap();
    let engine = Engine::new(Toy::with(&["a"]), manage()).with_policy(Arc::new(Everything));
    let mut engine = engine.with_journal(writer);
    (0..3).for_each(|_| engine.tick());
    let running = engine.state().clone();
    drop(engine);
    let mut replay = Replay::with_policy(Arc::new(Everything));
    for record in Reader::open(dir.path()).unwrap() {
        replay.step(record.unwrap()).unwrap();
    }
    assert_eq!(replay.state(), Some(&running));
    assert!(!running.guests[&id("a")].under_way.is_empty());
}
