//! The recorded runs, and the same work as setups of the simulator.
//!
//! **Rule.** The lab's own sequencing and the CPUs decide some times and rates. These come from the counters of the guests'
//! kernels: when a guest came and its driver was up, when its turns began to read and to fill memory, how fast they
//! progressed, and when they freed it. The experiment gives the amounts that a turn reads and fills. The model must predict a
//! guest's cost to the host, and memtide's reaction.

use std::sync::Arc;

use memtide_guest::{File, Program, Spec};
use memtide_model::{Bytes, MIB, Span};
use memtide_sim::setup::WhenFull;
use memtide_sim::{Setup, from_journal};

use super::course::since;
use super::recording::{Recording, Told};
use crate::error::LabError;
use crate::machine::places;

/// A recorded run, and the work of its guests.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name: the name of its journal below traces/.
    pub name: &'static str,
    /// A description in one line.
    pub title: &'static str,
    /// The work of its guests, in one sentence.
    pub about: &'static str,
    /// The work of its guests.
    work: Work,
    /// QEMU's cost beyond guest memory, in MiB.
    overhead_mib: u64,
    /// The speed at which a balloon inflated, in MiB/s.
    inflates_mib: u64,
    /// The guest with a separate plot.
    pub shown: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// Turns: each may read a part of a disk, fills memory, and frees it later; in MiB.
    Turns { cache: u64, anon: u64 },
    /// Guests that hold this much, beside the first, which has freed its memory; in MiB.
    Kept { kept: u64, freed: u64 },
}

/// All cases.
pub const CASES: [Case; 5] = [
    Case {
        name: "demo-elastic",
        title: "demo, elastic: four guests of 1 GiB in a host of 2 GiB",
        about: "Guest after guest reads 250 MiB of its disk, fills 600 MiB of memory, and frees it once the next guest has read its disk.",
        work: Work::Turns { cache: 250, anon: 600 },
        overhead_mib: 71,
        inflates_mib: 150,
        shown: "demo-1",
    },
    Case {
        name: "density-elastic",
        title: "density, elastic: up to twelve guests of 1 GiB in a host of 3.4 GiB",
        about: "Guests are launched one after another; each fills 819 MiB of memory, frees it, and later does so again.",
        work: Work::Turns { cache: 0, anon: 819 },
        overhead_mib: 66,
        inflates_mib: 150,
        shown: "density-1",
    },
    Case {
        name: "density-strict",
        title: "density, strict: up to seven guests of 1 GiB in a host of 3.4 GiB",
        about: "Guests are launched one after another; each fills 819 MiB of memory, frees it, and later does so again.",
        work: Work::Turns { cache: 0, anon: 819 },
        overhead_mib: 66,
        inflates_mib: 150,
        shown: "density-1",
    },
    Case {
        name: "react-donor",
        title: "react, strict: one guest grows, the other gives",
        about: "Both guests are idle and have given memory; after 12 s react-1 fills 353 MiB, and gets memory that react-2 gives.",
        work: Work::Turns { cache: 0, anon: 353 },
        overhead_mib: 63,
        inflates_mib: 105,
        shown: "react-1",
    },
    Case {
        name: "react-halve",
        title: "react, strict: an idle guest gives half of its memory",
        about: "Five guests of 1 GiB: react-1 has just freed 850 MiB, and the other four go on using 680 MiB each.",
        work: Work::Kept { kept: 680, freed: 850 },
        overhead_mib: 69,
        inflates_mib: 100,
        shown: "react-1",
    },
];

/// Memory used by the helper, the rest of a small system and its kernel in a guest of 1 GiB: 1,024 MiB minus the 936 that were
/// free.
const KERNEL: Bytes = Bytes::from_mib(80);
/// The page cache left behind by booting.
const BOOT_CACHE: Bytes = Bytes::from_mib(3);
/// The speeds under software emulation, in bytes a second: a balloon deflates, and the kernel frees page cache.
const DEFLATES: u64 = 400 * MIB;
const RECLAIMS: u64 = 150 * MIB;
/// The most that the page cache gains if no file is read.
const NO_FILE: Bytes = Bytes::from_mib(16);
/// A rate so high that only the disk limits it: the file is read from its beginning to its end.
const SEQUENTIAL: u64 = 8_000 * MIB;

impl Case {
    /// Reads the recording.
    ///
    /// # Errors
    /// If the recording cannot be read.
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

