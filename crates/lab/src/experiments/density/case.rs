//! The differences between the arms: the manager, the guests' job, the times of their work, and swap on the host.

use std::time::Duration;

use memtide_model::Commitment;

use super::job::Job;
use crate::error::LabError;
use crate::experiments::experiment::{Arm, Effort};
use crate::machine::lab::Run;
use crate::managers::daemon::{SHARES, TIER};
use crate::managers::memtide::Memtide;
use crate::managers::peer::{Peer, Rule};
use crate::managers::{Manager, Nobody};

/// The manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Nobody,
    Reporting,
    Mom,
    Proxmox,
    Strict,
    Elastic,
    /// Elastic, without a prior for the growth of guests that nobody has seen grow.
    ElasticPriorZero,
    /// Elastic, with half of the default prior.
    ElasticPriorHalf,
    /// Elastic, and the guests' equal memory is merged.
    ElasticSharing,
    /// Elastic, and half of each guest's memory may lie in a compressed tier.
    ElasticTier,
}

impl By {
    pub(super) const ALL: [Self; 6] =
        [Self::Nobody, Self::Reporting, Self::Mom, Self::Proxmox, Self::Strict, Self::Elastic];
    /// Only in the main variant.
    const OTHERS: [Self; 3] = [Self::ElasticSharing, Self::ElasticPriorZero, Self::ElasticPriorHalf];
    /// For guests with cold heaps.
    const COLD: [Self; 4] = [Self::Nobody, Self::Reporting, Self::Elastic, Self::ElasticTier];
    pub(super) const QUICK: [Self; 3] = [Self::Nobody, Self::Reporting, Self::Elastic];

    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Nobody => "unmanaged",
            Self::Reporting => "reporting",
            Self::Mom => "mom",
            Self::Proxmox => "proxmox",
            Self::Strict => "strict",
            Self::Elastic => "elastic",
            Self::ElasticPriorZero => "elastic-prior-0",
            Self::ElasticPriorHalf => "elastic-prior-17",
            Self::ElasticSharing => "elastic-ksm",
            Self::ElasticTier => "elastic-tier",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Nobody => "unmanaged",
            Self::Reporting => "free page reporting",
            Self::Mom => "MOM's rule",
            Self::Proxmox => "Proxmox's rule",
            Self::Strict => "memtide strict",
            Self::Elastic => "memtide elastic",
            Self::ElasticPriorZero => "memtide elastic, prior 0 %",
            Self::ElasticPriorHalf => "memtide elastic, prior 17 %",
            Self::ElasticSharing => "memtide elastic, equal memory merged",
            Self::ElasticTier => "memtide elastic with tiers",
        }
    }

    pub(super) const fn is_memtide(self) -> bool {
        !matches!(self, Self::Nobody | Self::Reporting | Self::Mom | Self::Proxmox)
    }

    /// Whether a tier is plugged into the guests.
    pub(super) const fn has_tier(self) -> bool {
        matches!(self, Self::ElasticTier)
    }

    /// Whether the machine's KSM is set.
    pub(super) const fn sets_ksm(self) -> bool {
        matches!(self, Self::ElasticSharing)
    }

    /// The goal: the number of guests that get through, as a multiple of the unmanaged ones, with offset peaks.
    pub(super) const fn times_unmanaged(self) -> Option<f64> {
        match self {
            Self::Strict => Some(2.0),
            Self::Elastic => Some(3.0),
            _ => None,
        }
    }

    /// The goal: the time of the work against the best other arm with as many guests.
    pub(super) const fn times_best(self) -> Option<f64> {
        match self {
            Self::Strict => Some(1.15),
            Self::Elastic => Some(1.05),
            _ => None,
        }
    }

    /// Whether it is another tool's rule.
    pub(super) const fn is_rule(self) -> bool {
        matches!(self, Self::Mom | Self::Proxmox)
    }

    pub(super) fn manager(self, names: &str, run: &Run) -> Result<Box<dyn Manager>, LabError> {
        let libvirtd = run.lab().libvirtd();
        let memtide =
            |commitment| Ok::<_, LabError>(Memtide::find(commitment, &format!("{names}*"))?.over(libvirtd));
        Ok(match self {
            Self::Nobody | Self::Reporting => Box::new(Nobody),
            Self::Mom => Box::new(Peer::new(Rule::Mom)),
            Self::Proxmox => Box::new(Peer::new(Rule::Proxmox)),
            Self::Strict => Box::new(memtide(Commitment::Strict)?),
            Self::Elastic => Box::new(memtide(Commitment::Elastic)?),
            Self::ElasticPriorZero => Box::new(memtide(Commitment::Elastic)?.with("growth_prior = \"0%\"")),
            Self::ElasticPriorHalf => Box::new(memtide(Commitment::Elastic)?.with("growth_prior = \"17%\"")),
            Self::ElasticSharing => Box::new(memtide(Commitment::Elastic)?.with(SHARES)),
            Self::ElasticTier => Box::new(memtide(Commitment::Elastic)?.with(TIER)),
        })
    }
}

