//! Runs as JSON for programs. Sizes are in bytes; times are in milliseconds unless a name says otherwise.

use memtide_model::Span;
use serde_json::{Map, Value, json};

use crate::run::Outcome;

/// All `runs` of a setup; `names` are the names of the guests. The course of a run has at most about 480 samples.
#[must_use]
pub fn json(names: &[&str], seed: u64, runs: &[Outcome]) -> Value {
    let runs: Vec<Value> = runs.iter().map(|run| one(names, run)).collect();
    json!({ "seed": seed, "guests": names, "runs": runs })
}

fn one(names: &[&str], run: &Outcome) -> Value {
    let guests: Map<String, Value> =
        names.iter().zip(&run.guests).map(|(name, guest)| ((*name).to_owned(), json!(guest))).collect();
    let violations: Vec<Value> =
        run.violations.iter().map(|(at, text)| json!({ "at": at, "text": text })).collect();
    json!({
        "manager": run.manager.to_string(),
        "lasts": run.lasts,
        "decisions": run.decisions,
        "guests": guests,
        "host": run.host,
        "right_again_after": run.right_again.map(Span::as_millis),
        "refused_plans": run.violation_count,
        "refusals": violations,
        "course": run.samples,
    })
}
