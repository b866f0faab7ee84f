//! The engine's interface to the policy, used at each tick: decide, and check the promises.

use std::fmt;
use std::sync::Arc;

use memtide_model::{Answer, Config, Decision, Plan, Refusal, Snapshot, State, Witness};

/// A policy: it decides. The promises that its plans must keep are the same for every policy, except in tests.
///
/// Another division of the memory is [`memtide_policy::Sharing`] and a policy that passes it to [`memtide_policy::decide_by`].
///
/// **Rule.** Both functions depend only on their arguments and on the [`identity`](Policy::identity). They use no clock, no files, no
/// randomness, and no memory of their own. Otherwise a journal cannot be replayed.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Names the policy in the journal. If two policies can decide differently, their identities differ.
    fn identity(&self) -> &str;

    /// Chooses the next changes.
    fn decide(&self, config: &Config, state: &State, seen: &Snapshot) -> Decision;

    /// Notes in `state`, which [`decide`](Self::decide) has returned, what became of the plan's actions. An action without an answer was not tried.
    fn hears(&self, state: &mut State, seen: &Snapshot, plan: &Plan, answers: &[Answer]) {
        memtide_policy::hears(state, seen, plan, answers);
    }

    /// Whether its plans are judged by memtide's own manners, too, and not only by the promises that no policy may break.
    fn has_manners(&self) -> bool {
        true
    }

    /// Lists the promises that single actions of a plan would break, in the order of the actions. These actions are refused, and the others may
    /// be carried out. `witness` is the check's own record, which has looked at the snapshot.
    fn check(&self, config: &Config, witness: &Witness, seen: &Snapshot, plan: &Plan) -> Vec<Refusal> {
        let check = if self.has_manners() { memtide_policy::check } else { memtide_policy::check_promises };
        let found = check(config, witness, seen, plan).into_iter();
        found.map(|(action, violation)| Refusal { action, why: violation.to_string() }).collect()
    }
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
}
