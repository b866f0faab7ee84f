//! The demo: the same work in the same small host, first without memtide and then with it.
//!
//! Four guests of 1 GiB share 2 GiB. The work moves from guest to guest, so at any moment the memory that is really
//! needed fits: one busy guest, another one that begins, and idle ones. What an idle guest holds is page cache of its last
//! turn, which the host cannot see; free page reporting, which is on in both arms, does not return it. Without a manager
//! it adds up until the small host's OOM killer takes a guest with all its work.

use std::time::Duration;

use memtide_model::Bytes;

use crate::arm::{self, Seen, Setting};
use crate::disk::Disk;
use crate::error::LabError;
use crate::lab::{Lab, Run};
use crate::live::Live;
use crate::machine::Machine;
use crate::manager::{Manager, Memtide, Nobody};
use crate::plot::{self, Panel};
use crate::report::{Report, Table};
use crate::results::{ArmResult, Results};
use crate::work::Load;

const CAPACITY: Bytes = Bytes::from_mib(2048);
const GUESTS: usize = 4;
const GUEST_MEMORY: Bytes = Bytes::from_mib(1024);
const CACHE_MIB: u64 = 250;
const ANON_MIB: u64 = 600;
const MIB_PER_S: u64 = 120;
const DISK_SEED: u64 = 42;
const ROUNDS: usize = 2;

/// How the demo is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// One round of work instead of two.
    pub quick: bool,
    /// How often each arm is run; the figures are medians.
    pub runs: usize,
    /// The command line, for the report.
    pub command: String,
}

/// One arm with its runs.
struct Arm {
    key: &'static str,
    title: &'static str,
    runs: Vec<Seen>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The summary.
    pub table: Table,
    /// Where the report is.
    pub report: std::path::PathBuf,
    /// Whether every guest of the arm with memtide lived and all its work was done; `None` where that arm was not run.
    pub managed_kept_all: Option<bool>,
}

/// The managers of the arms that were asked for by their keys; of all arms where `only` is empty.
///
/// # Errors
/// Where the daemon was not built although its arm is asked for, or an arm is unknown.
pub fn managers(only: &[String]) -> Result<Vec<Box<dyn Manager>>, LabError> {
    const ALL: [&str; 2] = ["unmanaged", "managed"];
    if let Some(unknown) = only.iter().find(|key| !ALL.contains(&key.as_str())) {
        return Err(LabError::Missing(format!("there is no arm `{unknown}`: {}", ALL.join(", "))));
    }
    let asked = |key: &str| only.is_empty() || only.iter().any(|asked| asked == key);
    let mut managers: Vec<Box<dyn Manager>> = Vec::new();
    if asked("unmanaged") {
        managers.push(Box::new(Nobody));
    }
    if asked("managed") {
        managers.push(Box::new(Memtide::find()?));
    }
    Ok(managers)
}

/// Runs the demo with these managers, one arm each, and writes the report into target/lab/demo.
///
/// # Errors
/// Where an arm cannot be run. Killed guests are no errors.
pub fn run(
    lab: &Lab,
    options: &Options,
    managers: &mut [Box<dyn Manager>],
    live: &Live,
) -> Result<Outcome, LabError> {
    let setting = Setting {
        capacity: CAPACITY,
        guests: GUESTS,
        guest_memory: GUEST_MEMORY,
        disk: Disk::ensure(lab.cache(), DISK_SEED, CACHE_MIB)?,
        load: Load {
            rounds: if options.quick { 1 } else { ROUNDS },
            cache_mib: CACHE_MIB,
            anon_mib: ANON_MIB,
            mib_per_s: MIB_PER_S,
        },
    };
    let whole = Run::create(lab, "demo")?;
    whole.keep();
    let mut arms: Vec<Arm> = Vec::new();
    for manager in managers {
        let mut runs = Vec::new();
        for nth in 1..=options.runs.max(1) {
            let part = whole.part(&format!("{}-{nth}", manager.key()))?;
            runs.push(arm::run(&setting, manager.as_mut(), &part, live)?);
        }
        arms.push(Arm { key: manager.key(), title: manager.title(), runs });
    }
    report(lab, options, &setting, &arms)
}

