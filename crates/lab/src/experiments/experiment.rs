//! The parts that all experiments share: arms, repetitions, a seed, and results.
//!
//! An experiment runs the same work under different conditions, its *arms*. Each repetition runs all arms, so that changes on
//! the machine affect all arms alike. Every second repetition runs them in reverse order.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_host::{Root, zram};
use serde::Serialize;

use crate::error::LabError;
use crate::machine::facts::Machine;
use crate::machine::lab::{Lab, Run};
use crate::machine::places;
use crate::output::report::{Figure, Report, Table};
use crate::output::results::{About, Results};
use crate::output::sample::Samples;
use crate::output::screen::Screen;

/// The part of an experiment to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// The least that shows the effect.
    Quick,
    /// The main comparison.
    #[default]
    Usual,
    /// All arms.
    Full,
}

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The part of the experiment to run.
    pub effort: Effort,
    /// The number of runs of each arm; `None`: the experiment's own number.
    pub runs: Option<usize>,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The keys of the arms to run, whatever the effort; if empty, the arms of the effort.
    pub only: Vec<String>,
    /// The command line, for the report.
    pub command: String,
}

/// An arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Its key in results.json and on the command line.
    pub key: String,
    /// Its title for people.
    pub title: String,
    /// The number of runs, if the command line does not give one.
    pub runs: usize,
    /// The expected duration of a run; used only to estimate the time left.
    pub takes: Duration,
}

impl Arm {
    /// The expected duration of all its runs.
    fn takes_together(&self) -> Duration {
        self.takes * u32::try_from(self.runs).unwrap_or(u32::MAX)
    }
}

/// The input of one run of one arm.
#[derive(Clone, Copy, Debug)]
pub struct Repetition<'a> {
    /// The arm.
    pub arm: &'a Arm,
    /// The number of the repetition, from 0.
    pub nth: usize,
    /// The seed of this repetition: the same for all arms.
    pub seed: u64,
}

/// The observations in one run of one arm.
#[derive(Debug)]
pub struct Seen<R> {
    /// The guests' names.
    pub names: Vec<String>,
    /// Their cost over time.
    pub samples: Samples,
    /// The figures.
    pub result: R,
}

/// An arm with its runs.
#[derive(Debug)]
pub struct ArmSeen<R> {
    /// The arm.
    pub arm: Arm,
    /// Its runs.
    pub runs: Vec<Seen<R>>,
    /// Runs that have no figures because of a guest ([`LabError::is_of_a_guest`]): what happened.
    pub ended: Vec<String>,
}

/// The findings of an experiment.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The report's title.
    pub title: String,
    /// The method, in one paragraph.
    pub about: String,
    /// The setting of all arms, for results.json.
    pub setting: serde_json::Value,
    /// The plots; the first one is `plot`.
    pub figures: Vec<Figure>,
    /// The tables.
    pub tables: Vec<Table>,
    /// The promises that memtide broke; empty if it kept all.
    pub failures: Vec<String>,
}

/// An experiment.
pub trait Experiment: Sized {
    /// Its name on the command line.
    const NAME: &'static str;
    /// A description in one line.
    const ABOUT: &'static str;
    /// The figures of one run.
    type Result: Serialize;

    /// The arms of an effort, in the order of their runs.
    fn arms(effort: Effort) -> Vec<Arm>;

    /// Whether memtide manages the guests of the arm with this key. There, a run without figures is a broken promise.
    #[must_use]
    fn has_memtide(_key: &str) -> bool {
        true
    }

    /// Checks for missing things before minutes have passed, and measures values that all arms need. `arms` will run.
    ///
    /// # Errors
    /// If something is missing.
    fn prepare(options: &Options, arms: &[Arm], run: &Run, screen: &Screen) -> Result<Self, LabError>;

