//! Guests that may exceed their share for a moment: each needs twice its share of the host for ten seconds, one after another.
//!
//! Three guests share a small host. Each holds a cold heap, which it has filled once and leaves alone, and works a little. In turn, each fills and uses
//! so much memory that its process takes twice its share. The host has just too little for the burst of one guest beside two others at rest, as long as their
//! cold heaps take all their memory. It has enough once the cold heaps are compressed.
//!
//! The sizes follow from the measured cost of a guest at rest.

use std::time::Duration;

use memtide_model::{Bytes, Commitment};
use memtide_plot::bars::{self, Bar, Bars};
use memtide_plot::stack::{self, Panel};
use serde::Serialize;
use serde_json::json;

use self::run::Setting;
use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::machine::lab::Run;
use crate::managers::daemon::{Daemon, TIER};
use crate::managers::memtide::Memtide;
use crate::managers::{Manager, Nobody};
use crate::output::report::{Figure, Row, Table};
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::Spread;

mod run;

const UNMANAGED: &str = "unmanaged";
const BALLOON: &str = "balloon";
const TIERS: &str = "tier";

/// The experiment.
pub struct Burst {
    setting: Setting,
}

/// One run of one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BurstResult {
    /// Bursts that were to be made.
    pub bursts_planned: u64,
    /// Bursts whose work was done.
    pub bursts_done: u64,
    /// Why the others were not done; empty if all were.
    pub ended_by: String,
    /// The median time of the work of a burst; null if none was done.
    pub burst_seconds: Option<f64>,
    /// The longest of them.
    pub longest_seconds: Option<f64>,
    /// The median against the work of a guest that has the host to itself.
    pub slowdown: Option<f64>,
    /// Processes killed by the small host's OOM killer.
    pub oom_kills: u64,
    /// Processes killed by the OOM killers of the surviving guests.
    pub guest_oom_kills: u64,
    /// Bytes of the cold heaps, and those of them that were intact at the end.
    pub cold_bytes: Bytes,
    /// The intact part.
    pub cold_verified_bytes: Bytes,
    /// Words that differ from their expected value, in bursts and in cold heaps.
    pub mismatched_words: u64,
    /// What all guests read from their swap, without the last check.
    pub swapped_in_bytes: Bytes,
    /// What they wrote to it.
    pub swapped_out_bytes: Bytes,
    /// Bytes that the balloons moved, in both directions.
    pub memory_moved_bytes: Bytes,
    /// The most memory that the small host and the zram devices took at once.
    pub total_bytes: Bytes,
    /// The most that the zram devices took of it.
    pub tier_held_bytes: Bytes,
    /// The duration of all bursts.
    pub seconds: f64,
}

impl Experiment for Burst {
    const NAME: &'static str = "burst";
    const ABOUT: &'static str =
        "three guests, each needs twice its share of the host for ten seconds: nobody, balloons, tiers";
    type Result = BurstResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let rounds = run::rounds(effort) as u64;
        let arm = |key: &str, title: &str| Arm {
            key: key.to_owned(),
            title: title.to_owned(),
            runs: if effort == Effort::Full { 3 } else { 1 },
            takes: Duration::from_secs(40 + rounds * 50),
        };
        vec![
            arm(UNMANAGED, "nobody"),
            arm(BALLOON, "memtide, balloons alone"),
            arm(TIERS, "memtide with tiers"),
        ]
    }

    fn has_memtide(key: &str) -> bool {
        key != UNMANAGED
    }

    fn prepare(options: &Options, _: &[Arm], run: &Run, screen: &Screen) -> Result<Self, LabError> {
        Daemon::program()?;
        screen.say("one guest alone: at rest, and in a burst");
        let setting = Setting::measure(run::COLD_MIB, run::rounds(options.effort), &run.part("alone")?)?;
        screen.say(&format!(
            "it takes {} at rest; a burst adds {} MiB and takes {:.1} s: a host of {}",
            setting.rest, setting.burst_mib, setting.burst_seconds, setting.capacity
        ));
        Ok(Self { setting })
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, screen: &Screen) -> Result<Seen<BurstResult>, LabError> {
        let memtide = || Memtide::find(Commitment::Elastic, &format!("{}*", run::NAMES));
        let (mut manager, has_tier): (Box<dyn Manager>, bool) = match of.arm.key.as_str() {
            BALLOON => (Box::new(memtide()?), false),
            TIERS => (Box::new(memtide()?.with(TIER)), true),
            _ => (Box::new(Nobody), false),
        };
        run::run(&self.setting, &of, manager.as_mut(), has_tier, run, screen)
    }

    fn find(&self, arms: &[ArmSeen<BurstResult>]) -> Result<Findings, LabError> {
        let setting = &self.setting;
        let title = "Twice the share for ten seconds".to_owned();
        let about = format!(
            "{} guests share {}. Each holds a cold heap of {} MiB that compresses to 1/{}. In turn, each fills {} MiB more, touches it and \
             frees it. Alone, that takes {:.1} s.",
            run::GUESTS,
            setting.capacity,
            setting.cold_mib,
            run::RATIO,
            setting.burst_mib,
            setting.burst_seconds
        );
        let shown = "What each guest's process takes from the host, in the first run of each arm.";
        let panels: Vec<Panel> = arms.iter().filter_map(panel).collect();
        let memory = stack::svg(&title, shown, show::mib(setting.capacity), &panels);
        let columns: Vec<(&str, &BurstResult)> = arms
            .iter()
            .filter_map(|seen| Some((seen.arm.title.as_str(), &seen.runs.first()?.result)))
            .collect();
        Ok(Findings {
            figures: vec![
                Figure {
                    name: "plot".to_owned(),
                    svg: bars::svg(&title, &about, &[bursts(arms), times(arms)]),
                },
                Figure { name: "memory".to_owned(), svg: memory },
            ],
            title,
            about,
            setting: json!(setting),
            tables: vec![Table::of("", &columns, &ROWS)],
            failures: arms.iter().filter(|seen| Self::has_memtide(&seen.arm.key)).flat_map(broken).collect(),
        })
    }
}

