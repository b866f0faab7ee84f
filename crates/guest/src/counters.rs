//! What the guest's kernel counts.

/// Counters since the guest's boot. Memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) swapped_in: u64,
    /// The part of it that came from a tier.
    pub(crate) from_tier: u64,
    pub(crate) swapped_out: u64,
    pub(crate) major_faults: u64,
    pub(crate) minor_faults: u64,
    pub(crate) oom_kills: u64,
    pub(crate) alloc_stalls: u64,
    pub(crate) async_scans: u64,
    pub(crate) direct_scans: u64,
    pub(crate) async_reclaims: u64,
    pub(crate) direct_reclaims: u64,
    /// Time in which a reader waited for the disk, in microseconds.
    pub(crate) disk_waits: u64,
    /// Refaults of the working set.
    pub(crate) activations: u64,
}
