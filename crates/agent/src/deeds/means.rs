//! The kernel's ways to drop page cache, and which of them work here.
//!
//! | means | kernels | takes |
//! |---|---|---|
//! | `lru_gen` | 6.1 with MGLRU and debugfs | file pages of the oldest generations |
//! | `memory_reclaim` | 5.19, cgroup v2 | the least used pages of the whole guest; without swap, or since 6.9, only files |
//! | `cgroup_reclaim` | the same, if the root cgroup has no such file | the same of each cgroup |
//! | `drop_caches` | all | all clean page cache and slab, hot or cold: only as a last resort |

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use memtide_host::Root;
use memtide_model::Bytes;
use rustix::io::Errno;

use super::{Tools, shrunk};
use crate::ages::Generations;

/// Younger generations are left alone, in milliseconds.
const COLD_MS: u64 = 10_000;
/// The kernel evicts only generations before its two youngest (`MIN_NR_GENS`).
const YOUNGEST: u64 = 2;

/// A way to drop page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Eviction of the oldest generations of the multi-generational LRU.
    LruGen,
    /// `memory.reclaim` of the root cgroup.
    MemoryReclaim,
    /// `memory.reclaim` of each cgroup below the root.
    CgroupReclaim,
    /// `/proc/sys/vm/drop_caches`.
    DropCaches,
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel says that it has dropped as much as it was asked for.
    Whole,
    /// It does not say how much it has dropped: perhaps nothing.
    Some,
    /// It cannot do that here.
    Impossible,
}

impl Means {
    /// In the order in which they are tried.
    const GENTLE: [Self; 3] = [Self::LruGen, Self::MemoryReclaim, Self::CgroupReclaim];

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LruGen => "lru_gen",
            Self::MemoryReclaim => "memory_reclaim",
            Self::CgroupReclaim => "cgroup_reclaim",
            Self::DropCaches => "drop_caches",
        }
    }

    /// The means that work here without hurting, in the order in which they are tried.
    #[must_use]
    pub fn usable(tools: &Tools<'_>) -> Vec<Self> {
        let works = |means: &Self| match means {
            Self::LruGen => tools.facts.no_ages().is_none() && may_write(&lru_gen(tools.root)),
            Self::MemoryReclaim => may_write(&reclaim(tools.root)),
            Self::CgroupReclaim => !may_write(&reclaim(tools.root)) && !cgroups(tools.root).is_empty(),
            Self::DropCaches => true,
        };
        Self::GENTLE.into_iter().filter(works).collect()
    }

    /// What is missing where none of them works.
    #[must_use]
    pub fn missing() -> String {
        "memory.reclaim needs Linux 5.19 and cgroup v2, lru_gen needs Linux 6.1 and debugfs".to_owned()
    }

    /// Drops up to `bytes`.
    pub(super) fn drop(self, tools: &mut Tools<'_>, bytes: Bytes, may_swap: bool) -> Outcome {
        match self {
            Self::LruGen => match tools.facts.generations() {
                Some(generations) => evict(tools, &generations, bytes),
                None => Outcome::Impossible,
            },
            Self::MemoryReclaim => reclaim_from(&reclaim(tools.root), tools, bytes, may_swap),
            Self::CgroupReclaim => reclaim_from_each(tools, bytes, may_swap),
            Self::DropCaches => match fs::write(tools.root.proc("sys/vm/drop_caches"), "3") {
                Ok(()) => Outcome::Some,
                Err(_) => Outcome::Impossible,
            },
        }
    }
}

fn lru_gen(root: &Root) -> PathBuf {
    root.sys("kernel/debug/lru_gen")
}

pub(super) fn reclaim(root: &Root) -> PathBuf {
    root.sys("fs/cgroup/memory.reclaim")
}

/// The `memory.reclaim` files below the root cgroup.
pub(super) fn cgroups(root: &Root) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.sys("fs/cgroup")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path().join("memory.reclaim")).collect();
    files.retain(|path| may_write(path));
    files.sort();
    files
}

pub(super) fn may_write(path: &Path) -> bool {
    OpenOptions::new().write(true).open(path).is_ok()
}

/// Writes once: the kernel takes a command only as a whole.
pub(super) fn command(path: &Path, command: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(command.as_bytes())
}

fn reclaim_from(path: &Path, tools: &mut Tools<'_>, bytes: Bytes, may_swap: bool) -> Outcome {
    let swaps = tools.facts.memory().is_ok_and(|memory| !memory.swap_total.is_zero());
    let amount = bytes.get();
    // Linux before 6.9 does not know swappiness: where there is swap, it could swap then.
    let result = match (swaps, may_swap) {
        (true, false) => command(path, &format!("{amount} swappiness=0")),
        _ => command(path, &amount.to_string()),
    };
    outcome(&result)
}

/// What an answer of `memory.reclaim` means.
pub(super) fn outcome(result: &io::Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Whole,
        Err(error) if Errno::from_io_error(error) == Some(Errno::AGAIN) => Outcome::Some,
        Err(_) => Outcome::Impossible,
    }
}

/// Reclaims from one cgroup after the other until `bytes` are gone.
fn reclaim_from_each(tools: &mut Tools<'_>, bytes: Bytes, may_swap: bool) -> Outcome {
    let mut outcome = Outcome::Impossible;
    let Ok(before) = tools.facts.memory() else { return outcome };
    let mut left = bytes;
    for cgroup in cgroups(tools.root) {
        match reclaim_from(&cgroup, tools, left, may_swap) {
            // What is left after the first cgroup is known by the kernel's counters only.
            Outcome::Whole if left == bytes => return Outcome::Whole,
            Outcome::Whole => return Outcome::Some,
            Outcome::Some => outcome = Outcome::Some,
            Outcome::Impossible => continue,
        }
        let Ok(after) = tools.facts.memory() else { return outcome };
        left = bytes.saturating_sub(shrunk(&before, &after));
        if left.is_zero() {
            return outcome;
        }
    }
    outcome
}

/// Evicts file pages of the oldest generations, the oldest first, as the kernel orders them for each cgroup.
fn evict(tools: &Tools<'_>, generations: &Generations, bytes: Bytes) -> Outcome {
    let page = tools.facts.page();
    let youngest = |memcg, node| {
        let of = generations.0.iter().filter(|g| (g.memcg, g.node) == (memcg, node));
        of.map(|g| g.number).max().unwrap_or(0)
    };
    let mut cold: Vec<_> = generations
        .0
        .iter()
        .filter(|g| g.since_ms >= COLD_MS && g.number + YOUNGEST <= youngest(g.memcg, g.node))
        .filter(|g| g.file.get() > 0)
        .collect();
    cold.sort_by_key(|g| (std::cmp::Reverse(g.since_ms), g.memcg, g.node));
    let mut left = bytes;
    let mut outcome = Outcome::Impossible;
    for generation in cold {
        if left.is_zero() {
            break;
        }
        let most = left.min(generation.file.to_bytes(page));
        let pages = most.get() / page.bytes().get();
        let (memcg, node, number) = (generation.memcg, generation.node, generation.number);
        // Swappiness 0: file pages only.
        match command(&lru_gen(tools.root), &format!("- {memcg} {node} {number} 0 {pages}")) {
            // The kernel says the same if all these pages were in use.
            Ok(()) => (left, outcome) = (left.saturating_sub(most), Outcome::Some),
            Err(_) => break,
        }
    }
    outcome
}