/// When the guests work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peaks {
    /// One after another.
    Offset,
    /// All at once.
    Simultaneous,
}

/// The differences between the arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) by: By,
    pub(super) job: Job,
    pub(super) peaks: Peaks,
    pub(super) swap: bool,
}

impl Case {
    /// All cases, in the order of the tables.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let variants = [
            (Job::Memory, Peaks::Offset, false),
            (Job::PageCache, Peaks::Offset, false),
            (Job::Memory, Peaks::Offset, true),
            (Job::Memory, Peaks::Simultaneous, false),
            (Job::Memory, Peaks::Simultaneous, true),
        ];
        let others = By::OTHERS.map(|by| Self { by, job: Job::Memory, peaks: Peaks::Offset, swap: false });
        let managers = |(job, peaks, swap)| By::ALL.map(|by| Self { by, job, peaks, swap });
        let cold = By::COLD.map(|by| Self { by, job: Job::ColdHeap, peaks: Peaks::Offset, swap: false });
        variants.into_iter().flat_map(managers).chain(others).chain(cold)
    }

    /// The case of an arm.
    pub(super) fn of(arm: &Arm) -> Option<Self> {
        Self::all().find(|case| case.key() == arm.key)
    }

    /// Whether the guests have memtide's agent: those with cold heaps do, under memtide.
    pub(super) const fn has_agents(self) -> bool {
        matches!(self.job, Job::ColdHeap) && self.by.is_memtide()
    }

    pub(super) const fn reporting(self) -> bool {
        !matches!(self.by, By::Nobody)
    }

    /// The text after the manager's key: empty for the main variant.
    pub(super) const fn suffix(self) -> &'static str {
        match (self.job, self.peaks, self.swap) {
            (Job::PageCache | Job::ColdHeap, ..) => self.job.suffix(),
            (Job::Memory, Peaks::Offset, false) => "",
            (Job::Memory, Peaks::Offset, true) => "-zram",
            (Job::Memory, Peaks::Simultaneous, false) => "-simultaneous",
            (Job::Memory, Peaks::Simultaneous, true) => "-simultaneous-zram",
        }
    }

    pub(super) const fn variant(self) -> &'static str {
        match (self.job, self.peaks, self.swap) {
            (Job::PageCache, ..) => "page cache in use, offset peaks, no swap",
            (Job::ColdHeap, ..) => "cold heaps, offset peaks, no swap on the host",
            (Job::Memory, Peaks::Offset, false) => "offset peaks, no swap",
            (Job::Memory, Peaks::Offset, true) => "offset peaks, swap on zram",
            (Job::Memory, Peaks::Simultaneous, false) => "simultaneous peaks, no swap",
            (Job::Memory, Peaks::Simultaneous, true) => "simultaneous peaks, swap on zram",
        }
    }

    pub(super) fn key(self) -> String {
        format!("{}{}", self.by.key(), self.suffix())
    }

    pub(super) fn arm(self, effort: Effort) -> Arm {
        let title = match self.suffix() {
            "" => self.by.title().to_owned(),
            _ => format!("{}, {}", self.by.title(), self.variant()),
        };
        // Runs that end with fewer guests are shorter.
        let seconds = match (self.peaks, self.by) {
            (Peaks::Offset, By::Nobody) => 60,
            (Peaks::Offset, _) if self.swap => 156,
            (Peaks::Offset, _) if effort == Effort::Quick => 200,
            (Peaks::Offset, _) => 288,
            (Peaks::Simultaneous, _) => 70,
        };
        Arm { key: self.key(), title, runs: 1, takes: Duration::from_secs(seconds) }
    }
}
