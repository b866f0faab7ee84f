//! One arm: a small host, its guests, the work, and whoever manages the memory meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use memtide_model::Bytes;

use crate::disk::Disk;
use crate::error::LabError;
use crate::guest::Guest;
use crate::lab::Run;
use crate::live::Live;
use crate::machine;
use crate::manager::{Manager, Measured, Place};
use crate::results::ArmResult;
use crate::sample::Samples;
use crate::small_host::SmallHost;
use crate::wait::LOOK_EVERY;
use crate::work::{Done, Load, Work};

/// What the guests' names begin with.
pub const NAMES: &str = "demo-";
/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(120);
/// Guests that boot at a time: booting is all computing.
const BOOT_AT_ONCE: usize = 2;

/// What is the same in all arms.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The small host's memory.
    pub capacity: Bytes,
    /// The number of guests.
    pub guests: usize,
    /// The memory that each one boots with.
    pub guest_memory: Bytes,
    /// Their disk.
    pub disk: Disk,
    /// Their work.
    pub load: Load,
}

/// What was seen in one run of one arm.
#[derive(Debug)]
pub struct Seen {
    /// The guests' names.
    pub names: Vec<String>,
    /// What they cost over time.
    pub samples: Samples,
    /// The figures.
    pub result: ArmResult,
}

/// Runs the work once under `manager`.
///
/// # Errors
/// Where the arm cannot be run. Guests that are killed are a result.
pub fn run(setting: &Setting, manager: &mut dyn Manager, run: &Run, live: &Live) -> Result<Seen, LabError> {
    let host = SmallHost::create(manager.key(), setting.capacity)?;
    live.say(&format!(
        "{}: {} guests of {} in a host of {}",
        manager.title(),
        setting.guests,
        setting.guest_memory,
        setting.capacity
    ));
    let guests = boot(setting, run, &host)?;
    let names: Vec<String> = guests.iter().map(|guest| guest.name().to_owned()).collect();
    live.guests(&names, setting.guest_memory.whole_mib());
    let place = Place { dir: run.path(), host: &host, guests: &guests };
    let swap_before = machine::swapped_in();
    let begun = Instant::now();
    let worked = manage_and_work(setting, manager, place, live);
    live.clear();
    let (done, samples, measured) = worked?;
    if !manager.moves_memory() {
        check_untouched(guests.iter().filter(|guest| guest.alive()))?;
    }
    let result = ArmResult {
        seconds: begun.elapsed().as_secs_f64(),
        seconds_to_grant: measured.seconds_to_grant,
        host_swap_in_bytes: swap_before
            .and_then(|before| Some(machine::swapped_in()?.saturating_sub(before))),
        ..count(&host, &guests, done, &samples)?
    };
    samples.write_csv(&run.path().join("samples.csv"), &names)?;
    Ok(Seen { names, samples, result })
}

fn boot(setting: &Setting, run: &Run, host: &SmallHost) -> Result<Vec<Guest>, LabError> {
    let mut guests = Vec::new();
    while guests.len() < setting.guests {
        let batch = BOOT_AT_ONCE.min(setting.guests - guests.len());
        for _ in 0..batch {
            let guest = Guest::builder(&format!("{NAMES}{}", guests.len() + 1))
                .memory(setting.guest_memory)
                .deflate_on_oom(true)
                .free_page_reporting(true)
                .disk(&setting.disk)
                .start(run, Some(host))?;
            guests.push(guest);
        }
        for guest in guests.iter().rev().take(batch) {
            guest.wait_up(BOOT)?;
        }
    }
    Ok(guests)
}

fn manage_and_work(
    setting: &Setting,
    manager: &mut dyn Manager,
    place: Place<'_>,
    live: &Live,
) -> Result<(Done, Samples, Measured), LabError> {
    check_untouched(place.guests)?;
    manager.start(place)?;
    let mut work = Work::new(setting.load, &setting.disk, place.guests);
    let mut samples = Samples::default();
    loop {
        let over = work.step()?;
        if samples.take(place.guests, |guest| work.doing(guest)) {
            if let Some(sample) = samples.all().last() {
                live.show(sample);
            }
            manager.tick(place)?;
        }
        if over {
            break;
        }
        thread::sleep(LOOK_EVERY);
    }
    let measured = manager.stop(place)?;
    Ok((work.done(), samples, measured))
}

/// A daemon that already runs on this machine would find these guests, too, and spoil what is compared.
fn check_untouched<'a>(guests: impl IntoIterator<Item = &'a Guest>) -> Result<(), LabError> {
    for guest in guests {
        if guest.actual()? != guest.memory() {
            return Err(LabError::Disturbed { guest: guest.name().to_owned() });
        }
    }
    Ok(())
}

fn count(host: &SmallHost, guests: &[Guest], done: Done, samples: &Samples) -> Result<ArmResult, LabError> {
    let alive = guests.iter().filter(|guest| guest.alive());
    let mut guest_oom_kills = 0;
    for guest in alive.clone() {
        guest_oom_kills += guest.meminfo()?.oom_kills();
    }
    let alive = alive.count() as u64;
    Ok(ArmResult {
        guests: guests.len() as u64,
        guests_alive: alive,
        guests_killed: guests.len() as u64 - alive,
        work_planned_bytes: done.planned,
        work_done_bytes: done.verified,
        work_done_fraction: fraction(done.verified, done.planned),
        mismatched_words: done.mismatches,
        oom_kills: host.oom_kills()?,
        guest_oom_kills,
        job_failures: done.failures,
        host_swap_in_bytes: None,
        memory_moved_bytes: samples.moved(),
        peak_usage_bytes: host.peak().ok(),
        seconds_to_grant: None,
        seconds: 0.0,
    })
}

/// The ratio to four digits: more is not known, and results stay readable.
fn fraction(part: Bytes, whole: Bytes) -> f64 {
    if whole.is_zero() {
        return 1.0;
    }
    let exact = part.mul_div(10_000, whole.get()).get();
    f64::from(u32::try_from(exact).unwrap_or(u32::MAX)) / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_readable() {
        assert!((fraction(Bytes::new(1), Bytes::new(3)) - 0.3333).abs() < f64::EPSILON);
        assert!((fraction(Bytes::ZERO, Bytes::ZERO) - 1.0).abs() < f64::EPSILON);
    }
}
