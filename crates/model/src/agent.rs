//! What the agent in a guest tells.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Share, Span};

/// What an agent told last, and what became of the host's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Amounts of memory in the guest.
    pub memory: AgentMemory,
    /// Counters since the guest's boot.
    pub counters: AgentCounters,
    /// Stall times since the guest's boot; `None` if its kernel has no PSI.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stalls: Option<AgentStalls>,
    /// Memory by the kernel's generations, the youngest first; empty if the kernel does not tell.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ages: Vec<AgentAge>,
    /// Whether it counts refaults.
    pub counts_refaults: bool,
    /// Whether it may and can drop cold page cache.
    pub trims: bool,
    /// Whether it may and can compact free memory.
    pub compacts: bool,
    /// Whether it may and can make free page reporting return smaller pieces.
    #[serde(default)]
    pub reports_pieces: bool,
    /// Whether it may and can swap to a tier that the host attaches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tiers: bool,
    /// The least page cache that the guest's administrator wants to keep.
    pub least_cache: Bytes,
    /// What it cannot do, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub cannot: BTreeMap<Can, String>,
    /// The limit of unmapped page cache that it keeps for the host.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cache_limit: Option<Share>,
    /// Free page reporting returns smaller pieces, because the host asked for it.
    #[serde(default)]
    pub pieces_return: bool,
    /// It works on a request.
    pub busy: bool,
    /// Requests that have ended since memtide found its port.
    pub ended: u64,
    /// The last of them: memory that became free, or free in larger blocks; zero if it refused.
    pub freed: Bytes,
}

impl AgentCounters {
    /// Stalls, kills and swapping, added up: it rises if a task of the guest waited for memory.
    #[must_use]
    pub fn hardships(&self) -> u64 {
        let all = [self.alloc_stalls, self.oom_kills, self.swapped_in.get()];
        all.into_iter().fold(0, u64::wrapping_add)
    }
}

/// Amounts of memory in a guest, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentMemory {
    /// All memory that the kernel manages.
    pub total: Bytes,
    /// Unused memory, with that on per-CPU lists.
    pub free: Bytes,
    /// The part of it in blocks that free page reporting returns by itself.
    pub free_blocks: Bytes,
    /// The part of it in smaller pieces that reporting returns, too, if the agent is asked for it.
    #[serde(default)]
    pub pieces: Bytes,
    /// Memory that is available without swapping.
    pub available: Bytes,
    /// Page cache of files that no program has mapped.
    pub unmapped_cache: Bytes,
    /// Dirty page cache and page cache under writeback: it cannot be dropped yet.
    pub dirty: Bytes,
    /// Slab that the kernel can reclaim.
    pub reclaimable_slab: Bytes,
    /// All swap.
    pub swap_total: Bytes,
    /// Unused swap.
    pub swap_free: Bytes,
    /// Anonymous memory, without what is swapped out.
    #[serde(default, skip_serializing_if = "Bytes::is_nothing")]
    pub anon: Bytes,
    /// The swap that is the host's tier: a part of all swap. Zero: it does not swap to one.
    #[serde(default, skip_serializing_if = "Bytes::is_nothing")]
    pub tier_total: Bytes,
    /// The unused part of it.
    #[serde(default, skip_serializing_if = "Bytes::is_nothing")]
    pub tier_free: Bytes,
}

/// Counters since the guest's boot. Memory is in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCounters {
    /// Refaults of files (`workingset_refault_file`; `workingset_refault` before Linux 5.9).
    pub refaults_file: Bytes,
    /// Refaults of anonymous memory.
    pub refaults_anon: Bytes,
    /// Refaults of files that belong to the working set (`workingset_activate_file`): evidence that too much was taken.
    pub activations_file: Bytes,
    /// The same of anonymous memory.
    pub activations_anon: Bytes,
    /// Memory read back from swap.
    pub swapped_in: Bytes,
    /// Memory written to swap.
    pub swapped_out: Bytes,
    /// Processes that the guest's OOM killer ended.
    pub oom_kills: u64,
    /// Allocations that had to wait for memory.
    pub alloc_stalls: u64,
}

