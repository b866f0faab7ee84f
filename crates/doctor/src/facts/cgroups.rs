//! The memory cgroups of the guests: their limits, and the cgroup that plays the host.

use std::path::{Path, PathBuf};

use memtide_host::{Cgroup, CgroupReader, CgroupVersion, Limited, Root, Scratch};
use memtide_model::Bytes;

use super::guest::GuestFacts;
use super::small;

/// The memory cgroups of the guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupFacts {
    /// The version that has the memory controller.
    pub version: MemoryCgroups,
    /// The cgroup that plays the host, and its limit.
    pub small_host: Option<(PathBuf, Bytes)>,
    /// Cgroups of guests whose `memory.max` is below the host's memory, without the one that plays the host: at the limit, the OOM killer acts.
    pub kill: Vec<Limited>,
    /// The same for `memory.high`: above it, processes are slowed down, and their memory goes to swap.
    pub throttle: Vec<Limited>,
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

/// Looks at the cgroups of these guests on a host with `memory`.
pub(super) fn look(root: &Root, guests: &[GuestFacts], memory: Bytes) -> CgroupFacts {
    let mut facts = CgroupFacts::default();
    let mut swappable = Vec::new();
    let (mut kill, mut throttle) = (vec![Vec::new(); guests.len()], vec![Vec::new(); guests.len()]);
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
        match cgroup.limits() {
            Ok(limits) => kill[index] = limits,
            Err(error) => facts.unseen.push(format!("{}: {error}", guest.name)),
        }
        throttle[index] = cgroup.lineage().into_iter().filter_map(throttled).collect();
    }
    let below_memory = |limits: &[Vec<(Cgroup, Bytes)>]| {
        let mut all = Limited::gather(limits.iter().map(Vec::as_slice));
        all.retain(|limited| limited.limit < memory);
        all
    };
    (facts.kill, facts.throttle) = (below_memory(&kill), below_memory(&throttle));
    let pids: Vec<u32> = guests.iter().map(|guest| guest.pid).collect();
    match Cgroup::small_host(root, &pids, memory) {
        Ok(Some(cgroup)) => {
            let own = facts.kill.extract_if(.., |limited| limited.dir == cgroup.dir()).next();
            facts.small_host = own.map(|limited| (limited.dir, limited.limit));
        }
        Ok(None) => {}
        Err(error) => facts.unseen.push(error.to_string()),
    }
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

/// A cgroup with its `memory.high`. v1 has no such file; `max` is not a number.
fn throttled(cgroup: Cgroup) -> Option<(Cgroup, Bytes)> {
    let high = small::number(&cgroup.dir().join("memory.high"))?;
    Some((cgroup, Bytes::new(high)))
}

fn may_swap(cgroup: &Cgroup) -> Option<bool> {
    let reader = CgroupReader::open(cgroup.clone()).ok()?;
    Some(reader.read(&mut Scratch::default()).ok()?.may_swap)
}
