//! Plans: requests and their reasons.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestId, HostState, KsmReason, Request, Span, Subject, Yield};

/// The requests of one decision, in the order in which they are made. Requests that free memory come first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    /// The requests.
    pub actions: Vec<Action>,
}

/// One request, with its subject, the yield that is expected of it, and its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// The subject.
    pub subject: Subject,
    /// The request.
    pub request: Request,
    /// The memory that should come back to the host; `None` if the request is not made for memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expects: Option<Yield>,
    /// What it takes besides idle memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub takes: Option<Takes>,
    /// It ends the hold of its guest.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ends_hold: bool,
    /// The reason, for people.
    pub reason: Reason,
}

/// What an action takes besides idle memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Takes {
    /// Page cache.
    Cache(Taken),
    /// Free memory in small pieces.
    Pieces,
}

/// A step of the search for the page cache that a guest needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The page cache that the guest has.
    pub has: Bytes,
    /// The page cache that it keeps.
    pub keeps: Bytes,
    /// Nobody was in a hurry: what follows proves whether it was needed.
    pub gently: bool,
}

impl Action {
    /// A request to `guest` that returns no memory.
    #[must_use]
    pub const fn of(guest: GuestId, request: Request, reason: Reason) -> Self {
        Self { subject: Subject::Guest(guest), request, expects: None, takes: None, ends_hold: false, reason }
    }

    /// A request to the host that returns no memory at once.
    #[must_use]
    pub const fn of_host(request: Request, reason: Reason) -> Self {
        Self { subject: Subject::Host, request, expects: None, takes: None, ends_hold: false, reason }
    }

    /// The guest that it is about.
    #[must_use]
    pub const fn guest(&self) -> Option<&GuestId> {
        self.subject.guest()
    }
}

/// Why a request was made, with the numbers behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The guest needs more than it has.
    Demand {
        /// The memory that it uses.
        used: Bytes,
        /// The memory that it needs: used memory, page cache and headroom.
        demand: Bytes,
        /// Its fair share.
        entitlement: Bytes,
    },
    /// The guest stalled for lack of memory.
    Stall {
        /// The memory that it had when it stalled.
        had: Bytes,
        /// The memory that it needs.
        demand: Bytes,
        /// Its fair share.
        entitlement: Bytes,
    },
    /// The host has room for the limits of all guests.
    Ample {
        /// The host's free memory beyond all promises.
        room: Bytes,
    },
    /// The guest holds more than its share, and the host is short of memory.
    OverEntitlement {
        /// Its fair share.
        entitlement: Bytes,
        /// The memory that it needs.
        demand: Bytes,
        /// The amount that the host lacks.
        short: Bytes,
    },
    /// The guest has more than its fair share, and gives no statistics that would show its need.
    OverShare {
        /// Its fair share.
        entitlement: Bytes,
        /// The amount that the host lacks.
        short: Bytes,
    },
    /// Idle memory goes to guests that need it.
    IdleMemory {
        /// The memory that it holds beyond its need.
        idle: Bytes,
        /// The memory that it needs.
        demand: Bytes,
        /// The memory that other guests lack.
        wanted: Bytes,
    },
    /// A step in the search for the page cache that the guest needs.
    SqueezeStep {
        /// The page cache that it keeps.
        cache: Bytes,
        /// The memory that it needs.
        demand: Bytes,
        /// The memory that other guests, or the host, lack; zero for a squeeze by the clock.
        wanted: Bytes,
    },
    /// The guest squealed: it gets the last good size back.
    Squeal {
        /// The page cache it gets back.
        cache: Bytes,
        /// How long memtide leaves the guest alone.
        back_off: Span,
    },
    /// The host is in an emergency.
    Emergency {
        /// The host's shortage of memory.
        state: HostState,
        /// The host's free memory.
        free: Bytes,
        /// The least memory that the guest keeps.
        floor: Bytes,
    },
    /// The guest holds more than its class allows.
    OverLimit {
        /// The most memory that it may get.
        limit: Bytes,
    },
    /// The guest deflated its own balloon, so memtide writes the target again.
    SelfDeflation {
        /// The guest's target before.
        target: Bytes,
        /// The memory that it took.
        actual: Bytes,
    },
    /// The guest was reset, so memtide writes the target again.
    Reset {
        /// The memory that it keeps now.
        actual: Bytes,
    },
    /// The guest makes no progress, so its target is set back to its actual.
    StuckAt {
        /// The target that it did not reach.
        target: Bytes,
        /// The memory that it keeps.
        actual: Bytes,
        /// The time without progress.
        since: Span,
    },
    /// The operator holds the guest, so it stops giving memory and keeps its actual.
    Held {
        /// The target that it did not reach.
        target: Bytes,
    },
    /// The guest was held because somebody else moved its balloon. The hold ends: another guest lacks memory that it uses, or the host
    /// is in danger.
    HoldEnds {
        /// The memory that the guest with the largest lack, or the host, lacks.
        lacks: Bytes,
    },
    /// The host holds the rest of torn huge pages while it is short of memory.
    Torn {
        /// The torn memory: the guest's own, or that of the whole host.
        torn: Bytes,
        /// The memory that guests, or the host, lack.
        wanted: Bytes,
    },
    /// Page cache that the guest was not seen to need: its agent drops it before the balloon takes any.
    ColdCache {
        /// Page cache that the agent may drop.
        droppable: Bytes,
        /// The memory that other guests, or the host, lack; zero for a squeeze by the clock.
        wanted: Bytes,
    },
    /// Free memory in the guest lies in pieces that free page reporting does not return.
    FreePieces {
        /// The free memory in such pieces.
        pieces: Bytes,
        /// The memory that other guests, or the host, lack.
        wanted: Bytes,
    },
    /// Nobody needs the small pieces of free memory that reporting returns any more.
    PiecesUnwanted,
    /// The tmpfs that holds the guest's memory, or its NUMA node, has too little left for the guests in it.
    TmpfsShort {
        /// What is free of the tmpfs.
        free: Bytes,
        /// The memory that the guests in it lack.
        wanted: Bytes,
        /// The NUMA node, if it is one that the guest is bound to.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        node: Option<u32>,
    },
    /// The guest's class limits its page cache.
    CacheLimit,
    /// The coldest memory of the guest's programs can lie compressed on the host.
    ToTier {
        /// What its programs have in its memory.
        anon: Bytes,
        /// The memory that others need and that no idle memory brings; zero for a device that is made ready.
        wanted: Bytes,
    },
    /// More than half of what lies in the guest's tier does not compress.
    CompressesBadly {
        /// The guest's memory in it.
        stored: Bytes,
        /// The host's memory that it takes.
        held: Bytes,
    },
    /// Memory is there again for what lies in the guest's tier, or its class allows none.
    TierUnwanted,
    /// What lay in the guest's tier did not compress, or was in use: it is not used for a while.
    TierInVain,
    /// The guest cannot swap to its tier: somebody took the device from it.
    TierLost,
    /// KSM begins or ends a burst.
    Ksm(KsmReason),
    /// The operator ordered it.
    Ordered,
    /// Without fresh statistics, memtide cannot decide about the guest.
    NeedStats,
    /// The guest gets its limit back, by the operator's order or because the daemon ends.
    Release,
    /// A step down brought the host nothing: the guest gets its size back.
    InVain {
        /// The size that the guest had been asked to keep, and kept.
        size: Bytes,
        /// The guest's memory that was resident then.
        resident: Bytes,
    },
}

