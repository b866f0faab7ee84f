//! The results of the arms: tables, plots, and the promises that memtide broke.

use memtide_model::Bytes;
use serde_json::json;

use super::DensityResult;
use super::case::{By, Case, Peaks};
use super::setting::Setting;
use crate::error::LabError;
use crate::experiments::experiment::{ArmSeen, Findings, Seen};
use crate::output::plot::bars::{self, Bar, Bars};
use crate::output::plot::stack::{self, Panel};
use crate::output::report::{Figure, Row, Table};
use crate::output::show;
use crate::output::statistics::median;

/// The content of the memory plots.
const SHOWN: &str = "What each guest's process takes from the host.";
/// From here on, all work counts as done.
const WHOLE: f64 = 0.999;

/// An arm that has run.
struct Ran<'a> {
    case: Case,
    seen: &'a ArmSeen<DensityResult>,
    /// Its first run, which the tables and memory plots show.
    first: &'a Seen<DensityResult>,
}

impl Ran<'_> {
    /// The median over its runs.
    fn guests(&self) -> f64 {
        let all = self.seen.runs.iter().map(|run| show::float(run.result.guests_finished));
        median(all).unwrap_or_default()
    }
}

/// Finds all tables, plots and failures.
pub(super) fn find(setting: &Setting, arms: &[ArmSeen<DensityResult>]) -> Result<Findings, LabError> {
    let title =
        format!("How many guests of {} a host of {} holds", setting.scale.guest_memory, setting.capacity);
    let about = format!(
        "Guests are launched one after another. Each fills {} MiB, checks all of it, and frees it; then the one that has \
         idled longest works again. A guest counts as soon as it and all before it got through. One guest costs {} at its \
         peak and {} idle, and needs {:.1} s for its work.",
        setting.scale.anon_mib(),
        setting.alone.peak,
        setting.alone.idle,
        setting.alone.turn_seconds
    );
    let ran: Vec<Ran<'_>> = arms
        .iter()
        .filter_map(|seen| Some(Ran { case: Case::of(&seen.arm)?, seen, first: seen.runs.first()? }))
        .collect();
    let variants: Vec<&[Ran<'_>]> = ran.chunk_by(|a, b| a.case.suffix() == b.case.suffix()).collect();
    let groups: Vec<Bars> = variants.iter().map(|ran| group(setting, ran)).collect();
    let mut figures = vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &groups)? }];
    let mut tables = Vec::new();
    let mut failures = Vec::new();
    for ran in variants {
        let Some(case) = ran.first().map(|ran| ran.case) else { continue };
        tables.push(figures_of(ran));
        tables.push(slowdowns(ran));
        let panels: Vec<Panel> = ran.iter().map(panel).collect();
        let svg = stack::svg(case.variant(), SHOWN, show::mib(setting.capacity), &panels)?;
        figures.push(Figure { name: format!("memory{}", case.suffix()), svg });
        failures.extend(broken(ran));
    }
    let setting = json!({
        "capacity_bytes": setting.capacity,
        "reserve_bytes": setting.reserve(),
        "guest_memory_bytes": setting.scale.guest_memory,
        "alone": setting.alone,
        "bound": setting.bound(),
    });
    Ok(Findings { title, about, setting, figures, tables, failures })
}

/// The number of guests that got through, by manager.
fn group(setting: &Setting, ran: &[Ran<'_>]) -> Bars {
    let bar = |ran: &Ran<'_>| {
        let value = ran.guests();
        let sign = if ran.seen.runs.iter().any(|run| run.result.at_least) { "≥ " } else { "" };
        let text = format!("{sign}{value:.0}");
        Bar { label: ran.case.by.title().to_owned(), value, text, interval: None }
    };
    let case = ran.first().map(|ran| ran.case);
    let bound = setting.bound();
    let name =
        format!("{bound}: one at its peak, all others as free page reporting leaves them, and 5 % kept free");
    let offset = case.is_some_and(|case| case.peaks == Peaks::Offset);
    Bars {
        title: case.map_or("", Case::variant).to_owned(),
        bars: ran.iter().map(bar).collect(),
        line: offset.then(|| (show::float(bound), name)),
    }
}

