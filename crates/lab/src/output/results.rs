//! The results of an experiment as data: results.json, schema 2, and the same runs as CSV.
//!
//! ```json
//! { "schema": 2, "experiment": "demo", "command": "…", "seed": 1, "complete": true, "machine": { … }, "setting": { … },
//!   "arms": { "unmanaged": { "guests_alive": 3, …, "runs": [ { "guests_alive": 3, … } ] }, "managed": { … } } }
//! ```
//!
//! An arm's values are the medians of its runs. If any run lacks a value, the arm's value is null. A value that is not a
//! number must be the same in all runs, otherwise it is null.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::LabError;
use crate::machine::facts::Machine;

/// The version of the schema.
pub const SCHEMA: u32 = 2;

/// The description of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct About {
    /// The experiment's name.
    pub experiment: String,
    /// The command line.
    pub command: String,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Whether all runs finished.
    pub complete: bool,
}

/// All results of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    schema: u32,
    #[serde(flatten)]
    about: About,
    machine: Machine,
    setting: Value,
    arms: BTreeMap<String, Value>,
}

impl Results {
    /// Results without any arms yet. `setting` was the same for all.
    #[must_use]
    pub const fn new(about: About, machine: Machine, setting: Value) -> Self {
        Self { schema: SCHEMA, about, machine, setting, arms: BTreeMap::new() }
    }

    /// Adds an arm with its runs.
    ///
    /// # Errors
    /// If a run cannot be written as JSON.
    pub fn add<'a, T: Serialize + 'a>(
        &mut self,
        key: &str,
        runs: impl IntoIterator<Item = &'a T>,
    ) -> Result<(), LabError> {
        let runs: Result<Vec<Value>, _> = runs.into_iter().map(serde_json::to_value).collect();
        let runs = runs.map_err(|e| LabError::Results(e.to_string()))?;
        self.arms.insert(key.to_owned(), arm(runs));
        Ok(())
    }

    /// The command that was given.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.about.command
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Each run as one line of CSV, after a line with the names of its values.
    #[must_use]
    pub fn csv(&self) -> String {
        let lines: Vec<Line<'_>> =
            self.runs().filter_map(|(key, nth, run)| Some((key, nth, run.as_object()?))).collect();
        csv(&lines)
    }

    /// Each list in the runs as a separate CSV: its name, and a line for each of its elements.
    #[must_use]
    pub fn lists(&self) -> Vec<(String, String)> {
        let first = self.runs().find_map(|(_, _, run)| run.as_object());
        let names = first.into_iter().flatten().filter(|(_, value)| value.is_array()).map(|(name, _)| name);
        let lines = |name: &String| -> Vec<Line<'_>> {
            self.runs()
                .flat_map(|(key, nth, run)| {
                    let elements = run[name.as_str()].as_array().into_iter().flatten();
                    elements.filter_map(move |element| Some((key, nth, element.as_object()?)))
                })
                .collect()
        };
        names.map(|name| (name.clone(), csv(&lines(name)))).collect()
    }

    fn runs(&self) -> impl Iterator<Item = (&str, usize, &Value)> {
        self.arms.iter().flat_map(|(key, arm)| {
            let runs = arm["runs"].as_array().into_iter().flatten();
            (1..).zip(runs).map(move |(nth, run)| (key.as_str(), nth, run))
        })
    }
}

/// The arm, the number of the run, and values by name.
type Line<'a> = (&'a str, usize, &'a Map<String, Value>);

fn csv(lines: &[Line<'_>]) -> String {
    let first = lines.first().into_iter().flat_map(|(_, _, values)| values.iter());
    let names: Vec<&String> = first.filter(|(_, value)| !value.is_array()).map(|(name, _)| name).collect();
    let mut text = "arm,run".to_owned();
    names.iter().for_each(|name| text.push_str(&format!(",{name}")));
    for (key, nth, values) in lines {
        text.push_str(&format!("\n{key},{nth}"));
        let value = |name: &String| values.get(name).map_or_else(String::new, cell);
        names.iter().for_each(|name| text.push_str(&format!(",{}", value(name))));
    }
    text.push('\n');
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        other => other.to_string(),
    }
}

fn arm(runs: Vec<Value>) -> Value {
    let mut values = Map::new();
    let keys = runs.first().and_then(Value::as_object).into_iter().flat_map(Map::keys);
    for key in keys {
        values.insert(key.clone(), middle(runs.iter().map(|run| &run[key])));
    }
    values.insert("runs".to_owned(), Value::Array(runs));
    Value::Object(values)
}

/// The common value if all are equal. Otherwise the median (the mean of the two middle numbers), or null if one is not a
/// number.
fn middle<'a>(values: impl Iterator<Item = &'a Value>) -> Value {
    let mut values: Vec<&Value> = values.collect();
    match values.first() {
        None => return Value::Null,
        Some(first) if values.iter().all(|value| value == first) => return (*first).clone(),
        Some(_) => {}
    }
    if values.iter().any(|value| !value.is_number()) {
        return Value::Null;
    }
    let number = |value: &&Value| value.as_f64().unwrap_or(f64::NAN);
    values.sort_by(|a, b| number(a).total_cmp(&number(b)));
    let (lower, upper) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    if lower == upper { lower.clone() } else { f64::midpoint(number(&lower), number(&upper)).into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_arm_is_the_median_of_its_runs() {
        let runs = vec![
            json!({ "alive": 4, "swap": null, "end": "done" }),
            json!({ "alive": 1, "swap": null, "end": "done" }),
            json!({ "alive": 3, "swap": 7, "end": "killed" }),
        ];
        let arm = arm(runs);
        assert_eq!((&arm["alive"], &arm["swap"], &arm["end"]), (&json!(3), &Value::Null, &Value::Null));
        assert_eq!(arm["runs"][2]["swap"], json!(7));
        assert_eq!(middle([json!(1), json!(4)].iter()), json!(2.5));
        assert_eq!(middle([json!("done"), json!("done")].iter()), json!("done"));
        assert_eq!(middle([].iter()), Value::Null);
    }

    #[test]
    fn every_run_is_a_line_of_csv_and_so_is_every_element_of_a_list() {
        let by_guests = json!([{ "guests": 1, "slowdown": 1.5 }, { "guests": 2, "slowdown": 2.0 }]);
        let run = json!({ "alive": 4, "by_guests": by_guests, "end": "it \"ended\"", "swap": null });
        let mut results = Results::new(About::default(), Machine::default(), Value::Null);
        results.add("unmanaged", [&run]).unwrap();
        assert_eq!(results.csv(), "arm,run,alive,end,swap\nunmanaged,1,4,\"it \"\"ended\"\"\",\n");
        let by_guests = "arm,run,guests,slowdown\nunmanaged,1,1,1.5\nunmanaged,1,2,2.0\n";
        assert_eq!(results.lists(), [("by_guests".to_owned(), by_guests.to_owned())]);
    }
}
