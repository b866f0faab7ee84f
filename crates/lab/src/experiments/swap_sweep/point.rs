//! The work of all guests at one size.

use std::thread;
use std::time::{Duration, Instant};

use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_model::{Bytes, Commitment};

use super::case::{By, Case};
use super::setting::{Setting, builder, work};
use super::{NAMES, Point};
use crate::error::LabError;
use crate::guest::channel::Job;
use crate::guest::swap::Swap;
use crate::guest::{Guest, GuestBuilder, in_tiers, start_all};
use crate::machine::lab::Run;
use crate::machine::small_host::SmallHost;
use crate::managers::memtide::Memtide;
use crate::managers::{Managed, Manager};
use crate::output::sample::EVERY;
use crate::wait::{LOOK_EVERY, check_interrupt, until};

/// The longest time of the work.
const WORK: Duration = Duration::from_secs(300);

/// The longest time until memtide has made the guests as small as they are to be.
const SETTLES: Duration = Duration::from_secs(60);

/// memtide leaves a difference as small as this alone.
const LITTLE: Bytes = Bytes::from_mib(1);

/// The host's memory that everything takes.
#[derive(Clone, Copy, Debug, Default)]
struct Most {
    total: Bytes,
    swap: Bytes,
}

/// The guests, their swap, and who manages them. Guests are dropped before their devices.
struct Guests {
    guests: Vec<Guest>,
    swaps: Vec<Swap>,
    host: Option<SmallHost>,
    manager: Option<Memtide>,
}

/// Does the work once at one size.
pub(super) fn measure(
    setting: &Setting,
    case: Case,
    part: u64,
    seed: u64,
    run: &Run,
) -> Result<Point, LabError> {
    let mut point = Point {
        part_percent: part,
        guest_memory_bytes: setting.memory(part),
        seconds: None,
        ended_by: String::new(),
        swapped_in_bytes: Bytes::ZERO,
        swapped_out_bytes: Bytes::ZERO,
        total_bytes: Bytes::ZERO,
        swap_held_bytes: Bytes::ZERO,
        verified_bytes: Bytes::ZERO,
        mismatched_words: 0,
    };
    match measure_into(&mut point, setting, case, seed, run) {
        Err(error) if error.is_of_a_guest() => point.ended_by = error.with_cause(),
        other => other?,
    }
    Ok(point)
}

fn measure_into(
    point: &mut Point,
    setting: &Setting,
    case: Case,
    seed: u64,
    run: &Run,
) -> Result<(), LabError> {
    let mut all = Guests::start(setting, case, point.guest_memory_bytes, run)?;
    all.settle(case.by, point.guest_memory_bytes, run)?;
    let before = all.swapped()?;
    let jobs = begin(&all.guests, |nth| work(seed + nth, setting.heap_mib))?;
    let mut most = Most::default();
    let done: Result<Vec<(Summary, f64)>, LabError> = all.finish(&jobs, &mut most, run);
    (point.total_bytes, point.swap_held_bytes) = (most.total, most.swap);
    let done = done?;
    let after = all.swapped()?;
    point.swapped_in_bytes = after.0.saturating_sub(before.0);
    point.swapped_out_bytes = after.1.saturating_sub(before.1);
    for (summary, _) in &done {
        point.mismatched_words += summary.errors;
        let checked = Bytes::new(summary.checked_bytes.unwrap_or_default());
        point.verified_bytes = point.verified_bytes.saturating_add(checked);
    }
    // Everything once more, also what lies in swap.
    let check = |job: &Job| Ask::Order { load: job.id(), line: "check".to_owned() };
    let checks = begin(&all.guests, |nth| check(&jobs[usize::try_from(nth).unwrap_or(0)]))?;
    for (tally, _) in all.finish::<Tally>(&checks, &mut most, run)? {
        point.mismatched_words += tally.mismatches;
        point.verified_bytes = point.verified_bytes.saturating_add(Bytes::new(tally.bytes));
    }
    all.stop(run)?;
    let seconds: f64 = done.iter().map(|(_, seconds)| seconds).sum();
    point.seconds = Some(seconds / f64::from(u32::try_from(done.len()).unwrap_or(1).max(1)));
    Ok(())
}

/// Begins a job in each guest.
fn begin(guests: &[Guest], ask: impl Fn(u64) -> Ask) -> Result<Vec<Job>, LabError> {
    guests.iter().zip(0..).map(|(guest, nth)| guest.begin(ask(nth))).collect()
}

