//! The demo: the same work in the same small host, first without memtide and then with it.
//!
//! Four guests of 1 GiB share 2 GiB. The work moves from guest to guest, so the memory that is really needed always fits: one
//! busy guest, another one that begins, and idle ones. An idle guest holds the page cache of its last turn. The host cannot
//! see that it is page cache, and free page reporting, which is on in both arms, does not return it. Without a manager it
//! adds up until the small host's OOM killer takes a guest with all its work.

use std::time::Duration;

use memtide_model::{Bytes, Commitment};
use memtide_plot::stack::{self, Panel};
use serde::Serialize;
use serde_json::json;

use self::run::Setting;
use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::Vmm;
use crate::guest::disk::Disk;
use crate::machine::lab::Run;
use crate::managers::memtide::Memtide;
use crate::managers::{Manager, Nobody};
use crate::output::report::{Figure, Row, Table};
use crate::output::screen::Screen;
use crate::output::show;
use crate::work::turn::{self, Load};

mod run;

const CAPACITY: Bytes = Bytes::from_mib(2048);
const GUESTS: usize = 4;
const GUEST_MEMORY: Bytes = Bytes::from_mib(1024);
const CACHE_MIB: u64 = 250;
const ANON_MIB: u64 = 600;
const MIB_PER_S: u64 = 120;
const DISK_SEED: u64 = 42;
const ROUNDS: usize = 2;

const UNMANAGED: &str = "unmanaged";
const MANAGED: &str = "managed";

/// The demo, with guests of QEMU or with instances of UML.
pub struct Demo<const UML: bool = false> {
    setting: Setting,
}

/// The demo with instances of UML.
pub type DemoUml = Demo<true>;

/// Whether each guest works only once. Instances of UML are for a quick look on any machine.
fn is_short(effort: Effort, uml: bool) -> bool {
    effort == Effort::Quick || uml
}

/// One run of one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoResult {
    /// Guests started.
    pub guests: u64,
    /// Guests that survived, and answer.
    pub guests_alive: u64,
    /// Guests that run, and do not answer.
    pub guests_hung: u64,
    /// Guests that did not survive.
    pub guests_killed: u64,
    /// Bytes that the guests had to check.
    pub work_planned_bytes: Bytes,
    /// Bytes that they found intact.
    pub work_done_bytes: Bytes,
    /// The ratio of the two.
    pub work_done_fraction: f64,
    /// Words that differ from their expected value.
    pub mismatched_words: u64,
    /// Processes killed by the small host's OOM killer.
    pub oom_kills: u64,
    /// Processes killed by the OOM killers of the surviving guests.
    pub guest_oom_kills: u64,
    /// Turns that failed in surviving guests.
    pub job_failures: u64,
    /// Bytes that the host read back from swap; null if it has no swap.
    pub host_swap_in_bytes: Option<Bytes>,
    /// Bytes that the balloons moved, in both directions.
    pub memory_moved_bytes: Bytes,
    /// The most memory charged to the small host at once; null if the kernel does not count it.
    pub peak_usage_bytes: Option<Bytes>,
    /// Median time from a guest's need to its grant; null if it was not measured.
    pub seconds_to_grant: Option<f64>,
    /// Time from the start of the first turn to the end of the last.
    pub seconds: f64,
}

