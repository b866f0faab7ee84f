//! The number of guests that a host holds: the experiment from the patch set that proposed to return freed pages to the host
//! ("KVM: Guest Free Page Hinting", v8: 3 guests without it, 5 to 7 with it).
//!
//! Guests of a third of the host are launched one after another. Each fills four fifths of its memory, checks all of it and
//! frees it. After each launch, the guest that has idled longest works again. A guest counts as soon as it and all before it
//! have got through. The run ends at the first guest that does not get through: the host kills it or refuses it memory, its
//! own OOM killer kills something, or it is ten times as slow as a guest alone.
//!
//! The small host is 3.5 times the measured peak cost of one guest, so that rounding decides nothing.
//!
//! A second job uses its page cache: at each turn, each guest first reads the same 150 MiB of its disk, and fills only three fifths of
//! its memory. A rule that takes page cache without asking who needs it makes guests read their disks again.
//!
//! A third job holds a cold heap: each guest fills two fifths of its memory once, with objects that compress as those of programs do, and leaves them alone.
//! At its turn it fills as much again. No balloon gets the cold heap; a compressed tier does. At the end, every cold heap is read back and checked.
//!
//! In one more arm, memtide lets KSM merge the guests' equal memory: it sets the KSM of the whole machine meanwhile.

use memtide_model::Bytes;
use serde::Serialize;

use self::case::{By, Case};
use self::job::Job;
pub use self::scale::Scale;
use self::setting::Setting;
use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::machine::ksm::Ksm;
use crate::machine::lab::Run;
use crate::machine::swap::ZramSwap;
use crate::output::screen::Screen;

mod alone;
mod case;
mod findings;
mod guest;
mod job;
mod run;
mod scale;
mod setting;
pub mod uml;

/// The experiment.
pub struct Density {
    /// The settings of the jobs that are run.
    settings: Vec<(Job, Setting)>,
}

/// One run of one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DensityResult {
    /// Guests that got through.
    pub guests_finished: u64,
    /// 1 + (capacity − reserve − peak) / idle: one guest at its peak, all others at the level that free page reporting
    /// leaves.
    pub bound: u64,
    /// More guests were not tried: the host may hold more.
    pub at_least: bool,
    /// The guests that ended the run, and what happened to them.
    pub ended_by: String,
    /// Bytes that the guests that got through had to check.
    pub work_planned_bytes: Bytes,
    /// Bytes that they found intact.
    pub work_done_bytes: Bytes,
    /// The ratio of the two.
    pub work_done_fraction: f64,
    /// Words that differ from their expected value.
    pub mismatched_words: u64,
    /// The time of the work relative to a guest alone, with as many guests as got through.
    pub slowdown: Option<f64>,
    /// The same for each number of guests.
    pub by_guests: Vec<Step>,
    /// Processes killed by the small host's OOM killer, including the kill that ended the run.
    pub oom_kills: u64,
    /// Processes killed by the OOM killers of the surviving guests; `None` if one of them did not answer.
    pub guest_oom_kills: Option<u64>,
    /// Page faults of the guests' processes that had to wait for a disk or for swap.
    pub major_faults: u64,
    /// Bytes that the host read back from swap; null if it has no swap.
    pub host_swap_in_bytes: Option<Bytes>,
    /// Bytes of the cold heaps of the guests at the end; zero if the job has none.
    pub cold_bytes: Bytes,
    /// The part that was read back then, and was intact; null if the job has no cold heaps.
    pub cold_verified_bytes: Option<Bytes>,
    /// Bytes that the guests read from their own swap before that; null if one of them did not answer.
    pub guest_swap_in_bytes: Option<Bytes>,
    /// The most memory that compressed tiers took at once. The small host pays for it.
    pub tier_held_bytes: Bytes,
    /// Bytes that the balloons moved, in both directions.
    pub memory_moved_bytes: Bytes,
    /// The most memory charged to the small host at once; null if the kernel does not count it.
    pub peak_usage_bytes: Option<Bytes>,
    /// Median time from a guest's need to its grant; null if it was not measured.
    pub seconds_to_grant: Option<f64>,
    /// The duration of the run.
    pub seconds: f64,
}

