//! The results of the arms: tables, plots, and the promises that memtide broke.

use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use memtide_plot::stack::{self, Panel};
use serde_json::json;

use super::DensityResult;
use super::alone::COLD_RATIO;
use super::case::{By, Case, Peaks};
use super::job::Job;
use super::setting::Setting;
use crate::error::LabError;
use crate::experiments::experiment::{ArmSeen, Findings, Seen};
use crate::output::report::{Figure, Row, Table};
use crate::output::show;
use crate::output::statistics::Spread;

/// The content of the memory plots.
const SHOWN: &str = "What each guest's process takes from the host, in the first run of each arm.";
/// From here on, all work counts as done.
const WHOLE: f64 = 0.999;
/// Times and moved bytes are judged from this many runs on: one run is no evidence.
const RUNS_TO_JUDGE: usize = 3;
/// With equal memory merged, elastic gets this many times the guests through.
const SHARING_TIMES: f64 = 1.2;
/// With tiers, this many times the guests get through as with balloons alone, and their work takes at most this many times as long.
const TIER_TIMES: f64 = 1.5;
const TIER_SLOWDOWN: f64 = 1.1;
/// A manager that moves more than this many times the bytes of the rule that holds most guests moves too much.
const MOVES_AT_MOST: f64 = 2.0;

/// An arm that has run.
struct Ran<'a> {
    case: Case,
    seen: &'a ArmSeen<DensityResult>,
    /// Its first run, which the memory plots show.
    first: &'a Seen<DensityResult>,
}

impl Ran<'_> {
    fn results(&self) -> impl Iterator<Item = &DensityResult> {
        self.seen.runs.iter().map(|run| &run.result)
    }

    /// The guests that got through.
    fn guests(&self) -> Spread {
        Spread::of(self.results().map(|result| show::float(result.guests_finished))).unwrap_or_default()
    }

    /// The time of the work with this number of guests against a guest alone, over the runs that got so far.
    fn slowdown(&self, guests: u64) -> Option<Spread> {
        let step =
            |result: &DensityResult| result.by_guests.iter().find(|step| step.guests == guests).copied();
        Spread::of(self.results().filter_map(step).map(|step| step.slowdown))
    }

    fn moved(&self) -> Spread {
        Spread::of(self.results().map(|result| show::mib(result.memory_moved_bytes))).unwrap_or_default()
    }
}

/// Finds all tables, plots and failures.
pub(super) fn find(
    settings: &[(Job, Setting)],
    arms: &[ArmSeen<DensityResult>],
) -> Result<Findings, LabError> {
    let setting = |job: Job| {
        let of_job = settings.iter().find(|(of, _)| *of == job).map(|(_, setting)| setting);
        of_job.ok_or_else(|| LabError::Usage("a guest alone was not measured".to_owned()))
    };
    let hosts: Vec<String> = settings.iter().map(|(_, setting)| setting.capacity.to_string()).collect();
    let title = match settings.first() {
        Some((_, first)) => {
            format!("How many guests of {} a host of {} holds", first.scale.guest_memory, hosts.join(" or "))
        }
        None => "How many guests a host holds".to_owned(),
    };
    let jobs: Vec<String> = settings.iter().map(|(job, setting)| work_of(*job, setting)).collect();
    let about = format!(
        "Guests are launched one after another. Each works and frees its memory; then the one that has idled longest works again. A \
         guest counts as soon as it and all before it got through. {}",
        jobs.join(" ")
    );
    let ran: Vec<Ran<'_>> = arms
        .iter()
        .filter_map(|seen| Some(Ran { case: Case::of(&seen.arm)?, seen, first: seen.runs.first()? }))
        .collect();
    let variants: Vec<&[Ran<'_>]> = ran.chunk_by(|a, b| a.case.suffix() == b.case.suffix()).collect();
    let groups: Vec<Bars> = variants
        .iter()
        .filter_map(|ran| Some((ran.first()?.case, ran)))
        .map(|(case, ran)| Ok(group(case, setting(case.job)?, ran)))
        .collect::<Result<_, LabError>>()?;
    let mut figures = vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &groups) }];
    let mut tables = Vec::new();
    let mut failures = Vec::new();
    for ran in variants {
        let Some(case) = ran.first().map(|ran| ran.case) else { continue };
        tables.push(figures_of(ran));
        tables.push(slowdowns(ran));
        let panels: Vec<Panel> = ran.iter().map(panel).collect();
        let capacity = show::mib(setting(case.job)?.capacity);
        let svg = stack::svg(case.variant(), SHOWN, capacity, &panels);
        figures.push(Figure { name: format!("memory{}", case.suffix()), svg });
        failures.extend(broken(ran));
    }
    let of_job = |(job, setting): &(Job, Setting)| {
        json!({
            "job": job.title(),
            "capacity_bytes": setting.capacity,
            "reserve_bytes": setting.reserve(),
            "guest_memory_bytes": setting.scale.guest_memory,
            "alone": setting.alone,
            "bound": setting.bound(),
        })
    };
    let setting = settings.iter().map(of_job).collect();
    Ok(Findings { title, about, setting, figures, tables, failures })
}

