//! The memory cgroup of a process: its limit, what it uses, and what of that could be dropped.
//!
//! **Problem.** Guests often live in a cgroup that is smaller than the host: a systemd slice, a pod, a container. Then that
//! cgroup is the host that memtide has to keep from running out, and its limit is enforced by the OOM killer.
//!
//! **Terms.** There are two versions of the memory controller, and a machine has it in one of them: in the older *v1* a
//! mount of type `cgroup` with the option `memory`, in *v2* the one mount of type `cgroup2`. A *hybrid* machine mounts
//! both, with the memory controller in v1. A process is in one cgroup of each hierarchy (`/proc/PID/cgroup`).
//! *Reclaimable* is page cache that the kernel can drop at once: on the file LRU lists, and neither dirty nor being
//! written back, for these have to go to a disk first.
//!
//! **Rule.** Where `/proc/PID/cgroup` has a `memory` line, v1 counts; else v2, in the closest cgroup that has the
//! controller switched on, since memory is charged there. A limit is effective in all descendants: the lowest one
//! on the way to the root is what a cgroup can use.

mod locate;
mod v1;
mod v2;

use std::path::{Path, PathBuf};

use memtide_model::{Absence, Bytes, Limit, Pressure, Reading, SwapCounters};

use crate::{HostError, Root, Scratch};

/// A version of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// The older one, a hierarchy of its own.
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
    /// The directory that its hierarchy is mounted at.
    top: PathBuf,
}

/// What a memory cgroup holds, descendants included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSeen {
    /// The lowest limit of it and its ancestors.
    pub limit: Limit,
    /// All that is charged to it.
    pub usage: Bytes,
    /// Page cache that can be dropped at once.
    pub reclaimable: Bytes,
    /// Anonymous memory.
    pub anon: Bytes,
    /// tmpfs and shared memory.
    pub shmem: Bytes,
    /// What its limit led to.
    pub events: CgroupEvents,
    /// Its pressure; v1 has none.
    pub pressure: Reading<Pressure>,
    /// Whether its memory may go to swap, where the host has any.
    pub may_swap: bool,
    /// Its own swap traffic; only v2 since Linux 6.13 counts it.
    pub swap: Reading<SwapCounters>,
}

/// How often a cgroup met its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupEvents {
    /// Processes killed for want of memory; v1 counts those of the cgroup itself only.
    pub oom_kills: Option<u64>,
    /// Charges that met the limit: `max` of v2's `memory.events`, v1's `memory.failcnt`.
    pub limit_hits: Option<u64>,
    /// Charges that were about to fail: `oom` of v2's `memory.events`.
    pub ooms: Option<u64>,
}

impl Cgroup {
    /// The memory cgroup of a process. `None` where no memory controller is in use, or where its cgroup lies outside of
    /// what is mounted here.
    ///
    /// # Errors
    /// [`HostError::Gone`] where there is no such process; else where its cgroups cannot be read.
    pub fn of(root: &Root, pid: u32) -> Result<Option<Self>, HostError> {
        locate::locate(root, pid)
    }

    /// The cgroup that plays the host for these guests: the common ancestor of all their memory cgroups, or the common
    /// cgroup itself, with the lowest limit below `memory` (`MemTotal`); of equal limits the closest. `None` where the
    /// guests have no such cgroup in common. A process that is gone meanwhile is not asked.
    ///
    /// # Errors
    /// Where a cgroup or a limit cannot be read.
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

    /// Which version of the memory controller it belongs to.
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

    /// Its own limit, whatever its ancestors have.
    ///
    /// # Errors
    /// Where the limit cannot be read.
    pub fn own_limit(&self) -> Result<Limit, HostError> {
        match self.version {
            CgroupVersion::V1 => v1::own_limit(&self.dir),
            CgroupVersion::V2 => v2::own_limit(&self.dir),
        }
    }

    /// This cgroup, its parent, and so on up to the root of the hierarchy, or the highest that is mounted here.
    #[must_use]
    pub fn lineage(&self) -> Vec<Self> {
        self.dir
            .ancestors()
            .take_while(|dir| dir.starts_with(&self.top))
            .map(|dir| Self { dir: dir.to_owned(), ..self.clone() })
            .collect()
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
    /// Where they cannot be opened; the root of v2 has none.
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

    /// Which cgroup it is.
    #[must_use]
    pub const fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// What the cgroup holds now.
    ///
    /// # Errors
    /// Where a file cannot be read (the cgroup was removed) or is malformed.
    pub fn read(&self, scratch: &mut Scratch) -> Result<CgroupSeen, HostError> {
        match &self.files {
            Files::V1(files) => files.read(scratch),
            Files::V2(files) => files.read(scratch),
        }
    }
}

/// A count that cannot be had on this version or kernel.
const fn uncounted<T>() -> Reading<T> {
    Reading::absent(Absence::Unsupported)
}

/// Page cache on the LRU lists that is clean.
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
