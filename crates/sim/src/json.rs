//! Runs as JSON for programs. Sizes are in bytes; times are in milliseconds unless a name says otherwise.

use memtide_model::Span;
use serde_json::{Map, Value, json};

use crate::run::Outcome;
use crate::scenario::{Scenario, judged, part_saved};

/// All `runs` of a setup; `names` are the names of the guests. The course of a run has at most about 480 samples.
#[must_use]
pub fn json(name: &str, scenario: &Scenario, runs: &[Outcome]) -> Value {
    let setup = &scenario.setup;
    let names: Vec<&str> = setup.guests.iter().map(|guest| guest.name.as_str()).collect();
    let bounds = judged(scenario, runs);
    let runs: Vec<Value> = runs.iter().map(|run| one(&names, run)).collect();
    json!({
        "scenario": name,
        "about": scenario.about,
        "host_memory": setup.host.memory,
        "lasts": setup.lasts,
        "seed": setup.seed,
        "guests": names,
        "bounds": bounds,
        "runs": runs,
    })
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
        "saved_per_mille": (run.host.could_save > 0).then(|| part_saved(&run.host)),
        "right_again_after": run.right_again.map(Span::as_millis),
        "refused_plans": run.violation_count,
        "refusals": violations,
        "course": run.samples,
    })
}
