//! The recorded runs, and the same work as a setup of the simulator.
//!
//! **Rule.** What the lab's own sequencing decides is taken from what the guests' kernels told: when a guest came and its driver
//! was up, when its turns began to read and to fill memory, and when they freed it. How much a turn reads and fills, and how fast
//! it may, is that of the experiment. What a guest costs the host, and what memtide makes of it, is for the model to say.

use std::sync::Arc;

use memtide_guest::{File, Program, Spec};
use memtide_model::{Bytes, MIB, Span};
use memtide_sim::setup::WhenFull;
use memtide_sim::{Setup, from_journal};

use super::course::since;
use super::recording::{Recording, Told};
use crate::error::LabError;
use crate::places;

/// A recorded run, and what its guests did.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name: that of its journal below traces/.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What its guests did.
    work: Work,
    /// What QEMU cost beside the memory of a guest, in MiB.
    overhead_mib: u64,
    /// How fast a balloon inflated, in MiB/s.
    inflates_mib: u64,
    /// Guests that are worth a look of their own.
    pub shown: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// Turns, each of which may read a part of a disk, fills memory, and frees it later; sizes in MiB, the rate in MiB/s.
    Turns { cache: u64, anon: u64, rate: u64 },
    /// Guests that hold so much, beside the first, which has freed what it held; in MiB.
    Held { held: u64, freed: u64 },
}

/// All of them.
pub const CASES: [Case; 5] = [
    Case {
        name: "demo-elastic",
        about: "demo: four guests of 1 GiB read 250 MiB and fill 600 MiB in turn, in a host of 2 GiB; elastic",
        work: Work::Turns { cache: 250, anon: 600, rate: 120 },
        overhead_mib: 71,
        inflates_mib: 150,
        shown: &["demo-1", "demo-4"],
    },
    Case {
        name: "density-elastic",
        about: "density: guests of 1 GiB are launched one after another, and each fills 819 MiB; elastic",
        work: Work::Turns { cache: 0, anon: 819, rate: 225 },
        overhead_mib: 66,
        inflates_mib: 150,
        shown: &["density-1", "density-10"],
    },
    Case {
        name: "density-strict",
        about: "density: the same, strict",
        work: Work::Turns { cache: 0, anon: 819, rate: 225 },
        overhead_mib: 66,
        inflates_mib: 150,
        shown: &["density-1", "density-10"],
    },
    Case {
        name: "react-donor",
        about: "react: a small guest fills 353 MiB, and another one of the same size has them to give; strict",
        work: Work::Turns { cache: 0, anon: 353, rate: 225 },
        overhead_mib: 63,
        inflates_mib: 105,
        shown: &["react-1", "react-2"],
    },
    Case {
        name: "react-halve",
        about: "react: an idle guest gives half of its memory while four others use what they have; strict",
        work: Work::Held { held: 680, freed: 850 },
        overhead_mib: 69,
        inflates_mib: 100,
        shown: &["react-1", "react-2"],
    },
];

/// What the agent, the rest of a small system and its kernel used in a guest of 1 GiB: 1,024 MiB less the 936 that were free.
const KERNEL: Bytes = Bytes::from_mib(80);
/// The page cache that booting left behind.
const BOOT_CACHE: Bytes = Bytes::from_mib(3);
/// Under software emulation: how fast a balloon deflates, and how fast the kernel frees page cache, in bytes a second.
const DEFLATES: u64 = 400 * MIB;
const RECLAIMS: u64 = 150 * MIB;
/// A file that is read from its beginning to its end is one that is read so fast that only the disk limits it.
const SEQUENTIAL: u64 = 8_000 * MIB;

