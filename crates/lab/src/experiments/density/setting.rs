//! The setting that all arms share: the guests, and the host, whose size follows from the cost of one guest.

use std::time::Duration;

use memtide_model::{Budget, Bytes, Config};

use super::alone::Alone;
use super::case::Case;
use super::job::Job;
use super::scale::Scale;
use crate::error::LabError;
use crate::guest::disk::Disk;
use crate::machine::lab::Run;
use crate::work::turn::{self, Load};

/// The capacity in tenths of the peak of one guest.
const CAPACITY_TENTHS: u64 = 35;
/// An ample host for one guest, as a multiple of its memory.
const AMPLE: u64 = 4;
/// Work that takes this many times the time of a guest alone counts as not done.
const FAR_TOO_SLOW: f64 = 10.0;
/// The part of its disk that each guest reads at each turn, in MiB, and the seed of the disk's content.
const CACHE_MIB: u64 = 150;
const DISK_SEED: u64 = 12;
/// The most guests tried with swap: the host slows down instead of killing guests, and time is short.
const MOST_WITH_SWAP: usize = 8;

/// The setting that all arms share.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) scale: Scale,
    pub(super) capacity: Bytes,
    pub(super) alone: Alone,
    pub(super) load: Load,
    /// The cold heap of each guest, in MiB; zero if it has none.
    pub(super) cold_mib: u64,
}

impl Setting {
    /// Measures one guest, and sizes the host to match.
    pub(super) fn measure(scale: Scale, job: Job, run: &Run) -> Result<Self, LabError> {
        let cache = match job {
            Job::Memory | Job::ColdHeap => None,
            Job::PageCache => Some((Disk::ensure(run.lab().cache(), DISK_SEED, CACHE_MIB)?, CACHE_MIB)),
        };
        let anon_mib = scale.anon_mib(job);
        let mut load = Load { cache, anon_mib, mib_per_s: None, longest: turn::LONGEST_ALONE };
        let cold_mib = scale.cold_mib(job);
        let alone = Alone::measure(scale, &load, cold_mib, scale.guest_memory.mul_div(AMPLE, 1), run)?;
        load.longest = Duration::from_secs_f64(alone.turn_seconds * FAR_TOO_SLOW);
        Ok(Self { scale, capacity: alone.peak.mul_div(CAPACITY_TENTHS, 10), alone, load, cold_mib })
    }

    /// The reserve that memtide keeps by default.
    pub(super) fn reserve(&self) -> Bytes {
        Config { budget: Budget::Size(self.capacity), ..Config::default() }.reserve_of(self.capacity)
    }

    /// Swap of half the memory.
    pub(super) const fn swap(&self) -> Bytes {
        Bytes::from_mib(self.capacity.whole_mib() / 2)
    }

    pub(super) const fn most_guests(&self, case: Case) -> usize {
        if case.swap { MOST_WITH_SWAP } else { self.scale.most_guests }
    }

    /// 1 + (C − reserve − peak) / idle: one guest at its peak, all others idle.
    pub(super) fn bound(&self) -> u64 {
        let rest = self.capacity.saturating_sub(self.reserve()).saturating_sub(self.alone.peak);
        1 + rest.get() / self.alone.idle.get().max(1)
    }
}
