//! The agent in a guest: what it tells, and what it drops.
//!
//! A trim takes page cache as reclaim does, in proportion to `size × coldness`: the kernel chooses, not the agent. It takes no time: agents
//! were measured to drop 100 MiB in 50 ms. Linux 6.12 counts what it drops as direct reclaim. Linux 4.19 has no PSI, and no means to trim. The model has
//! no compaction. A page-out and the use of a tier take no time either (see `tier`).
//!
//! A refault counts as one of the working set if the page would have stayed with twice the page cache: the missing part of its file is at most
//! as large as the cache (compare `workingset_refault()` in mm/workingset.c).

use memtide_model::{Agent, AgentCounters, AgentMemory, AgentStalls, Bytes, MIB};

use crate::guest::Guest;
use crate::spec::Kernel;

/// The least page cache of an agent without a configuration.
const LEAST_CACHE: u64 = 64 * MIB;

impl Guest {
    /// What its agent tells; `None` without one, or while it boots.
    #[must_use]
    pub fn agent(&self) -> Option<Agent> {
        if !self.spec.agent || self.now < self.driver.up_at {
            return None;
        }
        let free = Bytes::new(self.pools.free());
        let counters = &self.counters;
        let is_old = self.spec.kernel == Kernel::V4_19;
        let (tier_total, tier_free) = self.tier_space();
        let anon = self.programs.iter().map(|program| program.resident).sum();
        let stalls = AgentStalls { io_some_us: counters.disk_waits, ..AgentStalls::default() };
        Some(Agent {
            memory: AgentMemory {
                total: self.stats().total.unwrap_or_default(),
                free,
                free_blocks: Bytes::new(
                    self.pools.free().saturating_sub(self.pools.pieces() + self.pools.returned),
                ),
                pieces: Bytes::new(self.pools.larger_pieces() + self.pools.returned),
                available: Bytes::new(self.available()),
                unmapped_cache: Bytes::new(self.unmapped()),
                reclaimable_slab: self.spec.slab,
                swap_total: self.spec.swap.saturating_add(Bytes::new(tier_total)),
                swap_free: Bytes::new(self.swap_left() + tier_free),
                anon: Bytes::new(anon),
                tier_total: Bytes::new(tier_total),
                tier_free: Bytes::new(tier_free),
                ..AgentMemory::default()
            },
            counters: AgentCounters {
                refaults_file: Bytes::new(self.progress.refaults),
                activations_file: Bytes::new(counters.activations),
                swapped_in: Bytes::new(counters.swapped_in),
                swapped_out: Bytes::new(counters.swapped_out),
                oom_kills: counters.oom_kills,
                alloc_stalls: counters.alloc_stalls,
                ..AgentCounters::default()
            },
            stalls: (!is_old).then_some(stalls),
            counts_refaults: true,
            trims: !is_old,
            tiers: self.can_tier(),
            reports_pieces: self.spec.free_page_reporting && !is_old,
            pieces_return: self.pieces_return,
            least_cache: Bytes::new(LEAST_CACHE),
            ..Agent::default()
        })
    }

    /// Its agent drops up to `bytes` of page cache. Returns the bytes that became free.
    pub fn trim(&mut self, bytes: Bytes) -> Bytes {
        let most = self.unmapped().saturating_sub(LEAST_CACHE);
        let freed = self.drop_cache(bytes.get().min(most));
        self.counters.direct_scans += freed;
        self.counters.direct_reclaims += freed;
        Bytes::new(freed)
    }

    /// Page cache of files that no program has mapped.
    fn unmapped(&self) -> u64 {
        let mapped = self.files.iter().filter(|file| file.spec.mapped).map(|file| file.resident);
        self.pools.cache.saturating_sub(mapped.sum())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memtide_model::Span;

    use super::*;
    use crate::{File, Spec};

    #[test]
    fn a_trim_frees_cold_cache_first_and_a_hot_file_refaults() {
        let hot = File::hot(Bytes::from_mib(200), 100 * MIB);
        let spec = Spec { agent: true, files: vec![hot], cold: Bytes::from_mib(400), ..Spec::default() };
        let mut guest = Guest::new(Arc::new(spec), 1);
        guest.advance(Span::from_secs(30));
        let before = guest.agent().unwrap();
        let freed = guest.trim(Bytes::from_mib(100));
        let after = guest.agent().unwrap();
        assert!(freed >= Bytes::from_mib(99), "{freed}");
        assert_eq!(after.memory.unmapped_cache, before.memory.unmapped_cache.saturating_sub(freed));
        let lost_of_hot = Bytes::from_mib(200).get() - guest.files[0].resident;
        assert!(lost_of_hot < 10 * MIB, "{lost_of_hot}");
        guest.trim(Bytes::MAX);
        guest.advance(Span::from_secs(40));
        assert!(guest.agent().unwrap().counters.activations_file > Bytes::ZERO);
    }

    #[test]
    fn a_guest_without_an_agent_tells_nothing() {
        assert_eq!(Guest::new(Arc::new(Spec::default()), 1).agent(), None);
    }
}
