//! What many UML instances cost the daemon that manages them: at rest, and while a third of them takes memory and gives it back.

use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Summary;
use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use serde::Serialize;
use serde_json::json;

use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::{Guest, Vmm, start_all};
use crate::machine::lab::Run;
use crate::machine::process::cpu_seconds;
use crate::managers::daemon::Daemon;
use crate::output::report::{Figure, Row, Table};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::median;
use crate::wait::until;
use crate::work::exercise::load;

/// The prefix of the instances' names.
const NAMES: &str = "steady-uml-";
const INSTANCES: usize = 50;
const MEMORY: Bytes = Bytes::from_mib(256);
/// What the host has for each instance: all of them are asked for memory.
const MIB_EACH: u64 = 112;
/// Each third instance works.
const WORKS: usize = 3;
/// What it takes, and how fast, in MiB. It keeps that for [`HOLDS`].
const TAKES_MIB: u64 = 40;
const RATE: u64 = 10;
const HOLDS: Duration = Duration::from_secs(4);
/// The time of one turn of the work.
const TURN: Duration = Duration::from_secs(12);
/// The number of turns that are measured.
const TURNS: u32 = 5;
/// The longest time for the host to fit, or for a job.
const DEADLINE: Duration = Duration::from_secs(180);
/// The goal: processor time of the daemon, in seconds a minute.
const GOAL: f64 = 0.35;

const REST: &str = "rest";
const WORK: &str = "work";

/// The experiment. Its instances live from the first repetition to the last.
pub struct SteadyUml {
    instances: Vec<Guest>,
}

/// One run of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SteadyUmlResult {
    /// Processor time of the daemon, in seconds a minute.
    pub memtide_cpu_per_minute: f64,
    /// Processor time of all instances, in seconds a minute.
    pub instances_cpu_per_minute: f64,
    /// Decisions a second.
    pub decisions_per_s: f64,
    /// Memory plugged and unplugged: requests a minute.
    pub requests_per_minute: f64,
}

impl Experiment for SteadyUml {
    const NAME: &'static str = "steady-uml";
    const ABOUT: &'static str = "what fifty UML instances cost the daemon, at rest and at work";
    type Result = SteadyUmlResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let runs = match effort {
            Effort::Quick => 1,
            Effort::Usual => 3,
            Effort::Full => 5,
        };
        let arm = |key: &str, title: &str| Arm {
            key: key.to_owned(),
            title: title.to_owned(),
            runs,
            takes: TURN * TURNS + Duration::from_secs(40),
        };
        vec![arm(REST, "all at rest"), arm(WORK, "a third at work")]
    }

    fn prepare(_: &Options, _: &[Arm], run: &Run, _: &Screen) -> Result<Self, LabError> {
        Daemon::program()?;
        let instance = |nth| Guest::builder(&format!("{NAMES}{nth}")).vmm(Vmm::Uml).memory(MEMORY);
        Ok(Self { instances: start_all((1..=INSTANCES).map(instance), run, None)? })
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, _: &Screen) -> Result<Seen<SteadyUmlResult>, LabError> {
        let daemon = Daemon::start(run.path(), &configuration())?;
        until("the budget", DEADLINE, || {
            let status = daemon.status()?;
            Ok((status.guests.len() == INSTANCES && status.host.breach.is_zero()).then_some(()))
        })?;
        // What the daemon does only at its beginning does not count.
        self.turn(of.arm.key == WORK, of.seed)?;
        let before = Count::of(&daemon, &self.instances)?;
        for turn in 1..=TURNS {
            self.turn(of.arm.key == WORK, of.seed + u64::from(turn))?;
        }
        let result = Count::of(&daemon, &self.instances)?.since(&before);
        daemon.stop()?;
        Ok(Seen { names: Vec::new(), samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<SteadyUmlResult>]) -> Result<Findings, LabError> {
        let title = format!("What {INSTANCES} UML instances cost the daemon");
        let about = format!(
            "{INSTANCES} instances of {MEMORY} share a budget of {MIB_EACH} MiB each, strictly. At work, every third one takes {TAKES_MIB} MiB and \
             gives it back, every {} s.",
            TURN.as_secs()
        );
        let middles: Vec<(&str, SteadyUmlResult)> =
            arms.iter().map(|seen| (seen.arm.title.as_str(), middle(seen))).collect();
        let cost = |(label, result): &(&str, SteadyUmlResult)| Bar {
            label: (*label).to_owned(),
            value: result.memtide_cpu_per_minute,
            interval: None,
            text: format!("{:.2}", result.memtide_cpu_per_minute),
        };
        let bars = Bars {
            title: "processor time of the daemon, in seconds a minute".to_owned(),
            bars: middles.iter().map(cost).collect(),
            line: Some((GOAL, format!("the goal: at most {GOAL}"))),
        };
        let columns: Vec<(&str, &SteadyUmlResult)> =
            middles.iter().map(|(title, result)| (*title, result)).collect();
        let missed = middles.iter().filter(|(_, result)| result.memtide_cpu_per_minute > GOAL);
        Ok(Findings {
            figures: vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &[bars]) }],
            setting: json!({ "instances": INSTANCES, "memory_bytes": MEMORY, "budget_mib": budget_mib() }),
            tables: vec![Table::of("medians", &columns, &ROWS)],
            failures: missed
                .map(|(title, result)| {
                    format!("{title}: {:.2} s a minute, more than {GOAL}", result.memtide_cpu_per_minute)
                })
                .collect(),
            title,
            about,
        })
    }
}

