//! How the bounds of a scenario held in its runs, for people and for programs.

use serde::Serialize;

use super::{Bounds, Measured, Scenario};
use crate::run::{Manager, Outcome};

/// At most this many guests that break a bound get a line each; the rest are counted.
const SHOWN: usize = 10;

/// One `[[keep]]` in one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The line in the file.
    pub line: usize,
    /// The manager.
    pub policy: String,
    /// How the bound held.
    pub verdict: Judgement,
    /// Why today's policy breaks it, as the file says.
    pub fails: Option<String>,
    /// Its keys: if any is broken, those; else all of them.
    pub measured: Vec<Measured>,
}

/// How a bound held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// It was kept.
    Kept,
    /// It was broken, and the file says so.
    FailsAsExpected,
    /// It was broken.
    Broken,
    /// It was kept, but the file says that it fails.
    KeptButMarked,
    /// Managers that it compares with did not run.
    NotJudged,
}

/// How the bounds of `scenario` held in `runs`.
#[must_use]
pub fn judged(scenario: &Scenario, runs: &[Outcome]) -> Vec<Judged> {
    let names: Vec<&str> = scenario.setup.guests.iter().map(|guest| guest.name.as_str()).collect();
    let mut all = Vec::new();
    for run in runs {
        let about = scenario.bounds.iter().filter(|bounds| bounds.is_about(run.manager));
        all.extend(about.map(|bounds| judge(bounds, &names, run, runs)));
    }
    all
}

fn judge(bounds: &Bounds, names: &[&str], run: &Outcome, runs: &[Outcome]) -> Judged {
    let judged = can_be_judged(bounds, runs);
    let mut measured = if judged { bounds.measure(names, run, runs) } else { Vec::new() };
    let is_broken = measured.iter().any(|one| !one.is_kept);
    measured.retain(|one| !is_broken || !one.is_kept);
    let verdict = match (judged, is_broken, &bounds.fails) {
        (false, _, _) => Judgement::NotJudged,
        (true, false, None) => Judgement::Kept,
        (true, false, Some(_)) => Judgement::KeptButMarked,
        (true, true, None) => Judgement::Broken,
        (true, true, Some(_)) => Judgement::FailsAsExpected,
    };
    let (policy, fails) = (run.manager.to_string(), bounds.fails.clone());
    Judged { line: bounds.line, policy, verdict, fails, measured }
}

/// Whether the managers ran that a bound compares with.
fn can_be_judged(bounds: &Bounds, runs: &[Outcome]) -> bool {
    let (nobody, rules) = bounds.needs_others();
    let ran = |manager: &Manager| runs.iter().any(|run| run.manager == *manager);
    let is_needed = |manager: &Manager| match manager {
        Manager::Memtide(_) => false,
        Manager::Rule(_) => rules,
        Manager::Nobody => nobody,
    };
    Manager::all().iter().filter(|manager| is_needed(manager)).all(ran)
}

impl Judged {
    /// Whether it is not as the file says.
    #[must_use]
    pub const fn is_unexpected(&self) -> bool {
        matches!(self.verdict, Judgement::Broken | Judgement::KeptButMarked)
    }

    /// It in words, a line for each key and guest.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let head = format!("line {}, {}: {}", self.line, self.policy, self.verdict.word());
        match (self.verdict, &self.fails) {
            (Judgement::NotJudged, _) => return vec![head],
            (Judgement::KeptButMarked, Some(why)) => return vec![format!("{head}: {why}")],
            _ => {}
        }
        let mut lines: Vec<String> =
            self.measured.iter().take(SHOWN).map(|one| format!("{head}: {one}")).collect();
        if let Some(more @ 1..) = self.measured.len().checked_sub(SHOWN) {
            lines.push(format!("{head}: and {more} more"));
        }
        lines
    }
}

impl Judgement {
    /// It in words.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::FailsAsExpected => "fails as expected",
            Self::Broken => "BROKEN",
            Self::KeptButMarked => "KEPT, but marked as failing",
            Self::NotJudged => "needs --policy all to be judged",
        }
    }
}