    /// The guest with this number; `seen` describes its balloon and its size as recorded.
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
            Work::Turns { cache, anon } => {
                let turns = turns(&recording.told[number], came, Bytes::from_mib(anon));
                spec.programs = turns.iter().map(|turn| turn.program(Bytes::from_mib(anon))).collect();
                read_the_disk(&mut spec, &turns, Bytes::from_mib(cache));
            }
            Work::Kept { kept, freed } => {
                let size = if number == 0 { freed } else { kept };
                let ends = (number == 0).then_some(Span::from_millis(1));
                spec.programs = vec![Program { ends, ..Program::constant(Bytes::from_mib(size)) }];
            }
        }
        spec
    }
}

/// A turn of a guest. Times count from the guest's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    /// When it began to read its disk, and the amount that the page cache lacked.
    reads: Option<(Span, Bytes)>,
    /// When it began to fill memory, and its speed in bytes a second.
    fills: Span,
    rate: u64,
    /// When it freed the memory; `None`: it never did.
    frees: Option<Span>,
}

impl Turn {
    fn program(&self, anon: Bytes) -> Program {
        // A turn that begins at the very start of the recording was not there before it.
        let starts = self.fills.max(Span::from_millis(1));
        Program { rate: self.rate, starts, ends: self.frees, restarts: None, ..Program::constant(anon) }
    }
}

/// A turn begins with the first of this many parts of its memory, and has filled it when one part is left: starting a program
/// touches memory, too.
const PART: u64 = 20;

/// The turns of a guest that came at `came`, according to its kernel. Each touches `anon`.
fn turns(told: &[Told], came: Span, anon: Bytes) -> Vec<Turn> {
    let (mut turns, mut from, mut before) = (Vec::new(), 0, (Bytes::ZERO, Bytes::ZERO));
    let (first, most) = (anon.get() / PART, anon.get() - anon.get() / PART);
    while let Some(begun) = reached(told, from, before.0.get() + first) {
        let filled = reached(told, begun.index, before.0.get() + most);
        let rate = begun.rate_to(&filled.unwrap_or_else(|| Reached::of(told, told.len() - 1)));
        let fills = earlier(begun.at, begun.touched - before.0.get(), rate);
        let reads = read(&told[from..=begun.index], before.1, fills);
        let freed = filled.and_then(|filled| freed(told, filled.index, anon));
        turns.push(Turn {
            reads: reads.map(|(at, lacked)| (since(at, came), lacked)),
            fills: since(fills, came),
            rate,
            frees: freed.map(|(_, at)| since(at, came)),
        });
        let Some((index, _)) = freed else { break };
        (from, before) = (index, (told[index].touched, told[index].read));
    }
    turns
}

/// A moment, and the bytes touched until then.
#[derive(Clone, Copy, Debug)]
struct Reached {
    /// The first answer that shows it.
    index: usize,
    at: Span,
    touched: u64,
}

impl Reached {
    fn of(told: &[Told], index: usize) -> Self {
        Self { index, at: told[index].at, touched: told[index].touched.get() }
    }

    /// The rate on the way to `later`, in bytes a second.
    fn rate_to(&self, later: &Self) -> u64 {
        (later.touched - self.touched) * 1_000 / since(later.at, self.at).as_millis().max(1)
    }
}

/// The moment when this many bytes were touched, interpolated linearly between the answers before and after.
fn reached(told: &[Told], from: usize, touched: u64) -> Option<Reached> {
    let more = told.get(from..)?.iter().position(|told| told.touched.get() >= touched)?;
    let after = Reached::of(told, from + more);
    let Some(before) = after.index.checked_sub(1).map(|index| Reached::of(told, index)) else {
        return Some(after);
    };
    let later = (touched - before.touched) * 1_000 / before.rate_to(&after).max(1);
    Some(Reached { at: Span::from_millis(before.at.as_millis() + later), touched, ..after })
}

/// When a guest began to read its disk, before it began to fill memory, and how much it read. `had` was read before.
fn read(told: &[Told], had: Bytes, fills: Span) -> Option<(Span, Bytes)> {
    let lacked = told.last()?.read.saturating_sub(had);
    let least = lacked.mul_div(1, PART);
    let begun = told.iter().find(|told| told.read.saturating_sub(had) > least)?;
    let had = begun.read.saturating_sub(had);
    // Assume the same speed before this answer as after it.
    let rest = lacked.saturating_sub(had).get().max(1);
    let begins = since(fills, begun.at).as_millis() * had.get() / rest;
    (lacked > NO_FILE).then(|| (since(begun.at, Span::from_millis(begins)), lacked))
}