/// The work with this number of guests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The number of guests.
    pub guests: u64,
    /// The median time of their work.
    pub turn_seconds: f64,
    /// This time relative to a guest alone.
    pub slowdown: f64,
}

impl Experiment for Density {
    const NAME: &'static str = "density";
    const ABOUT: &'static str =
        "guests that work in turn, launched until one is killed: how many a host holds";
    type Result = DensityResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let of_effort = |case: &Case| match effort {
            Effort::Quick => case.suffix().is_empty() && By::QUICK.contains(&case.by),
            Effort::Usual => case.suffix().is_empty() && By::ALL.contains(&case.by),
            Effort::Full => true,
        };
        Case::all().filter(of_effort).map(|case| case.arm(effort)).collect()
    }

    fn has_memtide(key: &str) -> bool {
        Case::all().any(|case| case.key() == key && case.by.is_memtide())
    }

    fn prepare(options: &Options, arms: &[Arm], run: &Run, screen: &Screen) -> Result<Self, LabError> {
        if arms.iter().filter_map(Case::of).any(|case| case.swap) {
            ZramSwap::probe()?;
        }
        if arms.iter().filter_map(Case::of).any(|case| case.by.sets_ksm()) {
            drop(Ksm::take()?);
        }
        let scale = if options.effort == Effort::Quick { Scale::QUICK } else { Scale::WHOLE };
        let mut jobs: Vec<Job> = Vec::new();
        for case in arms.iter().filter_map(Case::of) {
            if !jobs.contains(&case.job) {
                jobs.push(case.job);
            }
        }
        Self::measure_jobs(scale, &jobs, run, screen)
    }

    fn run(
        &mut self,
        of: Repetition<'_>,
        run: &Run,
        screen: &Screen,
    ) -> Result<Seen<DensityResult>, LabError> {
        let case = Case::of(of.arm).ok_or_else(|| LabError::Usage(format!("no arm `{}`", of.arm.key)))?;
        let setting = self.setting(case.job)?;
        // As it was found once the arm is over.
        let _ksm = case.by.sets_ksm().then(Ksm::take).transpose()?;
        let mut manager = case.by.manager(setting.scale.names, run)?;
        run::run(setting, case, &of, manager.as_mut(), run, screen)
    }

    fn find(&self, arms: &[ArmSeen<DensityResult>]) -> Result<Findings, LabError> {
        findings::find(&self.settings, arms)
    }
}

impl Density {
    /// Measures one guest of this scale alone. The host's capacity follows from it.
    ///
    /// # Errors
    /// If the guest does not do its work, or memtide was not built.
    pub fn measure(scale: Scale, run: &Run, screen: &Screen) -> Result<Self, LabError> {
        Self::measure_jobs(scale, &[Job::Memory], run, screen)
    }

    fn measure_jobs(scale: Scale, jobs: &[Job], run: &Run, screen: &Screen) -> Result<Self, LabError> {
        By::Elastic.manager(scale.names, run)?;
        let measure = |job: &Job| {
            screen.say(&format!("one guest alone: {}", job.title()));
            let setting = Setting::measure(scale, *job, &run.part(&format!("alone{}", job.suffix()))?)?;
            screen.say(&format!(
                "it costs {} at its peak and {} idle, and takes {:.1} s: a host of {}",
                setting.alone.peak, setting.alone.idle, setting.alone.turn_seconds, setting.capacity,
            ));
            Ok((*job, setting))
        };
        Ok(Self { settings: jobs.iter().map(measure).collect::<Result<_, _>>()? })
    }

    fn setting(&self, job: Job) -> Result<&Setting, LabError> {
        let setting = self.settings.iter().find(|(of, _)| *of == job).map(|(_, setting)| setting);
        setting.ok_or_else(|| LabError::Usage(format!("nobody measured a guest alone: {}", job.title())))
    }
}