/// The job in a sentence, with the measured needs of a guest alone.
fn work_of(job: Job, setting: &Setting) -> String {
    let anon = setting.scale.anon_mib(job);
    let work = match &setting.load.cache {
        Some((_, cache)) => {
            format!(
                "With page cache in use, it reads the same {cache} MiB of its disk each time and fills {anon} MiB."
            )
        }
        None if job == Job::ColdHeap => format!(
            "With a cold heap, it fills {} MiB at the beginning, which compress to 1/{COLD_RATIO}, and {anon} MiB at its turn.",
            setting.cold_mib
        ),
        None => format!("It fills {anon} MiB and checks all of it."),
    };
    let alone = &setting.alone;
    format!(
        "{work} One guest alone costs {} at its peak and {} idle, and needs {:.1} s.",
        alone.peak, alone.idle, alone.turn_seconds
    )
}

/// The number of guests that got through, by manager.
fn group(case: Case, setting: &Setting, ran: &[Ran<'_>]) -> Bars {
    let bar = |ran: &Ran<'_>| {
        let guests = ran.guests();
        Bar {
            label: ran.case.by.title().to_owned(),
            value: guests.middle,
            text: guests_of(ran),
            interval: guests.is_wide().then_some((guests.low, guests.high)),
        }
    };
    let bound = setting.bound();
    let name =
        format!("{bound}: one at its peak, all others as free page reporting leaves them, and 5 % kept free");
    Bars {
        title: case.variant().to_owned(),
        bars: ran.iter().map(bar).collect(),
        line: (case.peaks == Peaks::Offset).then(|| (show::float(bound), name)),
    }
}

/// The guests that got through, as text.
fn guests_of(ran: &Ran<'_>) -> String {
    let sign = if ran.results().any(|result| result.at_least) { "≥ " } else { "" };
    format!("{sign}{}", ran.guests().text(show::count))
}

