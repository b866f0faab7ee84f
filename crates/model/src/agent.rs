//! What the agent in a guest tells.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Share};

/// What an agent told last, and what became of the host's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Amounts of memory in the guest.
    pub memory: AgentMemory,
    /// Counters since the guest's boot.
    pub counters: AgentCounters,
    /// Stall times since the guest's boot; `None` if its kernel has no PSI.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stalls: Option<AgentStalls>,
    /// Whether it counts refaults.
    pub counts_refaults: bool,
    /// Whether it may and can drop cold page cache.
    pub trims: bool,
    /// Whether it may and can compact free memory.
    pub compacts: bool,
    /// The least page cache that the guest's administrator wants to keep.
    pub least_cache: Bytes,
    /// The limit of unmapped page cache that it keeps for the host.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cache_limit: Option<Share>,
    /// It works on a request.
    pub busy: bool,
    /// Requests that have ended since memtide found its port.
    pub ended: u64,
    /// The last of them: memory that became free, or free in larger blocks; zero if it refused.
    pub freed: Bytes,
}

/// Amounts of memory in a guest, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentMemory {
    /// All memory that the kernel manages.
    pub total: Bytes,
    /// Unused memory, with that on per-CPU lists.
    pub free: Bytes,
    /// The part of it in blocks that free page reporting returns.
    pub free_blocks: Bytes,
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

impl Agent {
    /// Page cache that it may drop: neither mapped nor dirty, and beyond the administrator's least.
    #[must_use]
    pub fn droppable(&self) -> Bytes {
        self.memory.unmapped_cache.saturating_sub(self.memory.dirty.max(self.least_cache))
    }

    /// Free memory in pieces and on per-CPU lists, which free page reporting does not return.
    #[must_use]
    pub fn free_pieces(&self) -> Bytes {
        self.memory.free.saturating_sub(self.memory.free_blocks)
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
        assert_eq!(Agent { least_cache: mib(0), ..agent }.droppable(), mib(90));
        assert_eq!(Agent { least_cache: mib(200), ..agent }.droppable(), mib(0));
    }
}
