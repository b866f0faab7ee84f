//! Guests that memtide leaves alone, because the operator said so or because somebody else moved their balloon.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestId, Moment};

/// Why and how memtide leaves a guest alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The memory that the guest keeps meanwhile.
    pub keeps: Keeps,
    /// The latest end of the hold; `None`: until somebody ends it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub until: Option<Moment>,
}

/// The memory that a guest keeps while memtide leaves it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeps {
    /// Its present memory: the operator holds the guest.
    Size,
    /// Its limit, as soon as the host has room for it: the operator released the guest.
    Limit,
    /// The memory that somebody else gave it: its balloon moved without a command of memtide. The
    /// hold ends as soon as another guest lacks memory that it uses.
    Foreign {
        /// The memory that the guest kept before.
        from: Bytes,
        /// The operator held the guest when its balloon moved. Until this moment, nothing else ends the hold.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        held_until: Option<Moment>,
    },
}

/// An operator's order between two decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The guest.
    pub guest: GuestId,
    /// What is ordered.
    pub ordered: Ordered,
}

/// What an operator can order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ordered {
    /// Leave the guest alone in this way.
    Leave(Hold),
    /// Manage the guest again.
    Manage,
    /// Reclaim this much memory from the guest's cgroup.
    Reclaim(Bytes),
    /// Let the guest's agent drop this much page cache.
    Trim(Bytes),
    /// Let the guest's balloon take this much of its free memory.
    Fetch(Bytes),
}

impl Hold {
    /// The hold of a guest that was held as `before` says, after the operator's `orders`; the last one counts.
    #[must_use]
    pub fn in_force<'a>(
        before: Option<Self>,
        orders: impl Iterator<Item = &'a Order>,
        now: Moment,
    ) -> Option<Self> {
        let ordered = orders.filter_map(|order| match order.ordered {
            Ordered::Leave(hold) => Some(Some(hold)),
            Ordered::Manage => Some(None),
            Ordered::Reclaim(_) | Ordered::Trim(_) | Ordered::Fetch(_) => None,
        });
        ordered.last().unwrap_or(before).filter(|hold| !hold.is_over(now))
    }

    /// Whether the hold is over at `now`.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// For people: the guest's present situation.
impl fmt::Display for Keeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size => f.write_str("held by the operator"),
            Self::Limit => f.write_str("released by the operator"),
            Self::Foreign { .. } => f.write_str("held: somebody else moved its balloon"),
        }
    }
}