/// The variant, and what the figures mean if there are several runs.
fn caption(ran: &[Ran<'_>]) -> String {
    let variant = ran.first().map_or("", |ran| ran.case.variant());
    match ran.iter().map(|ran| ran.seen.runs.len()).max() {
        Some(runs @ 2..) => format!("{variant}, medians of {runs} runs and ranges"),
        _ => variant.to_owned(),
    }
}

fn figures_of(ran: &[Ran<'_>]) -> Table {
    let columns: Vec<(&str, &Ran<'_>)> = ran.iter().map(|ran| (ran.case.by.title(), ran)).collect();
    Table::of(&caption(ran), &columns, &rows())
}

/// The median and range of a figure over the runs in which it was measured.
fn over_runs(
    ran: &Ran<'_>,
    of: impl Fn(&DensityResult) -> Option<f64>,
    show: impl Fn(f64) -> String,
    none: &str,
) -> String {
    Spread::of(ran.results().filter_map(of)).map_or_else(|| none.to_owned(), |spread| spread.text(show))
}

fn count_of(ran: &Ran<'_>, of: impl Fn(&DensityResult) -> Option<u64>, none: &str) -> String {
    over_runs(ran, |result| of(result).map(show::float), show::count, none)
}

fn bytes_of(ran: &Ran<'_>, of: impl Fn(&DensityResult) -> Option<Bytes>, none: &str) -> String {
    over_runs(ran, |result| of(result).map(show::mib), show::of_mib, none)
}

/// The time of the work by the number of guests, to compare arms at the same number.
fn slowdowns(ran: &[Ran<'_>]) -> Table {
    let head = std::iter::once("guests".to_owned())
        .chain(ran.iter().map(|ran| ran.case.by.title().to_owned()))
        .collect();
    let rows = (1..=most_guests(ran)).map(|guests| {
        let cell = |ran: &Ran<'_>| {
            ran.slowdown(guests)
                .map_or_else(String::new, |spread| spread.text(|slowdown| format!("{slowdown:.2} ×")))
        };
        std::iter::once(guests.to_string()).chain(ran.iter().map(cell)).collect()
    });
    Table {
        caption: format!("{}: time of the work against a guest alone, by the number of guests", caption(ran)),
        rows: std::iter::once(head).chain(rows).collect(),
    }
}

/// The most guests that got through in any run.
fn most_guests(ran: &[Ran<'_>]) -> u64 {
    ran.iter().flat_map(Ran::results).map(|result| result.guests_finished).max().unwrap_or(0)
}

fn panel(ran: &Ran<'_>) -> Panel {
    let DensityResult { guests_finished, ended_by, .. } = &ran.first.result;
    let note = format!("{guests_finished} guests got through · ended by {ended_by}");
    ran.first.samples.panel(ran.case.by.title(), &note, "ended", &ran.first.names)
}

/// The promises that memtide broke. It must do all work. If peaks are offset, so that used memory fits, it must also get as
/// many guests through as every other manager, reach its multiple of the unmanaged guests, and never let the host read back
/// from swap. With equal memory merged, elastic must get more guests through. With enough runs, its times and the bytes that it
/// moves are compared with those of the others, too.
fn broken(ran: &[Ran<'_>]) -> Vec<String> {
    let others: Vec<&Ran<'_>> = ran.iter().filter(|ran| !ran.case.by.is_memtide()).collect();
    let best = others.iter().map(|ran| ran.guests().middle).fold(0.0, f64::max);
    let unmanaged = ran.iter().find(|ran| ran.case.by == By::Nobody).map(|ran| ran.guests().middle);
    let of_elastic = ran.iter().find(|ran| ran.case.by == By::Elastic);
    let elastic = of_elastic.map(|ran| ran.guests().middle);
    let mut broken = Vec::new();
    for ran in ran.iter().filter(|ran| ran.case.by.is_memtide()) {
        let (name, guests) = (&ran.seen.arm.title, ran.guests().middle);
        let results = || ran.results();
        // With swap, too few guests are tried.
        let is_open = ran.case.swap || results().any(|result| result.at_least);
        let mut is_broken = |is: bool, what: String| {
            if is {
                broken.push(format!("{name}: {what}"));
            }
        };
        if ran.case.peaks == Peaks::Offset {
            is_broken(
                guests < best,
                format!(
                    "{} guests got through, with another manager {}",
                    show::count(guests),
                    show::count(best)
                ),
            );
            let goal = unmanaged.zip(ran.case.by.times_unmanaged());
            // No balloon gets a cold heap.
            let has_goal = !is_open && ran.case.job != Job::ColdHeap;
            if let Some((unmanaged, times)) = goal.filter(|_| has_goal) {
                let what = format!(
                    "{} guests got through, unmanaged {}: the goal is {times} ×",
                    show::count(guests),
                    show::count(unmanaged)
                );
                is_broken(guests < unmanaged * times, what);
            }
            // If the small host has no swap, pages read back belong to somebody else on this machine.
            let swaps = results().any(|result| result.host_swap_in_bytes > Some(Bytes::ZERO));
            is_broken(ran.case.swap && swaps, "the host read back from swap".to_owned());
        }
        if let Some(without) = elastic.filter(|_| ran.case.by.sets_ksm() && !is_open) {
            let what = format!(
                "{} guests got through, without merging {}: the goal is {SHARING_TIMES} ×",
                show::count(guests),
                show::count(without)
            );
            is_broken(guests < without * SHARING_TIMES, what);
        }
        let undone = results().any(|result| result.work_done_fraction < WHOLE);
        is_broken(undone, "not all work of the guests that got through was done".to_owned());
        if ran.case.by.has_tier() {
            broken.extend(goals_of_tiers(ran, of_elastic));
        }
        if ran.case.peaks == Peaks::Offset && !ran.case.swap && ran.seen.runs.len() >= RUNS_TO_JUDGE {
            broken.extend(slower(ran, &others));
            broken.extend(moves_too_much(ran, &others));
        }
    }
    broken
}

/// The goals of tiers that were missed, against balloons alone.
fn goals_of_tiers(ran: &Ran<'_>, balloons: Option<&Ran<'_>>) -> Vec<String> {
    let Some(balloons) = balloons else { return Vec::new() };
    let (name, guests, without) = (&ran.seen.arm.title, ran.guests().middle, balloons.guests().middle);
    let mut broken = Vec::new();
    let is_open = ran.results().any(|result| result.at_least);
    if guests < without * TIER_TIMES && !is_open {
        broken.push(format!(
            "{name}: {} guests got through, with balloons alone {}: the goal is {TIER_TIMES} ×",
            show::count(guests),
            show::count(without)
        ));
    }
    if ran.seen.runs.len() < RUNS_TO_JUDGE {
        return broken;
    }
    let ratio = |guests: u64| {
        let ratio = ran.slowdown(guests)?.middle / balloons.slowdown(guests)?.middle;
        (ratio > TIER_SLOWDOWN).then(|| format!("{ratio:.2} × with {guests}"))
    };
    let slow: Vec<String> = (1..=most_guests(std::slice::from_ref(ran))).filter_map(ratio).collect();
    if !slow.is_empty() {
        broken.push(format!(
            "{name}: time of the work against balloons alone, goal {TIER_SLOWDOWN} ×: {}",
            slow.join(", ")
        ));
    }
    broken
}

/// The counts of guests at which the work takes longer than the goal allows, against the best other arm.
fn slower(ran: &Ran<'_>, others: &[&Ran<'_>]) -> Option<String> {
    let goal = ran.case.by.times_best()?;
    let over = |guests: u64| {
        let judged = |ran: &Ran<'_>| ran.slowdown(guests).filter(|spread| spread.values >= RUNS_TO_JUDGE);
        let best = others.iter().filter_map(|other| judged(other)).map(|spread| spread.middle);
        let ratio = judged(ran)?.middle / best.reduce(f64::min)?;
        (ratio > goal).then(|| format!("{ratio:.2} × with {guests}"))
    };
    let most = most_guests(std::slice::from_ref(ran));
    let over: Vec<String> = (1..=most).filter_map(over).collect();
    let name = &ran.seen.arm.title;
    (!over.is_empty()).then(|| {
        format!("{name}: time of the work against the best other arm, goal {goal} ×: {}", over.join(", "))
    })
}

/// What the balloons move, against the rule that holds most guests.
fn moves_too_much(ran: &Ran<'_>, others: &[&Ran<'_>]) -> Option<String> {
    let rules = others.iter().filter(|other| other.case.by.is_rule());
    let best = rules.max_by(|a, b| a.guests().middle.total_cmp(&b.guests().middle))?;
    let (moved, theirs) = (ran.moved().middle, best.moved().middle);
    (moved > MOVES_AT_MOST * theirs).then(|| {
        let (moved, theirs) = (show::of_mib(moved), show::of_mib(theirs));
        format!("{}: moved {moved}, {} {theirs}", ran.seen.arm.title, best.seen.arm.title)
    })
}

/// The lines of the table.
fn rows<'a>() -> [Row<Ran<'a>>; 16] {
    [
        ("guests that got through", guests_of),
        ("bound: others as reporting leaves them, 5 % free", |ran| count_of(ran, |r| Some(r.bound), "")),
        ("their work done and verified", |ran| {
            over_runs(ran, |r| Some(r.work_done_fraction), show::percent, "")
        }),
        ("words that differ", |ran| count_of(ran, |r| Some(r.mismatched_words), "")),
        ("host: OOM kills", |ran| count_of(ran, |r| Some(r.oom_kills), "")),
        ("guests: OOM kills", |ran| count_of(ran, |r| r.guest_oom_kills, "not known")),
        ("host: major faults", |ran| count_of(ran, |r| Some(r.major_faults), "")),
        ("host: read back from swap", |ran| bytes_of(ran, |r| r.host_swap_in_bytes, "n/a (no swap)")),
        ("host: most memory in use", |ran| bytes_of(ran, |r| r.peak_usage_bytes, "n/a")),
        ("cold heaps at the end", |ran| bytes_of(ran, |r| Some(r.cold_bytes), "")),
        ("of it read back and intact", |ran| bytes_of(ran, |r| r.cold_verified_bytes, "n/a")),
        ("guests: read back from swap", |ran| bytes_of(ran, |r| r.guest_swap_in_bytes, "not known")),
        ("host: most memory in tiers", |ran| bytes_of(ran, |r| Some(r.tier_held_bytes), "")),
        ("moved by balloons", |ran| bytes_of(ran, |r| Some(r.memory_moved_bytes), "")),
        ("from need to grant, median", |ran| {
            over_runs(ran, |r| r.seconds_to_grant, |seconds| format!("{seconds:.1} s"), "n/a")
        }),
        ("ended by", |ran| {
            let all: Vec<&str> = ran.results().map(|r| r.ended_by.as_str()).collect();
            all.join("; ")
        }),
    ]
}
