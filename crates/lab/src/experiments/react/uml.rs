//! The same for a UML instance, which cannot take memory by itself: it stalls, and memtide plugs memory.

use std::time::Duration;

use memtide_model::{Bytes, Commitment};
use serde_json::json;

use super::stall::{DEADLINE, free, managing, move_to, need_and_grant, raw};
use super::{FREE, Judged, ReactResult, findings, result, seconds, stall_bars};
use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::disk::Disk;
use crate::guest::{BOOT, Guest, Vmm};
use crate::machine::lab::Run;
use crate::managers::daemon::Daemon;
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::statistics::{median, p95};
use crate::work::exercise::{fill, read_disk};

/// The prefix of the instances' names.
const NAMES: &str = "react-uml-";
const MEMORY: Bytes = Bytes::from_mib(384);
/// The small size of the instance, the page cache that fills it, and the memory that its job needs.
const SMALL: Bytes = Bytes::from_mib(160);
const CACHE_MIB: u64 = 96;
const NEED_MIB: u64 = 160;
/// How fast the job takes memory, in MiB a second. Once the page cache is gone, an instance that lacks memory kills a program.
const RATE: u64 = 80;
/// The host's memory: enough for the job. With room for the whole instance, memtide would give it all memory at once.
const ROOMY: Bytes = MEMORY;
const DISK_SEED: u64 = 23;
/// The goal: the raw commands, and this time.
const BEYOND_RAW: f64 = 0.5;

/// The experiment.
pub struct ReactUml {
    disk: Disk,
}

impl Experiment for ReactUml {
    const NAME: &'static str = "react-uml";
    const ABOUT: &'static str = "how fast memory is plugged into a UML instance that stalls";
    type Result = ReactResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let runs = match effort {
            Effort::Quick => 5,
            Effort::Usual => 20,
            Effort::Full => 40,
        };
        let title = "a stall, from free memory".to_owned();
        vec![Arm { key: FREE.to_owned(), title, runs, takes: Duration::from_secs(8) }]
    }

    fn prepare(_: &Options, _: &[Arm], run: &Run, _: &Screen) -> Result<Self, LabError> {
        Daemon::program()?;
        Ok(Self { disk: Disk::ensure(run.lab().cache(), DISK_SEED, CACHE_MIB)? })
    }

    fn run(&mut self, _: Repetition<'_>, run: &Run, _: &Screen) -> Result<Seen<ReactResult>, LabError> {
        let name = format!("{NAMES}1");
        let instance =
            Guest::builder(&name).vmm(Vmm::Uml).memory(MEMORY).disk(&self.disk).start(run, None)?;
        instance.wait_up(BOOT)?;
        move_to(&instance, SMALL)?;
        let cache = instance.run(read_disk(&self.disk, CACHE_MIB, None), DEADLINE)?;
        let daemon = Daemon::start(run.path(), &managing(NAMES, ROOMY))?;
        daemon.until("statistics", DEADLINE, &name, |detail| {
            detail.status.report.used.filter(|used| !used.is_zero())
        })?;
        let (reaction, memory) = need_and_grant(&daemon, &instance, fill(7, NEED_MIB, Some(RATE)))?;
        daemon.stop()?;
        free(&instance, memory)?;
        free(&instance, cache)?;
        let result = result(reaction, raw(&instance, None, reaction.granted)?)?;
        Ok(Seen { names: Vec::new(), samples: Samples::default(), result })
    }

    fn find(&self, arms: &[ArmSeen<ReactResult>]) -> Result<Findings, LabError> {
        let title = "How fast memory is plugged into a UML instance".to_owned();
        let about = format!(
            "An instance of {SMALL} whose page cache fills it starts a job that takes {NEED_MIB} MiB at {RATE} MiB/s. It stalls, and memtide \
             plugs memory."
        );
        let judged: Vec<Judged> = arms.iter().filter_map(judge).collect();
        let groups: Vec<_> = arms.iter().filter(|seen| !seen.runs.is_empty()).map(stall_bars).collect();
        let setting = json!({ "memory_bytes": MEMORY, "commitment": Commitment::Strict });
        findings((title, about), setting, arms, &groups, &judged)
    }
}

/// Goal: 95 of 100 stalls are answered within the raw commands plus half a second.
fn judge(seen: &ArmSeen<ReactResult>) -> Option<Judged> {
    let raw = median(seen.runs.iter().filter_map(|run| run.result.raw_seconds))?;
    let measured = p95(seconds(seen))?;
    let goal = raw + BEYOND_RAW;
    Some(Judged {
        what: format!("{}: 95 of 100 below", seen.arm.title),
        measured: format!("{measured:.2} s"),
        goal: format!("at most {goal:.2} s (raw mconsole + {BEYOND_RAW} s)"),
        kept: measured <= goal,
    })
}
