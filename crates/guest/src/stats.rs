//! What the balloon's driver tells of the guest, as the kernels 4.19, 6.1 and 6.12 do (`virtio_balloon.c`).
//!
//! Kernels before 6.12 offer no counters of stalls, scans, reclaims and OOM kills. Scans and reclaims are told in bytes: a guest
//! whose page cache shrank by 98 MiB told of 101,711,872 more. No kernel tells of refaults: a read that
//! misses the cache is no major fault, and shows only where something else must be reclaimed for it.

use memtide_model::{Bytes, GuestStats, MIB};

use crate::guest::Guest;
use crate::spec::Kernel;

/// Memory that the kernel does not manage: its image and what it reserved at boot, and one part in 64 for the descriptions of
/// pages. Linux 6.12 told of 967 MiB in all in a guest of 1 GiB.
const UNMANAGED: u64 = 41 * MIB;
const DESCRIPTIONS_PART: u64 = 64;

impl Guest {
    /// What the driver would answer now. Its memory is in MiB of the guest, whatever the host has for it.
    #[must_use]
    pub fn stats(&self) -> GuestStats {
        let counters = &self.counters;
        let hidden = if self.spec.deflate_on_oom { 0 } else { self.pools.balloon };
        let managed = self.pools.memory.saturating_sub(self.pools.memory / DESCRIPTIONS_PART + UNMANAGED);
        let some = |bytes: u64| Some(Bytes::new(bytes));
        let newer = |count: u64| (self.spec.kernel >= Kernel::V6_12).then_some(count);
        GuestStats {
            total: some(managed.saturating_sub(hidden)),
            free: some(self.pools.free()),
            available: some(self.available()),
            disk_caches: some(self.pools.cache),
            swapped_in: some(counters.swapped_in),
            swapped_out: some(counters.swapped_out),
            major_faults: Some(counters.major_faults),
            minor_faults: Some(counters.minor_faults),
            htlb_pgalloc: Some(0),
            htlb_pgfail: Some(0),
            oom_kills: newer(counters.oom_kills),
            alloc_stalls: newer(counters.alloc_stalls),
            async_scans: newer(counters.async_scans),
            direct_scans: newer(counters.direct_scans),
            async_reclaims: newer(counters.async_reclaims),
            direct_reclaims: newer(counters.direct_reclaims),
        }
    }
}
