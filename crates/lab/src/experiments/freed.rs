//! A guest frees memory that the host needs: the time until the host has it back.
//!
//! One guest uses most of its memory. Under memtide, the budget is a little less than what the guests cost, so the host is short all the time.
//! Then the guest frees what it used. Free page reporting returns it alone, or with memtide's balloon, or with an agent that tells memtide at
//! once. Each with another guest that leaves a processor free, and with one that fills it.

use std::time::{Duration, Instant};

use memtide_load::helper::wire::Ask;
use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use serde::Serialize;
use serde_json::json;

use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::channel::Job;
use crate::guest::{Guest, start_all};
use crate::machine::lab::Run;
use crate::managers::daemon::Daemon;
use crate::output::report::{Figure, Table};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::statistics::{Spread, median_bytes};
use crate::wait::until;
use crate::work::exercise::{fill, load};

/// The prefix of the guests' names.
const NAMES: &str = "freed-";
const GUEST_MEMORY: Bytes = Bytes::from_mib(1536);
/// The memory that is freed, and the part of it that must be back.
const FREED: Bytes = Bytes::from_mib(1024);
const PERCENT: u64 = 90;
/// What the neighbour touches, in MiB.
const BUSY_MIB: u64 = 200;
/// The host lacks this much until memory is freed.
const SHORT: Bytes = Bytes::from_mib(48);
/// memtide has seen the shortage for this many decisions before memory is freed.
const DECISIONS: u64 = 20;
/// The longest time for one step.
const WORK: Duration = Duration::from_secs(180);
/// The goals: the time with an agent against free page reporting alone, if no other guest is busy, and if one is.
const QUIET_GOAL: f64 = 0.5;
const BUSY_GOAL: f64 = 0.8;

/// The way without memtide.
const REPORTING: &str = "reporting";
/// Who returns the memory.
const WAYS: [(&str, &str); 3] = [
    (REPORTING, "free page reporting alone"),
    ("balloon", "memtide, without an agent"),
    ("agent", "memtide, with an agent"),
];
/// The neighbours: the ending of an arm's key, its title, and the goal.
const NEIGHBOURS: [(&str, &str, f64); 2] =
    [("", "the neighbour idles", QUIET_GOAL), ("-busy", "the neighbour is busy", BUSY_GOAL)];

/// The experiment.
pub struct Freed;

/// One run of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FreedResult {
    /// The time until nine tenths of the freed memory were back.
    pub seconds: f64,
    /// The time until a tenth was back.
    pub first_seconds: f64,
    /// The guest's size when nine tenths were back.
    pub actual_bytes: Bytes,
}