fn spread(seen: &ArmSeen<BurstResult>, of: impl Fn(&BurstResult) -> Option<f64>) -> Option<Spread> {
    Spread::of(seen.runs.iter().filter_map(|run| of(&run.result)))
}

fn bar(seen: &ArmSeen<BurstResult>, spread: Spread, text: String) -> Bar {
    let interval = spread.is_wide().then_some((spread.low, spread.high));
    Bar { label: seen.arm.title.clone(), value: spread.middle, interval, text }
}

/// The bursts that were done.
fn bursts(arms: &[ArmSeen<BurstResult>]) -> Bars {
    let planned = arms.iter().flat_map(|seen| &seen.runs).map(|run| run.result.bursts_planned).max();
    let bars = arms.iter().filter_map(|seen| {
        let done = spread(seen, |result| Some(show::float(result.bursts_done)))?;
        Some(bar(seen, done, done.text(show::count)))
    });
    let line = planned.map(|planned| (show::float(planned), format!("all {planned}")));
    Bars { title: "bursts whose work was done".to_owned(), bars: bars.collect(), line }
}

/// The time of the work of those.
fn times(arms: &[ArmSeen<BurstResult>]) -> Bars {
    let bars = arms.iter().filter_map(|seen| {
        let slowdown = spread(seen, |result| result.slowdown)?;
        Some(bar(seen, slowdown, slowdown.text(|times| format!("{times:.2} ×"))))
    });
    let line = Some((1.0, "a guest that has the host to itself".to_owned()));
    Bars { title: "time of the work of a burst, median".to_owned(), bars: bars.collect(), line }
}

fn panel(seen: &ArmSeen<BurstResult>) -> Option<Panel> {
    let first = seen.runs.first()?;
    let BurstResult { bursts_planned, bursts_done, .. } = first.result;
    let note = format!("{bursts_done} of {bursts_planned} bursts done");
    Some(first.samples.panel(&seen.arm.title, &note, "ended", &first.names))
}

/// The promises that memtide broke: whatever it cannot do, no guest is killed and no byte is wrong. With tiers, all bursts are done.
fn broken(seen: &ArmSeen<BurstResult>) -> Vec<String> {
    let mut broken = Vec::new();
    for BurstResult { bursts_planned, bursts_done, oom_kills, mismatched_words, ended_by, .. } in
        seen.runs.iter().map(|run| &run.result)
    {
        let title = &seen.arm.title;
        if *mismatched_words > 0 {
            broken.push(format!("{title}: {mismatched_words} words differ"));
        }
        if *oom_kills > 0 {
            broken.push(format!("{title}: the host's OOM killer killed {oom_kills} processes"));
        }
        if seen.arm.key == TIERS && bursts_done < bursts_planned {
            broken.push(format!("{title}: {bursts_done} of {bursts_planned} bursts done: {ended_by}"));
        }
    }
    broken
}

/// (All runs are in results.json; this shows the first run of each arm.)
const ROWS: [Row<BurstResult>; 14] = [
    ("bursts done", |r| format!("{} of {}", r.bursts_done, r.bursts_planned)),
    ("time of a burst's work, median", |r| show::or(r.burst_seconds.map(|s| format!("{s:.1} s")), "n/a")),
    ("longest", |r| show::or(r.longest_seconds.map(|s| format!("{s:.1} s")), "n/a")),
    ("against a guest alone", |r| show::or(r.slowdown.map(|times| format!("{times:.2} ×")), "n/a")),
    ("host: OOM kills", |r| r.oom_kills.to_string()),
    ("guests: OOM kills", |r| r.guest_oom_kills.to_string()),
    ("cold heaps intact at the end", |r| format!("{} of {}", r.cold_verified_bytes, r.cold_bytes)),
    ("words that differ", |r| r.mismatched_words.to_string()),
    ("swapped in", |r| r.swapped_in_bytes.to_string()),
    ("swapped out", |r| r.swapped_out_bytes.to_string()),
    ("moved by balloons", |r| r.memory_moved_bytes.to_string()),
    ("most memory of the host in total", |r| r.total_bytes.to_string()),
    ("of it in tiers", |r| r.tier_held_bytes.to_string()),
    ("not done because", |r| r.ended_by.clone()),
];
