//! The world at one moment.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestId, Moment, Names, Order, Reading, Share, Span, WallClock, printable};

/// The host and its guests at one moment. Counters are cumulative; the policy remembers their last values.
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
    /// The operator's orders since the last snapshot, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub orders: Vec<Order>,
}

impl Snapshot {
    /// The names of its guests for people.
    #[must_use]
    pub fn names(&self) -> Names<'_> {
        Names::of(self.guests.iter().map(|guest| &guest.id))
    }
}

/// The host's own memory, or the memory of the cgroup or budget that plays the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSeen {
    /// All memory that the ledger counts.
    pub capacity: Bytes,
    /// Memory used by everything except guests, without page cache that the host can drop at once.
    pub other: Bytes,
    /// The host's swap traffic; absent if the host has no swap.
    pub swap: Reading<SwapCounters>,
    /// The host's memory pressure.
    pub pressure: Reading<Pressure>,
}

/// Cumulative swap traffic of the host since boot (`pswpin`, `pswpout` of /proc/vmstat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapCounters {
    /// Swapped in.
    pub swapped_in: Bytes,
    /// Swapped out.
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

/// The name of the VMM that runs a guest, for people.
///
/// No decision depends on it: the abilities of a VMM are in [`GuestSeen::can_be_set`] and in [`Balloon`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Backend(Cow<'static, str>);

impl Backend {
    /// The VMM called `name`.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

/// Why memtide must leave a guest alone at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// The guest's vCPUs are stopped, so the balloon driver cannot answer.
    Paused,
    /// The guest is being migrated.
    Migrating,
    /// The guest's memory is being saved to a snapshot, or restored from one.
    Snapshot,
    /// Another memtide manages the guest.
    Another {
        /// The process of the other memtide.
        pid: u32,
    },
}

/// For people: the guest's present situation.
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

const fn yes() -> bool {
    true
}

/// One guest at one moment.
///
/// Sizes are memory that the *guest keeps*, never the size of its balloon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSeen {
    /// The guest's identity.
    pub id: GuestId,
    /// The guest's process on the host.
    pub pid: u32,
    /// The VMM that runs the guest.
    pub backend: Backend,
    /// Whether memtide can set its size. It cannot if somebody else owns its monitor.
    #[serde(default = "yes")]
    pub can_be_set: bool,
    /// Memory that the guest keeps with an empty balloon: memory at start plus memory plugged since.
    pub full: Bytes,
    /// The guest's present cost to the host: resident memory of its process, without the VMM's program and libraries and without
    /// memory that KSM merged. If guest RAM is a shared file, the file's blocks count.
    pub footprint: Reading<Bytes>,
    /// The part of the footprint that belongs to the VMM and not to the guest, up to half a minute old. If it is unknown, the bound.
    #[serde(default)]
    pub overhead: Bytes,
    /// The most that the process can cost beyond the guest's own memory, without the VMM's program and libraries.
    pub overhead_bound: Bytes,
    /// The balloon.
    pub balloon: Reading<Balloon>,
    /// All virtio-mem devices together; absent if there is none.
    pub hotplug: Reading<Hotplug>,
    /// The balloon driver's statistics of the guest's memory.
    pub stats: Reading<GuestStats>,
    /// How the statistics are polled.
    pub polling: StatsPolling,
    /// The guest was reset, and its driver has not reported since then.
    pub reset: bool,
    /// Why memtide must leave the guest alone at the moment.
    pub fence: Option<Fence>,
}

/// A balloon as the VMM reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balloon {
    /// Memory that the guest keeps now, including memory that virtio-mem has plugged.
    pub actual: Bytes,
    /// Whether the guest may deflate its own balloon when it runs out of memory.
    pub deflate_on_oom: bool,
    /// Whether the guest reports free pages, so that they return to the host.
    pub free_page_reporting: bool,
}

/// All virtio-mem devices of a guest together. [`GuestSeen::full`] and [`Balloon::actual`] already include the plugged memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hotplug {
    /// The requested memory.
    pub requested: Bytes,
    /// The memory that the guest has plugged.
    pub plugged: Bytes,
}

/// How a guest's balloon statistics are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatsPolling {
    /// The guest has no balloon, or the balloon cannot be asked.
    Unknown,
    /// Nobody polls them.
    Off,
    /// The VMM polls them at this interval.
    Every(Span),
}

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

impl HostSeen {
    /// `part` of the capacity.
    #[must_use]
    pub fn share(&self, part: Share) -> Bytes {
        part.of(self.capacity)
    }
}

impl GuestSeen {
    /// Whether a driver answers in the guest: the balloon was read, and the driver has reported since the last reset.
    #[must_use]
    pub fn has_driver(&self) -> bool {
        !self.reset && self.balloon.latest().is_some()
    }

    /// Memory that the guest keeps now, or its full size if no driver can give memory back.
    #[must_use]
    pub fn actual(&self) -> Bytes {
        match self.balloon.latest() {
            Some(balloon) if !self.reset => balloon.actual.min(self.full),
            _ => self.full,
        }
    }

    /// Memory that virtio-mem was asked to plug and has not plugged yet.
    #[must_use]
    pub fn unplugged_request(&self) -> Bytes {
        self.hotplug.latest().map_or(Bytes::ZERO, |h| h.requested.saturating_sub(h.plugged))
    }
}