impl SteadyUml {
    /// One turn of the work, or as long a rest.
    fn turn(&self, works: bool, seed: u64) -> Result<(), LabError> {
        let begun = Instant::now();
        if works {
            let hold = HOLDS.as_secs();
            let options =
                format!("--size {TAKES_MIB}M --grow {RATE}M --seed {seed} --passes 0 --hold {hold}s");
            let working = self.instances.iter().step_by(WORKS);
            let jobs: Result<Vec<_>, LabError> =
                working.map(|instance| Ok((instance, instance.begin(load(&options))?))).collect();
            for (instance, job) in jobs? {
                instance.finish::<Summary>(job, "taking memory", DEADLINE)?;
            }
        }
        until("the next turn", DEADLINE, || Ok((begun.elapsed() >= TURN).then_some(())))
    }
}

/// What was counted at one moment.
struct Count {
    at: Instant,
    memtide_cpu: f64,
    instances_cpu: f64,
    decisions: u64,
    requests: u64,
}

impl Count {
    fn of(daemon: &Daemon, instances: &[Guest]) -> Result<Self, LabError> {
        let counters = daemon.status()?.counters;
        let cpu: Result<f64, LabError> = instances.iter().map(|instance| cpu_seconds(instance.pid())).sum();
        Ok(Self {
            at: Instant::now(),
            memtide_cpu: cpu_seconds(daemon.pid())?,
            instances_cpu: cpu?,
            decisions: counters.ticks,
            requests: counters.actions_done,
        })
    }

    fn since(&self, before: &Self) -> SteadyUmlResult {
        let seconds = (self.at - before.at).as_secs_f64();
        let count = |before: u64, after: u64| show::float(after - before) / seconds;
        SteadyUmlResult {
            memtide_cpu_per_minute: (self.memtide_cpu - before.memtide_cpu) / seconds * 60.0,
            instances_cpu_per_minute: (self.instances_cpu - before.instances_cpu) / seconds * 60.0,
            decisions_per_s: count(before.decisions, self.decisions),
            requests_per_minute: count(before.requests, self.requests) * 60.0,
        }
    }
}

fn configuration() -> String {
    let budget = budget_mib();
    format!(
        "mode = \"manage\"\nbudget = \"{budget} MiB\"\ndiscover = [\"{NAMES}*\"]\non_exit = \"release\"\n"
    )
}

const fn budget_mib() -> u64 {
    INSTANCES as u64 * MIB_EACH
}

/// The medians of an arm's runs.
fn middle(seen: &ArmSeen<SteadyUmlResult>) -> SteadyUmlResult {
    let of = |value: fn(&SteadyUmlResult) -> f64| {
        median(seen.runs.iter().map(|run| value(&run.result))).unwrap_or_default()
    };
    SteadyUmlResult {
        memtide_cpu_per_minute: of(|result| result.memtide_cpu_per_minute),
        instances_cpu_per_minute: of(|result| result.instances_cpu_per_minute),
        decisions_per_s: of(|result| result.decisions_per_s),
        requests_per_minute: of(|result| result.requests_per_minute),
    }
}

const ROWS: [Row<SteadyUmlResult>; 4] = [
    ("processor time of the daemon", |r| format!("{:.2} s a minute", r.memtide_cpu_per_minute)),
    ("processor time of all instances", |r| format!("{:.1} s a minute", r.instances_cpu_per_minute)),
    ("decisions", |r| format!("{:.1} a second", r.decisions_per_s)),
    ("memory plugged or unplugged", |r| format!("{:.1} times a minute", r.requests_per_minute)),
];
