//! File systems in memory that hold guests' memory.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{Bytes, Reading, Span};

/// Which tmpfs: the kernel's number of its device (`st_dev`), until the host boots again. Or which NUMA node: see [`TmpfsId::of_node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TmpfsId(pub u64);

impl<'de> Deserialize<'de> for TmpfsId {
    /// A number, or a text with it: JSON's keys are texts, and serde does not read them as numbers within a type with a tag, as a record is.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Id;

        impl de::Visitor<'_> for Id {
            type Value = TmpfsId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a tmpfs")
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<TmpfsId, E> {
                Ok(TmpfsId(id))
            }

            fn visit_str<E: de::Error>(self, id: &str) -> Result<TmpfsId, E> {
                id.parse().map(TmpfsId).map_err(|_| E::invalid_value(de::Unexpected::Str(id), &self))
            }
        }

        from.deserialize_any(Id)
    }
}

impl TmpfsId {
    /// The numbers of nodes begin here: the kernel's numbers of devices have 32 bits.
    const NODES: u64 = 1 << 40;

    /// A NUMA node counts like a tmpfs for the guests that are bound to it: they can have no other memory.
    #[must_use]
    pub const fn of_node(node: u32) -> Self {
        Self(Self::NODES + node as u64)
    }

    /// The node, if it is one.
    #[must_use]
    pub fn node(self) -> Option<u32> {
        self.0.checked_sub(Self::NODES).and_then(|node| u32::try_from(node).ok())
    }
}

/// A tmpfs with a limit of its own that holds the memory files of guests.
///
/// When it is full, a guest that touches more of its memory is killed (SIGBUS), however much memory the host has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// Which one.
    pub id: TmpfsId,
    /// Its mount point for people; below `/proc/PID/root` if it is mounted elsewhere than where the daemon runs. For a node, as in `NUMA node 1`.
    pub at: String,
    /// Its size, and what is free of it.
    pub space: Reading<Space>,
}

impl Tmpfs {
    /// Nothing is granted into a tmpfs whose space was read longer ago: what fills it meanwhile is not known.
    pub const OLDEST: Span = Span::from_secs(10);

    /// Whether the reading of its space is too old for grants.
    #[must_use]
    pub fn is_old(&self) -> bool {
        match &self.space {
            Reading::Fresh { age, .. } | Reading::Stale { age, .. } => *age > Self::OLDEST,
            Reading::Absent { .. } => false,
        }
    }
}

/// The space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// All that it may hold.
    pub size: Bytes,
    /// The part of it that nothing uses.
    pub free: Bytes,
}

/// For people, as in `12 MiB of 1 GiB free`.
impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} free", self.free, self.size)
    }
}

/// A tmpfs's side of the ledger: what the guests in it were promised, and what it can hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmpfsReport {
    /// Which one.
    pub id: TmpfsId,
    /// Its mount point for people.
    pub at: String,
    /// Its space, when it was last read.
    pub space: Space,
    /// The number of guests whose memory it holds.
    pub guests: u32,
    /// Whether it has less left than the host: it then bounds its guests.
    pub binds: bool,
    /// Memory that may be granted to its guests; if it does not bind them, all that is free of it.
    pub room: Bytes,
    /// The amount by which the commitment is not kept in it; zero if it is kept.
    pub breach: Bytes,
}