    /// Runs an arm once; `run` has its own directory.
    ///
    /// # Errors
    /// If the arm cannot be run. Killed guests are a result, not an error. If a guest keeps the arm from having figures
    /// ([`LabError::is_of_a_guest`]), that is a result, too: the other arms go on.
    fn run(
        &mut self,
        repetition: Repetition<'_>,
        run: &Run,
        screen: &Screen,
    ) -> Result<Seen<Self::Result>, LabError>;

    /// The findings from all arms.
    ///
    /// # Errors
    /// If a plot cannot be drawn.
    fn find(&self, arms: &[ArmSeen<Self::Result>]) -> Result<Findings, LabError>;
}

/// The outcome of an experiment.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The tables.
    pub tables: Vec<Table>,
    /// The path of the report.
    pub report: PathBuf,
    /// The promises that memtide broke.
    pub failures: Vec<String>,
}

/// An experiment as an entry for the command line.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// The arms of an effort.
    pub arms: fn(Effort) -> Vec<Arm>,
    /// The requested arms; an error if one is unknown.
    pub choose: fn(&Options) -> Result<Vec<Arm>, LabError>,
    /// Runs the chosen arms, and writes the report.
    pub conduct: fn(&Lab, &Options, Vec<Arm>, &Screen) -> Result<Outcome, LabError>,
}

impl Entry {
    /// The entry of the experiment `E`.
    #[must_use]
    pub const fn of<E: Experiment>() -> Self {
        Self { name: E::NAME, about: E::ABOUT, arms: E::arms, choose: choose::<E>, conduct: conduct::<E> }
    }

    /// The expected duration of an effort, without the lab's own preparations.
    #[must_use]
    pub fn takes(&self, effort: Effort) -> Duration {
        (self.arms)(effort).iter().map(Arm::takes_together).sum()
    }

    /// This duration in minutes, for people.
    #[must_use]
    pub fn minutes(&self, effort: Effort) -> u64 {
        self.takes(effort).as_secs().div_ceil(60)
    }
}

/// The arms that `options` request: those of the effort, or those named.
fn choose<E: Experiment>(options: &Options) -> Result<Vec<Arm>, LabError> {
    let runs = |mut arm: Arm| {
        arm.runs = options.runs.unwrap_or(arm.runs);
        arm
    };
    let of_effort = E::arms(options.effort);
    if options.only.is_empty() {
        return Ok(of_effort.into_iter().map(runs).collect());
    }
    let all = E::arms(Effort::Full);
    if let Some(unknown) = options.only.iter().find(|key| all.iter().all(|arm| arm.key != **key)) {
        let keys: Vec<&str> = all.iter().map(|arm| arm.key.as_str()).collect();
        let name = E::NAME;
        return Err(LabError::Usage(format!("{name} has no arm `{unknown}`: {}", keys.join(", "))));
    }
    // An arm of the effort runs as often as the effort says.
    let as_in_effort = |arm: Arm| of_effort.iter().find(|other| other.key == arm.key).cloned().unwrap_or(arm);
    let named = all.into_iter().filter(|arm| options.only.contains(&arm.key));
    Ok(named.map(as_in_effort).map(runs).collect())
}

/// Runs `arms`, and writes the report. If the run ends early, the report covers the finished runs.
fn conduct<E: Experiment>(
    lab: &Lab,
    options: &Options,
    arms: Vec<Arm>,
    screen: &Screen,
) -> Result<Outcome, LabError> {
    let whole = Run::create(lab, E::NAME)?;
    whole.keep();
    let mut experiment = E::prepare(options, &arms, &whole, screen)?;
    let mut seen: Vec<ArmSeen<E::Result>> =
        arms.into_iter().map(|arm| ArmSeen { arm, runs: Vec::new(), ended: Vec::new() }).collect();
    let ran = run_all(&mut experiment, options, &whole, screen, &mut seen);
    // A memtide that was killed with its guests has left their tiers.
    let _ = zram::sweep(&Root::system());
    let unfinished = Unfinished::of::<E>(&seen);
    seen.retain(|seen| !seen.runs.is_empty());
    match ran {
        Ok(()) => {
            let mut findings = if seen.is_empty() { nothing::<E>() } else { experiment.find(&seen)? };
            unfinished.add_to(&mut findings);
            write::<E>(&whole, screen, options, true, &findings, &seen)
        }
        Err(error) if seen.is_empty() => Err(error),
        Err(error) => {
            let found = experiment.find(&seen).map(|mut findings| {
                unfinished.add_to(&mut findings);
                findings
            });
            match found.and_then(|findings| write::<E>(&whole, screen, options, false, &findings, &seen)) {
                Ok(written) => {
                    screen.say(&format!("ended early; what was seen is in {}", written.report.display()));
                }
                Err(other) => {
                    screen.say(&format!("ended early, and there is no report: {}", other.with_cause()));
                }
            }
            Err(error)
        }
    }
}

