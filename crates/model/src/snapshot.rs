//! The world at one moment.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    Absence, Bytes, Capabilities, Cost, GuestId, KsmSeen, Moment, Names, Order, Reading, Share, Span, Tmpfs,
    TmpfsId, Told, WallClock, Withheld, printable,
};

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
    /// The tmpfs of limited size that hold guests' memory, and the NUMA nodes that guests are bound to, in order of their numbers, each once.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub tmpfs: Vec<Tmpfs>,
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
    /// Memory used by everything except guests, without page cache that the host can drop at once and without torn huge pages.
    pub other: Bytes,
    /// The part of `other` that is memory of ended guests, which the kernel is about to free. It is no growth.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub ending: Bytes,
    /// The rest of torn huge pages: memory that its owners gave back, and that the kernel still holds. In no footprint, and not in `other`.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub torn: Reading<Bytes>,
    /// Whether memtide can make the kernel split the torn huge pages of guests.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub splits: bool,
    /// Whether memtide can make tiers.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub tiers: bool,
    /// The host's swap traffic; absent if the host has no swap.
    pub swap: Reading<SwapCounters>,
    /// The host's memory pressure.
    pub pressure: Reading<Pressure>,
    /// KSM; unsupported if the kernel has none, or memtide does not look.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub ksm: Reading<KsmSeen>,
    /// Why `capacity` and `other` are not those of this moment, and their age; `None`: they are.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub missed: Option<Missed>,
}

impl HostSeen {
    /// A host of which nothing else is known.
    #[must_use]
    pub const fn of(capacity: Bytes, other: Bytes) -> Self {
        Self {
            capacity,
            other,
            ending: Bytes::ZERO,
            torn: Reading::unsupported(),
            splits: false,
            tiers: false,
            swap: Reading::unsupported(),
            pressure: Reading::unsupported(),
            ksm: Reading::unsupported(),
            missed: None,
        }
    }

    /// The other use that lasts, without the memory of ended guests.
    #[must_use]
    pub fn lasting_other(&self) -> Bytes {
        self.other.saturating_sub(self.ending)
    }
}

/// A reading of the host that failed. The last one counts until the next succeeds, and it ages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// The reason.
    pub why: Absence,
    /// The age of the last reading; `None`: there was none.
    pub age: Option<Span>,
}

/// For people, as in `permission denied; the last reading is 4.2 s old`.
impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.age {
            Some(age) => write!(f, "{}; the last reading is {age} old", self.why),
            None => write!(f, "{}; there was no reading yet", self.why),
        }
    }
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
/// No decision depends on it: the abilities of a VMM are in [`GuestSeen::capabilities`].
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

/// One guest at one moment.
///
/// Sizes are memory that the *guest keeps*, never the size of its balloon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSeen {
    /// The guest's identity.
    pub id: GuestId,
    /// The guest's process on the host.
    pub pid: u32,
    /// The real user of this process; `None` if the kernel did not tell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user: Option<u32>,
    /// The VMM that runs the guest.
    pub backend: Backend,
    /// What memtide can do with it.
    #[serde(skip_serializing_if = "Capabilities::are_a_balloons", default)]
    pub capabilities: Capabilities,
    /// What the guest costs the host.
    pub cost: Cost,
    /// The tmpfs that holds its memory, if that is a file there; or the NUMA node that it is bound to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tmpfs: Option<TmpfsId>,
    /// Why taking memory from it brings the host nothing, or hurts others; `None` if nothing of the kind is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub withheld: Option<Withheld>,
    /// The VMM's answers about the guest's memory.
    pub told: Told,
}

impl Snapshot {
    /// The torn memory that a split of `guest` can return: the guest's own, or that of the whole host if nobody knows the guest's own.
    #[must_use]
    pub fn torn_of(&self, guest: &GuestSeen) -> Option<Bytes> {
        guest.cost.torn.fresh().or(self.host.torn.fresh()).copied()
    }

    /// A guest by its identity.
    #[must_use]
    pub fn guest(&self, id: &GuestId) -> Option<&GuestSeen> {
        self.guests.binary_search_by(|guest| guest.id.cmp(id)).ok().map(|index| &self.guests[index])
    }
}

impl HostSeen {
    /// Memory that no guest can get now: the use of others, and torn huge pages.
    #[must_use]
    pub fn beside_guests(&self) -> Bytes {
        self.other.saturating_add(self.torn.latest().copied().unwrap_or_default())
    }

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
        !self.told.reset && self.told.balloon.latest().is_some()
    }

    /// Memory that the guest keeps now, or its full size if no driver can give memory back.
    #[must_use]
    pub fn actual(&self) -> Bytes {
        self.told.actual()
    }

    /// Whether it may deflate its own balloon.
    #[must_use]
    pub fn deflates_itself(&self) -> bool {
        self.told.balloon.latest().is_some_and(|balloon| balloon.deflate_on_oom)
    }

    /// Memory that virtio-mem was asked to plug and has not plugged yet.
    #[must_use]
    pub fn unplugged_request(&self) -> Bytes {
        self.told.hotplug.latest().map_or(Bytes::ZERO, |h| h.requested.saturating_sub(h.plugged))
    }
}