fn report(lab: &Lab, options: &Options, setting: &Setting, arms: &[Arm]) -> Result<Outcome, LabError> {
    let mut results = Results::new("demo", &options.command, Machine::describe(lab));
    for arm in arms {
        let runs: Vec<ArmResult> = arm.runs.iter().map(|run| run.result.clone()).collect();
        results.add(arm.key, &runs);
    }
    let panels: Vec<Panel> =
        arms.iter().filter_map(|arm| Some(panel(arm.title, arm.runs.first()?))).collect();
    let title =
        format!("{} guests of {} in a host of {}", setting.guests, setting.guest_memory, setting.capacity);
    let about = format!(
        "Work moves from guest to guest: each one reads {} MiB of its disk, fills {} MiB of memory and reads it back. \
         Shown is what each guest's process takes from the host.",
        setting.load.cache_mib, setting.load.anon_mib
    );
    let picture = plot::svg(&title, &about, mib(setting.capacity), &panels)?;
    let table = summary(arms);
    let report =
        Report { title: &title, about: &about, picture: &picture, summary: &table, results: &results };
    let kept_at = crate::places::target().join("lab/demo");
    std::fs::create_dir_all(&kept_at).map_err(LabError::file(&kept_at))?;
    let report = report.write(&kept_at)?;
    let kept = |run: &Seen| {
        run.result.guests_killed == 0 && run.result.work_done_bytes == run.result.work_planned_bytes
    };
    let managed = arms.iter().find(|arm| arm.key == "managed");
    let managed_kept_all = managed.map(|arm| arm.runs.iter().all(kept));
    Ok(Outcome { table, report, managed_kept_all })
}

fn panel(title: &str, seen: &Seen) -> Panel {
    let result = &seen.result;
    Panel {
        title: title.to_owned(),
        note: format!(
            "{} of {} guests alive · {} of the work done",
            result.guests_alive,
            result.guests,
            percent(result.work_done_fraction)
        ),
        names: seen.names.clone(),
        points: (seen.samples.all().iter())
            .map(|sample| {
                let memory = sample.guests.iter().map(|guest| mib(guest.private)).collect();
                (sample.at.as_secs_f64(), memory)
            })
            .collect(),
        kills: seen.samples.kills().iter().map(|kill| (kill.at.as_secs_f64(), kill.guest)).collect(),
    }
}

/// One column an arm: the first run's figures. (All runs are in results.json.)
fn summary(arms: &[Arm]) -> Table {
    type Cell = fn(&ArmResult) -> String;
    const ROWS: [(&str, Cell); 11] = [
        ("guests alive", |r| format!("{} of {}", r.guests_alive, r.guests)),
        ("work done and verified", |r| {
            format!("{} ({} of {})", percent(r.work_done_fraction), r.work_done_bytes, r.work_planned_bytes)
        }),
        ("words that differ", |r| r.mismatched_words.to_string()),
        ("host: OOM kills", |r| r.oom_kills.to_string()),
        ("guests: OOM kills", |r| r.guest_oom_kills.to_string()),
        ("failed jobs in living guests", |r| r.job_failures.to_string()),
        ("host: read back from swap", |r| {
            r.host_swap_in_bytes.map_or_else(|| "n/a (no swap)".to_owned(), |bytes| bytes.to_string())
        }),
        ("host: most memory in use", |r| {
            r.peak_usage_bytes.map_or_else(|| "n/a".to_owned(), |bytes| bytes.to_string())
        }),
        ("moved by balloons", |r| r.memory_moved_bytes.to_string()),
        ("from need to grant, median", |r| {
            r.seconds_to_grant.map_or_else(|| "n/a".to_owned(), |seconds| format!("{seconds:.1} s"))
        }),
        ("duration", |r| format!("{:.0} s", Duration::from_secs_f64(r.seconds).as_secs_f64())),
    ];
    let columns: Vec<(&str, &ArmResult)> =
        arms.iter().filter_map(|arm| Some((arm.title, &arm.runs.first()?.result))).collect();
    let head = std::iter::once(String::new()).chain(columns.iter().map(|(title, _)| (*title).to_owned()));
    let mut rows = vec![head.collect()];
    for (name, cell) in ROWS {
        let cells = columns.iter().map(|(_, result)| cell(result));
        rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
    Table { rows }
}

fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

/// For a picture: exact enough.
fn mib(bytes: Bytes) -> f64 {
    let kib = u32::try_from(bytes.get() >> 10).unwrap_or(u32::MAX);
    f64::from(kib) / 1024.0
}
