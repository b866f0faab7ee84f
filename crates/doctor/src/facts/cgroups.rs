//! The memory cgroups of the guests: their limits, and the cgroup that plays the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memtide_host::{Cgroup, CgroupReader, CgroupVersion, Root, Scratch};
use memtide_model::{Bytes, Limit};

use super::guest::GuestFacts;
use super::small;

/// The memory cgroups of the guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupFacts {
    /// The version that has the memory controller.
    pub version: MemoryCgroups,
    /// The cgroup that plays the host, and its limit.
    pub small_host: Option<(PathBuf, Bytes)>,
    /// Cgroups of guests with a limit below the host's memory, without the one that plays the host.
    pub limited: Vec<LimitedCgroup>,
    /// Guests (by index) whose cgroup keeps them out of swap.
    pub never_swapped: Vec<usize>,
    /// Cgroups of v2 in which `memory.swap.max` would keep the other guests out of swap: one cgroup if they share one.
    pub swap_limits: Vec<PathBuf>,
    /// The cgroups that could not be read.
    pub unseen: Vec<String>,
}

/// The hierarchy of the memory controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryCgroups {
    /// No guest is in a memory cgroup, as far as can be seen.
    #[default]
    None,
    /// In the older hierarchy.
    V1,
    /// In the unified hierarchy.
    V2,
}

/// A cgroup with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedCgroup {
    /// Its directory.
    pub dir: PathBuf,
    /// Its hierarchy.
    pub version: CgroupVersion,
    /// The effect of the limit.
    pub kind: LimitKind,
    /// The limit.
    pub limit: Bytes,
    /// The guests in it, by index.
    pub guests: Vec<usize>,
}

/// The effect of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    /// `memory.max`: the OOM killer acts.
    Kills,
    /// `memory.high`: processes are slowed down, and their memory goes to swap.
    Throttles,
}

/// Looks at the cgroups of these guests on a host with `memory`.
pub(super) fn look(root: &Root, guests: &[GuestFacts], memory: Bytes) -> CgroupFacts {
    let mut facts = CgroupFacts::default();
    let mut swappable = Vec::new();
    let mut limits: BTreeMap<(PathBuf, LimitKind), LimitedCgroup> = BTreeMap::new();
    for (index, guest) in guests.iter().enumerate() {
        let cgroup = match Cgroup::of(root, guest.pid) {
            Ok(Some(cgroup)) => cgroup,
            Ok(None) => continue,
            Err(error) => {
                facts.unseen.push(format!("{}: {error}", guest.name));
                continue;
            }
        };
        facts.version = match cgroup.version() {
            CgroupVersion::V1 => MemoryCgroups::V1,
            CgroupVersion::V2 => MemoryCgroups::V2,
        };
        if may_swap(&cgroup) == Some(false) {
            facts.never_swapped.push(index);
        } else {
            swappable.push(cgroup.dir().to_owned());
        }
        for ancestor in cgroup.lineage() {
            for (kind, limit) in limits_of(&ancestor) {
                if limit < memory {
                    let key = (ancestor.dir().to_owned(), kind);
                    let entry = limits.entry(key).or_insert_with(|| LimitedCgroup {
                        dir: ancestor.dir().to_owned(),
                        version: ancestor.version(),
                        kind,
                        limit,
                        guests: Vec::new(),
                    });
                    entry.guests.push(index);
                }
            }
        }
    }
    let pids: Vec<u32> = guests.iter().map(|guest| guest.pid).collect();
    match Cgroup::small_host(root, &pids, memory) {
        Ok(Some(cgroup)) => {
            let limit = limits.remove(&(cgroup.dir().to_owned(), LimitKind::Kills));
            facts.small_host = limit.map(|limited| (limited.dir, limited.limit));
        }
        Ok(None) => {}
        Err(error) => facts.unseen.push(error.to_string()),
    }
    facts.limited = limits.into_values().collect();
    facts.swap_limits = swap_limits(swappable);
    facts
}

/// The closest common cgroup above all of these that has `memory.swap.max`; otherwise those of them that have it.
fn swap_limits(mut dirs: Vec<PathBuf>) -> Vec<PathBuf> {
    let has_limit = |dir: &Path| dir.join("memory.swap.max").exists();
    dirs.sort();
    dirs.dedup();
    let common = dirs
        .first()
        .and_then(|first| first.ancestors().find(|above| dirs.iter().all(|dir| dir.starts_with(above))));
    match common.filter(|common| has_limit(common)) {
        Some(common) => vec![common.to_owned()],
        None => dirs.into_iter().filter(|dir| has_limit(dir)).collect(),
    }
}

fn limits_of(cgroup: &Cgroup) -> Vec<(LimitKind, Bytes)> {
    let mut found = Vec::new();
    if let Ok(Limit::At(limit)) = cgroup.own_limit() {
        found.push((LimitKind::Kills, limit));
    }
    // v1 has no such file; `max` is not a number.
    if cgroup.version() == CgroupVersion::V2
        && let Some(limit) = small::number(&cgroup.dir().join("memory.high"))
    {
        found.push((LimitKind::Throttles, Bytes::new(limit)));
    }
    found
}

fn may_swap(cgroup: &Cgroup) -> Option<bool> {
    let reader = CgroupReader::open(cgroup.clone()).ok()?;
    Some(reader.read(&mut Scratch::default()).ok()?.may_swap)
}
