//! Why each guest has its present memory: the numbers behind a decision, for `status`, `explain` and the metrics.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Absence, Bytes, Fence, GuestId, Hold, HostState, KsmReport, Moment, Names, Span, TmpfsId, TmpfsReport,
    Withheld,
};

/// The ledger and the numbers behind one decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The host's side of the ledger.
    pub host: HostReport,
    /// The guests, ordered by identity.
    pub guests: Vec<GuestReport>,
}

impl Report {
    /// The names of its guests for people.
    #[must_use]
    pub fn names(&self) -> Names<'_> {
        Names::of(self.guests.iter().map(|guest| &guest.id))
    }
}

/// The ledger: `capacity = reserve + footprints + torn + other + free`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// All memory that the ledger counts.
    pub capacity: Bytes,
    /// Memory kept free of guests.
    pub reserve: Bytes,
    /// The present cost of the guests.
    pub footprints: Bytes,
    /// The rest of torn huge pages; zero if the kernel does not tell.
    #[serde(default)]
    pub torn: Bytes,
    /// The cost of everything except guests, without page cache that can be dropped.
    pub other: Bytes,
    /// The remaining memory.
    pub free: Bytes,
    /// The host's shortage of memory.
    pub state: HostState,
    /// The worst-case cost of the guests without asking (Σ reach).
    pub reach: Bytes,
    /// Strict: the largest self-deflations, which must also fit.
    pub self_deflation: Bytes,
    /// Strict: how many of them fit at once; `None` if no room is kept for any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub self_deflations: Option<SelfDeflations>,
    /// Elastic: the envelope of growth, which must fit into free memory.
    pub envelope: Bytes,
    /// Memory that the commitment leaves for grants.
    pub room: Bytes,
    /// The amount by which the commitment is not kept; zero if it is kept.
    pub breach: Bytes,
    /// Memory that guests need and do not have.
    pub unmet: Bytes,
    /// Memory that is reclaimable from the guests, by mechanism.
    pub savings: Savings,
    /// KSM; `None` if the kernel has none, or memtide does not look.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ksm: Option<KsmReport>,
    /// The tmpfs of limited size that hold guests' memory.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub tmpfs: Vec<TmpfsReport>,
}

/// The self-deflations that a strict commitment keeps room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfDeflations {
    /// The number that may happen at the same time.
    pub at_once: u32,
    /// The guests that may deflate their own balloons.
    pub guests: u32,
    /// The most that counts of each; `None` if each counts in full.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub within: Option<Bytes>,
}

/// Memory that is reclaimable from the guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Savings {
    /// Free memory of guests without free page reporting that is still resident on the host.
    pub free_page_reporting: Bytes,
    /// Page cache and free memory beyond the guests' need that ballooning would return.
    pub ballooning: Bytes,
}

/// Why a guest has its present memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestReport {
    /// The guest.
    pub id: GuestId,
    /// The name of its class.
    pub class: Arc<str>,
    /// The guest's cost to the host; `None` if it cannot be read. The guest then counts with its reach.
    pub footprint: Option<Bytes>,
    /// The guest's memory that KSM merged, and that the footprint does not count; `None` if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub merged: Option<Bytes>,
    /// The guest's worst-case cost without asking.
    pub reach: Bytes,
    /// The memory that the guest keeps.
    pub actual: Bytes,
    /// The guest's full size.
    pub full: Bytes,
    /// The memory that the guest uses; `None` without fresh statistics.
    pub used: Option<Bytes>,
    /// The page cache that the guest was seen to need.
    pub cache: Bytes,
    /// Free memory that it needs: headroom for its growth within a reaction time, and what its kernel keeps for itself.
    pub headroom: Bytes,
    /// The memory that the guest needs: used memory, cache and headroom, or more after a stall.
    pub demand: Bytes,
    /// The guest's fair share.
    pub entitlement: Bytes,
    /// The guest's target after this decision; `None` if memtide has never set one.
    pub target: Option<Bytes>,
    /// Memory beyond its fair share that it keeps because somebody else deflated its balloon, if it may not do that itself. It is part of
    /// the breach. memtide takes no memory from others for it unless one lacks memory.
    #[serde(default)]
    pub unordered: Bytes,
    /// The tmpfs that holds its memory, if it bounds its guests now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bound_by: Option<TmpfsId>,
    /// The action taken, or the reason for none.
    pub verdict: Verdict,
}

