//! The memory cgroup of a process: its limit, its usage, and the part of its usage that the kernel could drop.
//!
//! **Problem.** Guests often live in a cgroup that is smaller than the host: a systemd slice, a pod, a container. That cgroup then plays
//! the host: memtide must keep it from running out of memory, because the OOM killer enforces its limit.
//!
//! **Terms.** The memory controller has two versions, and a machine uses one of them. The older *v1* is a mount of type `cgroup` with the
//! option `memory`. *v2* is the single mount of type `cgroup2`. A *hybrid* machine mounts both, with the memory controller in v1. A process
//! is in one cgroup of each hierarchy (`/proc/PID/cgroup`). *Reclaimable* is page cache that the kernel can drop at once: pages on the file
//! LRU lists, except dirty pages and pages under writeback, which must first go to a disk.
//!
//! **Rule.** v1 counts if `/proc/PID/cgroup` has a `memory` line. Otherwise v2 counts, in the closest cgroup with the controller enabled,
//! because that cgroup is charged. A limit also binds all descendants, so the effective limit is the lowest one on the way to the root.

mod held;
mod kills;
mod limits;
mod locate;
pub(crate) mod reclaim;
mod torn;
mod v1;
mod v2;

use std::path::{Path, PathBuf};

use memtide_model::{Absence, Bytes, Limit, Pressure, Reading, SwapCounters};

pub use self::kills::{Kill, KilledBy, Kills};
pub use self::limits::Limited;
use crate::{HostError, Root, Scratch};

/// The most levels of cgroups that are read for one process. Anyone who may make cgroups can nest them as deep as a path is long.
const MOST_LEVELS: usize = 64;

/// A version of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// The older version, with a hierarchy of its own.
    V1,
    /// The unified hierarchy.
    V2,
}

/// A memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    version: CgroupVersion,
    /// Its directory in the tree of the [`Root`].
    dir: PathBuf,
    /// The mount point of its hierarchy.
    top: PathBuf,
}

/// The contents of a memory cgroup, including its descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSeen {
    /// The lowest limit among the cgroup and its ancestors.
    pub limit: Limit,
    /// All memory charged to it.
    pub usage: Bytes,
    /// Page cache that can be dropped at once.
    pub reclaimable: Bytes,
    /// Anonymous memory.
    pub anon: Bytes,
    /// tmpfs and shared memory.
    pub shmem: Bytes,
    /// The rest of torn huge pages; part of the usage, and of no process's resident memory.
    pub torn: Reading<Bytes>,
    /// Events caused by its limit.
    pub events: CgroupEvents,
    /// Its pressure; v1 has none.
    pub pressure: Reading<Pressure>,
    /// Whether its memory may go to swap, if the host has swap.
    pub may_swap: bool,
    /// Its own swap traffic, which only v2 since Linux 6.13 counts.
    pub swap: Reading<SwapCounters>,
}

/// How often a cgroup hit its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupEvents {
    /// Processes killed for lack of memory. v1 counts only those of the cgroup itself.
    pub oom_kills: Option<u64>,
    /// Charges that hit the limit: `max` in v2's `memory.events`, `memory.failcnt` in v1.
    pub limit_hits: Option<u64>,
    /// Charges that were about to fail: `oom` in v2's `memory.events`.
    pub ooms: Option<u64>,
}

impl Cgroup {
    /// The memory cgroup of a process. `None` if no memory controller is in use, or if the cgroup lies outside the mounts that are visible
    /// here.
    ///
    /// # Errors
    /// [`HostError::Gone`] if there is no such process; another error if its cgroups cannot be read.
    pub fn of(root: &Root, pid: u32) -> Result<Option<Self>, HostError> {
        locate::locate(root, pid)
    }

