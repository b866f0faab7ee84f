//! What is to be changed, and why.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestId, HostState, Report, Span, State};

/// What came out of one decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What is to be changed.
    pub plan: Plan,
    /// What is to be remembered.
    pub state: State,
    /// Why each guest gets what it gets, and why nothing was done where nothing was done.
    pub report: Report,
}

/// The changes of one decision in the order in which they are carried out: what frees memory comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    /// The changes.
    pub actions: Vec<Action>,
}

/// One change to one guest, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// The guest.
    pub guest: GuestId,
    /// What is changed.
    pub change: Change,
    /// Why.
    pub reason: Reason,
}

/// A change that a world can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Write the balloon's target: memory that the guest is to keep, a multiple of 4 KiB.
    SetTarget(Bytes),
    /// Let the VMM poll the balloon statistics at this interval.
    PollStats(Span),
}

/// Why a change was made, with the numbers that it was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The guest needs more than it has.
    Demand {
        /// What it uses.
        used: Bytes,
        /// What it needs: used, page cache, headroom.
        demand: Bytes,
        /// Its fair share.
        entitlement: Bytes,
    },
    /// The guest stalled for want of memory.
    Stall {
        /// What it had when it stalled.
        had: Bytes,
        /// What it needs.
        demand: Bytes,
        /// Its fair share.
        entitlement: Bytes,
    },
    /// The host has room for every guest's limit.
    Ample {
        /// What the host has free beyond all promises.
        room: Bytes,
    },
    /// The guest holds more than its share while the host is short of it.
    OverEntitlement {
        /// Its fair share.
        entitlement: Bytes,
        /// What it needs.
        demand: Bytes,
        /// By how much the host is short.
        short: Bytes,
    },
    /// The guest has more than its fair share, and does not say what it needs.
    OverShare {
        /// Its fair share.
        entitlement: Bytes,
        /// By how much the host is short.
        short: Bytes,
    },
    /// Idle memory goes to guests that need it.
    IdleMemory {
        /// What it holds beyond its need.
        idle: Bytes,
        /// What it needs.
        demand: Bytes,
        /// What other guests lack.
        wanted: Bytes,
    },
    /// A step in the search for the page cache that the guest needs.
    SqueezeStep {
        /// The page cache it keeps.
        cache: Bytes,
        /// What it needs.
        demand: Bytes,
        /// What other guests, or the host, lack.
        wanted: Bytes,
    },
    /// The guest squealed: it gets the last good size back.
    Squeal {
        /// The page cache it gets back.
        cache: Bytes,
        /// How long it is left alone.
        back_off: Span,
    },
    /// The host is in an emergency.
    Emergency {
        /// How short the host is.
        state: HostState,
        /// What is free.
        free: Bytes,
        /// What the guest is left with at the least.
        floor: Bytes,
    },
    /// The guest holds more than its class allows.
    OverLimit {
        /// The most it may get.
        limit: Bytes,
    },
    /// The guest deflated its own balloon: the target is written again.
    SelfDeflation {
        /// The target it had.
        target: Bytes,
        /// What it took.
        actual: Bytes,
    },
    /// The guest was reset: the target is written again.
    Reset {
        /// What it keeps now.
        actual: Bytes,
    },
    /// No progress: the target is drawn back to what the guest has.
    StuckAt {
        /// The target that was not reached.
        target: Bytes,
        /// What it keeps.
        actual: Bytes,
        /// For how long there was no progress.
        since: Span,
    },
    /// The guest will soon need all that it holds: its target is raised to what it keeps now.
    Grows {
        /// The target that was not reached.
        target: Bytes,
        /// By how much its footprint grew within a reaction time.
        growth: Bytes,
    },
    /// The operator holds the guest: what it gives stops at what it keeps now.
    Held {
        /// The target that was not reached.
        target: Bytes,
    },
    /// It was held for somebody else who moved its balloon, and that ends: another guest lacks memory that it uses.
    HoldEnds {
        /// What other guests lack.
        lacks: Bytes,
    },
    /// Without fresh statistics nothing can be decided about the guest.
    NeedStats,
    /// The operator or the end of the daemon gives the guest its limit back.
    Release,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetTarget(bytes) => write!(f, "target {bytes}"),
            Self::PollStats(Span::ZERO) => f.write_str("stop polling statistics"),
            Self::PollStats(span) => write!(f, "poll statistics every {span}"),
        }
    }
}

/// For people, in one line.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Demand { used, demand, entitlement } => {
                write!(f, "needs {demand} (uses {used}), entitled to {entitlement}")
            }
            Self::Stall { had, demand, entitlement } => {
                write!(f, "stalled at {had}, needs {demand}, entitled to {entitlement}")
            }
            Self::Ample { room } => write!(f, "the host has {room} to spare"),
            Self::OverEntitlement { entitlement, demand, short } => {
                write!(f, "entitled to {entitlement} (needs {demand}); the host is {short} short")
            }
            Self::OverShare { entitlement, short } => {
                write!(f, "no statistics; entitled to {entitlement}; the host is {short} short")
            }
            Self::IdleMemory { idle, demand, wanted } => {
                write!(f, "{idle} idle (needs {demand}); {wanted} needed elsewhere")
            }
            Self::SqueezeStep { cache, demand, wanted } => {
                write!(f, "squeezed to {cache} of page cache (needs {demand}); {wanted} needed elsewhere")
            }
            Self::Squeal { cache, back_off } => {
                write!(f, "squealed: gets {cache} of page cache back, left alone for {back_off}")
            }
            Self::Emergency { state, free, floor } => {
                write!(f, "emergency: host {state}, {free} free; it keeps at least {floor}")
            }
            Self::OverLimit { limit } => write!(f, "its class allows at most {limit}"),
            Self::SelfDeflation { target, actual } => {
                write!(f, "deflated its own balloon from {target} to {actual}")
            }
            Self::Reset { actual } => write!(f, "was reset, keeps {actual}"),
            Self::StuckAt { target, actual, since } => {
                write!(f, "no progress towards {target} for {since}; stays at {actual}")
            }
            Self::Grows { target, growth } => {
                write!(f, "grows by {growth} per reaction time; no longer asked to shrink to {target}")
            }
            Self::Held { target } => write!(f, "held by the operator before it reached {target}"),
            Self::HoldEnds { lacks } => {
                write!(
                    f,
                    "managed again after somebody else moved its balloon: another guest lacks {lacks} of used memory"
                )
            }
            Self::NeedStats => f.write_str("no decision is possible without statistics"),
            Self::Release => f.write_str("released"),
        }
    }
}
