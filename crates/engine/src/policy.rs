//! The engine's interface to the policy, used at each tick: decide, and check the promises.

use std::fmt;
use std::sync::Arc;

use memtide_model::{Config, Decision, Plan, Snapshot, State};

/// A policy: it decides, and it checks plans.
///
/// **Rule.** Both functions depend only on their arguments and on the [`identity`](Policy::identity). They use no clock, no files, no
/// randomness, and no memory of their own. Otherwise a journal cannot be replayed.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Names the policy in the journal. If two policies can decide differently, their identities differ.
    fn identity(&self) -> &str;

    /// Chooses the next changes.
    fn decide(&self, config: &Config, state: &State, seen: &Snapshot) -> Decision;

    /// Lists the promises that a plan breaks, one line each. An empty list means that the plan may be applied.
    fn check(&self, config: &Config, state: &State, seen: &Snapshot, plan: &Plan) -> Vec<String>;
}

/// memtide's own policy. The journal's `version` says which one.
#[derive(Clone, Copy, Debug)]
struct Own;

/// memtide's own policy.
#[must_use]
pub fn own_policy() -> Arc<dyn Policy> {
    Arc::new(Own)
}

impl Policy for Own {
    fn identity(&self) -> &'static str {
        memtide_model::OWN_POLICY
    }

    fn decide(&self, config: &Config, state: &State, seen: &Snapshot) -> Decision {
        memtide_policy::decide(config, state, seen)
    }

    fn check(&self, config: &Config, state: &State, seen: &Snapshot, plan: &Plan) -> Vec<String> {
        memtide_policy::check(config, state, seen, plan).iter().map(ToString::to_string).collect()
    }
}
