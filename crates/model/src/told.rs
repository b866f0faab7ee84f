//! The VMM's answers about one guest.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Absence, Agent, Bytes, GuestStats, Owner, Reading, Span, Terms};

/// A VMM's answers about a guest's memory, with their age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Memory that the guest keeps with an empty balloon: memory at start plus memory plugged since.
    pub full: Bytes,
    /// Nobody has proved `full`: no VMM has told it on a proved socket yet.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub claimed: bool,
    /// The balloon. `actual` includes the memory that virtio-mem has plugged.
    pub balloon: Reading<Balloon>,
    /// All virtio-mem devices together; absent if there is none.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub hotplug: Reading<Hotplug>,
    /// The driver's statistics of the guest's memory.
    pub stats: Reading<GuestStats>,
    /// What the agent in the guest tells.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub agent: Reading<Agent>,
    /// What it has read from its disks, as its VMM counts it.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub disks: Reading<DiskReads>,
    /// Whether the VMM lets KSM merge the guest's memory.
    #[serde(skip_serializing_if = "Reading::is_unsupported", default = "Reading::unsupported")]
    pub merges: Reading<bool>,
    /// How the statistics are polled.
    pub polling: Polling,
    /// The guest was reset, and its driver has not reported since then.
    pub reset: bool,
    /// Why memtide must leave the guest alone at the moment.
    pub fence: Option<Fence>,
    /// What its description asks for, in place of what its class says.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub terms: Option<Terms>,
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

/// What a guest has read from all its disks, as its VMM counts it. Disks that the VMM does not serve itself (vhost-user, passed through, over the
/// guest's network) do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskReads {
    /// Bytes read since the VMM started.
    pub bytes: Bytes,
    /// Time that these reads took in microseconds, each by itself; `None` if it is not told.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub took_us: Option<u64>,
}

/// All virtio-mem devices of a guest together. [`Told::full`] and [`Balloon::actual`] already include the plugged memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hotplug {
    /// The requested memory.
    pub requested: Bytes,
    /// The memory that the guest has plugged.
    pub plugged: Bytes,
    /// The most that can be plugged: all of it is mapped. Zero if the VMM did not tell.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub most: Bytes,
}

/// How a guest's balloon statistics are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Polling {
    /// The guest has no balloon, or the balloon cannot be asked.
    Unknown,
    /// Nobody polls them.
    Off,
    /// The VMM polls them at this interval.
    Every(Span),
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
    /// Somebody else sets its memory.
    Owned(Owner),
    /// Its VMM answers, but does not tell its size.
    Unproved,
    /// It would be larger than the machine, so nothing that it tells is believed.
    Oversized {
        /// The size, or the most that its VMM could use beyond it.
        claims: Bytes,
    },
    /// Its balloon keeps more than its VMM says that it has.
    Contradicts {
        /// The size that its VMM tells.
        full: Bytes,
    },
}

/// For people: the guest's present situation.
impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("paused"),
            Self::Migrating => f.write_str("migrating"),
            Self::Snapshot => f.write_str("snapshot under way"),
            Self::Another { pid: 0 } => f.write_str("root's memtide manages it"),
            Self::Another { pid } => write!(f, "another memtide (process {pid}) manages it"),
            Self::Owned(owner) => write!(f, "{owner}"),
            Self::Unproved => f.write_str("its VMM does not tell its size"),
            Self::Oversized { claims } => {
                write!(f, "claims {claims}, more than this machine has; counts at what it uses")
            }
            Self::Contradicts { full } => {
                write!(f, "its balloon keeps more than the {full} that its VMM tells; counts at that")
            }
        }
    }
}

/// A guest may be larger than the memory that the kernel manages by one part in this many.
const KERNELS_PART: u64 = 8;

/// The largest guest of a machine whose kernel manages `memory`. The kernel keeps a part of the machine's memory for itself, and a guest as large as
/// the machine can be managed.
#[must_use]
pub fn largest_guest(memory: Bytes) -> Bytes {
    memory.saturating_add(memory.mul_div(1, KERNELS_PART))
}

impl Told {
    /// Memory that the guest keeps now, or its full size if no driver can give memory back.
    #[must_use]
    pub fn actual(&self) -> Bytes {
        match self.balloon.latest() {
            Some(balloon) if !self.reset => balloon.actual.min(self.full),
            _ => self.full,
        }
    }

    /// A guest of `full` bytes. Everything else is unknown because of `why`.
    #[must_use]
    pub fn nothing(full: Bytes, why: Absence) -> Self {
        Self {
            full,
            claimed: false,
            balloon: Reading::absent(why.clone()),
            hotplug: Reading::absent(why.clone()),
            stats: Reading::absent(why),
            agent: Reading::unsupported(),
            disks: Reading::unsupported(),
            merges: Reading::unsupported(),
            polling: Polling::Unknown,
            reset: false,
            fence: None,
            terms: None,
        }
    }

    /// The same, of `full` bytes as its start names them.
    #[must_use]
    pub fn claimed(full: Bytes, why: Absence) -> Self {
        Self { claimed: true, ..Self::nothing(full, why) }
    }

    /// The same answers after `by`, if nobody asked again.
    #[must_use]
    pub fn later(self, by: Span) -> Self {
        Self {
            balloon: self.balloon.later(by),
            hotplug: self.hotplug.later(by),
            stats: self.stats.later(by),
            agent: self.agent.later(by),
            disks: self.disks.later(by),
            merges: self.merges.later(by),
            ..self
        }
    }

    /// The same answers after `by`, if newer ones are not available because of `why`.
    #[must_use]
    pub fn aged(self, by: Span, why: &Absence) -> Self {
        Self {
            balloon: self.balloon.aged(by, why),
            hotplug: self.hotplug.aged(by, why),
            stats: self.stats.aged(by, why),
            agent: self.agent.aged(by, why),
            disks: self.disks.aged(by, why),
            merges: self.merges.aged(by, why),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_grows_old_and_says_why() {
        let hotplug = Hotplug { requested: Bytes::ZERO, plugged: Bytes::ZERO, most: Bytes::ZERO };
        let told = Told {
            hotplug: Reading::Fresh { value: hotplug, age: Span::from_millis(10) },
            balloon: Reading::absent(Absence::NoBalloon),
            ..Told::nothing(Bytes::from_mib(512), Absence::NotYet)
        };
        let later = told.aged(Span::from_millis(90), &Absence::Timeout);
        let age = Span::from_millis(100);
        assert_eq!(later.hotplug, Reading::Stale { value: hotplug, age, why: Absence::Timeout });
        assert_eq!(later.balloon, Reading::absent(Absence::NoBalloon));
        assert_eq!(later.stats, Reading::absent(Absence::Timeout));
    }
}
