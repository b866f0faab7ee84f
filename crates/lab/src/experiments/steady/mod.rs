//! The cost of observing and managing for guests that are not short of memory.
//!
//! Two guests of 1 GiB on an ample host touch memory as fast as they can, from the first repetition to the last. They touch
//! the same memory all the time, since the position of pages matters more than any effect measured here. Meanwhile there is
//! no manager, memtide in observe mode, or memtide in manage mode, a few seconds each. Each repetition pairs each of them
//! with the others, so changes on the machine affect all of them. The cost is the middle of the pairs' ratios, with its 95 %
//! confidence interval ([`Interval`]).

use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Second;
use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use serde::Serialize;
use serde_json::json;

use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::channel::Job;
use crate::guest::{Guest, start_all};
use crate::machine::lab::Run;
use crate::machine::process::cpu_seconds;
use crate::managers::daemon::Daemon;
use crate::output::report::{Figure, Row, Table};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::{Interval, median};
use crate::wait::until;
use crate::work::exercise::load;

pub mod uml;

/// The prefix of the guests' names.
const NAMES: &str = "steady-";
const GUESTS: usize = 2;
const GUEST_MEMORY: Bytes = Bytes::from_mib(1024);
/// The memory that each guest touches. Together with its own needs, the guest is far from short.
const SIZE_MIB: u64 = 300;
/// After a change, this many seconds of each guest do not count, and then this many do.
const SETTLES: usize = 3;
const SECONDS: usize = 4;
/// The longest time for a guest to report a few seconds.
const WORK: Duration = Duration::from_secs(120);
/// The goal: the largest allowed slowdown.
const GOAL: f64 = 0.01;

const UNMANAGED: &str = "unmanaged";
const OBSERVED: &str = "observed";
const MANAGED: &str = "managed";

/// The experiment. Its guests work from the first repetition to the last.
pub struct Steady {
    guests: Vec<Guest>,
    loads: Vec<Job>,
}

/// One measurement of all guests together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SteadyResult {
    /// The guests' touches, in bytes a second.
    pub touched_bytes_per_s: f64,
    /// The median latency of a touch in nanoseconds: the mean over the guests.
    pub touch_p50_ns: f64,
    /// The same for the 99th percentile.
    pub touch_p99_ns: f64,
    /// CPU time of the guests' processes in a second.
    pub guests_cpu: f64,
    /// CPU time of memtide in a second; null without it.
    pub memtide_cpu: Option<f64>,
    /// Whether a balloon moved: none should.
    pub balloons_moved: bool,
}

