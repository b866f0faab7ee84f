//! Why each guest has the memory it has: the numbers behind a decision, for `status`, `explain` and the metrics.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Absence, Bytes, Fence, GuestId, Hold, HostState, Moment, Span};

/// The ledger and the numbers behind one decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The host's side of the ledger.
    pub host: HostReport,
    /// The guests, ordered by identity.
    pub guests: Vec<GuestReport>,
}

impl Report {
    /// The name of a guest for people: the name alone, or `name@start` where another guest of the report has the same one.
    #[must_use]
    pub fn shown_name(&self, id: &GuestId) -> String {
        let at = self.guests.partition_point(|guest| guest.id < *id);
        let mut beside = self.guests.iter().skip(at.saturating_sub(1)).take(3);
        if beside.any(|other| other.id != *id && other.id.name() == id.name()) {
            id.name_at_start()
        } else {
            id.name().to_owned()
        }
    }
}

/// The ledger: `capacity = reserve + footprints + other + free`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// All memory that the ledger is about.
    pub capacity: Bytes,
    /// Kept free of guests.
    pub reserve: Bytes,
    /// What the guests cost now.
    pub footprints: Bytes,
    /// What others cost, without cache that can be dropped.
    pub other: Bytes,
    /// What is left.
    pub free: Bytes,
    /// How short the host is.
    pub state: HostState,
    /// What the guests can come to cost without asking (Σ reach).
    pub reach: Bytes,
    /// Strict: the largest self-deflations that must fit besides.
    pub self_deflation: Bytes,
    /// Elastic: the joint surge that must fit into what is free.
    pub surge: Bytes,
    /// Elastic: by how much the guests together will rise again, as they did of late.
    pub tide: Bytes,
    /// What the commitment leaves to be granted.
    pub room: Bytes,
    /// By how much the commitment is not kept; zero where it is.
    pub breach: Bytes,
    /// What guests need and do not have.
    pub unmet: Bytes,
    /// What could be had back from the guests, by mechanism.
    pub savings: Savings,
}

/// What could be had back from the guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Savings {
    /// Free memory of guests without free page reporting that is resident at the host.
    pub free_page_reporting: Bytes,
    /// Page cache and free memory beyond the guests' need that ballooning would return.
    pub ballooning: Bytes,
}

/// Why a guest has the memory it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestReport {
    /// The guest.
    pub id: GuestId,
    /// The name of its class.
    pub class: Arc<str>,
    /// What it costs the host; `None` where that cannot be read: it counts with its reach then.
    pub footprint: Option<Bytes>,
    /// What it can come to cost without asking.
    pub reach: Bytes,
    /// What it keeps.
    pub actual: Bytes,
    /// Its full size.
    pub full: Bytes,
    /// What it uses; `None` without fresh statistics.
    pub used: Option<Bytes>,
    /// Page cache that is left to it.
    pub cache: Bytes,
    /// Headroom for its growth within a reaction time.
    pub headroom: Bytes,
    /// What it needs: used, cache and headroom, or more after a stall.
    pub demand: Bytes,
    /// Its fair share, and what it is helped with.
    pub entitlement: Bytes,
    /// Strict: it is granted what it would take by deflating its own balloon, since it held so much.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub helped: Option<Bytes>,
    /// What it is asked to keep, after this decision; `None` where we never asked.
    pub target: Option<Bytes>,
    /// What was done about it, or why nothing was.
    pub verdict: Verdict,
}

/// What was done about a guest, or why nothing was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Its target was raised.
    Grown,
    /// Its target was lowered.
    Shrunk,
    /// Its statistics are polled from now on.
    PollingStarted,
    /// It is on the way to its target.
    UnderWay,
    /// It has the memory it should have.
    Steady,
    /// It needs more, and waits until memory has come back to the host.
    WaitsForMemory {
        /// What it still lacks.
        lacks: Bytes,
    },
    /// It is left alone after it squealed.
    Resting {
        /// Until then.
        until: Moment,
    },
    /// It makes no progress and gives nothing.
    Stuck {
        /// For how long.
        since: Span,
        /// It is tried again then.
        until: Moment,
        /// So long that it is said aloud.
        uncooperative: bool,
    },
    /// memtide only observes.
    Observed,
    /// Its class is not managed.
    NotManaged,
    /// It must be left alone at the moment.
    Fenced(Fence),
    /// It is left alone on somebody's word.
    Held(Hold),
    /// It was held for somebody else who moved its balloon, and is managed again.
    HoldEnds {
        /// The guest that lacks memory most.
        lacking: GuestId,
        /// What it lacks of what it uses.
        lacks: Bytes,
    },
    /// It was reset, and its driver has not reported since.
    Reset,
    /// There is no way to change its size.
    NoBalloon(Absence),
    /// There are no fresh statistics.
    NoStats(Absence),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_where_several_guests_have_the_same() {
        let ids: Vec<GuestId> = [("a", 1), ("b", 1), ("b", 2), ("c", 1), ("c", 2)]
            .map(|(name, start)| GuestId::new(name, start, "boot"))
            .to_vec();
        let guest = |id: &GuestId| GuestReport {
            id: id.clone(),
            class: "default".into(),
            footprint: None,
            reach: Bytes::ZERO,
            actual: Bytes::ZERO,
            full: Bytes::ZERO,
            used: None,
            cache: Bytes::ZERO,
            headroom: Bytes::ZERO,
            demand: Bytes::ZERO,
            entitlement: Bytes::ZERO,
            helped: None,
            target: None,
            verdict: Verdict::Steady,
        };
        // The last one is gone.
        let report = Report { guests: ids[..4].iter().map(guest).collect(), ..Report::default() };
        let names: Vec<String> = ids.iter().map(|id| report.shown_name(id)).collect();
        assert_eq!(names, ["a", "b@1", "b@2", "c", "c@2"]);
    }
}