fn run_all<E: Experiment>(
    experiment: &mut E,
    options: &Options,
    whole: &Run,
    screen: &Screen,
    seen: &mut [ArmSeen<E::Result>],
) -> Result<(), LabError> {
    let mut left = TimeLeft::new(seen.iter().map(|seen| seen.arm.takes_together()).sum());
    let steps = steps(&seen.iter().map(|seen| seen.arm.runs).collect::<Vec<usize>>());
    for (step, &(nth, place)) in steps.iter().enumerate() {
        let ArmSeen { arm, runs, ended } = &mut seen[place];
        screen.say(&format!("[{}/{}] {}   ({} left)", step + 1, steps.len(), arm.title, left.about()));
        let part = whole.part(&format!("{}-{}", arm.key, nth + 1))?;
        let begun = Instant::now();
        let repetition = Repetition { arm, nth, seed: options.seed.wrapping_add(nth as u64 * SEEDS) };
        let one = experiment.run(repetition, &part, screen);
        screen.clear();
        match one {
            Ok(one) => runs.push(one),
            Err(error) if error.is_of_a_guest() => {
                screen.say(&format!("no figures: {}", error.with_cause()));
                ended.push(error.with_cause());
            }
            Err(error) => return Err(error),
        }
        left.passed(arm.takes, begun.elapsed());
    }
    Ok(())
}

/// The findings if no run has figures.
fn nothing<E: Experiment>() -> Findings {
    Findings {
        title: format!("{}: no run has figures", E::NAME),
        about: E::ABOUT.to_owned(),
        setting: serde_json::Value::Null,
        figures: Vec::new(),
        tables: Vec::new(),
        failures: Vec::new(),
    }
}

/// The runs that have no figures because of a guest.
#[derive(Debug, Default)]
struct Unfinished {
    /// The arm's title, and what happened.
    rows: Vec<Vec<String>>,
    /// The same as broken promises, if memtide managed.
    failures: Vec<String>,
}

impl Unfinished {
    fn of<E: Experiment>(seen: &[ArmSeen<E::Result>]) -> Self {
        let mut all = Self::default();
        for ArmSeen { arm, ended, .. } in seen {
            for why in ended {
                all.rows.push(vec![arm.title.clone(), why.clone()]);
                if E::has_memtide(&arm.key) {
                    all.failures.push(format!("{}: {why}", arm.title));
                }
            }
        }
        all
    }

    fn add_to(self, findings: &mut Findings) {
        if self.rows.is_empty() {
            return;
        }
        let head = vec![String::new(), "what happened".to_owned()];
        let rows = std::iter::once(head).chain(self.rows).collect();
        findings.tables.push(Table { caption: "Runs without figures".to_owned(), rows });
        findings.failures.extend(self.failures);
    }
}

/// The order of the repetitions, from the number of runs of each arm.
fn steps(runs: &[usize]) -> Vec<(usize, usize)> {
    let most = runs.iter().copied().max().unwrap_or(0);
    let repetition = |nth: usize| {
        let mut places: Vec<usize> = (0..runs.len()).filter(|place| runs[*place] > nth).collect();
        if nth % 2 == 1 {
            places.reverse();
        }
        places.into_iter().map(move |place| (nth, place))
    };
    (0..most).flat_map(repetition).collect()
}