impl Experiment for Steady {
    const NAME: &'static str = "steady";
    const ABOUT: &'static str = "guests that are not short of memory: what observing and managing cost them";
    type Result = SteadyResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let runs = match effort {
            Effort::Quick => 8,
            Effort::Usual => 40,
            Effort::Full => 120,
        };
        let takes = Duration::from_secs((SETTLES + SECONDS + 1) as u64);
        let arm = |key: &str, title: &str| Arm { key: key.to_owned(), title: title.to_owned(), runs, takes };
        vec![
            arm(UNMANAGED, "without memtide"),
            arm(OBSERVED, "memtide observes"),
            arm(MANAGED, "memtide manages"),
        ]
    }

    fn has_memtide(key: &str) -> bool {
        key != UNMANAGED
    }

    fn prepare(options: &Options, _: &[Arm], run: &Run, _: &Screen) -> Result<Self, LabError> {
        Daemon::program()?;
        let guest = |nth| {
            Guest::builder(&format!("{NAMES}{nth}"))
                .memory(GUEST_MEMORY)
                .deflate_on_oom(true)
                .free_page_reporting(true)
        };
        let guests = start_all((1..=GUESTS).map(guest), run, None)?;
        let work = format!("--size {SIZE_MIB}M --writes 30% --threads 1 --seed {}", options.seed);
        let loads: Result<Vec<Job>, LabError> = guests.iter().map(|guest| guest.begin(load(&work))).collect();
        let steady = Self { guests, loads: loads? };
        // The memory is filled, and the guests' code is translated.
        steady.watch(SETTLES)?;
        Ok(steady)
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, _: &Screen) -> Result<Seen<SteadyResult>, LabError> {
        let daemon = match of.arm.key.as_str() {
            OBSERVED => Some(Daemon::start(run.path(), &configuration("observe"))?),
            MANAGED => Some(Daemon::start(run.path(), &configuration("manage"))?),
            _ => None,
        };
        self.watch(SETTLES)?;
        let pids: Vec<u32> = self.guests.iter().map(Guest::pid).collect();
        let guests_before = cpu_of(&pids)?;
        let memtide_before = daemon.as_ref().map(|daemon| cpu_seconds(daemon.pid())).transpose()?;
        let begun = Instant::now();
        let seconds = self.watch(SECONDS)?;
        let took = begun.elapsed().as_secs_f64();
        let guests_cpu = (cpu_of(&pids)? - guests_before) / took;
        let memtide_cpu = match (&daemon, memtide_before) {
            (Some(daemon), Some(before)) => Some((cpu_seconds(daemon.pid())? - before) / took),
            _ => None,
        };
        let moved: Result<Vec<bool>, LabError> =
            self.guests.iter().map(|guest| was_moved(guest, daemon.as_ref())).collect();
        daemon.map_or(Ok(()), Daemon::stop)?;
        let mean = |of: fn(&Second) -> u64| {
            seconds.iter().map(|second| show::float(of(second))).sum::<f64>()
                / show::float(seconds.len() as u64)
        };
        let result = SteadyResult {
            touched_bytes_per_s: show::float(1024 * GUESTS as u64)
                * mean(|second| second.reached_bytes_per_s >> 10),
            touch_p50_ns: mean(|second| second.latency_ns.p50),
            touch_p99_ns: mean(|second| second.latency_ns.p99),
            guests_cpu,
            memtide_cpu,
            balloons_moved: moved?.contains(&true),
        };
        Ok(Seen { names: Vec::new(), samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<SteadyResult>]) -> Result<Findings, LabError> {
        let title = "What memtide costs guests that are not short".to_owned();
        let about = format!(
            "{GUESTS} guests of {GUEST_MEMORY} each touch {SIZE_MIB} MiB in order, as fast as they can. For {SECONDS} s at a time \
             there is no memtide, memtide that observes, or memtide that manages. The cost is the middle of the pairs, with its \
             95 % confidence interval."
        );
        let mut costs = Vec::new();
        let mut failures = Vec::new();
        for seen in arms.iter().filter(|seen| seen.arm.key != UNMANAGED) {
            if seen.runs.iter().any(|run| run.result.balloons_moved) {
                failures.push(format!("{}: a balloon moved although nothing was short", seen.arm.title));
            }
            let Some(cost) = slowdown(arms, &seen.arm.key) else {
                failures.push(format!("{}: too few runs to tell what it costs", seen.arm.title));
                continue;
            };
            costs.push((&seen.arm, cost));
            let (low, high, goal) =
                (signed_percent(cost.low), signed_percent(cost.high), signed_percent(GOAL));
            if cost.low > GOAL {
                failures.push(format!("{}: at least {low} slower, more than {goal}", seen.arm.title));
            } else if cost.high > GOAL {
                let title = &seen.arm.title;
                failures.push(format!(
                    "{title}: not shown to be at most {goal} slower, it may be {high}: run more"
                ));
            }
        }
        let bar = |(arm, cost): &(&Arm, Interval)| Bar {
            label: arm.title.clone(),
            value: cost.middle * 100.0,
            interval: Some((cost.low * 100.0, cost.high * 100.0)),
            text: signed_percent(cost.middle),
        };
        let bars = Bars {
            title: "slowdown in percent".to_owned(),
            bars: costs.iter().map(bar).collect(),
            line: Some((GOAL * 100.0, "the goal: at most 1 %".to_owned())),
        };
        let middles: Vec<(&str, SteadyResult)> =
            arms.iter().filter_map(|seen| Some((seen.arm.title.as_str(), middle(&seen.runs)?))).collect();
        let columns: Vec<(&str, &SteadyResult)> =
            middles.iter().map(|(title, result)| (*title, result)).collect();
        let slowdowns = costs.iter().map(|(arm, cost)| (arm.key.clone(), json!(cost)));
        let table = changes(arms);
        Ok(Findings {
            figures: vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &[bars]) }],
            title,
            about,
            setting: json!({
                "guests": GUESTS,
                "guest_memory_bytes": GUEST_MEMORY,
                "touched_bytes": Bytes::from_mib(SIZE_MIB),
                "seconds": SECONDS,
                "slowdown": slowdowns.collect::<serde_json::Map<_, _>>(),
            }),
            tables: vec![table, Table::of("medians", &columns, &ROWS)],
            failures,
        })
    }
}

/// The medians of an arm's runs.
fn middle(runs: &[Seen<SteadyResult>]) -> Option<SteadyResult> {
    let of = |value: fn(&SteadyResult) -> f64| median(runs.iter().map(|run| value(&run.result)));
    Some(SteadyResult {
        touched_bytes_per_s: of(|r| r.touched_bytes_per_s)?,
        touch_p50_ns: of(|r| r.touch_p50_ns)?,
        touch_p99_ns: of(|r| r.touch_p99_ns)?,
        guests_cpu: of(|r| r.guests_cpu)?,
        memtide_cpu: median(runs.iter().filter_map(|run| run.result.memtide_cpu)),
        balloons_moved: runs.iter().any(|run| run.result.balloons_moved),
    })
}

