//! decide() and check(): what each guest should have, and why. Pure.
#![forbid(unsafe_code)]

use memtide_model::{Config, Decision, Plan, Report, Snapshot, State};

/// Something in a plan that breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Observe mode changes nothing.
    #[error("the plan changes something in observe mode")]
    ActsWhileObserving,
}

/// Chooses the next changes. Reads no clock, file, environment or randomness.
#[must_use]
pub fn decide(_config: &Config, state: &State, _seen: &Snapshot) -> Decision {
    Decision { plan: Plan::default(), state: state.clone(), report: Report::default() }
}

/// What a plan breaks; empty for a plan that may be applied.
#[must_use]
pub fn check(_config: &Config, _state: &State, _seen: &Snapshot, _plan: &Plan) -> Vec<Violation> {
    Vec::new()
}
