//! The number of UML instances that a host holds: the oldest founding text (16 instances without shared page cache, 20 with it; 28 and
//! 21 million bytes each).
//!
//! Instances of one disk image are launched one after another. Each reads a part of the image through its page cache, fills memory, checks all
//! of it, and frees the memory. After each launch, the instance that has idled longest works again.
//!
//! Arms: `fixed` (`mem=` is the peak of the work, unmanaged), `unmanaged` (`mem=` is a quarter more), and the same instances under memtide, without
//! and with agents.

use std::time::Duration;

use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use memtide_plot::stack::{self, Panel};
use serde_json::json;

use super::DensityResult;
use super::alone::{Alone, work};
use super::case::{By, Case, Peaks};
use super::guest::guest;
use super::job::Job;
use super::run;
use super::scale::Scale;
use super::setting::Setting;
use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::disk::Disk;
use crate::guest::{BOOT, Vmm};
use crate::machine::lab::Run;
use crate::output::report::{Figure, Table};
use crate::output::sample::Sample;
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::{Spread, median, median_bytes};
use crate::work::turn::{self, Load};

/// The work of a turn: what is read from the image, and the memory that is filled, in MiB.
const CACHE_MIB: u64 = 48;
const ANON_MIB: u64 = 96;
/// The prefix of the instances' names.
const NAMES: &str = "instance-";
/// The seed of the image's content.
const DISK_SEED: u64 = 19;
/// The memory of an instance that has more than it needs.
const AMPLE: Bytes = Bytes::from_mib(384);
/// What an instance needs beyond what it takes from the host at its peak: pages that its kernel keeps free.
const KEPT_FREE: Bytes = Bytes::from_mib(6);
/// The capacity of the host in tenths of the peak of one instance.
const CAPACITY_TENTHS: u64 = 65;
/// Work that takes this many times the time of an instance alone counts as not done.
const FAR_TOO_SLOW: f64 = 10.0;
/// The most instances tried.
const MOST: usize = 40;
/// How often the work of an instance alone is measured.
const TURNS_ALONE: u64 = 5;
/// The founding text's ratios: 20 instances where 16 fitted, and 21 million bytes instead of 28 each. The goals go beyond them.
const GOALS: Goals = Goals { of_unmanaged: 1.5, of_fixed: 1.25, resting: 0.75, slowdown: 1.05 };

struct Goals {
    of_unmanaged: f64,
    of_fixed: f64,
    resting: f64,
    slowdown: f64,
}

/// The experiment.
pub struct DensityUml {
    disk: Disk,
    alone: Alone,
    /// The memory of an instance that has just what its work needs.
    fixed: Bytes,
}

/// The memory of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Fixed,
    Quarter,
}

/// How the instances of an arm are made and managed.
#[derive(Clone, Copy, Debug)]
struct How {
    key: &'static str,
    title: &'static str,
    memory: Memory,
    by: By,
    agents: bool,
}

const UNMANAGED: How = How {
    key: "unmanaged",
    title: "mem= is a quarter more, unmanaged",
    memory: Memory::Quarter,
    by: By::Nobody,
    agents: false,
};

const ARMS: [How; 6] = [
    How { key: "fixed", title: "mem= is the peak, unmanaged", memory: Memory::Fixed, ..UNMANAGED },
    UNMANAGED,
    How { key: "strict", title: "memtide strict", by: By::Strict, ..UNMANAGED },
    How { key: "elastic", title: "memtide elastic", by: By::Elastic, ..UNMANAGED },
    How {
        key: "strict-agents",
        title: "memtide strict, with agents",
        by: By::Strict,
        agents: true,
        ..UNMANAGED
    },
    How {
        key: "elastic-agents",
        title: "memtide elastic, with agents",
        by: By::Elastic,
        agents: true,
        ..UNMANAGED
    },
];
/// The arms of the shortest effort.
const QUICK: [&str; 3] = ["fixed", "unmanaged", "strict"];