/// The action taken on a guest, or the reason for none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Its target was raised.
    Grown,
    /// Its target was lowered.
    Shrunk,
    /// Polling of its statistics begins.
    PollingStarted,
    /// It is on the way to its target.
    UnderWay,
    /// It has the memory that it should have.
    Steady,
    /// It needs more, and waits until memory is back at the host.
    WaitsForMemory {
        /// The memory that it still lacks.
        lacks: Bytes,
    },
    /// It squealed, and memtide does not squeeze it for a while.
    BackingOff {
        /// The end of the back-off.
        until: Moment,
    },
    /// It makes no progress and gives nothing.
    Stuck {
        /// The time without progress.
        since: Span,
        /// When memtide tries again.
        until: Moment,
        /// Stuck for a long time, so memtide reports it.
        uncooperative: bool,
    },
    /// memtide only observes.
    Observed,
    /// Its class is not managed.
    NotManaged,
    /// Taking its memory would bring the host nothing, or hurt others: it keeps its full size.
    Withheld(Withheld),
    /// memtide must leave it alone at the moment.
    Fenced(Fence),
    /// memtide leaves it alone, because of an order or because somebody else moved its balloon.
    Held(Hold),
    /// It was held because somebody else moved its balloon, and memtide manages it again.
    HoldEnds {
        /// The guest with the largest lack of memory; `None` if it is the host.
        lacking: Option<GuestId>,
        /// The memory that it lacks: a guest's used memory, or what the host needs to be out of danger.
        lacks: Bytes,
    },
    /// It was reset, and its driver has not reported since then.
    Reset,
    /// Its size cannot be changed.
    NoBalloon(Absence),
    /// It has no fresh statistics.
    NoStats(Absence),
}

/// Where a guest's memory goes at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// The guest gives memory.
    Gives,
    /// The guest gets memory.
    Gets,
}

impl GuestReport {
    /// A balloon that is nearer to its target has reached it: its target was rounded, or its guest keeps a few pages.
    pub const NEAR: Bytes = Bytes::from_mib(4);

    /// Whether the guest gives or gets memory; `None` if its size does not move.
    #[must_use]
    pub fn moves(&self) -> Option<Moves> {
        let on_its_way = matches!(self.verdict, Verdict::Grown | Verdict::Shrunk | Verdict::UnderWay);
        let target = self.target.filter(|_| on_its_way)?;
        if self.actual >= target.saturating_add(Self::NEAR) {
            return Some(Moves::Gives);
        }
        (target >= self.actual.saturating_add(Self::NEAR)).then_some(Moves::Gets)
    }

    /// The guest's state in a few words, for people: its verdict, or which way its size moves.
    #[must_use]
    pub fn in_words(&self, names: &Names<'_>, now: Moment) -> String {
        let verdict = match (&self.verdict, self.moves()) {
            (Verdict::UnderWay, Some(Moves::Gives)) => &Verdict::Shrunk,
            (Verdict::UnderWay, Some(Moves::Gets)) => &Verdict::Grown,
            (verdict, _) => verdict,
        };
        verdict.in_words(names, now)
    }
}

impl Verdict {
    /// The verdict about a guest in a few words, for people. It is the one wording for `status`, `explain`, the API, the log
    /// and the text of decisions.
    #[must_use]
    pub fn in_words(&self, names: &Names<'_>, now: Moment) -> String {
        match self {
            Self::Grown => "growing".to_owned(),
            Self::Shrunk => "shrinking".to_owned(),
            Self::PollingStarted => "statistics switched on".to_owned(),
            Self::UnderWay => "under way".to_owned(),
            Self::Steady => "steady".to_owned(),
            Self::WaitsForMemory { lacks } => format!("waits for {lacks}"),
            Self::BackingOff { until } => format!("next squeeze in {}", until.since(now)),
            Self::Stuck { since, uncooperative: true, .. } => format!("uncooperative for {since}"),
            Self::Stuck { since, .. } => format!("stuck for {since}"),
            Self::Observed => "observed".to_owned(),
            Self::NotManaged => "not managed (class)".to_owned(),
            Self::Withheld(why) => format!("gives nothing: {why}"),
            Self::Fenced(fence) => format!("left alone: {fence}"),
            Self::Held(hold) => match hold.until {
                Some(until) => format!("{} for {}", hold.keeps, until.since(now)),
                None => hold.keeps.to_string(),
            },
            Self::HoldEnds { lacking: Some(lacking), lacks } => {
                format!("managed again: {} lacks {lacks} of used memory", names.name(lacking))
            }
            Self::HoldEnds { lacking: None, lacks } => format!("managed again: the host lacks {lacks}"),
            Self::Reset => "was reset".to_owned(),
            Self::NoBalloon(why) | Self::NoStats(why) => why.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_names_a_guest_as_the_status_shows_it() {
        let ids = [1, 2].map(|start| GuestId::new("web", start, "boot"));
        let verdict = Verdict::HoldEnds { lacking: Some(ids[1].clone()), lacks: Bytes::from_mib(64) };
        let words = verdict.in_words(&Names::of(&ids), Moment::default());
        assert_eq!(words, "managed again: web@2 lacks 64 MiB of used memory");
        assert_eq!(
            verdict.in_words(&Names::of(&ids[1..]), Moment::default()),
            "managed again: web lacks 64 MiB of used memory"
        );
    }
}