/// When a turn freed its memory, and the first answer that shows it. Answer `filled` showed the memory full.
fn freed(told: &[Told], filled: usize, anon: Bytes) -> Option<(usize, Span)> {
    let mut most = Bytes::ZERO;
    for (index, now) in told.iter().enumerate().skip(filled) {
        most = most.max(now.used);
        if most.saturating_sub(now.used) > anon.mul_div(1, 2) {
            let middle = u64::midpoint(told[index - 1].at.as_millis(), now.at.as_millis());
            return Some((index, Span::from_millis(middle)));
        }
    }
    None
}

/// The moment when something that has grown by `bytes` until `at` began to grow, at `rate` bytes a second.
fn earlier(at: Span, bytes: u64, rate: u64) -> Span {
    Span::from_millis(at.as_millis().saturating_sub(bytes * 1_000 / rate.max(1)))
}

/// Lets the guest read the same `cache` of its disk in each of its turns (one or two), at the recorded speed.
fn read_the_disk(spec: &mut Spec, turns: &[Turn], cache: Bytes) {
    let read: Vec<(Span, Span, Bytes)> = turns
        .iter()
        .filter_map(|turn| turn.reads.map(|(at, lacked)| (at, since(turn.fills, at), lacked)))
        .collect();
    let (Some((first, ..)), Some((last, ..))) = (read.first(), read.last()) else { return };
    let took = read.iter().map(|(_, took, _)| took.as_millis()).sum::<u64>().max(1);
    spec.disk = Bytes::sum(read.iter().map(|(.., lacked)| *lacked)).mul_div(1_000, took).get();
    let longest = Span::from_millis(cache.mul_div(1_100, spec.disk.max(1)).get());
    let apart = since(*last, *first);
    spec.files = vec![File {
        cached: false,
        starts: *first,
        ends: Some(Span::from_millis(last.as_millis() + longest.as_millis())),
        periods: (apart > Span::ZERO).then_some((longest, apart)),
        ..File::hot(cache, SEQUENTIAL)
    }];
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn told(at: u64, used: u64, touched: u64, read: u64) -> Told {
        Told {
            at: Span::from_millis(at),
            used: Bytes::from_mib(used),
            touched: Bytes::from_mib(touched),
            read: Bytes::from_mib(read),
        }
    }

    /// A guest comes at 1 s, reads 100 MiB/s from 2.0 to 4.0 s, fills 200 MiB/s from 4.0 to 7.0 s, and frees memory between 9
    /// and 10 s. Then its balloon hides 300 MiB of its used memory, and the same turn begins again at 12 s, without the disk.
    #[test]
    fn turns_are_what_the_counters_say() {
        let answers = [
            told(2_000, 30, 2, 3),
            told(3_000, 30, 5, 103),
            told(4_000, 30, 8, 203),
            told(5_000, 230, 208, 203),
            told(6_000, 430, 408, 203),
            told(7_000, 630, 608, 203),
            told(9_000, 630, 608, 203),
            told(10_000, 80, 608, 203),
            told(11_000, 0, 608, 203),
            told(12_000, 300, 610, 203),
            told(14_000, 700, 1_010, 203),
        ];
        let turns = turns(&answers, Span::from_secs(1), Bytes::from_mib(600));
        let [first, second] = turns[..] else { panic!("{turns:?}") };
        let (reads, lacked) = first.reads.unwrap();
        let near = |span: Span, millis: u64| span.as_millis().abs_diff(millis) < 60;
        assert!(near(reads, 1_000) && lacked == Bytes::from_mib(203), "{first:?}");
        assert!(near(first.fills, 3_000) && (first.rate / MIB).abs_diff(200) < 3, "{first:?}");
        assert_eq!(first.frees, Some(Span::from_millis(8_500)));
        assert!(near(second.fills, 11_000) && (second.rate / MIB).abs_diff(200) < 3, "{second:?}");
        assert_eq!((second.reads, second.frees), (None, None));
    }

    #[test]
    fn a_guest_that_does_nothing_has_no_turns() {
        let answers = [told(1_000, 30, 2, 3), told(2_000, 90, 12, 3)];
        assert_eq!(turns(&answers, Span::ZERO, Bytes::from_mib(600)), []);
        assert_eq!(turns(&[], Span::ZERO, Bytes::from_mib(600)), []);
    }
}
