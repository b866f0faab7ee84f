//! Guests that are left alone on somebody's word: the operator's, or that of whoever moved a balloon without us.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, GuestId, Moment};

/// Why and how a guest is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// What it keeps meanwhile.
    pub keeps: Keeps,
    /// No longer than to this moment; `None`: until somebody says so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub until: Option<Moment>,
}

/// What a guest that is left alone keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeps {
    /// What it has: the operator holds it.
    Size,
    /// Its limit, as soon as the host has the room for it: the operator released it.
    Limit,
    /// What somebody else gave it: its balloon moved without us, from so much. It ends once another guest lacks memory that it uses.
    Foreign {
        /// What it kept before.
        from: Bytes,
        /// The operator held it when its balloon moved, and until then nothing else ends that.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        held_until: Option<Moment>,
    },
}

/// What the operator asked for between two decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The guest.
    pub guest: GuestId,
    /// Leave it alone so; `None`: manage it again.
    pub hold: Option<Hold>,
}

impl Hold {
    /// The hold of a guest that was held as `before` says, after the operator's `orders`; the last one counts.
    #[must_use]
    pub fn in_force<'a>(
        before: Option<Self>,
        orders: impl Iterator<Item = &'a Order>,
        now: Moment,
    ) -> Option<Self> {
        orders.last().map_or(before, |order| order.hold).filter(|hold| !hold.is_over(now))
    }

    /// Whether it is over at `now`.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// For people, as what is going on with the guest.
impl fmt::Display for Keeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size => f.write_str("held by the operator"),
            Self::Limit => f.write_str("released by the operator"),
            Self::Foreign { .. } => f.write_str("held: somebody else moved its balloon"),
        }
    }
}
