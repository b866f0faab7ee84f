//! The results of an experiment as data: results.json, schema 1.
//!
//! ```json
//! { "schema": 1, "experiment": "demo", "command": "…", "machine": { … },
//!   "arms": { "unmanaged": { "guests_alive": 3, …, "runs": [ { "guests_alive": 3, … } ] }, "managed": { … } } }
//! ```
//!
//! An arm's values are the medians of its runs; a value that any run does not have is null.

use std::collections::BTreeMap;

use memtide_model::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::machine::Machine;

/// The version of the schema.
pub const SCHEMA: u32 = 1;

/// One run of one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArmResult {
    /// Guests that were started.
    pub guests: u64,
    /// Guests that lived to the end.
    pub guests_alive: u64,
    /// Guests that did not.
    pub guests_killed: u64,
    /// What the guests were to check, in bytes.
    pub work_planned_bytes: Bytes,
    /// What they found intact, in bytes.
    pub work_done_bytes: Bytes,
    /// The ratio of both.
    pub work_done_fraction: f64,
    /// Words that were not what they should have been.
    pub mismatched_words: u64,
    /// Processes killed by the small host's OOM killer.
    pub oom_kills: u64,
    /// Processes killed by the OOM killers of the guests that lived.
    pub guest_oom_kills: u64,
    /// Jobs that failed in guests that lived.
    pub job_failures: u64,
    /// What the host read back from swap; null where it has none.
    pub host_swap_in_bytes: Option<Bytes>,
    /// What the balloons moved, both ways, in bytes.
    pub memory_moved_bytes: Bytes,
    /// The most that was charged to the small host at once; null where the kernel does not count it.
    pub peak_usage_bytes: Option<Bytes>,
    /// Median time from a guest's stall to its grant; null where it was not measured.
    pub seconds_to_grant: Option<f64>,
    /// From the first turn's begin to the last one's end.
    pub seconds: f64,
}

/// All results of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    schema: u32,
    experiment: String,
    command: String,
    machine: Machine,
    arms: BTreeMap<String, Value>,
}

impl Results {
    /// The results of `experiment`, which was started as `command`, without any arm yet.
    #[must_use]
    pub fn new(experiment: &str, command: &str, machine: Machine) -> Self {
        let (experiment, command) = (experiment.to_owned(), command.to_owned());
        Self { schema: SCHEMA, experiment, command, machine, arms: BTreeMap::new() }
    }

    /// Adds an arm with its runs.
    pub fn add(&mut self, key: &str, runs: &[ArmResult]) {
        self.arms.insert(key.to_owned(), arm(runs));
    }

    /// The command that was given.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.command
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }
}

fn arm(runs: &[ArmResult]) -> Value {
    let runs: Vec<Value> = runs.iter().map(|run| json!(run)).collect();
    let mut values = Map::new();
    let keys = runs.first().and_then(Value::as_object).into_iter().flat_map(Map::keys);
    for key in keys {
        values.insert(key.clone(), median(runs.iter().map(|run| &run[key])));
    }
    values.insert("runs".to_owned(), Value::Array(runs.clone()));
    Value::Object(values)
}

/// The value in the middle, the lower one of two; null where one is no number.
fn median<'a>(values: impl Iterator<Item = &'a Value>) -> Value {
    let mut values: Vec<&Value> = values.collect();
    if values.is_empty() || values.iter().any(|value| !value.is_number()) {
        return Value::Null;
    }
    let number = |value: &&Value| value.as_f64().unwrap_or(f64::NAN);
    values.sort_by(|a, b| number(a).total_cmp(&number(b)));
    values[(values.len() - 1) / 2].clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_is_the_median_of_its_runs() {
        let values = [json!(3), json!(1), json!(2)];
        assert_eq!(median(values.iter()), json!(2));
        assert_eq!(median([json!(0.5), json!(null)].iter()), Value::Null);
        assert_eq!(median([].iter()), Value::Null);
        let run = ArmResult {
            guests: 4,
            guests_alive: 4,
            guests_killed: 0,
            work_planned_bytes: Bytes::from_mib(1),
            work_done_bytes: Bytes::from_mib(1),
            work_done_fraction: 1.0,
            mismatched_words: 0,
            oom_kills: 0,
            guest_oom_kills: 0,
            job_failures: 0,
            host_swap_in_bytes: None,
            memory_moved_bytes: Bytes::ZERO,
            peak_usage_bytes: None,
            seconds_to_grant: None,
            seconds: 1.5,
        };
        let worse = ArmResult { guests_alive: 3, ..run.clone() };
        let value = arm(&[run.clone(), worse, run]);
        assert_eq!((&value["guests_alive"], &value["host_swap_in_bytes"]), (&json!(4), &Value::Null));
        assert_eq!(value["runs"][1]["guests_alive"], json!(3));
    }
}
