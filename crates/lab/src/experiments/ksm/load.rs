//! What holds equal memory, and how it changes while an arm is watched.

use std::path::Path;
use std::time::Duration;

use memtide_load::exerciser::report::Summary;
use memtide_model::Bytes;

use crate::error::LabError;
use crate::guest::disk::Disk;
use crate::guest::{Guest, start_all};
use crate::machine::ksm::Alike;
use crate::machine::lab::Run;
use crate::machine::process::{self, Held};
use crate::managers::daemon::Daemon;
use crate::wait::until;
use crate::work::exercise::{load, read_disk};

/// The processes, and what each holds.
pub(super) const PROCESSES: u64 = 8;
pub(super) const SIZE_MIB: u64 = 256;
const SIZE: Bytes = Bytes::from_mib(SIZE_MIB);
/// The part of it that all of them hold, in percent.
pub(super) const IDENTICAL: u64 = 80;
/// What a process that changes its memory writes each second, in MiB.
const WRITES_MIB: u64 = 64;
/// The part of all that can be saved at which an arm has converged.
const CONVERGED: (u64, u64) = (9, 10);
/// The longest time for processes to fill their memory, and for a job in a guest.
pub(super) const FILLS: Duration = Duration::from_secs(120);

/// The guests, what each has of one disk in its page cache, and what its programs hold.
pub(super) const NAMES: &str = "ksm-";
const GUESTS: u64 = 4;
const GUEST_MEMORY: Bytes = Bytes::from_mib(768);
const CACHE_MIB: u64 = 150;
const DISK_SEED: u64 = 23;

/// What holds equal memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Processes whose memory does not change.
    Still,
    /// The same; the last one starts after a third of the time.
    Late,
    /// The same; half of them end after half of the time.
    Leaving,
    /// Processes that write to all of their memory, again and again. Nothing in it is equal: there is nothing to gain.
    Changing,
    /// Guests with the same kernel, the same disk in their page caches, and programs with equal memory.
    Guests,
}

impl Load {
    pub(super) const ALL: [Self; 5] = [Self::Still, Self::Late, Self::Leaving, Self::Changing, Self::Guests];

    /// The text after the pace's key: empty for the main load.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::Still => "",
            Self::Late => "-late",
            Self::Leaving => "-leaving",
            Self::Changing => "-changing",
            Self::Guests => "-guests",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Still => "memory that does not change",
            Self::Late => "a process that starts late",
            Self::Leaving => "half of the processes end",
            Self::Changing => "memory that changes all the time",
            Self::Guests => "real guests",
        }
    }
}

/// The holders of equal memory. They end when this is dropped.
pub(super) struct Holders {
    load: Load,
    alike: Alike,
    processes: Vec<Held>,
    /// They are only kept running.
    _guests: Vec<Guest>,
    /// What can be saved at the end.
    pub(super) possible: Bytes,
    /// Memory saved at which an arm has converged.
    pub(super) enough: Bytes,
    /// The time at which the last of them had its memory, in seconds.
    pub(super) since: f64,
}

impl Holders {
    /// Starts the holders of `load`, and waits until they have their memory.
    pub(super) fn start(load: Load, seed: u64, program: &Path, run: &Run) -> Result<Self, LabError> {
        let (identical, writes_mib) = if load == Load::Changing { (0, WRITES_MIB) } else { (IDENTICAL, 0) };
        let alike = Alike { size_mib: SIZE_MIB, identical, writes_mib, seed };
        let guests = if load == Load::Guests { boot(seed, run)? } else { Vec::new() };
        let possible = match load {
            Load::Guests => audit(&guests)?,
            _ => SIZE.mul_div(identical * (PROCESSES - 1), 100),
        };
        let enough = enough(load, possible);
        let mut holders =
            Self { load, alike, processes: Vec::new(), _guests: guests, possible, enough, since: 0.0 };
        match load {
            Load::Guests => {}
            Load::Late => holders.add(PROCESSES - 1, program)?,
            _ => holders.add(PROCESSES, program)?,
        }
        Ok(holders)
    }

    /// Starts `more` processes, and waits until they have filled their memory.
    fn add(&mut self, more: u64, program: &Path) -> Result<(), LabError> {
        let memtide = Daemon::program()?;
        let first = self.processes.len();
        for _ in 0..more {
            let instance = self.processes.len() as u64;
            self.processes.push(self.alike.hold(&memtide, program, instance)?);
        }
        for held in &self.processes[first..] {
            until("filled memory", FILLS, || {
                Ok((process::statm(held.0.id()).resident >= SIZE).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Changes what is due once `part` of the time has passed; `now` tells the time in seconds.
    pub(super) fn step(&mut self, part: f64, program: &Path, now: impl Fn() -> f64) -> Result<(), LabError> {
        let whole = self.processes.len() as u64;
        if self.load == Load::Late && part >= 1.0 / 3.0 && whole < PROCESSES {
            self.add(1, program)?;
            self.since = now();
        } else if self.load == Load::Leaving && part >= 0.5 && whole == PROCESSES {
            self.processes.truncate(self.processes.len() / 2);
            self.possible = SIZE.mul_div(IDENTICAL * (PROCESSES / 2 - 1), 100);
        }
        Ok(())
    }
}

/// Memory saved at which an arm has converged. What a late process shares is all that counts of its load.
fn enough(load: Load, possible: Bytes) -> Bytes {
    let (part, whole) = CONVERGED;
    let counts = if load == Load::Late { SIZE.mul_div(IDENTICAL, 100) } else { possible };
    possible.saturating_sub(counts.mul_div(whole - part, whole))
}

/// Boots the guests, and lets them fill their page caches and their memory.
fn boot(seed: u64, run: &Run) -> Result<Vec<Guest>, LabError> {
    let disk = Disk::ensure(run.lab().cache(), DISK_SEED, CACHE_MIB)?;
    let builders = (1..=GUESTS).map(|nth| {
        let builder = Guest::builder(&format!("{NAMES}{nth}")).memory(GUEST_MEMORY);
        builder.deflate_on_oom(true).free_page_reporting(true).disk(&disk)
    });
    let guests = start_all(builders, run, None)?;
    for (guest, instance) in guests.iter().zip(0_u64..) {
        let read = guest.begin(read_disk(&disk, CACHE_MIB, None))?;
        guest.finish::<Summary>(read, "reading its disk", FILLS)?;
        let options = format!(
            "--size {SIZE_MIB}M --identical {IDENTICAL}% --seed {seed} --instance {instance} --passes 0 --hold"
        );
        let held = guest.begin(load(&options))?;
        guest.finish::<Summary>(held, "filling memory", FILLS)?;
    }
    Ok(guests)
}

/// What an audit says that merging would save.
fn audit(guests: &[Guest]) -> Result<Bytes, LabError> {
    let memtide = Daemon::program()?;
    let mut command = process::mortal(&memtide.to_string_lossy());
    command.args(["audit", "--json", "--wait", "1s", "--cpu", "100"]);
    for guest in guests {
        command.args(["--pid", &guest.pid().to_string()]);
    }
    let told: serde_json::Value = serde_json::from_str(&process::run(&mut command)?)
        .map_err(|error| LabError::file(&memtide)(error.into()))?;
    let saving = told.pointer("/ksm/saving_bytes").and_then(serde_json::Value::as_u64);
    saving.map(Bytes::new).ok_or_else(|| LabError::Missing("the audit names no saving".to_owned()))
}
