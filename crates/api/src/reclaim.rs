//! `POST /v1/reclaims`: memory that a guest can spare, until the host has it back.

use std::time::Duration;

use memtide_model::{Agent, Bytes, Span, Told};
use serde::{Deserialize, Serialize};

use crate::view::{HoldAnswer, HoldRequest};

/// A daemon ends a reclaim after this time, and says what it has.
pub const LONGEST: Duration = Duration::from_secs(600);

/// The body of `POST /v1/reclaims`. With neither `by` nor `to`, all that can be had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReclaimRequest {
    /// The guest, as the status shows it.
    pub guest: String,
    /// How much should come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Bytes>,
    /// What the guest should cost the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Bytes>,
    /// Only say what can be had.
    #[serde(default)]
    pub dry_run: bool,
    /// How long the guest is left alone then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Span>,
}

impl ReclaimRequest {
    /// The order in the body of a request.
    ///
    /// # Errors
    /// Why the body is not an order, for people.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let request: Self = serde_json::from_slice(body).map_err(|error| {
            let example = r#"{"guest": "web1", "by": 67108864, "dry_run": true}"#;
            format!("the body is not an order such as {example}: {error}")
        })?;
        if request.by.is_some() && request.to.is_some() {
            return Err("`by` and `to` exclude each other".to_owned());
        }
        if request.hold.is_some_and(|span| !HoldRequest::may_last(span)) {
            return Err("`hold` is in milliseconds, from a second to 100 years".to_owned());
        }
        if request.dry_run && request.hold.is_some() {
            return Err("`hold` has no meaning with `dry_run`: leave it out".to_owned());
        }
        Ok(request)
    }
}

/// What can be had from a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Page cache that its agent drops.
    pub cache: Bytes,
    /// Free memory that its balloon takes: with an agent, that in small pieces; without one, all of it, since nobody knows how much of it free page
    /// reporting has returned.
    pub free: Bytes,
}

impl Offer {
    /// `None` if the guest does not tell.
    #[must_use]
    pub fn of(told: &Told) -> Option<Self> {
        match (told.agent.fresh(), told.stats.fresh()) {
            (Some(agent), _) => Some(Self { cache: droppable(agent), free: agent.free_pieces() }),
            (None, Some(stats)) => Some(Self { cache: Bytes::ZERO, free: stats.free? }),
            (None, None) => None,
        }
    }

    /// All of it.
    #[must_use]
    pub const fn in_all(self) -> Bytes {
        self.cache.saturating_add(self.free)
    }
}

/// Page cache that the agent drops if it is asked to.
#[must_use]
pub fn droppable(agent: &Agent) -> Bytes {
    if agent.trims { agent.droppable() } else { Bytes::ZERO }
}

/// The answer to `POST /v1/reclaims`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimAnswer {
    /// The guest.
    pub guest: String,
    /// What it cost the host before.
    pub cost: Bytes,
    /// What was asked for: all of the offer, if the request names no amount.
    pub wanted: Bytes,
    /// What could be had.
    pub offer: Offer,
    /// Why no agent answers in the guest, so that its page cache stays; `None` if one does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub no_agent: Option<String>,
    /// What was done; `None` with `dry_run`.
    pub done: Option<Reclaimed>,
    /// The answer to the order to leave the guest alone, if the request had one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub held: Option<HoldAnswer>,
}

/// Memory that was reclaimed from a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Page cache that its agent says it has dropped.
    pub dropped: Bytes,
    /// Free memory that its balloon was asked for.
    pub fetched: Bytes,
    /// What the host has back.
    pub back: Bytes,
    /// What the guest costs the host now.
    pub cost: Bytes,
    /// How long it took.
    pub took: Span,
    /// Whether all that was wanted came back, or, if the request names no amount, anything.
    pub enough: bool,
    /// Why its agent dropped less.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
}

#[cfg(test)]
mod tests {
    use memtide_model::{Absence, GuestStats, Reading};

    use super::*;

    #[test]
    fn without_an_agent_free_memory_can_be_had() {
        let stats = GuestStats { free: Some(Bytes::from_mib(80)), ..GuestStats::default() };
        let told = Told {
            stats: Reading::now(stats),
            agent: Reading::unsupported(),
            ..Told::nothing(Bytes::from_mib(1024), Absence::NotYet)
        };
        let offer = Offer::of(&told).unwrap();
        assert_eq!((offer.cache, offer.free), (Bytes::ZERO, Bytes::from_mib(80)));
        assert!(Offer::of(&Told { stats: Reading::unsupported(), ..told }).is_none());
    }
}
