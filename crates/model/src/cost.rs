//! The cost of a guest to its host.

use serde::{Deserialize, Serialize};

use crate::{Absence, Bytes, Reading, Span, Tier};

/// The cost of a guest to the host. Its merged and swapped memory, which can return, is listed separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// The guest's present cost to the host: resident memory of its process, without the VMM's program and libraries and without
    /// memory that KSM merged. If guest RAM is a shared file, the file's blocks count.
    pub footprint: Reading<Bytes>,
    /// The guest's memory that KSM merged and that the footprint therefore does not count. The guest still uses it.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub merged: Reading<Bytes>,
    /// The guest's memory in the host's swap. The guest still uses it.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub swapped: Reading<Bytes>,
    /// The parts of torn huge pages that the guest gave back and the host still holds; not in the footprint. Known only for a guest
    /// with a cgroup of its own.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub torn: Reading<Bytes>,
    /// The CPU time that the process has used since it started, in user mode and in the kernel.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub cpu_time: Reading<Span>,
    /// The guest's memory that is resident, exactly, as its mappings showed when they were last read: without what is in swap, with what KSM merged.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub ram: Reading<Bytes>,
    /// The part of the footprint that belongs to the VMM and not to the guest, up to half a minute old. If it is unknown, the bound.
    pub overhead: Bytes,
    /// The most that the process can cost beyond the guest's own memory, without the VMM's program and libraries.
    pub overhead_bound: Bytes,
    /// Guest memory in a pool of huge pages. The pages of the pool that nobody uses yet are part of the host's other use.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub in_pool: Bytes,
    /// The part of it that is resident, and so in the footprint.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub in_pool_resident: Bytes,
    /// The guest's resident memory in files that count for another guest, which has them, too.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub for_others: Bytes,
    /// The guest's compressed tier, whose memory is in the footprint and in the overhead; its limit is in the bound of the overhead. Unsupported if
    /// it has none.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub tier: Reading<Tier>,
}

impl Cost {
    /// The guest's memory that is not in its footprint and that it still uses: what KSM merged, what is in swap, as far as that is known, and what counts
    /// for another guest.
    #[must_use]
    pub fn not_in_footprint(&self) -> Bytes {
        let parts = [&self.merged, &self.swapped];
        let parts = parts.map(|reading| reading.latest().copied().unwrap_or_default());
        Bytes::sum(parts.into_iter().chain([self.for_others]))
    }

    /// The guest's memory that the ledger counts in the host's other use: pages of a pool that are kept for it.
    #[must_use]
    pub fn kept_in_pool(&self) -> Bytes {
        self.in_pool.saturating_sub(self.in_pool_resident)
    }

    /// A guest of this `footprint` that has nothing else to read because of `why`.
    #[must_use]
    pub fn of(footprint: Reading<Bytes>, overhead: Bytes, overhead_bound: Bytes, why: &Absence) -> Self {
        let absent = || Reading::absent(why.clone());
        Self {
            footprint,
            merged: absent(),
            swapped: absent(),
            torn: absent(),
            cpu_time: Reading::absent(why.clone()),
            ram: Reading::unsupported(),
            overhead,
            overhead_bound,
            in_pool: Bytes::ZERO,
            in_pool_resident: Bytes::ZERO,
            for_others: Bytes::ZERO,
            tier: Reading::unsupported(),
        }
    }
}