impl Guests {
    fn start(setting: &Setting, case: Case, memory: Bytes, run: &Run) -> Result<Self, LabError> {
        let names = (1..=case.guests).map(|nth| nth.to_string());
        let swap = |name: String| {
            let medium = case.by.medium()?;
            Some(Swap::create(medium, setting.swap(), run.path(), &name, case.guests))
        };
        let swaps: Vec<Swap> = names.clone().filter_map(swap).collect::<Result<_, _>>()?;
        let capacity = memory.saturating_add(setting.overhead).mul_div(case.guests, 1);
        let host = match case.by.is_managed() {
            true => Some(SmallHost::create(&case.key(), capacity, Bytes::ZERO)?),
            false => None,
        };
        let builders: Vec<GuestBuilder> = match case.by.is_managed() {
            true => names.map(|name| managed(&name, setting, case)).collect(),
            false => names.zip(&swaps).map(|(name, swap)| builder(&name, memory).swap(swap)).collect(),
        };
        let guests = start_all(builders, run, host.as_ref())?;
        guests.iter().zip(&swaps).try_for_each(|(guest, swap)| swap.on(guest))?;
        let manager = match case.by.class(memory) {
            Some(class) => Some(Memtide::find(Commitment::Elastic, &format!("{NAMES}*"))?.with(&class)),
            None => None,
        };
        Ok(Self { guests, swaps, host, manager })
    }

    /// Starts the manager, and waits until the guests are no larger than they may be, and have their tiers.
    fn settle(&mut self, by: By, limit: Bytes, run: &Run) -> Result<(), LabError> {
        let (Some(manager), Some(host)) = (&mut self.manager, &self.host) else { return Ok(()) };
        let managed = Managed { dir: run.path(), host, guests: &self.guests };
        manager.start(managed)?;
        until("small guests with tiers", SETTLES, || {
            manager.tick(managed)?;
            thread::sleep(EVERY);
            let is_ready = |guest: &Guest| -> Result<bool, LabError> {
                let is_small = guest.actual()? <= limit.saturating_add(LITTLE);
                Ok(is_small && (by != By::Tier || guest.meminfo()?.swap_kib > 0))
            };
            let ready: Vec<bool> = self.guests.iter().map(is_ready).collect::<Result<_, _>>()?;
            Ok(ready.iter().all(|is_ready| *is_ready).then_some(()))
        })
    }

    fn stop(&mut self, run: &Run) -> Result<(), LabError> {
        match (&mut self.manager, &self.host) {
            (Some(manager), Some(host)) => {
                manager.stop(Managed { dir: run.path(), host, guests: &self.guests }).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Waits for a job of each guest. Returns the outcomes, and how many seconds each took.
    fn finish<T: serde::de::DeserializeOwned>(
        &mut self,
        jobs: &[Job],
        most: &mut Most,
        run: &Run,
    ) -> Result<Vec<(T, f64)>, LabError> {
        let begun = Instant::now();
        let mut done: Vec<Option<(T, f64)>> = jobs.iter().map(|_| None).collect();
        let mut looked: Option<Instant> = None;
        while done.iter().any(Option::is_none) {
            check_interrupt()?;
            for ((guest, job), done) in self.guests.iter().zip(jobs).zip(&mut done) {
                if let Some(how) = guest.ended()? {
                    return Err(LabError::Gone { guest: guest.name().to_owned(), how });
                }
                if done.is_none() {
                    *done = guest.outcome(*job)?.map(|outcome| (outcome, begun.elapsed().as_secs_f64()));
                }
            }
            if looked.is_none_or(|at| at.elapsed() >= EVERY) {
                looked = Some(Instant::now());
                self.look(most, run)?;
            }
            if begun.elapsed() > WORK {
                let what = "the end of the work".to_owned();
                return Err(LabError::Deadline { what, seconds: WORK.as_secs() });
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(done.into_iter().flatten().collect())
    }

    fn look(&mut self, most: &mut Most, run: &Run) -> Result<(), LabError> {
        let swap = match self.manager {
            Some(_) => in_tiers(&self.guests),
            None => Bytes::sum(self.swaps.iter().map(Swap::held).collect::<Result<Vec<_>, _>>()?),
        };
        let total = Bytes::sum(self.guests.iter().map(Guest::footprint)).saturating_add(swap);
        *most = Most { total: most.total.max(total), swap: most.swap.max(swap) };
        match (&mut self.manager, &self.host) {
            (Some(manager), Some(host)) => {
                manager.tick(Managed { dir: run.path(), host, guests: &self.guests })
            }
            _ => Ok(()),
        }
    }

    /// The bytes that all guests have read from swap, and written to it.
    fn swapped(&self) -> Result<(Bytes, Bytes), LabError> {
        let pages = |pages: u64| Bytes::from_kib(4 * pages);
        let mut all = (Bytes::ZERO, Bytes::ZERO);
        for guest in &self.guests {
            let (read, written) = guest.meminfo()?.swapped();
            all = (all.0.saturating_add(pages(read)), all.1.saturating_add(pages(written)));
        }
        Ok(all)
    }
}

/// A guest under memtide.
fn managed(name: &str, setting: &Setting, case: Case) -> GuestBuilder {
    builder(name, setting.full())
        .agent(true)
        .deflate_on_oom(true)
        .free_page_reporting(true)
        .hotplug(case.by == By::Tier)
}
