//! Swap on memory, swept: the time of a fixed work over the memory of a guest, as in "Xen and Swap" (etbe, 2007), which put the swap of guests on a
//! tmpfs of their host.
//!
//! A guest fills a heap that compresses as measured heaps do, and touches it a fixed number of times: most touches go to a hot part. Its memory is what
//! it needs besides, plus a part of the heap, which is swept downwards. Beyond its memory, the guest swaps to a hard disk, to a file on a tmpfs of the
//! host, or to a zram of the host. Or the guest has no swap, boots with all the memory that it can use, and memtide moves balloons in a small host that
//! holds no more than the fixed guests have: without and with compressed tiers.
//!
//! Memory on a tmpfs or in a zram is the host's. So a second plot shows the time over *total* memory: what the processes of the guests take at most, and
//! what their swap takes besides.

use memtide_model::Bytes;
use serde::Serialize;

use self::case::Case;
use self::setting::Setting;
use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::machine::lab::Run;
use crate::managers::daemon::Daemon;
use crate::output::sample::Samples;
use crate::output::screen::Screen;

mod case;
mod findings;
mod point;
mod setting;

/// The prefix of the guests' names.
const NAMES: &str = "sweep-";

/// The parts of the heap that fit into the guest's memory, in percent, downwards.
pub(crate) const fn parts(effort: Effort) -> &'static [u64] {
    match effort {
        Effort::Quick => &[115, 75, 50],
        Effort::Usual => &[115, 90, 75, 60, 50, 40],
        Effort::Full => &[130, 115, 100, 90, 80, 70, 60, 50, 45, 40, 35, 30],
    }
}

/// The experiment.
pub struct SwapSweep {
    setting: Setting,
    effort: Effort,
}

/// One run of one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepResult {
    /// The number of guests.
    pub guests: u64,
    /// One entry for each size of the guests, downwards. The sweep ends with the first size at which the work is not done.
    pub points: Vec<Point>,
}

/// The work at one size of the guests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The part of the heap that fits into the guest's memory, in percent.
    pub part_percent: u64,
    /// The memory of each guest. If memtide manages: the same as a part of the small host.
    pub guest_memory_bytes: Bytes,
    /// The mean time of the guests' work; null if one of them did not do it.
    pub seconds: Option<f64>,
    /// Why it was not done; empty if it was.
    pub ended_by: String,
    /// What all guests read from their swap during the work.
    pub swapped_in_bytes: Bytes,
    /// What they wrote to it.
    pub swapped_out_bytes: Bytes,
    /// The most memory that the guests' processes and their swap took from the host at once.
    pub total_bytes: Bytes,
    /// The most that their swap took of it.
    pub swap_held_bytes: Bytes,
    /// The memory that was compared with its expected content, during the work and once more after it.
    pub verified_bytes: Bytes,
    /// Words that differ from their expected value.
    pub mismatched_words: u64,
}

impl Experiment for SwapSweep {
    const NAME: &'static str = "swap-sweep";
    const ABOUT: &'static str = "less and less memory for the same work: swap on a disk, a tmpfs, zram, balloons, and memtide with tiers";
    type Result = SweepResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let of_effort = |case: &Case| effort != Effort::Quick || case.guests == 1;
        Case::all().filter(of_effort).map(|case| case.arm(effort)).collect()
    }

    fn has_memtide(key: &str) -> bool {
        Case::all().any(|case| case.key() == key && case.by.is_managed())
    }

    fn prepare(options: &Options, arms: &[Arm], run: &Run, screen: &Screen) -> Result<Self, LabError> {
        if arms.iter().any(|arm| Self::has_memtide(&arm.key)) {
            Daemon::program()?;
        }
        screen.say("one guest alone: what it needs besides its heap");
        let setting = Setting::measure(&run.part("alone")?, setting::HEAP_MIB)?;
        screen.say(&format!(
            "a guest needs {} besides its heap of {} MiB; its process takes {} more; the work takes {:.1} s",
            setting.base, setting.heap_mib, setting.overhead, setting.seconds
        ));
        Ok(Self { setting, effort: options.effort })
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, screen: &Screen) -> Result<Seen<SweepResult>, LabError> {
        let case = Case::of(of.arm).ok_or_else(|| LabError::Usage(format!("no arm `{}`", of.arm.key)))?;
        let mut points: Vec<Point> = Vec::new();
        for part in parts(self.effort) {
            let point =
                point::measure(&self.setting, case, *part, of.seed, &run.part(&format!("{part}-percent"))?)?;
            screen.say(&told(&point));
            let is_done = point.seconds.is_some();
            points.push(point);
            if !is_done {
                break;
            }
        }
        let names = (1..=case.guests).map(|nth| format!("{NAMES}{nth}")).collect();
        Ok(Seen { names, samples: Samples::default(), result: SweepResult { guests: case.guests, points } })
    }

    fn find(&self, arms: &[ArmSeen<SweepResult>]) -> Result<Findings, LabError> {
        findings::find(&self.setting, arms)
    }
}

impl SwapSweep {
    /// The experiment with a heap of this size, for tests.
    ///
    /// # Errors
    /// If a guest alone does not do its work.
    pub fn measure(run: &Run, heap_mib: u64) -> Result<Self, LabError> {
        Ok(Self { setting: Setting::measure(&run.part("alone")?, heap_mib)?, effort: Effort::Quick })
    }

    /// The work of the arm with this key at one size.
    ///
    /// # Errors
    /// If there is no such arm, or it cannot be run.
    pub fn at(&self, key: &str, part: u64, run: &Run) -> Result<Point, LabError> {
        let case = Case::all().find(|case| case.key() == key);
        let case = case.ok_or_else(|| LabError::Usage(format!("no arm `{key}`")))?;
        point::measure(&self.setting, case, part, 1, run)
    }
}

/// A point in a line.
fn told(point: &Point) -> String {
    let Point { guest_memory_bytes, total_bytes, swapped_in_bytes, .. } = point;
    match point.seconds {
        Some(seconds) => format!(
            "  {guest_memory_bytes} a guest: {seconds:.1} s, {total_bytes} in total, {swapped_in_bytes} swapped in"
        ),
        None => format!("  {guest_memory_bytes} a guest: {}", point.ended_by),
    }
}