impl Case {
    /// Reads its recording.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn recording(&self) -> Result<Recording, LabError> {
        Recording::read(&self.journal())
    }

    fn journal(&self) -> std::path::PathBuf {
        places::workspace().join("traces").join(self.name).with_extension("mtj")
    }

    /// The same work as a setup.
    ///
    /// # Errors
    /// If the recording cannot be read.
    pub fn setup(&self, recording: &Recording) -> Result<Setup, LabError> {
        let failed = |error: memtide_sim::FromJournalError| LabError::Results(error.to_string());
        let mut setup = from_journal(&self.journal(), 1).map_err(failed)?;
        setup.host.when_full = WhenFull::Count;
        for guest in &mut setup.guests {
            let Some(number) = recording.names.iter().position(|name| *name == guest.name) else { continue };
            let spec = self.spec(&guest.spec, number, recording);
            guest.spec = Arc::new(spec);
        }
        Ok(setup)
    }

    /// The guest with this number; `seen` is what was recorded of its balloon and its size.
    fn spec(&self, seen: &Spec, number: usize, recording: &Recording) -> Spec {
        let (came, up) = recording.came[number];
        let mut spec = Spec {
            memory: seen.memory,
            kernel: seen.kernel,
            kernel_size: KERNEL.saturating_sub(BOOT_CACHE),
            boots_for: up.map_or(Span::ZERO, |up| since(up, came)),
            balloon: seen.balloon,
            deflate_on_oom: seen.deflate_on_oom,
            free_page_reporting: seen.free_page_reporting,
            inflates: self.inflates_mib * MIB,
            deflates: DEFLATES,
            reclaims: RECLAIMS,
            overhead: Bytes::from_mib(self.overhead_mib),
            overhead_bound: seen.overhead_bound,
            cold: BOOT_CACHE,
            ..Spec::default()
        };
        match self.work {
            Work::Turns { cache, anon, rate } => {
                let turns = turns(&recording.told[number], anon, rate, came);
                spec.programs = turns.iter().map(|turn| turn.program(anon, rate)).collect();
                if cache > 0 {
                    read_the_disk(&mut spec, &turns, cache);
                }
            }
            Work::Held { held, freed } => {
                let size = if number == 0 { freed } else { held };
                let ends = (number == 0).then_some(Span::from_millis(1));
                spec.programs = vec![Program { ends, ..Program::constant(Bytes::from_mib(size)) }];
            }
        }
        spec
    }
}

/// A turn of a guest; times from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    /// When it began to read its disk.
    reads: Span,
    /// When it began to fill memory.
    fills: Span,
    /// When it freed the memory; `None`: it never did.
    frees: Option<Span>,
}

impl Turn {
    fn program(&self, anon: u64, rate: u64) -> Program {
        let program = Program::constant(Bytes::from_mib(anon));
        // A turn that begins at the very start of the recording was not there before it.
        let starts = self.fills.max(Span::from_millis(1));
        Program { rate: rate * MIB, starts, ends: self.frees, ..program }
    }
}

/// One part in so many of what a turn fills: what it uses beyond this much is a turn, and less is the kernel's own, of which
/// the per-CPU lists come and go.
const TURN_PART: u64 = 6;

/// The turns of a guest, each of which fills `anon` MiB at `rate` MiB/s, from what its kernel told. The guest came at `came`.
fn turns(told: &[Told], anon: u64, rate: u64, came: Span) -> Vec<Turn> {
    let rest = told.iter().map(|told| told.used.get()).min().unwrap_or_default();
    let (mut turns, mut open): (Vec<Turn>, Option<Turn>) = (Vec::new(), None);
    let mut reads = None;
    for pair in told.windows(2) {
        let (before, now) = (pair[0], pair[1]);
        let gained = now.cache.saturating_sub(before.cache).get();
        if open.is_none() && reads.is_none() && gained > 8 * MIB {
            reads = Some(earlier(now.at, gained, rate).max(before.at));
        }
        let is_busy = now.used.get() > rest + anon * MIB / TURN_PART;
        match (&mut open, is_busy) {
            (None, true) => {
                let fills = earlier(now.at, now.used.saturating_sub(before.used).get(), rate).max(before.at);
                let reads = reads.take().unwrap_or(fills).min(fills);
                open = Some(Turn { reads: since(reads, came), fills: since(fills, came), frees: None });
            }
            (Some(turn), _) if before.used.get() > now.used.get() + anon * MIB / 2 => {
                let middle = u64::midpoint(before.at.as_millis(), now.at.as_millis());
                turn.frees = Some(since(Span::from_millis(middle), came));
                turns.extend(open.take());
            }
            _ => {}
        }
    }
    turns.extend(open);
    turns
}

/// The moment at which something that was at `bytes` at `at` began to grow at `rate` MiB/s.
fn earlier(at: Span, bytes: u64, rate: u64) -> Span {
    Span::from_millis(at.as_millis().saturating_sub(bytes * 1_000 / (rate * MIB)))
}

/// Lets the guest read the same `cache` MiB of its disk in each of its turns (one or two), as fast as it did.
fn read_the_disk(spec: &mut Spec, turns: &[Turn], cache: u64) {
    let (Some(first), Some(last)) = (turns.first(), turns.last()) else { return };
    let long = |turn: &Turn| since(turn.fills, turn.reads).as_millis();
    let longest = turns.iter().map(long).max().unwrap_or_default().max(1_000 * cache / 120);
    let longest = Span::from_millis(longest);
    let apart = since(last.reads, first.reads);
    spec.disk = cache * MIB * 1_000 / longest.as_millis();
    spec.files = vec![File {
        cached: false,
        starts: first.reads,
        ends: Some(Span::from_millis(last.reads.as_millis() + longest.as_millis())),
        periods: (apart > Span::ZERO).then_some((longest, apart)),
        ..File::hot(Bytes::from_mib(cache), SEQUENTIAL)
    }];
}
