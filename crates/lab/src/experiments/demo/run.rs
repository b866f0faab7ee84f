//! One run of one arm of the demo: a small host, its guests, the work, and the manager of the memory.

use std::thread;
use std::time::Instant;

use memtide_model::Bytes;

use super::DemoResult;
use crate::error::LabError;
use crate::experiments::experiment::{Repetition, Seen};
use crate::guest::{BOOT, Guest, Vmm};
use crate::machine::facts;
use crate::machine::lab::Run;
use crate::machine::small_host::SmallHost;
use crate::managers::{Managed, Manager, Measured, check_untouched};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::wait::LOOK_EVERY;
use crate::work::turn::Load;
use crate::work::{Done, Work};

/// The prefix of the guests' names.
pub const NAMES: &str = "demo-";
/// The number of guests that boot at the same time: booting needs only CPU time.
const BOOT_AT_ONCE: usize = 2;

/// The setting that all arms share.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What runs the guests.
    pub vmm: Vmm,
    /// The small host's memory.
    pub capacity: Bytes,
    /// The number of guests.
    pub guests: usize,
    /// The memory that each guest boots with.
    pub guest_memory: Bytes,
    /// The work of each turn; all guests share its disk.
    pub load: Load,
    /// The number of rounds of turns.
    pub rounds: usize,
}

/// Runs the work once under `manager`.
///
/// # Errors
/// If the arm cannot be run. Killed guests are a result, not an error.
pub fn run(
    setting: &Setting,
    of: &Repetition<'_>,
    manager: &mut dyn Manager,
    run: &Run,
    screen: &Screen,
) -> Result<Seen<DemoResult>, LabError> {
    let host = SmallHost::create(&of.arm.key, setting.capacity, Bytes::ZERO)?;
    let guests = boot(setting, run, &host)?;
    let names: Vec<String> = guests.iter().map(|guest| guest.name().to_owned()).collect();
    names.iter().for_each(|name| screen.guest(name, setting.guest_memory.whole_mib()));
    let managed = Managed { dir: run.path(), host: &host, guests: &guests };
    let swap_before = facts::swapped_in();
    let begun = Instant::now();
    let (done, samples, measured) = manage_and_work(setting, of.seed, manager, managed, screen)?;
    if !manager.moves_memory() {
        check_untouched(&guests)?;
    }
    let result = DemoResult {
        seconds: begun.elapsed().as_secs_f64(),
        seconds_to_grant: measured.seconds_to_grant,
        host_swap_in_bytes: facts::swapped_in_since(swap_before),
        ..count(&host, &guests, done, &samples)?
    };
    Ok(Seen { names, samples, result })
}

fn boot(setting: &Setting, run: &Run, host: &SmallHost) -> Result<Vec<Guest>, LabError> {
    let mut guests = Vec::new();
    while guests.len() < setting.guests {
        let batch = BOOT_AT_ONCE.min(setting.guests - guests.len());
        for _ in 0..batch {
            let mut guest = Guest::builder(&format!("{NAMES}{}", guests.len() + 1))
                .vmm(setting.vmm)
                .memory(setting.guest_memory)
                .deflate_on_oom(true)
                .free_page_reporting(true);
            if let Some((disk, _)) = &setting.load.cache {
                guest = guest.disk(disk);
            }
            guests.push(guest.start(run, Some(host))?);
        }
        for guest in guests.iter().rev().take(batch) {
            guest.wait_up(BOOT)?;
        }
    }
    Ok(guests)
}

fn manage_and_work(
    setting: &Setting,
    seed: u64,
    manager: &mut dyn Manager,
    managed: Managed<'_>,
    screen: &Screen,
) -> Result<(Done, Samples, Measured), LabError> {
    check_untouched(managed.guests)?;
    manager.start(managed)?;
    let mut work = Work::new(&setting.load, setting.rounds, seed, managed.guests);
    let mut samples = Samples::default();
    loop {
        let over = work.step()?;
        if let Some(sample) = samples.take(managed.guests, |guest| work.doing(guest)) {
            screen.show(sample);
            manager.tick(managed)?;
        }
        if over {
            break;
        }
        thread::sleep(LOOK_EVERY);
    }
    let measured = manager.stop(managed)?;
    Ok((work.done(), samples, measured))
}

fn count(host: &SmallHost, guests: &[Guest], done: Done, samples: &Samples) -> Result<DemoResult, LabError> {
    let running: Vec<&Guest> = guests.iter().filter(|guest| guest.alive()).collect();
    // A guest without memory for its own kernel runs, and answers nobody.
    let answers: Vec<u64> =
        running.iter().filter_map(|guest| Some(guest.meminfo().ok()?.oom_kills())).collect();
    let (running, answering) = (running.len() as u64, answers.len() as u64);
    Ok(DemoResult {
        guests: guests.len() as u64,
        guests_alive: answering,
        guests_hung: running - answering,
        guests_killed: guests.len() as u64 - running,
        work_planned_bytes: done.planned,
        work_done_bytes: done.verified,
        work_done_fraction: done.fraction(),
        mismatched_words: done.mismatches,
        oom_kills: host.oom_kills()?,
        guest_oom_kills: answers.into_iter().sum(),
        job_failures: done.failures,
        host_swap_in_bytes: None,
        memory_moved_bytes: samples.moved(),
        peak_usage_bytes: host.peak().ok(),
        seconds_to_grant: None,
        seconds: 0.0,
    })
}