/// Stall times since the guest's boot, in microseconds (PSI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStalls {
    /// Some task waited for memory.
    pub memory_some_us: u64,
    /// All tasks waited for memory.
    pub memory_full_us: u64,
    /// Some task waited for a disk.
    pub io_some_us: u64,
    /// All tasks waited for a disk.
    pub io_full_us: u64,
}

/// An ability of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Can {
    /// Reports.
    Report,
    /// Pressure events, and stall times in reports.
    Pressure,
    /// Refaults in reports.
    Refaults,
    /// Ages of page cache in reports.
    Ages,
    /// `trim`.
    Trim,
    /// `compact`.
    Compact,
    /// `cache_limit`.
    CacheLimit,
    /// `report_pieces`.
    ReportPieces,
    /// `use_tier` and `page_out`.
    Tier,
    /// An ability of a newer agent, which this end does not know.
    #[serde(other)]
    Unknown,
}

impl Can {
    /// It in words, after "can" or "cannot".
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Pressure => "tell of stalls",
            Self::Refaults => "count refaults",
            Self::Ages => "tell the age of page cache",
            Self::Trim => "trim",
            Self::Compact => "compact",
            Self::CacheLimit => "limit page cache",
            Self::ReportPieces => "report small pieces",
            Self::Tier => "swap to a tier",
            Self::Unknown => "do what this memtide does not know",
        }
    }
}

/// Memory in the generations of the kernel's LRU (MGLRU) whose next younger one was opened at least this long ago.
///
/// It is what the kernel evicts first, not what nobody uses: a page of a file that is read once begins in the oldest generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAge {
    /// The time since then, in milliseconds.
    pub since_ms: u64,
    /// File pages.
    pub file: Bytes,
    /// Anonymous memory.
    pub anon: Bytes,
}

impl Agent {
    /// File pages in generations that are at least this old; `None` if the kernel does not tell.
    #[must_use]
    pub fn old_files(&self, since: Span) -> Option<Bytes> {
        let old = self.ages.iter().filter(|age| age.since_ms >= since.as_millis());
        (!self.ages.is_empty()).then(|| Bytes::sum(old.map(|age| age.file)))
    }

    /// Page cache that it may drop: neither mapped nor dirty, and beyond the administrator's least.
    #[must_use]
    pub fn droppable(&self) -> Bytes {
        self.memory.unmapped_cache.saturating_sub(self.memory.dirty.max(self.least_cache))
    }

    /// Free memory in pieces and on per-CPU lists, which free page reporting does not return.
    #[must_use]
    pub fn free_pieces(&self) -> Bytes {
        let returns = if self.pieces_return { self.memory.pieces } else { Bytes::ZERO };
        self.memory.free.saturating_sub(self.memory.free_blocks.saturating_add(returns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_cache_and_dirty_data_stay() {
        let mib = Bytes::from_mib;
        let memory = AgentMemory { unmapped_cache: mib(100), dirty: mib(10), ..AgentMemory::default() };
        let agent = Agent { memory, least_cache: mib(64), ..Agent::default() };
        assert_eq!(agent.droppable(), mib(36));
        assert_eq!(Agent { least_cache: mib(0), ..agent.clone() }.droppable(), mib(90));
        assert_eq!(Agent { least_cache: mib(200), ..agent }.droppable(), mib(0));
    }

    #[test]
    fn old_generations_are_told_from_none_that_are_known() {
        let age = |since_ms, file| AgentAge { since_ms, file: Bytes::from_mib(file), anon: Bytes::ZERO };
        let agent = Agent { ages: vec![age(0, 5), age(60_000, 20), age(600_000, 100)], ..Agent::default() };
        assert_eq!(agent.old_files(Span::from_secs(60)), Some(Bytes::from_mib(120)));
        assert_eq!(agent.old_files(Span::from_secs(3600)), Some(Bytes::ZERO));
        assert_eq!(Agent::default().old_files(Span::ZERO), None);
    }
}
