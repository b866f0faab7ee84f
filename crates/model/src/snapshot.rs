//! What the world looked like at one moment.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestId, Moment, Order, Reading, Share, Span, WallClock};

/// The host and its guests at one moment. Counters are cumulative: the policy remembers the last ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The only time that a decision knows.
    pub taken_at: Moment,
    /// The same moment for people.
    pub wall: WallClock,
    /// The host's own memory.
    pub host: HostSeen,
    /// The guests, ordered by identity, each once.
    pub guests: Vec<GuestSeen>,
    /// What the operator asked for since the last snapshot, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub orders: Vec<Order>,
}

/// The host's own memory, or that of the cgroup or budget that plays the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSeen {
    /// All memory that the ledger is about.
    pub capacity: Bytes,
    /// What is used by others than guests, without page cache that the host can drop at once.
    pub other: Bytes,
    /// Traffic of the host's swap; absent where the host has none.
    pub swap: Reading<SwapCounters>,
    /// The host's memory pressure.
    pub pressure: Reading<Pressure>,
}

/// Cumulative traffic of the host's swap since boot (`pswpin`, `pswpout` of /proc/vmstat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapCounters {
    /// Read back from swap.
    pub swapped_in: Bytes,
    /// Written to swap.
    pub swapped_out: Bytes,
}

/// Cumulative stall time in microseconds (the `total=` fields of /proc/pressure/memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one task stalled.
    pub some_us: u64,
    /// All tasks stalled.
    pub full_us: u64,
}

/// What runs a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// A QEMU process of its own.
    Qemu,
    /// A QEMU process that libvirt owns: seen and counted, never connected to.
    QemuOfLibvirt,
}

/// Why a guest must be left alone at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// Its vCPUs are stopped: the balloon driver cannot answer.
    Paused,
    /// It is being migrated.
    Migrating,
    /// Its memory is being saved to a snapshot, or restored from one.
    Snapshot,
    /// Another memtide manages it.
    Another {
        /// The other's process.
        pid: u32,
    },
}

/// For people, as what is going on with the guest.
impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("paused"),
            Self::Migrating => f.write_str("migrating"),
            Self::Snapshot => f.write_str("snapshot under way"),
            Self::Another { pid } => write!(f, "another memtide (process {pid}) manages it"),
        }
    }
}

/// One guest at one moment.
///
/// Sizes are of memory that the *guest keeps*, never of the balloon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSeen {
    /// Who it is.
    pub id: GuestId,
    /// Its process on the host.
    pub pid: u32,
    /// What runs it.
    pub backend: Backend,
    /// What it keeps with an empty balloon: memory at start, and what was plugged since.
    pub full: Bytes,
    /// What it costs the host now: resident memory of its process without the VMM's program and libraries and without what
    /// KSM merged, and blocks of a shared file.
    pub footprint: Reading<Bytes>,
    /// The part of the footprint that is the VMM's and not the guest's, up to half a minute old; the bound where it is unknown.
    #[serde(default)]
    pub overhead: Bytes,
    /// The most that its process can cost beyond the guest's own memory, the VMM's program and libraries not counted.
    pub overhead_bound: Bytes,
    /// The balloon.
    pub balloon: Reading<Balloon>,
    /// virtio-mem devices together; absent where there is none.
    pub hotplug: Reading<Hotplug>,
    /// What the guest's balloon driver tells of the guest's memory.
    pub stats: Reading<GuestStats>,
    /// How the statistics are polled.
    pub polling: StatsPolling,
    /// The guest was reset, and its driver has not reported since.
    pub reset: bool,
    /// Why it must be left alone at the moment.
    pub fence: Option<Fence>,
}

/// A balloon as the VMM reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balloon {
    /// Memory that the guest keeps now (with the plugged memory of virtio-mem).
    pub actual: Bytes,
    /// Whether the guest may deflate by itself when it runs out of memory.
    pub deflate_on_oom: bool,
    /// Whether freed pages come back to the host by themselves.
    pub free_page_reporting: bool,
}

/// virtio-mem devices of a guest together. The plugged part is in [`GuestSeen::full`] and [`Balloon::actual`] already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hotplug {
    /// What was asked for.
    pub requested: Bytes,
    /// What the guest has plugged.
    pub plugged: Bytes,
}

/// How the balloon statistics of a guest are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatsPolling {
    /// There is no balloon, or it cannot be asked.
    Unknown,
    /// Nobody polls them.
    Off,
    /// The VMM polls them at this interval.
    Every(Span),
}

/// The statistics of the balloon driver, as `virtio_balloon.h` names them. `None` is a counter that this driver or VMM
/// does not offer. Counters are cumulative since the guest's boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuestStats {
    /// Memory that the guest's kernel manages (`stat-total-memory`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Bytes>,
    /// Memory that nobody in the guest uses (`stat-free-memory`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<Bytes>,
    /// Memory that the guest could use without swapping (`stat-available-memory`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<Bytes>,
    /// Page cache (`stat-disk-caches`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_caches: Option<Bytes>,
    /// Swapped in (`stat-swap-in`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapped_in: Option<Bytes>,
    /// Swapped out (`stat-swap-out`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapped_out: Option<Bytes>,
    /// Faults that needed a device (`stat-major-faults`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// Faults that needed none (`stat-minor-faults`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor_faults: Option<u64>,
    /// Huge pages taken (`stat-htlb-pgalloc`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub htlb_pgalloc: Option<u64>,
    /// Huge pages refused (`stat-htlb-pgfail`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub htlb_pgfail: Option<u64>,
    /// Processes killed for want of memory (`stat-oom-kills`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Allocations that had to wait (`stat-alloc-stalls`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_stalls: Option<u64>,
    /// Pages looked at by kswapd (`stat-async-scans`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_scans: Option<u64>,
    /// Pages looked at by those who wait (`stat-direct-scans`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_scans: Option<u64>,
    /// Pages freed by kswapd (`stat-async-reclaims`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_reclaims: Option<u64>,
    /// Pages freed by those who wait (`stat-direct-reclaims`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_reclaims: Option<u64>,
}

impl HostSeen {
    /// `part` of the capacity.
    #[must_use]
    pub fn share(&self, part: Share) -> Bytes {
        part.of(self.capacity)
    }
}

impl GuestSeen {
    /// Whether a driver answers in the guest: the balloon is read, and no reset is unanswered.
    #[must_use]
    pub fn has_driver(&self) -> bool {
        !self.reset && self.balloon.latest().is_some()
    }

    /// Memory that the guest keeps now; its full size where no driver can give anything back.
    #[must_use]
    pub fn actual(&self) -> Bytes {
        match self.balloon.latest() {
            Some(balloon) if !self.reset => balloon.actual.min(self.full),
            _ => self.full,
        }
    }

    /// Memory that virtio-mem has been asked to plug and has not plugged yet.
    #[must_use]
    pub fn unplugged_request(&self) -> Bytes {
        self.hotplug.latest().map_or(Bytes::ZERO, |h| h.requested.saturating_sub(h.plugged))
    }
}