impl Experiment for DensityUml {
    const NAME: &'static str = "density-uml";
    const ABOUT: &'static str =
        "UML instances that work in turn, launched until one is killed: how many a host holds";
    type Result = DensityResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let arm = |how: &How| Arm {
            key: how.key.to_owned(),
            title: how.title.to_owned(),
            runs: if effort == Effort::Full { 3 } else { 1 },
            takes: Duration::from_secs(if how.by.is_memtide() { 180 } else { 40 }),
        };
        let is_run = |how: &&How| effort != Effort::Quick || QUICK.contains(&how.key);
        ARMS.iter().filter(is_run).map(arm).collect()
    }

    fn has_memtide(key: &str) -> bool {
        ARMS.iter().any(|how| how.key == key && how.by.is_memtide())
    }

    fn prepare(_: &Options, _: &[Arm], run: &Run, screen: &Screen) -> Result<Self, LabError> {
        By::Elastic.manager(NAMES, run)?;
        let disk = Disk::ensure(run.lab().cache(), DISK_SEED, CACHE_MIB)?;
        let alone = measure(&load(&disk, turn::LONGEST_ALONE), &run.part("alone")?)?;
        let fixed = Bytes::from_mib(alone.peak.saturating_add(KEPT_FREE).whole_mib() + 1);
        screen.say(&format!(
            "one instance takes {} at its peak and {:.1} s: mem={fixed}, and a quarter more",
            alone.peak, alone.turn_seconds
        ));
        Ok(Self { disk, alone, fixed })
    }

    fn run(
        &mut self,
        of: Repetition<'_>,
        run: &Run,
        screen: &Screen,
    ) -> Result<Seen<DensityResult>, LabError> {
        let arm = ARMS.iter().find(|how| how.key == of.arm.key);
        let how = arm.ok_or_else(|| LabError::Usage(format!("no arm `{}`", of.arm.key)))?;
        let mut setting = self.setting(how.memory);
        setting.scale.agents = how.agents;
        let case = Case { by: how.by, job: Job::PageCache, peaks: Peaks::Offset, swap: false };
        run::run(&setting, case, &of, how.by.manager(NAMES, run)?.as_mut(), run, screen)
    }

    fn find(&self, arms: &[ArmSeen<DensityResult>]) -> Result<Findings, LabError> {
        let capacity = self.setting(Memory::Fixed).capacity;
        let title = format!("How many UML instances a host of {capacity} holds");
        let about = format!(
            "Instances of one disk image are launched one after another. Each reads {CACHE_MIB} MiB of it, fills {ANON_MIB} MiB, checks all and \
             frees the memory; then the one that has idled longest works again. An instance alone takes {} at its peak. The founding text held 16 \
             instances, and 20 with page cache shared with the host.",
            self.alone.peak
        );
        let bars = arms.iter().map(|seen| {
            let guests = guests(seen);
            let text = guests.text(|guests| format!("{guests:.0}"));
            Bar { label: seen.arm.title.clone(), value: guests.middle, interval: None, text }
        });
        let group =
            Bars { title: "instances that got through".to_owned(), bars: bars.collect(), ..Bars::default() };
        let panels: Vec<Panel> = arms.iter().filter_map(panel).collect();
        let memory = stack::svg(
            &title,
            "What each instance takes from the host, in the first run of each arm.",
            show::mib(capacity),
            &panels,
        );
        let figures = vec![
            Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &[group]) },
            Figure { name: "memory".to_owned(), svg: memory },
        ];
        let setting = json!({
            "capacity_bytes": capacity,
            "fixed_bytes": self.fixed,
            "alone": self.alone,
            "cache_mib": CACHE_MIB,
            "anon_mib": ANON_MIB,
        });
        Ok(Findings { title, about, setting, figures, tables: vec![table(arms)], failures: broken(arms) })
    }
}

impl DensityUml {
    fn setting(&self, memory: Memory) -> Setting {
        let guest_memory = match memory {
            Memory::Fixed => self.fixed,
            Memory::Quarter => Bytes::from_mib(self.fixed.mul_div(5, 4).whole_mib()),
        };
        let longest = Duration::from_secs_f64(self.alone.turn_seconds * FAR_TOO_SLOW);
        Setting {
            scale: scale(guest_memory),
            capacity: Bytes::from_mib(self.fixed.mul_div(CAPACITY_TENTHS, 10).whole_mib()),
            alone: self.alone,
            load: load(&self.disk, longest),
            cold_mib: 0,
        }
    }
}

const fn scale(guest_memory: Bytes) -> Scale {
    Scale {
        names: NAMES,
        vmm: Vmm::Uml,
        agents: false,
        guest_memory,
        most_guests: MOST,
        turns_alone: TURNS_ALONE,
    }
}

fn load(disk: &Disk, longest: Duration) -> Load {
    Load { cache: Some((disk.clone(), CACHE_MIB)), anon_mib: ANON_MIB, mib_per_s: None, longest }
}

