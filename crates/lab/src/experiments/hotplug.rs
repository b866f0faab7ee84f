//! Memory unplugged from a UML instance and plugged again, with the raw commands of its console: how fast, and what the host has of it.
//!
//! Nothing else runs in an instance while a command is carried out, so that the time of a command is also the time for which the instance stands
//! still. A page that the instance has touched is in its memory file, and is punched out of it; one that it has not touched costs only the
//! allocation.

use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Summary;
use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use serde::Serialize;
use serde_json::json;

use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::{BOOT, Guest, Vmm};
use crate::machine::lab::Run;
use crate::output::report::{Figure, Row, Table};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::median;
use crate::work::exercise::load;

const MEMORY: Bytes = Bytes::from_mib(1024);
/// The memory that a touching instance has used and freed, in MiB.
const TOUCHED_MIB: u64 = 800;
/// One step, and the number of steps.
const STEP: Bytes = Bytes::from_mib(64);
const STEPS: u64 = 10;
/// The longest time for the work in an instance.
const WORK: Duration = Duration::from_secs(120);

const UNTOUCHED: &str = "untouched";
const TOUCHED: &str = "touched";

/// The experiment.
pub struct Hotplug;

/// One run of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HotplugResult {
    /// The median time of a command that unplugs a step, in milliseconds.
    pub take_ms: f64,
    /// The rate of unplugging, in GiB a second.
    pub take_gib_per_s: f64,
    /// The time of the command that plugs all of it again, in milliseconds.
    pub give_ms: f64,
    /// The rate of plugging, in GiB a second.
    pub give_gib_per_s: f64,
    /// Unplugged memory, as the instance's kernel tells.
    pub taken_bytes: Bytes,
    /// What the host has back of it.
    pub back_bytes: Bytes,
    /// The median time of a question for the size, in milliseconds.
    pub ask_ms: f64,
}

impl Experiment for Hotplug {
    const NAME: &'static str = "hotplug-uml";
    const ABOUT: &'static str =
        "memory unplugged from a UML instance and plugged again: how fast, and what comes back";
    type Result = HotplugResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let runs = if effort == Effort::Quick { 1 } else { 3 };
        let takes = Duration::from_secs(8);
        let arm = |key: &str, title: &str| Arm { key: key.to_owned(), title: title.to_owned(), runs, takes };
        vec![arm(UNTOUCHED, "memory that was never touched"), arm(TOUCHED, "memory that was used and freed")]
    }

    fn has_memtide(_: &str) -> bool {
        false
    }

    fn prepare(_: &Options, _: &[Arm], _: &Run, _: &Screen) -> Result<Self, LabError> {
        Ok(Self)
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, _: &Screen) -> Result<Seen<HotplugResult>, LabError> {
        let instance = Guest::builder("hotplug-1").vmm(Vmm::Uml).memory(MEMORY).start(run, None)?;
        instance.wait_up(BOOT)?;
        if of.arm.key == TOUCHED {
            let options = format!("--size {TOUCHED_MIB}M --grow max --seed {} --passes 0", of.seed);
            instance.ask::<Summary>(load(&options), WORK)?;
        }
        let result = measure(&instance)?;
        Ok(Seen { names: vec![instance.name().to_owned()], samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<HotplugResult>]) -> Result<Findings, LabError> {
        let title = "Unplugging and plugging memory of a UML instance".to_owned();
        let about = format!(
            "{STEPS} steps of {STEP} are unplugged from an instance of {MEMORY}, one command each, then all of it is plugged with one command."
        );
        let medians: Vec<(&str, HotplugResult)> =
            arms.iter().filter_map(|seen| Some((seen.arm.title.as_str(), middle(seen)?))).collect();
        let bars = |title: &str, of: fn(&HotplugResult) -> f64| Bars {
            title: title.to_owned(),
            bars: medians.iter().map(|(label, result)| bar(label, of(result))).collect(),
            ..Bars::default()
        };
        let groups = [
            bars("unplugged, GiB a second", |result| result.take_gib_per_s),
            bars("plugged, GiB a second", |result| result.give_gib_per_s),
        ];
        let columns: Vec<(&str, &HotplugResult)> =
            medians.iter().map(|(title, result)| (*title, result)).collect();
        Ok(Findings {
            figures: vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &groups) }],
            tables: vec![Table::of("medians", &columns, &ROWS)],
            setting: json!({ "memory_bytes": MEMORY, "step_bytes": STEP, "steps": STEPS }),
            failures: Vec::new(),
            title,
            about,
        })
    }
}

fn bar(label: &str, value: f64) -> Bar {
    Bar { label: label.to_owned(), value, interval: None, text: format!("{value:.2}") }
}

fn measure(instance: &Guest) -> Result<HotplugResult, LabError> {
    let before = instance.private();
    let (mut takes, mut asks) = (Vec::new(), Vec::new());
    for step in 1..=STEPS {
        let begun = Instant::now();
        instance.actual()?;
        asks.push(milliseconds(begun.elapsed()));
        let target = MEMORY.saturating_sub(STEP.mul_div(step, 1));
        takes.push(milliseconds(moved(instance, target)?));
    }
    let taken = MEMORY.saturating_sub(instance.actual()?);
    let back = before.saturating_sub(instance.private());
    let give_ms = milliseconds(moved(instance, MEMORY)?);
    let take_ms = median(takes).unwrap_or_default();
    let rate = |bytes: Bytes, ms: f64| show::mib(bytes) / 1024.0 / (ms / 1000.0).max(f64::EPSILON);
    Ok(HotplugResult {
        take_ms,
        take_gib_per_s: rate(STEP, take_ms),
        give_ms,
        give_gib_per_s: rate(taken, give_ms),
        taken_bytes: taken,
        back_bytes: back,
        ask_ms: median(asks).unwrap_or_default(),
    })
}

/// Moves to a size. Returns the time of the command, with the look at the present size before it.
fn moved(instance: &Guest, target: Bytes) -> Result<Duration, LabError> {
    let begun = Instant::now();
    instance.set_target(target)?;
    Ok(begun.elapsed())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The run with the median rate of unplugging.
fn middle(seen: &ArmSeen<HotplugResult>) -> Option<HotplugResult> {
    let mut results: Vec<HotplugResult> = seen.runs.iter().map(|run| run.result).collect();
    results.sort_by(|a, b| a.take_ms.total_cmp(&b.take_ms));
    results.get(results.len() / 2).copied()
}

const ROWS: [Row<HotplugResult>; 5] = [
    ("unplugging 64 MiB", |r| format!("{:.1} ms ({:.2} GiB/s)", r.take_ms, r.take_gib_per_s)),
    ("plugging all again", |r| format!("{:.1} ms ({:.1} GiB/s)", r.give_ms, r.give_gib_per_s)),
    ("unplugged", |r| r.taken_bytes.to_string()),
    ("the host has back", |r| r.back_bytes.to_string()),
    ("a question for the size", |r| format!("{:.2} ms", r.ask_ms)),
];
