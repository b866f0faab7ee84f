//! The counters that the balloon's driver reports, as in the kernels 4.19, 6.1 and 6.12 (`virtio_balloon.c`).
//!
//! Kernels before 6.12 have no counters of stalls, scans, reclaims and OOM kills. Scans and reclaims are in bytes: a guest whose page cache
//! shrank by 98 MiB reported 101,711,872 more. No kernel reports refaults. A read that misses the cache is not a major fault, so it shows
//! only if the kernel must reclaim other memory for it.

use memtide_model::{Bytes, DiskReads, GuestStats, MIB};

use crate::guest::Guest;
use crate::spec::Kernel;

/// Memory that the kernel does not manage: its image, memory reserved at boot, and one part in 64 for page descriptors. Linux 6.12 reported
/// a total of 967 MiB in a guest of 1 GiB.
const UNMANAGED: u64 = 41 * MIB;
const DESCRIPTIONS_PART: u64 = 64;

impl Guest {
    /// What its VMM counts of its disks, with its swap among them. A tier is no disk.
    #[must_use]
    pub fn disks(&self) -> DiskReads {
        let bytes = Bytes::new(self.progress.read + self.counters.swapped_in - self.counters.from_tier);
        DiskReads { bytes, took_us: Some(self.counters.disk_waits) }
    }

    /// The driver's current answer. It counts memory in MiB of the guest, whether or not the host backs it.
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