    /// The cgroup that plays the host for these guests. The candidates are all cgroups that hold every memory cgroup of these guests. The
    /// one with the lowest limit below `memory` (`MemTotal`) wins; of equal limits, the closest. `None` if the guests share no such cgroup.
    /// Skips a process that has ended in the meantime.
    ///
    /// # Errors
    /// If a cgroup or a limit cannot be read.
    pub fn small_host(root: &Root, pids: &[u32], memory: Bytes) -> Result<Option<Self>, HostError> {
        let mut common: Option<Vec<Self>> = None;
        for &pid in pids {
            let cgroup = match Self::of(root, pid) {
                Err(HostError::Gone { .. }) => continue,
                Ok(Some(cgroup)) => cgroup,
                Ok(None) => return Ok(None),
                Err(error) => return Err(error),
            };
            let chain = common.get_or_insert_with(|| cgroup.lineage());
            chain.retain(|ancestor| ancestor.holds(&cgroup));
        }
        let mut lowest: Option<(Bytes, Self)> = None;
        for cgroup in common.unwrap_or_default() {
            if let Limit::At(limit) = cgroup.own_limit()?
                && limit < lowest.as_ref().map_or(memory, |(lowest, _)| *lowest)
            {
                lowest = Some((limit, cgroup));
            }
        }
        Ok(lowest.map(|(_, cgroup)| cgroup))
    }

    /// The version of its memory controller.
    #[must_use]
    pub const fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether `other` is this cgroup or one of its descendants.
    #[must_use]
    pub fn holds(&self, other: &Self) -> bool {
        self.version == other.version && other.dir.starts_with(&self.dir)
    }

    /// Its own limit, regardless of its ancestors.
    ///
    /// # Errors
    /// If the limit cannot be read.
    pub fn own_limit(&self) -> Result<Limit, HostError> {
        match self.version {
            CgroupVersion::V1 => v1::own_limit(&self.dir),
            CgroupVersion::V2 => v2::own_limit(&self.dir),
        }
    }

    /// This cgroup, its parent, and so on up to the root of the hierarchy, or to the highest cgroup that is mounted here.
    #[must_use]
    pub fn lineage(&self) -> Vec<Self> {
        self.levels().collect()
    }

    fn levels(&self) -> impl Iterator<Item = Self> {
        let inside = self.dir.ancestors().take_while(|dir| dir.starts_with(&self.top));
        inside.map(|dir| Self { dir: dir.to_owned(), ..self.clone() })
    }

    /// The first [`MOST_LEVELS`] of its lineage.
    fn nearest(&self) -> impl Iterator<Item = Self> {
        self.levels().take(MOST_LEVELS)
    }
}

/// Reads one cgroup every tick, through files that stay open.
#[derive(Debug)]
pub struct CgroupReader {
    cgroup: Cgroup,
    files: Files,
}

#[derive(Debug)]
enum Files {
    V1(v1::Files),
    V2(v2::Files),
}

impl CgroupReader {
    /// Opens the files of a cgroup.
    ///
    /// # Errors
    /// If the files cannot be opened. The root of v2 has none.
    pub fn open(cgroup: Cgroup) -> Result<Self, HostError> {
        let files = match cgroup.version {
            CgroupVersion::V1 => Files::V1(v1::Files::open(&cgroup.dir)?),
            CgroupVersion::V2 => {
                let lineage = cgroup.lineage();
                Files::V2(v2::Files::open(&cgroup.dir, lineage.iter().map(Cgroup::dir))?)
            }
        };
        Ok(Self { cgroup, files })
    }

    /// The cgroup.
    #[must_use]
    pub const fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Reads the cgroup.
    ///
    /// # Errors
    /// If a file is malformed or cannot be read (the cgroup was removed).
    pub fn read(&self, scratch: &mut Scratch) -> Result<CgroupSeen, HostError> {
        match &self.files {
            Files::V1(files) => files.read(scratch),
            Files::V2(files) => files.read(scratch),
        }
    }
}

/// A counter that this version or kernel does not offer.
const fn uncounted<T>() -> Reading<T> {
    Reading::absent(Absence::Unsupported)
}

/// Clean page cache on the LRU lists.
fn clean(lists: [u64; 2], dirty: [u64; 2]) -> Bytes {
    let sum = |parts: [u64; 2]| Bytes::sum(parts.map(Bytes::new));
    sum(lists).saturating_sub(sum(dirty))
}

/// `max` or a number of bytes.
fn limit_or_max(text: &str) -> Result<Limit, crate::ParseError> {
    match text.trim() {
        "max" => Ok(Limit::Max),
        _ => crate::text::only("limit", text).map(|bytes| Limit::At(Bytes::new(bytes))),
    }
}
