//! The statistics of the balloon driver.

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// The statistics of the balloon driver, named as in `virtio_balloon.h`. `None`: this driver or VMM does not offer the
/// counter. Counters are cumulative since the guest's boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuestStats {
    /// Memory that the guest's kernel manages (`stat-total-memory`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Bytes>,
    /// Unused memory in the guest (`stat-free-memory`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<Bytes>,
    /// Memory that the guest could use without swapping (`stat-available-memory`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<Bytes>,
    /// Page cache (`stat-disk-caches`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_caches: Option<Bytes>,
    /// Memory swapped in (`stat-swap-in`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapped_in: Option<Bytes>,
    /// Memory swapped out (`stat-swap-out`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapped_out: Option<Bytes>,
    /// Page faults that read from a device (`stat-major-faults`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// Page faults without a device (`stat-minor-faults`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor_faults: Option<u64>,
    /// Huge page allocations that succeeded (`stat-htlb-pgalloc`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub htlb_pgalloc: Option<u64>,
    /// Huge page allocations that failed (`stat-htlb-pgfail`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub htlb_pgfail: Option<u64>,
    /// Processes killed for lack of memory (`stat-oom-kills`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Allocations that had to wait (`stat-alloc-stalls`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_stalls: Option<u64>,
    /// Pages scanned by kswapd (`stat-async-scans`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_scans: Option<u64>,
    /// Pages scanned in direct reclaim (`stat-direct-scans`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_scans: Option<u64>,
    /// Pages reclaimed by kswapd (`stat-async-reclaims`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_reclaims: Option<u64>,
    /// Pages reclaimed in direct reclaim (`stat-direct-reclaims`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_reclaims: Option<u64>,
}

impl GuestStats {
    /// The same without what the guest reads back from its swap.
    #[must_use]
    pub const fn without_swap(&self) -> Self {
        Self { swapped_in: None, major_faults: None, ..*self }
    }

    /// Page cache that the guest can drop: of what its kernel calls available, what is not free.
    #[must_use]
    pub fn droppable_cache(&self) -> Bytes {
        let reclaimable = self.available.unwrap_or_default().saturating_sub(self.free.unwrap_or_default());
        self.disk_caches.unwrap_or(reclaimable).min(reclaimable)
    }
}
