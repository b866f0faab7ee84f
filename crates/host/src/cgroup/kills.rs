//! Whether the kernel killed a process in a guest's cgroup for lack of memory.
//!
//! **Problem.** A guest that the OOM killer took looks like one that has ended by itself. The kernel's counters tell more, but a manager often
//! removes the guest's cgroup at once.
//!
//! **Rule.** The counters of the guest's cgroup and of those above it are compared with what they were. v2 counts a kill in all cgroups above,
//! so the nearest cgroup that still exists counts. v1 counts a kill in the cgroup of the killed process only: once that cgroup is removed,
//! nothing is known. The limit is that of the nearest cgroup that ran out of memory (v2, `oom` in `memory.events.local`) or that reached its
//! limit (v1, `memory.failcnt`). If there is none, the whole host may have been short.
//!
//! The counters do not name the process, so nothing more is claimed than that a process in the cgroup was killed.

use std::fmt;
use std::path::{Path, PathBuf};

use memtide_model::printable;

use super::{Cgroup, CgroupVersion, v2};
use crate::ParseError;
use crate::source::parse_once;
use crate::text::{only, optional};

/// The counters of a guest's cgroup and of those above it, the nearest first. Levels beyond the nearest 64 are not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kills(Vec<Level>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    cgroup: Cgroup,
    counts: Counts,
}

/// What the kernel has counted. `None` if it does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Processes killed by any OOM killer; v2 also counts those in cgroups below.
    kills: Option<u64>,
    /// How often its own limit was in the way.
    own: Option<u64>,
    /// The same with the cgroups below it.
    all: Option<u64>,
}

/// A process in a cgroup was killed for lack of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The cgroup: that of the guest, or the nearest above it that still exists.
    pub within: PathBuf,
    /// Why.
    pub by: KilledBy,
}

/// Whose memory was short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KilledBy {
    /// That of a cgroup, which ran out of memory.
    LimitOf(PathBuf),
    /// That of a cgroup below the one with the killed process.
    LimitBelow,
    /// Perhaps that of this cgroup, which had reached its limit.
    AtLimitOf(PathBuf),
    /// Perhaps the host's.
    Unknown,
}

impl Kills {
    /// Reads the counters of a cgroup and of those above it. A counter that cannot be read is unknown.
    #[must_use]
    pub fn read(cgroup: &Cgroup) -> Self {
        Self(cgroup.nearest().map(Level::read).collect())
    }

    /// Reads the counters of the same cgroups again, without those that were removed.
    #[must_use]
    pub fn again(&self) -> Self {
        let there = self.0.iter().filter(|level| level.cgroup.dir.is_dir());
        Self(there.map(|level| Level::read(level.cgroup.clone())).collect())
    }

    /// The kill that the counters show between these and the `later` ones of the same cgroups.
    #[must_use]
    pub fn kill_until(&self, later: &Self) -> Option<Kill> {
        let nearest = later.0.first()?;
        let is_first = self.0.first().is_some_and(|first| first.cgroup == nearest.cgroup);
        if nearest.cgroup.version == CgroupVersion::V1 && !is_first {
            return None;
        }
        let has_grown = |level: &Level, of: fn(&Counts) -> Option<u64>| {
            let before = self.of(&level.cgroup).and_then(|counts| of(&counts));
            before.zip(of(&level.counts)).is_some_and(|(before, now)| now > before)
        };
        if !has_grown(nearest, |counts| counts.kills) {
            return None;
        }
        let limit = later.0.iter().find(|level| has_grown(level, |counts| counts.own));
        let by = match (limit.map(|level| level.cgroup.dir.clone()), nearest.cgroup.version) {
            (Some(dir), CgroupVersion::V2) => KilledBy::LimitOf(dir),
            (Some(dir), CgroupVersion::V1) => KilledBy::AtLimitOf(dir),
            (None, _) if has_grown(nearest, |counts| counts.all) => KilledBy::LimitBelow,
            (None, _) => KilledBy::Unknown,
        };
        Some(Kill { within: nearest.cgroup.dir.clone(), by })
    }

    /// Takes over the `later` counters of cgroups that it has, too: what they show was told already.
    pub fn learn(&mut self, later: &Self) {
        for level in &mut self.0 {
            if let Some(counts) = later.of(&level.cgroup) {
                level.counts = counts;
            }
        }
    }

    fn of(&self, cgroup: &Cgroup) -> Option<Counts> {
        self.0.iter().find(|level| level.cgroup == *cgroup).map(|level| level.counts)
    }
}

impl Level {
    fn read(cgroup: Cgroup) -> Self {
        let counts = match cgroup.version {
            CgroupVersion::V1 => Counts {
                kills: count(&cgroup.dir, "memory.oom_control", |text| optional("oom_kill", text)),
                own: count(&cgroup.dir, "memory.failcnt", |text| only("memory.failcnt", text).map(Some)),
                all: None,
            },
            CgroupVersion::V2 => {
                let events =
                    parse_once(cgroup.dir.join("memory.events"), v2::parse_events).unwrap_or_default();
                Counts {
                    kills: events.oom_kills,
                    own: count(&cgroup.dir, "memory.events.local", |text| optional("oom", text)),
                    all: events.ooms,
                }
            }
        };
        Self { cgroup, counts }
    }
}

fn count(dir: &Path, file: &str, parse: impl FnOnce(&str) -> Result<Option<u64>, ParseError>) -> Option<u64> {
    parse_once(dir.join(file), parse).ok().flatten()
}

/// For people, as in `the kernel killed a process in cgroup /sys/fs/cgroup/vm at the cgroup's memory limit`.
impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |dir: &Path| printable(&dir.display().to_string());
        write!(f, "the kernel killed a process in cgroup {} ", show(&self.within))?;
        match &self.by {
            KilledBy::LimitOf(dir) if *dir == self.within => f.write_str("at the cgroup's memory limit"),
            KilledBy::LimitOf(dir) => write!(f, "at the memory limit of cgroup {}", show(dir)),
            KilledBy::LimitBelow => f.write_str("at the memory limit of a cgroup below it"),
            KilledBy::AtLimitOf(dir) if *dir == self.within => {
                f.write_str("for lack of memory, and the cgroup had reached its memory limit")
            }
            KilledBy::AtLimitOf(dir) => {
                write!(f, "for lack of memory, and cgroup {} had reached its memory limit", show(dir))
            }
            KilledBy::Unknown => f.write_str("for lack of memory"),
        }
    }
}