impl<const UML: bool> Experiment for Demo<UML> {
    const NAME: &'static str = if UML { "demo-uml" } else { "demo" };
    const ABOUT: &'static str = match UML {
        true => "four UML instances of 1 GiB in a host of 2 GiB, without memtide and with it",
        false => "four guests of 1 GiB in a host of 2 GiB, without memtide and with it",
    };
    type Result = DemoResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let takes = Duration::from_secs(if is_short(effort, UML) { 55 } else { 80 });
        let arm =
            |key: &str, title: &str| Arm { key: key.to_owned(), title: title.to_owned(), runs: 1, takes };
        vec![arm(UNMANAGED, "without memtide"), arm(MANAGED, "with memtide")]
    }

    fn has_memtide(key: &str) -> bool {
        key == MANAGED
    }

    fn prepare(options: &Options, _: &[Arm], run: &Run, _: &Screen) -> Result<Self, LabError> {
        let disk = Disk::ensure(run.lab().cache(), DISK_SEED, CACHE_MIB)?;
        let load = Load {
            cache: Some((disk, CACHE_MIB)),
            anon_mib: ANON_MIB,
            mib_per_s: Some(MIB_PER_S),
            longest: turn::LONGEST_ALONE,
        };
        let rounds = if is_short(options.effort, UML) { 1 } else { ROUNDS };
        let vmm = if UML { Vmm::Uml } else { Vmm::Qemu };
        let setting =
            Setting { vmm, capacity: CAPACITY, guests: GUESTS, guest_memory: GUEST_MEMORY, load, rounds };
        Ok(Self { setting })
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, screen: &Screen) -> Result<Seen<DemoResult>, LabError> {
        // Elastic: with four guests, each of half the host's memory, strict leaves no room for a whole self-deflation (one at
        // a time: 3 t + 1024 MiB and four times 100 MiB of overhead in 2 GiB leave t = 190 MiB for each guest).
        let mut manager: Box<dyn Manager> = match of.arm.key.as_str() {
            MANAGED => {
                let memtide = Memtide::find(Commitment::Elastic, &format!("{}*", run::NAMES))?;
                Box::new(memtide.over(run.lab().libvirtd()))
            }
            _ => Box::new(Nobody),
        };
        run::run(&self.setting, &of, manager.as_mut(), run, screen)
    }

    fn find(&self, arms: &[ArmSeen<DemoResult>]) -> Result<Findings, LabError> {
        let Setting { capacity, guests, guest_memory, ref load, .. } = self.setting;
        let title = format!("{guests} guests of {guest_memory} in a host of {capacity}");
        let about = format!(
            "Work moves from guest to guest: each one reads {CACHE_MIB} MiB of its disk, fills {} MiB of memory and reads \
             it back. Shown is what each guest's process takes from the host.",
            load.anon_mib
        );
        let first = || arms.iter().filter_map(|arm| Some((&arm.arm, arm.runs.first()?)));
        let panels: Vec<Panel> = first().map(|(arm, seen)| panel(&arm.title, seen)).collect();
        let svg = stack::svg(&title, &about, show::mib(capacity), &panels);
        let columns: Vec<(&str, &DemoResult)> =
            first().map(|(arm, seen)| (arm.title.as_str(), &seen.result)).collect();
        let managed = arms.iter().filter(|arm| arm.arm.key == MANAGED).flat_map(|arm| &arm.runs);
        let failures = managed.filter_map(|run| failure(&run.result)).collect();
        Ok(Findings {
            title,
            about,
            setting: json!({ "capacity_bytes": capacity, "guest_memory_bytes": guest_memory }),
            figures: vec![Figure { name: "plot".to_owned(), svg }],
            tables: vec![Table::of("", &columns, &ROWS)],
            failures,
        })
    }
}

/// The promises that memtide broke.
fn failure(result: &DemoResult) -> Option<String> {
    let lost = result.guests - result.guests_alive;
    let kept = lost == 0 && result.work_done_bytes == result.work_planned_bytes;
    (!kept).then(|| {
        format!(
            "with memtide {lost} guests were lost and {} of {} of the work was done",
            result.work_done_bytes, result.work_planned_bytes
        )
    })
}

fn panel(title: &str, seen: &Seen<DemoResult>) -> Panel {
    let DemoResult { guests, guests_alive, work_done_fraction, .. } = seen.result;
    let done = show::percent(work_done_fraction);
    let note = format!("{guests_alive} of {guests} guests alive · {done} of the work done");
    seen.samples.panel(title, &note, "nothing left to do", &seen.names)
}

/// (All runs are in results.json; this shows the first run of each arm.)
const ROWS: [Row<DemoResult>; 12] = [
    ("guests alive", |r| format!("{} of {}", r.guests_alive, r.guests)),
    ("guests that hang", |r| r.guests_hung.to_string()),
    ("work done and verified", |r| {
        let done = show::percent(r.work_done_fraction);
        format!("{done} ({} of {})", r.work_done_bytes, r.work_planned_bytes)
    }),
    ("words that differ", |r| r.mismatched_words.to_string()),
    ("host: OOM kills", |r| r.oom_kills.to_string()),
    ("guests: OOM kills", |r| r.guest_oom_kills.to_string()),
    ("failed jobs in living guests", |r| r.job_failures.to_string()),
    ("host: read back from swap", |r| show::or(r.host_swap_in_bytes, "n/a (no swap)")),
    ("host: most memory in use", |r| show::or(r.peak_usage_bytes, "n/a")),
    ("moved by balloons", |r| r.memory_moved_bytes.to_string()),
    ("from need to grant, median", |r| show::or(r.seconds_to_grant.map(|s| format!("{s:.1} s")), "n/a")),
    ("duration", |r| format!("{:.0} s", r.seconds)),
];
