//! Several scenarios: what each manager reached on all of them.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use memtide_model::{counted, printable};
use memtide_sim::Scenario;
use memtide_sim::scenario::{Judged, judged};
use memtide_sim::table::{Together, together};

use super::{Simulate, UNEXPECTED, runs, told};

impl Simulate {
    /// Simulates one scenario after the other, and prints one table.
    pub(super) fn several(&self) -> Result<ExitCode> {
        let of_one = [
            ("--json", self.json),
            ("--report", self.report.is_some()),
            ("--explain", self.explain.is_some()),
        ];
        if let Some((option, _)) = of_one.iter().find(|(_, is_given)| *is_given) {
            bail!("{option} is for one scenario: name only one");
        }
        let read = |path: &PathBuf| {
            let mut scenario = Scenario::read(path)?;
            self.adjust(&mut scenario)?;
            Ok((path.clone(), scenario))
        };
        // All are read first: a mistake in the last one must not cost the time of all others.
        let scenarios = self.scenario.iter().map(read).collect::<Result<Vec<_>>>()?;
        let mut columns: Vec<Together> = Vec::new();
        let mut unexpected = Vec::new();
        for (path, scenario) in &scenarios {
            let outcomes = runs::all(&scenario.setup, &self.managers(scenario), &self.options());
            for outcome in &outcomes {
                let known = columns.iter().position(|column| column.manager() == outcome.manager);
                let place = known.unwrap_or_else(|| {
                    columns.push(Together::new(outcome.manager));
                    columns.len() - 1
                });
                columns[place].add(outcome);
            }
            let judged = judged(scenario, &outcomes);
            let lines = judged.iter().filter(|judged| judged.is_unexpected()).flat_map(Judged::lines);
            unexpected.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
        told::print(&format!("{}\n\n", counted(scenarios.len() as u64, "scenario")))?;
        told::print(&together(&columns))?;
        if unexpected.is_empty() || self.changes_the_scenario() {
            return Ok(ExitCode::SUCCESS);
        }
        told::print("\nbounds that are not as the scenarios say\n")?;
        unexpected.iter().try_for_each(|line| told::print(&format!("  {}\n", printable(line))))?;
        Ok(ExitCode::from(UNEXPECTED))
    }
}
