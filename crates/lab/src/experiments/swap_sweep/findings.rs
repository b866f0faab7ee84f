//! The results of the arms: the curves of the text, the same over total memory, and the promises that memtide broke.

use memtide_model::Bytes;
use memtide_plot::lines::{self, Curve, Meaning, Panel};
use serde_json::json;

use super::case::{By, Case};
use super::setting::{Setting, in_words};
use super::{Point, SweepResult};
use crate::error::LabError;
use crate::experiments::experiment::{ArmSeen, Findings};
use crate::output::report::{Figure, Table};
use crate::output::show;
use crate::output::statistics::{Spread, median, median_bytes};

/// Times are judged from this many runs on: one run is no evidence.
const RUNS_TO_JUDGE: usize = 3;
/// The goal: memtide's time against the best single arm with as much memory in total.
const TIMES_BEST: f64 = 1.05;

/// An arm that has run.
struct Ran<'a> {
    case: Case,
    seen: &'a ArmSeen<SweepResult>,
}

/// One size, over all runs.
struct Middle {
    memory: Bytes,
    total: Bytes,
    seconds: f64,
}

impl Ran<'_> {
    fn points(&self) -> impl Iterator<Item = &Point> {
        self.seen.runs.iter().flat_map(|run| &run.result.points)
    }

    fn at(&self, part: u64) -> impl Iterator<Item = &Point> {
        self.points().filter(move |point| point.part_percent == part)
    }

    /// The time at one size; `None` if the work was not done in any run.
    fn seconds(&self, part: u64) -> Option<Spread> {
        Spread::of(self.at(part).filter_map(|point| point.seconds))
    }

    /// The sizes at which the work was done, downwards.
    fn done(&self) -> Vec<Middle> {
        let middle = |part: u64| {
            let done = || self.at(part).filter(|point| point.seconds.is_some());
            Some(Middle {
                memory: done().next()?.guest_memory_bytes,
                total: median_bytes(done().map(|point| point.total_bytes))?,
                seconds: median(done().filter_map(|point| point.seconds))?,
            })
        };
        parts(std::slice::from_ref(self)).into_iter().filter_map(middle).collect()
    }
}

