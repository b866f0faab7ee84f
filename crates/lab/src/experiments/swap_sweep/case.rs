//! The differences between the arms: where the guests swap to or who manages their memory, and how many they are.

use std::time::Duration;

use memtide_model::Bytes;

use crate::experiments::experiment::{Arm, Effort};
use crate::guest::swap::Medium;
use crate::managers::daemon::TIER;

/// Where memory comes from once a guest's own is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The guest swaps to a hard disk.
    Disk,
    /// It swaps to a file on a tmpfs of the host.
    Tmpfs,
    /// It swaps to a zram of the host.
    Zram,
    /// It has no swap: memtide moves balloons.
    Balloon,
    /// memtide moves balloons, and attaches compressed tiers.
    Tier,
}

impl By {
    pub(super) const ALL: [Self; 5] = [Self::Disk, Self::Tmpfs, Self::Zram, Self::Balloon, Self::Tier];

    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Tmpfs => "tmpfs",
            Self::Zram => "zram",
            Self::Balloon => "balloon",
            Self::Tier => "memtide",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Disk => "swap on a disk",
            Self::Tmpfs => "swap on a tmpfs",
            Self::Zram => "swap on zram",
            Self::Balloon => "balloons, no swap",
            Self::Tier => "memtide with tiers",
        }
    }

    /// The medium of the swap that each guest has from the beginning.
    pub(super) const fn medium(self) -> Option<Medium> {
        match self {
            Self::Disk => Some(Medium::Disk),
            Self::Tmpfs => Some(Medium::Tmpfs),
            Self::Zram => Some(Medium::Zram),
            Self::Balloon | Self::Tier => None,
        }
    }

    /// Whether memtide manages guests that boot with all the memory that they could use.
    pub(super) const fn is_managed(self) -> bool {
        self.medium().is_none()
    }

    /// What memtide may do with the guests: they get no more memory than the fixed guests of the other arms have.
    pub(super) fn class(self, memory: Bytes) -> Option<String> {
        let limit = format!("limit = \"{} MiB\"\n", memory.whole_mib());
        match self {
            Self::Balloon => Some(format!("[class.default]\n{limit}")),
            Self::Tier => Some(format!("{TIER}{limit}")),
            Self::Disk | Self::Tmpfs | Self::Zram => None,
        }
    }
}

/// The difference between the arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) by: By,
    /// The number of guests, which all work at the same time.
    pub(super) guests: u64,
}

impl Case {
    /// The numbers of guests, as in the text.
    pub(super) const GUESTS: [u64; 2] = [1, 3];

    /// All cases, in the order of the tables.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::GUESTS.into_iter().flat_map(|guests| By::ALL.map(|by| Self { by, guests }))
    }

    /// The case of an arm.
    pub(super) fn of(arm: &Arm) -> Option<Self> {
        Self::all().find(|case| case.key() == arm.key)
    }

    pub(super) fn key(self) -> String {
        match self.guests {
            1 => self.by.key().to_owned(),
            guests => format!("{}-{guests}", self.by.key()),
        }
    }

    pub(super) fn arm(self, effort: Effort) -> Arm {
        let title = format!("{}, {}", self.by.title(), self.guests_in_words());
        let points = super::parts(effort).len() as u64;
        // A point on the disk takes longer, and three guests share two processors.
        let seconds = if self.by == By::Disk { 45 } else { 25 };
        let takes = Duration::from_secs(points * seconds * if self.guests == 1 { 1 } else { 2 });
        Arm { key: self.key(), title, runs: if effort == Effort::Full { 3 } else { 1 }, takes }
    }

    pub(super) fn guests_in_words(self) -> String {
        if self.guests == 1 { "one guest".to_owned() } else { format!("{} guests", self.guests) }
    }
}
