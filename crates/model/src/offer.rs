//! What a guest could give, in which way and at which price: for people.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// What a guest could give now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offers {
    /// The memory that others, or the host, want.
    pub wanted: Bytes,
    /// Why it is asked for nothing, whatever it could give.
    pub spared: Option<Spared>,
    /// Its offers: first those that were judged, in their order, then what it could give besides.
    pub offers: Vec<Offered>,
}

/// What it could give in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offered {
    /// The way.
    pub way: Way,
    /// The most that it brings.
    pub frees: Bytes,
    /// The work that the guest is expected to lose for each MiB of it, in microseconds.
    pub price: u64,
    /// What is bought of it.
    pub bought: Bytes,
    /// Why nothing is bought; `None` if something is.
    pub why: Option<NotBought>,
}

/// A way to take memory from a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Memory beyond what it needs.
    Idle,
    /// Free memory in small pieces, by balloon.
    Pieces,
    /// A step of page cache that is watched.
    Step,
    /// Page cache that is likely to be cold.
    Cold,
    /// Page cache that nobody was seen to need.
    Unproven,
    /// Page cache that it was seen to need.
    Needed,
    /// Page cache that its kernel does not call available.
    Last,
    /// Memory beyond its fair share.
    BeyondShare,
}

/// The wanted memory that an offer may be bought for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pays {
    /// All of it.
    All,
    /// What cannot wait.
    Urgent,
    /// The same without headroom for the growth of guests that can deflate their own balloons.
    Pressing,
    /// Memory in use that others lack, without headroom for growth.
    ForUsed,
}

/// Why nothing is bought of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotBought {
    /// Nobody wants memory.
    NothingWanted,
    /// Nobody wants memory of the kind that it may be bought for.
    OnlyFor(Pays),
    /// Cheaper offers, or memory under way, are enough.
    Enough,
    /// Another guest gives in this way, and one at a time is enough.
    OneAtATime,
    /// The first statistics of some guest are on their way.
    Awaits,
}

/// Why a guest is asked for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spared {
    /// It is not managed now.
    LeftAlone,
    /// The host gets none of its memory.
    Withheld,
    /// It gave, and the host is not known to have gained.
    InDoubt,
    /// Its first statistics are on their way.
    Awaited,
    /// It makes no progress.
    Stuck,
    /// Somebody else deflated its balloon.
    Lifted,
    /// It lacks page cache itself.
    LacksCache,
    /// It grows, and nothing is urgent.
    Grows,
    /// It gives already, for its tmpfs or its NUMA node.
    GivesAlready,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle memory",
            Self::Pieces => "free memory in small pieces",
            Self::Step => "a watched step of page cache",
            Self::Cold => "page cache that is likely to be cold",
            Self::Unproven => "page cache that nobody was seen to need",
            Self::Needed => "page cache that it was seen to need",
            Self::Last => "page cache that its kernel does not call available",
            Self::BeyondShare => "memory beyond its fair share",
        })
    }
}

impl fmt::Display for NotBought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NothingWanted => "nobody wants memory",
            Self::Enough | Self::OnlyFor(Pays::All) => {
                "cheaper offers, or memory already being returned, are enough"
            }
            Self::Awaits => "the first statistics of a guest are on their way",
            Self::OneAtATime => "another guest gives this way, and one at a time is enough",
            Self::OnlyFor(Pays::Urgent) => "nothing is urgent",
            Self::OnlyFor(Pays::Pressing) => "nobody lacks memory in use, and the host is not in danger",
            Self::OnlyFor(Pays::ForUsed) => "nobody lacks memory in use",
        })
    }
}

impl fmt::Display for Spared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftAlone => "it is left alone",
            Self::Withheld => "the host gets none of its memory",
            Self::InDoubt => "it gave, and the host is not known to have gained",
            Self::Awaited => "its first statistics are on their way",
            Self::Stuck => "it makes no progress",
            Self::Lifted => "somebody else deflated its balloon",
            Self::LacksCache => "it lacks page cache itself",
            Self::Grows => "it grows, and nothing is urgent",
            Self::GivesAlready => "it already gives memory for its tmpfs or its NUMA node",
        })
    }
}

/// For people: the way and the price.
impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.way.fmt(f)?;
        match self.price {
            us @ 0..10 => write!(f, ", at {us} µs of its work per MiB"),
            us => write!(f, ", at {}.{:02} ms of its work per MiB", us / 1_000, us % 1_000 / 10),
        }
    }
}
