//! Decisions whose answers are known.

use memtide_model::{Answer, Config, Decision, Snapshot, State};
use memtide_policy::hears;

/// A decision whose whole plan is carried out: its state has heard of it.
pub fn decide(config: &Config, state: &State, seen: &Snapshot) -> Decision {
    let mut decision = memtide_policy::decide(config, state, seen);
    let answers = vec![Answer::Accepted; decision.plan.actions.len()];
    hears(&mut decision.state, seen, &decision.plan, &answers);
    decision
}
