//! A guest's wait for memory, and the time that the raw commands need.

use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_model::{Bytes, PAGE_4K};

use crate::error::LabError;
use crate::guest::Guest;
use crate::guest::channel::Job;
use crate::managers::daemon::Daemon;

/// The longest time for a job, a balloon or a grant.
pub const DEADLINE: Duration = Duration::from_secs(90);
/// A guest this close has reached its target.
const CLOSE: Bytes = Bytes::from_mib(1);

/// The reaction to a need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaction {
    /// From the start of the job that needs memory until the memory of the first grant has arrived.
    pub from_need: Duration,
    /// From the guest's first stall until then; zero if the grant came before any stall.
    pub from_stall: Duration,
    /// The guest's stall time until its job had all its memory, as its kernel counts it (PSI).
    pub stalled: Duration,
    /// All memory granted until then.
    pub granted: Bytes,
}

impl Reaction {
    /// The guest's wait for memory: for the first grant or in total, whichever is longer.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.from_stall.max(self.stalled)
    }
}

/// Starts a job that takes memory and makes `guest` stall, watches the reaction of `daemon`, and waits for the job to
/// finish. The job keeps its memory: see [`free`].
///
/// The stall counts from the last look at the guest's own counters that did not show it yet.
///
/// # Errors
/// If no grant comes, or the job does not get its memory.
pub fn need_and_grant(daemon: &Daemon, guest: &Guest, job: Ask) -> Result<(Reaction, Job), LabError> {
    let stalls = || -> Result<(u64, Duration), LabError> {
        let seen = guest.meminfo()?;
        let waits = seen.vmstat.iter().filter(|(name, _)| name.starts_with("allocstall"));
        let pressure = seen.psi_some_us.unwrap_or(0);
        Ok((waits.map(|(_, count)| count).sum::<u64>() + pressure, Duration::from_micros(pressure)))
    };
    let target =
        || -> Result<Option<Bytes>, LabError> { Ok(daemon.guest(guest.name())?.status.report.target) };
    let had = target()?.map_or_else(|| guest.actual(), Ok)?;
    let (before, pressed_before) = stalls()?;
    let begun = Instant::now();
    let job = guest.begin(job)?;
    let (mut calm_at, mut stalled) = (begun, false);
    let from_need = loop {
        if begun.elapsed() >= DEADLINE {
            let what = format!("a grant to the guest {}", guest.name());
            return Err(LabError::Deadline { what, seconds: DEADLINE.as_secs() });
        }
        let target = target()?.unwrap_or(had);
        if target > had && guest.actual()?.saturating_add(CLOSE.max(guest.size_error())) >= target {
            break begun.elapsed();
        }
        let look = Instant::now();
        if !stalled {
            stalled = stalls()?.0 > before;
            calm_at = if stalled { calm_at } else { look };
        }
    };
    let came_at = Instant::now();
    // A stall after the last look counts from that look.
    let stalled = stalled || stalls()?.0 > before;
    let from_stall = if stalled { came_at.duration_since(calm_at) } else { Duration::ZERO };
    guest.finish::<Summary>(job, "a job that needs memory", DEADLINE)?;
    let stalled = stalls()?.1.saturating_sub(pressed_before);
    let granted = guest.actual()?.saturating_sub(had);
    Ok((Reaction { from_need, from_stall, stalled, granted }, job))
}

/// Ends a job that keeps its memory.
///
/// # Errors
/// If the guest does not answer.
pub fn free(guest: &Guest, memory: Job) -> Result<(), LabError> {
    guest.run(Ask::Cancel { job: memory.id() }, DEADLINE).map(|_| ())
}

/// The time that the raw commands need to give `bytes` to `guest`, after taking them from `donor` if there is one. At the
/// end, both have the same sizes as before.
///
/// # Errors
/// If a balloon does not reach its target.
pub fn raw(guest: &Guest, donor: Option<&Guest>, bytes: Bytes) -> Result<Duration, LabError> {
    let low = guest.actual()?.saturating_sub(bytes);
    let donor = donor.map(|donor| Ok::<_, LabError>((donor, donor.actual()?))).transpose()?;
    move_to(guest, low)?;
    let begun = Instant::now();
    if let Some((donor, had)) = donor {
        move_to(donor, had.saturating_sub(bytes))?;
    }
    move_to(guest, low.saturating_add(bytes))?;
    let took = begun.elapsed();
    if let Some((donor, had)) = donor {
        move_to(donor, had)?;
    }
    Ok(took)
}

/// Moves a guest to a size and waits until it has arrived.
///
/// # Errors
/// If the guest does not reach its target.
pub fn move_to(guest: &Guest, target: Bytes) -> Result<(), LabError> {
    let target = target.round_down(PAGE_4K);
    guest.set_target(target)?;
    guest.until("a size", DEADLINE, |guest| {
        Ok((guest.actual()?.abs_diff(target) <= guest.size_error()).then_some(()))
    })
}

/// Waits until the balloon of `guest` has settled at the daemon's target.
///
/// # Errors
/// If it does not settle.
pub fn settled(daemon: &Daemon, guest: &Guest) -> Result<Bytes, LabError> {
    daemon.until("a guest at its target", DEADLINE, guest.name(), |detail| {
        let report = &detail.status.report;
        let at = report.target.filter(|target| report.actual.abs_diff(*target) <= CLOSE);
        let quiet = detail.status.last_change.is_some_and(|ago| ago.as_millis() >= 2000);
        at.filter(|_| quiet)
    })
}

/// The configuration of a daemon that manages the guests with this prefix in `budget`, without a reserve.
#[must_use]
pub fn managing(prefix: &str, budget: Bytes) -> String {
    let mib = budget.whole_mib();
    format!(
        "mode = \"manage\"\nbudget = \"{mib} MiB\"\nreserve = \"0\"\nself_deflations = 0\n\
         discover = [\"{prefix}*\"]\n"
    )
}
