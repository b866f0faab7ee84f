//! Guests about to be paused: what they keep of the host's memory, as they are, and after `memtide reclaim`.
//!
//! Half of the guests have page cache that they read once; the other half have just freed memory that they used. All report free pages.
//! The bytes are what their processes have resident, without files.

use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Summary;
use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use serde::Serialize;
use serde_json::json;

use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::disk::Disk;
use crate::guest::{Guest, start_all};
use crate::machine::lab::Run;
use crate::managers::daemon::Daemon;
use crate::output::report::{Figure, Row, Table};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::{median, median_bytes};
use crate::wait::until;
use crate::work::exercise::{load, read_disk};

/// The prefix of the guests' names.
const NAMES: &str = "pause-";
/// The guests of each kind, and how many of them boot at the same time.
const OF_EACH: usize = 6;
const BOOT_AT_ONCE: usize = 3;
const GUEST_MEMORY: Bytes = Bytes::from_mib(1024);
/// The cold page cache of a guest of the first kind, and the memory that one of the second kind has used, in MiB.
const MIB: u64 = 400;
/// The longest time for a job in a guest.
const WORK: Duration = Duration::from_secs(240);
/// Free page reporting has ended if the guests' cost has not fallen by this much in this time. It waits for 2 s between its rounds.
const STILL: Bytes = Bytes::from_mib(8);
const STILL_FOR: Duration = Duration::from_secs(6);
/// The goal: the part of the bytes that is left.
const HALF: f64 = 0.5;

const REPORTING: &str = "reporting";
const RECLAIM: &str = "reclaim";

/// The experiment.
pub struct Pause {
    disk: Disk,
}

/// One run of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PauseResult {
    /// What the guests cost once they idle and free page reporting has ended.
    pub idle_bytes: Bytes,
    /// What the guests with cold page cache cost at the end.
    pub cold_bytes: Bytes,
    /// What the guests that freed memory cost at the end.
    pub freed_bytes: Bytes,
    /// The time of the reclaims of all guests, one after the other.
    pub seconds: f64,
}

impl PauseResult {
    const fn kept(&self) -> Bytes {
        self.cold_bytes.saturating_add(self.freed_bytes)
    }
}

impl Experiment for Pause {
    const NAME: &'static str = "pause";
    const ABOUT: &'static str =
        "guests about to be paused: what they keep, with and without `memtide reclaim`";
    type Result = PauseResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let runs = if effort == Effort::Full { 3 } else { 1 };
        let takes = Duration::from_secs(150);
        let arm = |key: &str, title: &str| Arm { key: key.to_owned(), title: title.to_owned(), runs, takes };
        vec![arm(REPORTING, "free page reporting alone"), arm(RECLAIM, "memtide reclaim")]
    }

    fn has_memtide(key: &str) -> bool {
        key != REPORTING
    }

    fn prepare(_: &Options, _: &[Arm], run: &Run, _: &Screen) -> Result<Self, LabError> {
        Daemon::program()?;
        Ok(Self { disk: Disk::ensure(run.lab().cache(), 31, MIB)? })
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, screen: &Screen) -> Result<Seen<PauseResult>, LabError> {
        let guests = self.boot(run)?;
        let (cold, freed) = guests.split_at(OF_EACH);
        for guest in cold {
            let read = guest.begin(read_disk(&self.disk, MIB, None))?;
            guest.finish::<Summary>(read, "reading its disk", WORK)?;
        }
        for guest in freed {
            let used =
                guest.begin(load(&format!("--size {MIB}M --grow max --seed {} --passes 0", of.seed)))?;
            guest.finish::<Summary>(used, "using memory", WORK)?;
        }
        let idle_bytes = settled(&guests)?;
        let begun = Instant::now();
        if of.arm.key == RECLAIM {
            let ample = GUEST_MEMORY.whole_mib() * guests.len() as u64 * 2;
            let daemon = Daemon::start(
                run.path(),
                &format!("mode = \"manage\"\nbudget = \"{ample} MiB\"\ndiscover = [\"{NAMES}*\"]\n"),
            )?;
            for guest in &guests {
                daemon.until("a report of the agent", WORK, guest.name(), |detail| {
                    detail.seen.told.agent.fresh().map(|_| ())
                })?;
                screen.say(daemon.says(&["reclaim", guest.name()])?.trim());
            }
            daemon.stop()?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        settled(&guests)?;
        let result = PauseResult { idle_bytes, cold_bytes: cost(cold), freed_bytes: cost(freed), seconds };
        Ok(Seen { names: Vec::new(), samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<PauseResult>]) -> Result<Findings, LabError> {
        let title = "What guests keep while they are paused".to_owned();
        let about = format!(
            "{OF_EACH} guests of {GUEST_MEMORY} have read {MIB} MiB of their disks once; {OF_EACH} others have used {MIB} MiB and freed \
             them. Then they are about to be paused. What they keep of the host's memory; medians."
        );
        let middles: Vec<(&str, &str, PauseResult)> = arms
            .iter()
            .filter_map(|seen| Some((seen.arm.key.as_str(), seen.arm.title.as_str(), middle(&seen.runs)?)))
            .collect();
        let of = |key: &str| {
            middles.iter().find(|(of, ..)| *of == key).map(|(.., result)| show::mib(result.kept()))
        };
        let failures = match (of(REPORTING), of(RECLAIM)) {
            (Some(without), Some(with)) if with > HALF * without => {
                vec![format!(
                    "with memtide reclaim {} are left of {}",
                    show::of_mib(with),
                    show::of_mib(without)
                )]
            }
            _ => Vec::new(),
        };
        let bars = Bars {
            title: "kept by twelve guests".to_owned(),
            bars: middles
                .iter()
                .map(|(_, label, result)| Bar {
                    label: (*label).to_owned(),
                    value: show::mib(result.kept()),
                    interval: None,
                    text: result.kept().to_string(),
                })
                .collect(),
            line: None,
        };
        let columns: Vec<(&str, &PauseResult)> =
            middles.iter().map(|(_, title, result)| (*title, result)).collect();
        Ok(Findings {
            figures: vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &[bars]) }],
            title,
            about,
            setting: json!({
                "guests_of_each_kind": OF_EACH,
                "guest_memory_bytes": GUEST_MEMORY,
                "cold_or_freed_bytes": Bytes::from_mib(MIB),
            }),
            tables: vec![Table::of("medians", &columns, &ROWS)],
            failures,
        })
    }
}