impl Steady {
    /// The next `count` seconds of each guest that end from now on.
    fn watch(&self, count: usize) -> Result<Vec<Second>, LabError> {
        let mut all = Vec::new();
        for (guest, load) in self.guests.iter().zip(&self.loads) {
            all.push((guest, *load, guest.second(*load)?.map(|second| second.at), Vec::new()));
        }
        until("seconds of touches", WORK, || {
            for (guest, load, last, seconds) in &mut all {
                let Some(second) = guest.second(*load)?.filter(|second| Some(second.at) != *last) else {
                    continue;
                };
                *last = Some(second.at);
                seconds.push(second);
            }
            Ok(all.iter().all(|(.., seconds)| seconds.len() >= count).then_some(()))
        })?;
        Ok(all.into_iter().flat_map(|(.., seconds)| seconds.into_iter().take(count)).collect())
    }
}

/// Whether the balloon of a guest has moved, or got an order to move.
fn was_moved(guest: &Guest, daemon: Option<&Daemon>) -> Result<bool, LabError> {
    let asked = match daemon {
        Some(daemon) => {
            let target = daemon.guest(guest.name())?.status.report.target;
            target.is_some_and(|target| target != GUEST_MEMORY)
        }
        None => false,
    };
    Ok(asked || guest.actual()? != GUEST_MEMORY)
}

/// The budget is ample, so nothing has to move. At its end, memtide releases the guests.
fn configuration(mode: &str) -> String {
    let budget = 4 * GUEST_MEMORY.whole_mib();
    format!(
        "mode = \"{mode}\"\nbudget = \"{budget} MiB\"\ndiscover = [\"{NAMES}*\"]\non_exit = \"release\"\n"
    )
}

fn cpu_of(pids: &[u32]) -> Result<f64, LabError> {
    pids.iter().map(|pid| cpu_seconds(*pid)).sum()
}

/// The ratios of an arm to the arm without memtide, repetition by repetition.
fn ratios(arms: &[ArmSeen<SteadyResult>], key: &str, of: impl Fn(&SteadyResult) -> f64) -> Option<Vec<f64>> {
    let runs = |key: &str| Some(&arms.iter().find(|arm| arm.arm.key == key)?.runs);
    let pairs = runs(key)?.iter().zip(runs(UNMANAGED)?);
    Some(pairs.map(|(with, without)| of(&with.result) / of(&without.result)).collect())
}

/// The slowdown of an arm against the arm without memtide: the loss of touches.
fn slowdown(arms: &[ArmSeen<SteadyResult>], key: &str) -> Option<Interval> {
    change(arms, key, |result| 1.0 / result.touched_bytes_per_s)
}

/// The relative increase of a figure against the arm without memtide.
fn change(arms: &[ArmSeen<SteadyResult>], key: &str, of: impl Fn(&SteadyResult) -> f64) -> Option<Interval> {
    let ratios = ratios(arms, key, of)?;
    Interval::of(&ratios.iter().map(|ratio| ratio - 1.0).collect::<Vec<f64>>())
}

/// The changes against the arm without memtide, with their intervals.
fn changes(arms: &[ArmSeen<SteadyResult>]) -> Table {
    type Figure = (&'static str, fn(&SteadyResult) -> f64);
    const FIGURES: [Figure; 4] = [
        ("time for the same touches", |r| 1.0 / r.touched_bytes_per_s),
        ("a touch, median", |r| r.touch_p50_ns),
        ("a touch, 99 of 100 below", |r| r.touch_p99_ns),
        ("processor time of the guests", |r| r.guests_cpu),
    ];
    let with: Vec<&Arm> = arms.iter().map(|seen| &seen.arm).filter(|arm| arm.key != UNMANAGED).collect();
    let head = std::iter::once(String::new()).chain(with.iter().map(|arm| arm.title.clone())).collect();
    let rows = FIGURES.iter().map(|(name, of)| {
        let cell = |arm: &&Arm| {
            let change = change(arms, &arm.key, of);
            change.map_or_else(String::new, |Interval { low, middle, high }| {
                let [low, middle, high] = [low, middle, high].map(signed_percent);
                format!("{middle} ({low} to {high})")
            })
        };
        std::iter::once((*name).to_owned()).chain(with.iter().map(cell)).collect()
    });
    Table {
        caption: "against without memtide, with 95 % confidence intervals".to_owned(),
        rows: std::iter::once(head).chain(rows).collect(),
    }
}

fn signed_percent(fraction: f64) -> String {
    format!("{:+.2} %", fraction * 100.0)
}

const ROWS: [Row<SteadyResult>; 6] = [
    ("touched by the guests", |r| format!("{:.0} MiB/s", r.touched_bytes_per_s / 1024.0 / 1024.0)),
    ("a touch, median", |r| format!("{:.0} ns", r.touch_p50_ns)),
    ("a touch, 99 of 100 below", |r| format!("{:.0} ns", r.touch_p99_ns)),
    ("processor time of the guests", |r| format!("{:.3} s/s", r.guests_cpu)),
    ("processor time of memtide", |r| show::or(r.memtide_cpu.map(|cpu| format!("{:.4} s/s", cpu)), "n/a")),
    ("a balloon moved", |r| if r.balloons_moved { "yes" } else { "no" }.to_owned()),
];