/// For people, in one line.
impl Reason {
    /// Whether the change only stops what is under way: the guest keeps what it has.
    #[must_use]
    pub const fn only_stops(&self) -> bool {
        matches!(self, Self::StuckAt { .. } | Self::Held { .. })
    }

    /// The reasons about compressed tiers.
    fn of_tier(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToTier { anon, wanted } => {
                write!(f, "its programs hold {anon}, the coldest of it can be compressed")?;
                if wanted.is_zero() { Ok(()) } else { write!(f, "; {wanted} needed elsewhere") }
            }
            Self::TierInVain => f.write_str("what lay in its tier did not compress, or was in use"),
            Self::CompressesBadly { stored, held } => {
                write!(f, "more than half of the {stored} in its tier does not compress: it takes {held}")
            }
            Self::TierLost => {
                f.write_str("the guest cannot swap to its tier: its device may have been taken away")
            }
            _ => f.write_str("nobody needs the memory that its tier saves any more"),
        }
    }
}

/// As in ` for 4.2 s`; nothing if it has just begun.
fn lasting(span: Span) -> String {
    if span == Span::ZERO { String::new() } else { format!(" for {span}") }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Demand { used, demand, entitlement } => {
                write!(f, "needs {demand} (uses {used}), entitled to {entitlement}")
            }
            Self::Stall { had, demand, entitlement } => {
                write!(f, "stalled at {had}, needs {demand}, entitled to {entitlement}")
            }
            Self::InVain { size, resident } => {
                write!(f, "the host gained nothing: at {size}, {resident} of its memory stayed there")
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
            Self::SqueezeStep { cache, demand, wanted: Bytes::ZERO } => {
                write!(f, "squeezed by the clock to {cache} of page cache (needs {demand})")
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
                write!(f, "no progress towards {target}{}; stays at {actual}", lasting(*since))
            }
            Self::Held { target } => write!(f, "held by the operator before it reached {target}"),
            Self::HoldEnds { lacks } => {
                write!(f, "managed again after somebody else moved its balloon: {lacks} needed elsewhere")?;
                f.write_str(", and nobody else can give it")
            }
            Self::Torn { torn, wanted } => {
                write!(f, "the host holds {torn} in torn huge pages; {wanted} needed elsewhere")
            }
            Self::ColdCache { droppable, wanted } => {
                write!(f, "its agent can drop {droppable} of page cache; {wanted} needed elsewhere")
            }
            Self::FreePieces { pieces, wanted } => {
                write!(f, "{pieces} of its free memory is in small pieces; {wanted} needed elsewhere")
            }
            Self::PiecesUnwanted => f.write_str("nobody needs its small pieces of free memory any more"),
            Self::TmpfsShort { free, wanted, node: Some(node) } => {
                write!(f, "NUMA node {node} has {free} free; the guests bound to it need {wanted}")
            }
            Self::TmpfsShort { free, wanted, node: None } => {
                write!(f, "the tmpfs of its memory file has {free} free; its guests need {wanted}")
            }
            Self::Ksm(reason) => reason.fmt(f),
            Self::CacheLimit => f.write_str("its class limits page cache"),
            Self::Ordered => f.write_str("ordered by the operator"),
            Self::NeedStats => f.write_str("no decision is possible without statistics"),
            Self::Release => f.write_str("released"),
            _ => self.of_tier(f),
        }
    }
}