/// The variant, and the run that a table shows if there are several.
fn caption(ran: &[Ran<'_>]) -> String {
    let variant = ran.first().map_or("", |ran| ran.case.variant());
    match ran.iter().map(|ran| ran.seen.runs.len()).max() {
        Some(runs @ 2..) => format!("{variant}, the first of {runs} runs"),
        _ => variant.to_owned(),
    }
}

fn figures_of(ran: &[Ran<'_>]) -> Table {
    let columns: Vec<(&str, &DensityResult)> =
        ran.iter().map(|ran| (ran.case.by.title(), &ran.first.result)).collect();
    Table::of(&caption(ran), &columns, &ROWS)
}

/// The time of the work by the number of guests, to compare arms at the same number.
fn slowdowns(ran: &[Ran<'_>]) -> Table {
    let head = std::iter::once("guests".to_owned())
        .chain(ran.iter().map(|ran| ran.case.by.title().to_owned()))
        .collect();
    let most = ran.iter().map(|ran| ran.first.result.guests_finished).max().unwrap_or(0);
    let rows = (1..=most).map(|guests| {
        let cell = |ran: &Ran<'_>| {
            let step = ran.first.result.by_guests.iter().find(|step| step.guests == guests);
            step.map_or_else(String::new, |step| format!("{:.2} ×", step.slowdown))
        };
        std::iter::once(guests.to_string()).chain(ran.iter().map(cell)).collect()
    });
    Table {
        caption: format!("{}: time of the work against a guest alone, by the number of guests", caption(ran)),
        rows: std::iter::once(head).chain(rows).collect(),
    }
}

fn panel(ran: &Ran<'_>) -> Panel {
    let DensityResult { guests_finished, ended_by, .. } = &ran.first.result;
    let note = format!("{guests_finished} guests got through · ended by {ended_by}");
    Panel::of(ran.case.by.title(), &note, "ended", &ran.first.names, &ran.first.samples)
}

/// The promises that memtide broke. It must do all work. If peaks are offset, so that used memory fits, it must also get as
/// many guests through as every other manager, reach its multiple of the unmanaged guests, and never let the host read back
/// from swap.
fn broken(ran: &[Ran<'_>]) -> Vec<String> {
    let others = ran.iter().filter(|ran| !ran.case.by.is_memtide()).map(Ran::guests);
    let best = others.fold(0.0, f64::max);
    let unmanaged = ran.iter().find(|ran| ran.case.by == By::Nobody).map(Ran::guests);
    let mut broken = Vec::new();
    for ran in ran.iter().filter(|ran| ran.case.by.is_memtide()) {
        let (name, guests) = (&ran.seen.arm.title, ran.guests());
        let results = || ran.seen.runs.iter().map(|run| &run.result);
        let mut is_broken = |is: bool, what: String| {
            if is {
                broken.push(format!("{name}: {what}"));
            }
        };
        if ran.case.peaks == Peaks::Offset {
            is_broken(
                guests < best,
                format!("{guests:.0} guests got through, with another manager {best:.0}"),
            );
            let goal = unmanaged.zip(ran.case.by.times_unmanaged());
            // With swap, too few guests are tried.
            let cut_short = ran.case.swap || results().any(|result| result.at_least);
            if let Some((unmanaged, times)) = goal.filter(|_| !cut_short) {
                let what = format!(
                    "{guests:.0} guests got through, unmanaged {unmanaged:.0}: the goal is {times} ×"
                );
                is_broken(guests < unmanaged * times, what);
            }
            // If the small host has no swap, pages read back belong to somebody else on this machine.
            let swaps = results().any(|result| result.host_swap_in_bytes > Some(Bytes::ZERO));
            is_broken(ran.case.swap && swaps, "the host read back from swap".to_owned());
        }
        let undone = results().any(|result| result.work_done_fraction < WHOLE);
        is_broken(undone, "not all work of the guests that got through was done".to_owned());
    }
    broken
}

/// (All runs are in results.json; this shows the first run of each arm.)
const ROWS: [Row<DensityResult>; 12] = [
    ("guests that got through", |r| {
        let sign = if r.at_least { "≥ " } else { "" };
        format!("{sign}{}", r.guests_finished)
    }),
    ("bound: others as reporting leaves them, 5 % free", |r| r.bound.to_string()),
    ("their work done and verified", |r| show::percent(r.work_done_fraction)),
    ("words that differ", |r| r.mismatched_words.to_string()),
    ("host: OOM kills", |r| r.oom_kills.to_string()),
    ("guests: OOM kills", |r| show::or(r.guest_oom_kills, "not known")),
    ("host: major faults", |r| r.major_faults.to_string()),
    ("host: read back from swap", |r| show::or(r.host_swap_in_bytes, "n/a (no swap)")),
    ("host: most memory in use", |r| show::or(r.peak_usage_bytes, "n/a")),
    ("moved by balloons", |r| r.memory_moved_bytes.to_string()),
    ("from need to grant, median", |r| show::or(r.seconds_to_grant.map(|s| format!("{s:.1} s")), "n/a")),
    ("ended by", |r| r.ended_by.clone()),
];