impl Pause {
    fn boot(&self, run: &Run) -> Result<Vec<Guest>, LabError> {
        let mut guests = Vec::new();
        while guests.len() < 2 * OF_EACH {
            let first = guests.len();
            let builders = (first..first + BOOT_AT_ONCE).map(|nth| {
                let builder = Guest::builder(&format!("{NAMES}{}", nth + 1))
                    .memory(GUEST_MEMORY)
                    .deflate_on_oom(true)
                    .free_page_reporting(true)
                    .agent(true);
                if nth < OF_EACH { builder.disk(&self.disk) } else { builder }
            });
            guests.extend(start_all(builders, run, None)?);
        }
        Ok(guests)
    }
}

/// What the guests cost the host.
fn cost(guests: &[Guest]) -> Bytes {
    Bytes::sum(guests.iter().map(Guest::private))
}

/// Waits until the guests' cost does not fall any more, and returns it.
fn settled(guests: &[Guest]) -> Result<Bytes, LabError> {
    let mut last = (cost(guests), Instant::now());
    until("guests whose cost does not fall any more", WORK, || {
        let now = cost(guests);
        if now.saturating_add(STILL) < last.0 || now > last.0.saturating_add(STILL) {
            last = (now, Instant::now());
        }
        Ok((last.1.elapsed() >= STILL_FOR).then_some(now))
    })
}

/// The medians of an arm's runs.
fn middle(runs: &[Seen<PauseResult>]) -> Option<PauseResult> {
    let of = |value: fn(&PauseResult) -> Bytes| median_bytes(runs.iter().map(|run| value(&run.result)));
    Some(PauseResult {
        idle_bytes: of(|r| r.idle_bytes)?,
        cold_bytes: of(|r| r.cold_bytes)?,
        freed_bytes: of(|r| r.freed_bytes)?,
        seconds: median(runs.iter().map(|run| run.result.seconds))?,
    })
}

const ROWS: [Row<PauseResult>; 5] = [
    ("kept once idle", |r| r.idle_bytes.to_string()),
    ("kept at the end", |r| r.kept().to_string()),
    ("by the guests with cold page cache", |r| r.cold_bytes.to_string()),
    ("by the guests that freed memory", |r| r.freed_bytes.to_string()),
    ("time of all reclaims", |r| format!("{:.1} s", r.seconds)),
];