/// The sizes of these arms, downwards.
fn parts(ran: &[Ran<'_>]) -> Vec<u64> {
    let mut parts: Vec<u64> =
        ran.iter().flat_map(|ran| ran.points().map(|point| point.part_percent)).collect();
    parts.sort_unstable_by(|a, b| b.cmp(a));
    parts.dedup();
    parts
}

/// Finds all tables, plots and failures.
pub(super) fn find(setting: &Setting, arms: &[ArmSeen<SweepResult>]) -> Result<Findings, LabError> {
    let title = "The same work in less and less memory".to_owned();
    let about = format!(
        "Each guest {}. It needs {} besides. Shown is the mean time of its work, where it was done. The disk is a hard disk: 200 requests and 100 MiB a \
         second, shared by all guests.",
        in_words(setting.heap_mib),
        setting.base
    );
    let ran: Vec<Ran<'_>> =
        arms.iter().filter_map(|seen| Some(Ran { case: Case::of(&seen.arm)?, seen })).collect();
    let groups: Vec<&[Ran<'_>]> = ran.chunk_by(|a, b| a.case.guests == b.case.guests).collect();
    let over = |x: &'static str, at: fn(&Middle) -> Bytes| -> Vec<Panel> {
        groups.iter().map(|ran| panel(ran, x, at)).collect()
    };
    let of_guests = over("memory of each guest in MiB", |middle| middle.memory);
    let in_total = over("most memory of the host in MiB: all guests and their swap", |middle| middle.total);
    let figures = vec![
        Figure { name: "plot".to_owned(), svg: lines::svg(&title, &about, &of_guests) },
        Figure { name: "total".to_owned(), svg: lines::svg("The same over total memory", "", &in_total) },
    ];
    let tables = groups.iter().flat_map(|ran| tables(ran)).collect();
    let failures = groups.iter().flat_map(|ran| broken(ran)).collect();
    let setting = json!({ "guest": setting, "work": in_words(setting.heap_mib) });
    Ok(Findings { title, about, setting, figures, tables, failures })
}

/// The curves of one number of guests.
fn panel(ran: &[Ran<'_>], x: &'static str, at: fn(&Middle) -> Bytes) -> Panel {
    let title = ran.first().map_or_else(String::new, |ran| ran.case.guests_in_words());
    let curve = |ran: &Ran<'_>| Curve {
        name: ran.case.by.title().to_owned(),
        points: ran.done().iter().map(|middle| (show::mib(at(middle)), middle.seconds)).collect(),
        color: By::ALL.iter().position(|by| *by == ran.case.by).unwrap_or(0),
        is_thin: false,
    };
    let meaning = Meaning { x, y: "seconds", marks: true };
    Panel { title, meaning, curves: ran.iter().map(curve).collect(), ..Panel::default() }
}

fn tables(ran: &[Ran<'_>]) -> Vec<Table> {
    let words = ran.first().map_or_else(String::new, |ran| ran.case.guests_in_words());
    let table = |what: &str, cell: &dyn Fn(&Ran<'_>, u64) -> String| {
        let head = std::iter::once("memory of each guest".to_owned())
            .chain(ran.iter().map(|ran| ran.case.by.title().to_owned()));
        let rows = parts(ran).into_iter().map(|part| {
            let memory = ran.iter().find_map(|ran| Some(ran.at(part).next()?.guest_memory_bytes));
            std::iter::once(show::or(memory, "")).chain(ran.iter().map(|ran| cell(ran, part))).collect()
        });
        Table {
            caption: format!("{words}: {what}"),
            rows: std::iter::once(head.collect()).chain(rows).collect(),
        }
    };
    let bytes = |of: fn(&Point) -> Bytes| {
        move |ran: &Ran<'_>, part: u64| {
            let values = ran.at(part).filter(|point| point.seconds.is_some()).map(of);
            show::or(median_bytes(values), "")
        }
    };
    vec![
        table("time of the work", &|ran, part| match ran.seconds(part) {
            Some(seconds) => seconds.text(|seconds| format!("{seconds:.1} s")),
            None => ran.at(part).next().map_or_else(String::new, |_| "not done".to_owned()),
        }),
        table("gain against swap on a disk", &|of, part| {
            let disk = ran.iter().find(|ran| ran.case.by == By::Disk).and_then(|ran| ran.seconds(part));
            let gain = disk.zip(of.seconds(part)).map(|(disk, own)| 1.0 - own.middle / disk.middle);
            gain.map_or_else(String::new, |gain| format!("{:.1} %", gain * 100.0))
        }),
        table("most memory of the host in total", &bytes(|point| point.total_bytes)),
        table("of it in swap on memory", &bytes(|point| point.swap_held_bytes)),
        table("swapped in", &bytes(|point| point.swapped_in_bytes)),
        table("swapped out", &bytes(|point| point.swapped_out_bytes)),
        table("why the work was not done", &|ran, part| {
            let mut why: Vec<&str> = ran.at(part).map(|point| point.ended_by.as_str()).collect();
            why.retain(|why| !why.is_empty());
            why.dedup();
            why.join("; ")
        }),
    ]
}

/// The promises that memtide broke. With enough runs, its times are compared with the best single arm that takes no more memory in total, and with
/// swap on a disk at the same size.
fn broken(ran: &[Ran<'_>]) -> Vec<String> {
    let mut broken = Vec::new();
    for ran in ran {
        let words: u64 = ran.points().map(|point| point.mismatched_words).sum();
        if words > 0 {
            broken.push(format!("{}: {words} words differ", ran.seen.arm.title));
        }
    }
    let Some(mine) = ran.iter().find(|ran| ran.case.by == By::Tier && ran.seen.runs.len() >= RUNS_TO_JUDGE)
    else {
        return broken;
    };
    let title = &mine.seen.arm.title;
    for part in parts(ran) {
        let disk = ran.iter().find(|ran| ran.case.by == By::Disk).and_then(|ran| ran.seconds(part));
        match (disk, mine.seconds(part)) {
            (Some(disk), Some(own)) if own.middle > disk.middle => broken.push(format!(
                "{title}: {:.1} s with {part} % of the heap, {:.1} s on a disk",
                own.middle, disk.middle
            )),
            (Some(_), None) => {
                broken.push(format!("{title}: not done with {part} % of the heap, done on a disk"));
            }
            _ => {}
        }
    }
    let others: Vec<Middle> = ran.iter().filter(|ran| ran.case.by != By::Tier).flat_map(Ran::done).collect();
    for own in mine.done() {
        let as_small = others.iter().filter(|other| other.total <= own.total);
        let best = as_small.map(|other| other.seconds).reduce(f64::min);
        if let Some(best) = best.filter(|best| own.seconds > best * TIMES_BEST) {
            broken.push(format!(
                "{title}: {:.1} s with {} in total, the best other arm {best:.1} s",
                own.seconds, own.total
            ));
        }
    }
    broken
}