/// Measures an instance with more memory than it needs.
fn measure(load: &Load, run: &Run) -> Result<Alone, LabError> {
    let instance = guest("alone", scale(AMPLE), load, false).start(run, None)?;
    instance.wait_up(BOOT)?;
    let mut idle = instance.private();
    let mut peak = idle;
    let mut turns = Vec::new();
    for seed in 0..TURNS_ALONE {
        let took = work(load, &instance, seed, || {
            // Later turns find memory that earlier ones have freed, and still hold: the first one shows what the work needs.
            if seed == 0 {
                peak = peak.max(instance.private());
            }
        })?;
        turns.push(took.as_secs_f64());
        idle = instance.private();
    }
    let turn_seconds = median(turns).ok_or_else(|| LabError::Usage("no turn of one alone".to_owned()))?;
    Ok(Alone { peak, idle, turn_seconds })
}

fn guests(seen: &ArmSeen<DensityResult>) -> Spread {
    let finished = seen.runs.iter().map(|run| show::float(run.result.guests_finished));
    Spread::of(finished).unwrap_or_default()
}

/// The median cost of an instance at rest, at the last moment when all that got through were there.
fn resting(seen: &ArmSeen<DensityResult>) -> Option<Bytes> {
    let of_run = |run: &Seen<DensityResult>| {
        let finished = usize::try_from(run.result.guests_finished).ok()?;
        let at_rest = |sample: &&Sample| sample.guests.len() == finished;
        let last = run.samples.all().iter().rev().find(at_rest)?;
        let idle = last.guests.iter().filter(|guest| guest.doing == "idle" && !guest.private.is_zero());
        median_bytes(idle.map(|guest| guest.private))
    };
    median_bytes(seen.runs.iter().filter_map(of_run))
}

/// The median time of the work against an instance alone, over all numbers of instances.
fn slowdown(seen: &ArmSeen<DensityResult>) -> Option<f64> {
    median(seen.runs.iter().flat_map(|run| &run.result.by_guests).map(|step| step.slowdown))
}

fn table(arms: &[ArmSeen<DensityResult>]) -> Table {
    let head = [
        "",
        "instances",
        "at rest",
        "time of the work",
        "work done",
        "moved",
        "OOM kills inside",
        "ended by",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for seen in arms {
        let Some(first) = seen.runs.first().map(|run| &run.result) else { continue };
        rows.push(vec![
            seen.arm.title.clone(),
            guests(seen).text(|guests| format!("{guests:.0}")),
            resting(seen).map_or_else(|| "n/a".to_owned(), |bytes| bytes.to_string()),
            slowdown(seen).map_or_else(|| "n/a".to_owned(), |times| format!("{times:.2} ×")),
            format!("{:.1} %", first.work_done_fraction * 100.0),
            first.memory_moved_bytes.to_string(),
            first.guest_oom_kills.map_or_else(|| "n/a".to_owned(), |kills| kills.to_string()),
            first.ended_by.clone(),
        ]);
    }
    Table { caption: "UML instances on one host".to_owned(), rows }
}

fn panel(seen: &ArmSeen<DensityResult>) -> Option<Panel> {
    let first = seen.runs.first()?;
    let title = format!("{}: {} instances", seen.arm.title, first.result.guests_finished);
    Some(first.samples.panel(&title, "", "", &first.names))
}

/// The goals that memtide missed, and damaged work.
fn broken(arms: &[ArmSeen<DensityResult>]) -> Vec<String> {
    let of = |key: &str| arms.iter().find(|seen| seen.arm.key == key);
    let mut broken = Vec::new();
    for seen in arms {
        let results = || seen.runs.iter().map(|run| &run.result);
        if results().any(|result| result.mismatched_words > 0) {
            broken.push(format!("{}: words that differ", seen.arm.key));
        }
        if !DensityUml::has_memtide(&seen.arm.key) {
            continue;
        }
        let (key, mine) = (&seen.arm.key, guests(seen).middle);
        for (other, goal) in [("unmanaged", GOALS.of_unmanaged), ("fixed", GOALS.of_fixed)] {
            let theirs = of(other).map_or(0.0, |seen| guests(seen).middle);
            if mine < theirs * goal {
                broken.push(format!("{key}: {mine:.0} instances, fewer than {goal} × {theirs:.0} ({other})"));
            }
        }
        let slow = slowdown(seen).zip(of("unmanaged").and_then(slowdown));
        if let Some((mine, theirs)) = slow.filter(|(mine, theirs)| *mine > theirs * GOALS.slowdown) {
            broken.push(format!("{key}: the work takes {mine:.2} ×, unmanaged {theirs:.2} ×"));
        }
        let rest = resting(seen).zip(of("unmanaged").and_then(resting));
        if let Some((mine, theirs)) =
            rest.filter(|(mine, theirs)| show::mib(*mine) > show::mib(*theirs) * GOALS.resting)
        {
            broken.push(format!("{key}: {mine} at rest, unmanaged {theirs}"));
        }
    }
    broken
}