/// The number of seeds that a repetition may use.
const SEEDS: u64 = 10_000;

/// Writes the report into the run's directory, where it stays, and copies it to `target/lab/NAME`.
fn write<E: Experiment>(
    whole: &Run,
    screen: &Screen,
    options: &Options,
    complete: bool,
    findings: &Findings,
    seen: &[ArmSeen<E::Result>],
) -> Result<Outcome, LabError> {
    let setting = findings.setting.clone();
    let about = About {
        experiment: E::NAME.to_owned(),
        command: options.command.clone(),
        seed: options.seed,
        complete,
    };
    let mut results = Results::new(about, Machine::describe(whole.lab()), setting);
    for ArmSeen { arm, runs, .. } in seen {
        results.add(&arm.key, runs.iter().map(|run| &run.result))?;
    }
    let dir = whole.path().join("report");
    std::fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    for ArmSeen { arm, runs, .. } in seen {
        for (nth, run) in (1..).zip(runs).filter(|(_, run)| !run.samples.all().is_empty()) {
            run.samples.write_csv(&dir.join(format!("{}-{nth}.csv", arm.key)), &run.names)?;
        }
    }
    let report = Report {
        title: &findings.title,
        about: &findings.about,
        figures: &findings.figures,
        tables: &findings.tables,
        results: &results,
    };
    let written = report.write(&dir)?;
    let latest = places::target().join("lab").join(E::NAME);
    let report = match copy_all(&dir, &latest) {
        Ok(()) => written.file_name().map_or_else(|| written.clone(), |name| latest.join(name)),
        Err(error) => {
            screen.say(&format!("the report is not in {}: {}", latest.display(), error.with_cause()));
            written
        }
    };
    Ok(Outcome { tables: findings.tables.clone(), report, failures: findings.failures.clone() })
}

/// Copies the files of `from` into `to`, and removes everything else there: files of an earlier run would look like this
/// run's.
fn copy_all(from: &Path, to: &Path) -> Result<(), LabError> {
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(LabError::file(to))?;
    }
    std::fs::create_dir_all(to).map_err(LabError::file(to))?;
    for entry in std::fs::read_dir(from).map_err(LabError::file(from))? {
        let entry = entry.map_err(LabError::file(from))?;
        std::fs::copy(entry.path(), to.join(entry.file_name())).map_err(LabError::file(&entry.path()))?;
    }
    Ok(())
}

/// The time left, estimated from the expected and the actual durations so far.
struct TimeLeft {
    expected: Duration,
    done: Duration,
    took: Duration,
}

impl TimeLeft {
    const fn new(expected: Duration) -> Self {
        Self { expected, done: Duration::ZERO, took: Duration::ZERO }
    }

    fn passed(&mut self, expected: Duration, took: Duration) {
        self.expected = self.expected.saturating_sub(expected);
        self.done += expected;
        self.took += took;
    }

    fn left(&self) -> Duration {
        let pace = if self.done.is_zero() { 1.0 } else { self.took.as_secs_f64() / self.done.as_secs_f64() };
        self.expected.mul_f64(pace)
    }

    fn about(&self) -> String {
        match self.left().as_secs() {
            seconds @ 0..90 => format!("about {} s", seconds.next_multiple_of(10)),
            seconds => format!("about {} min", seconds.div_ceil(60)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_repetition_runs_backwards() {
        assert_eq!(steps(&[2, 1, 2]), [(0, 0), (0, 1), (0, 2), (1, 2), (1, 0)]);
        assert_eq!(steps(&[]), []);
    }

    #[test]
    fn the_time_left_follows_the_pace_so_far() {
        let mut left = TimeLeft::new(Duration::from_secs(300));
        assert_eq!(left.about(), "about 5 min");
        left.passed(Duration::from_secs(100), Duration::from_secs(50));
        assert_eq!(left.left(), Duration::from_secs(100));
        left.passed(Duration::from_secs(150), Duration::from_secs(75));
        assert_eq!(left.about(), "about 30 s");
    }
}
