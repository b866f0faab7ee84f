//! Every scenario in `scenarios/` keeps its bounds, except for bounds marked with `fails`.
//!
//! A broken bound is a regression of the policy. A bound that says `fails` but holds is also reported: the policy has become better, so the
//! key must go.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use memtide_model::Span;
use memtide_sim::scenario::Bounds;
use memtide_sim::{Manager, Options, Outcome, Scenario, run};

/// The most to simulate of one scenario, in hours of one guest: it shortens a day of four guests, or a run of a thousand.
const GUEST_HOURS: u64 = 40;
/// The most guests to report for one broken bound.
const TOLD: usize = 3;

#[test]
fn scenarios_keep_their_bounds() {
    let mut waiting = files();
    assert!(waiting.len() >= 50, "only {} scenarios: where are the others?", waiting.len());
    waiting.sort();
    let waiting = Mutex::new(waiting);
    let told = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(path) = next(&waiting) {
                    let wrong = judge(&path);
                    told.lock().expect("no thread panics with it").extend(wrong);
                }
            });
        }
    });
    let mut told = told.into_inner().expect("no thread panicked");
    told.sort();
    assert!(told.is_empty(), "{} bounds are not as their files say:\n{}", told.len(), told.join("\n"));
}

fn next(waiting: &Mutex<Vec<PathBuf>>) -> Option<PathBuf> {
    waiting.lock().expect("no thread panics with it").pop()
}

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let entries = fs::read_dir(&directory).expect("the directory with scenarios is there");
    let paths = entries.map(|entry| entry.expect("its entries can be read").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

/// The differences between the scenario and its runs, a line each.
fn judge(path: &Path) -> Vec<String> {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut scenario = match Scenario::read(path) {
        Ok(scenario) => scenario,
        Err(error) => return vec![format!("{file}: {}", chain(&error))],
    };
    let guests = scenario.setup.guests.len() as u64;
    let most = Span::from_secs(GUEST_HOURS * 3_600 / guests.max(1));
    scenario.setup.lasts = scenario.setup.lasts.min(most);
    let names: Vec<&str> = scenario.setup.guests.iter().map(|guest| guest.name.as_str()).collect();
    let runs: Vec<Outcome> =
        managers(&scenario).into_iter().map(|manager| simulated(&scenario, manager)).collect();
    let mut lines = Vec::new();
    for run in runs.iter().filter(|run| scenario.commitments.contains(&run.manager)) {
        for bounds in scenario.bounds.iter().filter(|bounds| bounds.is_about(run.manager)) {
            lines.extend(line(&file, bounds, &names, run, &runs));
        }
    }
    lines
}

/// The scenario's own managers, and the managers that its bounds compare with.
fn managers(scenario: &Scenario) -> Vec<Manager> {
    let needs = scenario.bounds.iter().map(Bounds::needs_others);
    let (nobody, rules) = needs.fold((false, false), |all, one| (all.0 | one.0, all.1 | one.1));
    let needed = |manager: &Manager| match manager {
        Manager::Memtide(_) => scenario.commitments.contains(manager),
        Manager::Rule(_) => rules,
        Manager::Nobody => nobody,
    };
    Manager::all().into_iter().filter(needed).collect()
}

fn simulated(scenario: &Scenario, manager: Manager) -> Outcome {
    run(&scenario.setup, manager, &Options::default(), &mut |_| ())
}

/// A line if `run` does not treat `bounds` as the file says.
fn line(file: &str, bounds: &Bounds, names: &[&str], run: &Outcome, runs: &[Outcome]) -> Option<String> {
    let broken = bounds.judge(names, run, runs);
    let place = format!("{file}:{}: {}", bounds.line, run.manager);
    match (&bounds.fails, broken.as_slice()) {
        (Some(_), [_, ..]) | (None, []) => None,
        (Some(why), []) => Some(format!("{place}: this bound holds; take out fails = \"{why}\"")),
        (None, broken) => {
            let mut line = place;
            for one in broken.iter().take(TOLD) {
                let _ = write!(line, ": {one}");
            }
            if let more @ 1.. = broken.len().saturating_sub(TOLD) {
                let _ = write!(line, ", and {more} more");
            }
            Some(line)
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
