//! The two functions that the engine asks: what to do, and whether that keeps the promises.

use memtide_model::{Config, Decision, Plan, Snapshot, State};

/// A policy: how to decide, and how to check what was decided.
///
/// Both are pure functions (no clock, no files, no randomness), or a journal could not be replayed. That they are plain
/// function pointers keeps a closure from smuggling in a memory of its own.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Chooses the next changes.
    pub decide: fn(&Config, &State, &Snapshot) -> Decision,
    /// What a plan breaks, one line each; empty for a plan that may be applied.
    pub check: fn(&Config, &State, &Snapshot, &Plan) -> Vec<String>,
}

/// memtide's own policy.
impl Default for Rules {
    fn default() -> Self {
        Self { decide: memtide_policy::decide, check }
    }
}

fn check(config: &Config, state: &State, seen: &Snapshot, plan: &Plan) -> Vec<String> {
    memtide_policy::check(config, state, seen, plan).iter().map(ToString::to_string).collect()
}