impl Experiment for Freed {
    const NAME: &'static str = "freed";
    const ABOUT: &'static str =
        "a guest frees memory that the host needs: the time until the host has it back";
    type Result = FreedResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let runs = match effort {
            Effort::Quick => 1,
            Effort::Usual => 3,
            Effort::Full => 10,
        };
        let arm = |(way, who): (&str, &str), (ending, beside, _): (&str, &str, f64)| Arm {
            key: format!("{way}{ending}"),
            title: format!("{who}; {beside}"),
            runs,
            takes: Duration::from_secs(40),
        };
        NEIGHBOURS.into_iter().flat_map(|beside| WAYS.map(|way| arm(way, beside))).collect()
    }

    fn has_memtide(key: &str) -> bool {
        !key.starts_with(REPORTING)
    }

    fn prepare(_: &Options, _: &[Arm], _: &Run, _: &Screen) -> Result<Self, LabError> {
        Daemon::program()?;
        Ok(Self)
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, _: &Screen) -> Result<Seen<FreedResult>, LabError> {
        let (way, is_busy) =
            of.arm.key.strip_suffix("-busy").map_or((of.arm.key.as_str(), false), |way| (way, true));
        let builder = |name: &str| {
            Guest::builder(&format!("{NAMES}{name}"))
                .memory(GUEST_MEMORY)
                .deflate_on_oom(true)
                .free_page_reporting(true)
                .agent(way == "agent")
        };
        let guests = start_all([builder("donor"), builder("other")], run, None)?;
        let [donor, other] = &guests[..] else { unreachable!("two were started") };
        let used = donor.run(fill(of.seed, FREED.whole_mib(), None), WORK)?;
        let touches = format!("--size {BUSY_MIB}M --writes 30% --threads 1 --seed {}", of.seed);
        if is_busy {
            let busy = other.begin(load(&touches))?;
            other.until("the neighbour's first second", WORK, |guest| Ok(guest.second(busy)?.map(|_| ())))?;
        }
        let daemon = if way == "reporting" { None } else { Some(short(run, &guests)?) };
        let result = free(donor, used)?;
        daemon.map_or(Ok(()), Daemon::stop)?;
        Ok(Seen { names: Vec::new(), samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<FreedResult>]) -> Result<Findings, LabError> {
        let title = "The time until freed memory is back".to_owned();
        let about = format!(
            "A guest of {GUEST_MEMORY} frees {FREED} while the host lacks {SHORT}. The time until the host has {PERCENT} % of it; medians \
             and ranges."
        );
        let spread = |key: &str| {
            let seen = arms.iter().find(|seen| seen.arm.key == key)?;
            Spread::of(seen.runs.iter().map(|run| run.result.seconds))
        };
        let mut failures = Vec::new();
        for (ending, beside, goal) in NEIGHBOURS {
            let times = [spread(&format!("reporting{ending}")), spread(&format!("agent{ending}"))];
            if let [Some(alone), Some(agent)] = times
                && agent.middle > goal * alone.middle
            {
                failures.push(format!(
                    "{beside}: {:.1} s with an agent, {:.1} s with free page reporting alone, goal {goal} ×",
                    agent.middle, alone.middle
                ));
            }
        }
        let groups: Vec<Bars> = NEIGHBOURS
            .iter()
            .map(|(ending, beside, goal)| Bars {
                title: format!("seconds; {beside}"),
                bars: WAYS
                    .iter()
                    .filter_map(|(way, who)| {
                        let spread = spread(&format!("{way}{ending}"))?;
                        Some(Bar {
                            label: (*who).to_owned(),
                            value: spread.middle,
                            interval: Some((spread.low, spread.high)),
                            text: spread.text(|seconds| format!("{seconds:.1} s")),
                        })
                    })
                    .collect(),
                line: spread(&format!("reporting{ending}"))
                    .map(|alone| (goal * alone.middle, format!("the goal: {goal} ×"))),
            })
            .filter(|group| !group.bars.is_empty())
            .collect();
        Ok(Findings {
            figures: vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &groups) }],
            title,
            about,
            setting: json!({
                "guest_memory_bytes": GUEST_MEMORY,
                "freed_bytes": FREED,
                "short_bytes": SHORT,
                "neighbour_touches_bytes": Bytes::from_mib(BUSY_MIB),
            }),
            tables: vec![table(arms)],
            failures,
        })
    }
}

/// A daemon whose budget is less than what the guests cost, after some decisions.
fn short(run: &Run, guests: &[Guest]) -> Result<Daemon, LabError> {
    let cost = Bytes::sum(guests.iter().map(Guest::footprint));
    let config = format!(
        "mode = \"manage\"\nbudget = \"{} MiB\"\ndiscover = [\"{NAMES}*\"]\ncommitment = \"elastic\"\nreserve = \"0\"\n",
        cost.saturating_sub(SHORT).whole_mib()
    );
    let daemon = Daemon::start(run.path(), &config)?;
    until("decisions on a short host", WORK, || {
        Ok((daemon.status()?.counters.ticks >= DECISIONS).then_some(()))
    })?;
    Ok(daemon)
}

/// Ends the load `used`, and waits until the host has nine tenths of its memory.
fn free(donor: &Guest, used: Job) -> Result<FreedResult, LabError> {
    let before = donor.private();
    let begun = Instant::now();
    donor.begin(Ask::Cancel { job: used.id() })?;
    let back = |percent: u64| {
        let wanted = FREED.mul_div(percent, 100);
        until("freed memory", WORK, || {
            Ok((before.saturating_sub(donor.private()) >= wanted).then(|| begun.elapsed()))
        })
    };
    let first = back(100 - PERCENT)?;
    let nine = back(PERCENT)?;
    Ok(FreedResult {
        seconds: nine.as_secs_f64(),
        first_seconds: first.as_secs_f64(),
        actual_bytes: donor.actual()?,
    })
}

/// A line for each arm.
fn table(arms: &[ArmSeen<FreedResult>]) -> Table {
    let head = ["", "a tenth is back after", "nine tenths are back after", "the guest's size then"];
    let seconds = |seen: &ArmSeen<FreedResult>, of: fn(&FreedResult) -> f64| {
        let spread = Spread::of(seen.runs.iter().map(|run| of(&run.result)));
        spread.map_or_else(String::new, |spread| spread.text(|seconds| format!("{seconds:.1} s")))
    };
    let row = |seen: &ArmSeen<FreedResult>| {
        let size = median_bytes(seen.runs.iter().map(|run| run.result.actual_bytes));
        vec![
            seen.arm.title.clone(),
            seconds(seen, |result| result.first_seconds),
            seconds(seen, |result| result.seconds),
            size.map_or_else(String::new, |size| size.to_string()),
        ]
    };
    Table {
        caption: "medians and ranges".to_owned(),
        rows: std::iter::once(head.map(str::to_owned).to_vec()).chain(arms.iter().map(row)).collect(),
    }
}
