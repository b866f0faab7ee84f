//! What an instance's kernel tells of its memory: `proc meminfo` and `proc vmstat`, over mconsole.
//!
//! The kernel has neither PSI nor a balloon driver. Its own counters show more than a balloon's statistics: they count refaults.

use memtide_agent::facts;
use memtide_host::page_size;
use memtide_model::{Agent, AgentCounters, AgentMemory, Bytes, GuestStats};

/// An instance's kernel at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Amounts of memory.
    pub memory: AgentMemory,
    /// Page cache of files and block devices.
    pub cache: Bytes,
    /// Memory that is on none of the kernel's lists: unplugged memory, and what the kernel allocates for itself.
    pub unlisted: Bytes,
    /// Counters since the boot.
    pub counters: AgentCounters,
    /// Whether it counts refaults.
    pub counts_refaults: bool,
    /// Counters that only a balloon's statistics have.
    pub reclaim: Reclaim,
}

/// Counters of faults and of the kernel's reclaim, since the boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaim {
    major_faults: Option<u64>,
    minor_faults: Option<u64>,
    async_scans: Option<u64>,
    direct_scans: Option<u64>,
    async_reclaims: Option<u64>,
    direct_reclaims: Option<u64>,
}

impl Kernel {
    /// Takes over `meminfo`; `None` if it is not a kernel's.
    #[must_use]
    pub fn with_meminfo(self, meminfo: &str) -> Option<Self> {
        let kib = |name: &str| facts::number(meminfo, name).map(Bytes::from_kib);
        let (total, free) = (kib("MemTotal:")?, kib("MemFree:")?);
        let listed = ["Active:", "Inactive:", "Unevictable:", "Slab:", "KernelStack:", "PageTables:"];
        let listed = Bytes::sum(listed.iter().filter_map(|name| kib(name)));
        let cache = Bytes::sum(["Cached:", "Buffers:"].iter().filter_map(|name| kib(name)));
        Some(Self {
            memory: facts::memory(meminfo),
            cache,
            unlisted: total.saturating_sub(free).saturating_sub(listed),
            ..self
        })
    }

    /// Whether the memory of `other` is the same to the byte.
    #[must_use]
    pub fn has_the_memory_of(&self, other: &Self) -> bool {
        (self.memory, self.cache, self.unlisted) == (other.memory, other.cache, other.unlisted)
    }

    /// Whether it booted after `before`, the kernel of the same process: its faults have begun to count anew.
    #[must_use]
    pub fn booted_after(&self, before: &Self) -> bool {
        let faults =
            |kernel: &Self| Some(kernel.reclaim.minor_faults?.saturating_add(kernel.reclaim.major_faults?));
        faults(self).zip(faults(before)).is_some_and(|(now, before)| now < before)
    }

    /// Takes over `vmstat`.
    #[must_use]
    pub fn with_vmstat(self, vmstat: &str) -> Self {
        let count = |name: &str| facts::number(vmstat, name);
        let faults = |all: Option<u64>, major: Option<u64>| Some(all?.saturating_sub(major?));
        let major_faults = count("pgmajfault");
        Self {
            counters: facts::counters(vmstat, page_size()),
            counts_refaults: vmstat.contains("\nworkingset_refault"),
            reclaim: Reclaim {
                major_faults,
                minor_faults: faults(count("pgfault"), major_faults),
                async_scans: count("pgscan_kswapd"),
                direct_scans: count("pgscan_direct"),
                async_reclaims: count("pgsteal_kswapd"),
                direct_reclaims: count("pgsteal_direct"),
            },
            ..self
        }
    }

    /// The statistics that a balloon's driver would report, with `removed` bytes unplugged.
    #[must_use]
    pub fn stats(&self, removed: Bytes) -> GuestStats {
        let Self { memory, counters, reclaim, .. } = *self;
        GuestStats {
            total: Some(memory.total.saturating_sub(removed)),
            free: Some(memory.free),
            available: Some(memory.available),
            disk_caches: Some(self.cache),
            swapped_in: Some(counters.swapped_in),
            swapped_out: Some(counters.swapped_out),
            major_faults: reclaim.major_faults,
            minor_faults: reclaim.minor_faults,
            oom_kills: Some(counters.oom_kills),
            alloc_stalls: Some(counters.alloc_stalls),
            async_scans: reclaim.async_scans,
            direct_scans: reclaim.direct_scans,
            async_reclaims: reclaim.async_reclaims,
            direct_reclaims: reclaim.direct_reclaims,
            htlb_pgalloc: None,
            htlb_pgfail: None,
        }
    }

    /// What an agent would tell. Nobody in the instance drops page cache on request.
    #[must_use]
    pub fn as_agent(&self, removed: Bytes) -> Agent {
        let memory = AgentMemory { total: self.memory.total.saturating_sub(removed), ..self.memory };
        Agent { memory, counters: self.counters, counts_refaults: self.counts_refaults, ..Agent::default() }
    }
}

/// Pages that the kernel keeps free for itself (`proc sys/vm/min_free_kbytes`); `None` if it is no number.
#[must_use]
pub fn min_free(text: &str) -> Option<Bytes> {
    text.trim().parse().ok().map(Bytes::from_kib)
}

/// Context switches since the boot, from `proc stat`. A stopped instance makes none.
#[must_use]
pub fn switches(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("ctxt "))?.trim().parse().ok()
}
