//! Requests: everything that memtide can ask of a mechanism, and what becomes of it.
//!
//! A request goes through up to three steps, and no step implies the next:
//!
//! 1. *accepted*: the mechanism took the request ([`Answer::Accepted`](crate::Answer)). A mechanism that works at once answers with its
//!    yield ([`Answer::Yielded`](crate::Answer)), and the other steps are left out;
//! 2. *under way*: memory is expected to come back, and the host does not have all of it yet ([`UnderWay`]);
//! 3. *yielded*: the host has the memory back.
//!
//! Each mechanism has at most one request under way for a subject: a new one replaces it. Several mechanisms can be at work for one guest
//! at the same time, and the ledger counts each at its worst ([`Request::keeps_at_most`]).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestId, KsmOrder, Moment, Share, Span, TierOrder};

/// The subject of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The host, or the cgroup that plays the host.
    Host,
    /// A guest.
    Guest(GuestId),
}

impl Subject {
    /// The host's name in texts.
    pub const HOST: &str = "host";

    /// The guest; `None` for the host.
    #[must_use]
    pub const fn guest(&self) -> Option<&GuestId> {
        match self {
            Self::Host => None,
            Self::Guest(guest) => Some(guest),
        }
    }
}

/// A request to a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Write the balloon's target: the memory that the guest should keep, a multiple of the backend's step.
    SetTarget(Bytes),
    /// Make the VMM poll the guest's statistics at this interval.
    PollStats(Span),
    /// Make the kernel reclaim this much memory from the subject's cgroup, without swapping.
    Reclaim(Bytes),
    /// Make the kernel split the guest's torn huge pages.
    Split,
    /// Let the kernel look for equal pages, or stop it.
    Merge(KsmOrder),
    /// Let KSM merge the guest's memory, or not: then all that is merged becomes the guest's own again, at once.
    Share(bool),
    /// Do something with the guest's compressed tier.
    Tier(TierOrder),
    /// Let the guest's agent do something.
    #[serde(untagged)]
    Agent(Deed),
}

/// What a guest's agent can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// Drop this much cold page cache.
    Trim(Bytes),
    /// Compact free memory, so that more of it can return to the host.
    Compact,
    /// Keep unmapped page cache at or below this part of the guest's memory; `None`: no limit any more.
    LimitCache(Option<Share>),
    /// Make free page reporting return smaller pieces, too; or as the guest's kernel chose.
    ReportPieces(bool),
    /// Swap to the tier that the host has attached; or read everything back from it, and let it go.
    UseTier(bool),
    /// Write this much of the memory that programs have not used for the longest time to the tier.
    PageOut(Bytes),
}

/// The means behind a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// The guest's balloon.
    Balloon,
    /// The polling of the guest's statistics.
    Statistics,
    /// `memory.reclaim` of a cgroup.
    Reclaim,
    /// The kernel's split of huge pages.
    Split,
    /// The guest's agent.
    Agent,
    /// KSM.
    Ksm,
    /// The guest's compressed tier.
    Tier,
}

impl Request {
    /// The means behind it.
    #[must_use]
    pub const fn mechanism(self) -> Mechanism {
        match self {
            Self::SetTarget(_) => Mechanism::Balloon,
            Self::PollStats(_) => Mechanism::Statistics,
            Self::Reclaim(_) => Mechanism::Reclaim,
            Self::Split => Mechanism::Split,
            Self::Agent(_) => Mechanism::Agent,
            Self::Merge(_) | Self::Share(_) => Mechanism::Ksm,
            Self::Tier(_) => Mechanism::Tier,
        }
    }

    /// The size that it gives a guest; `None` if it changes no size. Whatever grants or takes is judged by this.
    #[must_use]
    pub const fn size(self) -> Option<Bytes> {
        match self {
            Self::SetTarget(target) => Some(target),
            Self::PollStats(_)
            | Self::Reclaim(_)
            | Self::Split
            | Self::Agent(_)
            | Self::Merge(_)
            | Self::Share(_)
            | Self::Tier(_) => None,
        }
    }

    /// The deed of the guest's agent; `None` if it is for somebody else.
    #[must_use]
    pub const fn deed(self) -> Option<Deed> {
        if let Self::Agent(deed) = self { Some(deed) } else { None }
    }

    /// The worst case of the request while it is under way: the most memory that a guest with `actual` now may keep without being asked
    /// again. A request that takes memory may yield nothing.
    #[must_use]
    pub fn keeps_at_most(self, actual: Bytes) -> Bytes {
        self.size().map_or(actual, |size| size.max(actual))
    }
}

/// The memory that should come back to the host because of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Yield {
    /// The amount.
    pub bytes: Bytes,
    /// The time from the request to the return of the last byte.
    pub within: Span,
}

/// A request that was accepted and has not yielded all that is expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderWay {
    /// The request.
    pub request: Request,
    /// When it was accepted.
    pub since: Moment,
    /// Until when the rest is expected.
    pub until: Moment,
    /// The expected yield.
    pub expected: Bytes,
    /// The guest's footprint when the request was accepted, plus the memory credited to older requests. For a split: the torn memory.
    pub from: Bytes,
    /// The part of the yield that the host has seen come back.
    pub yielded: Bytes,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetTarget(bytes) => write!(f, "target {bytes}"),
            Self::PollStats(Span::ZERO) => f.write_str("stop polling statistics"),
            Self::PollStats(span) => write!(f, "poll statistics every {span}"),
            Self::Reclaim(bytes) => write!(f, "reclaim {bytes} from its cgroup"),
            Self::Split => f.write_str("split its torn huge pages"),
            Self::Agent(deed) => deed.fmt(f),
            Self::Merge(order) => order.fmt(f),
            Self::Share(true) => f.write_str("let KSM merge its memory"),
            Self::Share(false) => f.write_str("keep its memory from KSM"),
            Self::Tier(order) => order.fmt(f),
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trim(bytes) => write!(f, "trim {bytes} of cold page cache"),
            Self::Compact => f.write_str("compact free memory"),
            Self::LimitCache(Some(share)) => write!(f, "limit page cache to {share}"),
            Self::LimitCache(None) => f.write_str("no limit of page cache"),
            Self::ReportPieces(true) => f.write_str("report small pieces of free memory"),
            Self::ReportPieces(false) => f.write_str("report free memory as its kernel chose"),
            Self::UseTier(true) => f.write_str("swap to its tier"),
            Self::UseTier(false) => f.write_str("read its tier back, and let it go"),
            Self::PageOut(bytes) => write!(f, "write {bytes} of its programs' coldest memory to its tier"),
        }
    }
}

/// For people: the request and its progress.
impl fmt::Display for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} came back", self.request, self.yielded, self.expected)
    }
}
