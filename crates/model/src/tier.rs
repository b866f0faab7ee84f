//! A guest's compressed tier: a swap device of the guest whose pages its host keeps compressed in its own memory.
//!
//! A balloon gets no memory that programs of a resting guest hold, however cold it is. The guest's kernel writes such memory to the tier; what the
//! host gains is the memory that the balloon then gets, less what the tier takes ([`Tier::held`]).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A guest's tier, as its host's kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// The size of the swap device, in the guest's eyes.
    pub size: Bytes,
    /// The most of the host's memory that it may take.
    pub limit: Bytes,
    /// The guest's memory in it, as large as it was in the guest.
    pub stored: Bytes,
    /// The host's memory that it takes.
    pub held: Bytes,
    /// The part of `stored` that does not compress.
    pub incompressible: Bytes,
    /// All that the guest has read back from it since it was made.
    pub read: Bytes,
}

impl Tier {
    /// The memory that the host has gained with what lies in it.
    #[must_use]
    pub fn gained(&self) -> Bytes {
        self.stored.saturating_sub(self.held)
    }

    /// Whether more than half of what lies in it does not compress.
    #[must_use]
    pub fn compresses_badly(&self) -> bool {
        self.incompressible > self.stored.mul_div(1, 2)
    }
}

/// What the VMM is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierOrder {
    /// Make a tier, and attach it to the guest.
    Attach {
        /// Its size, in the guest's eyes.
        size: Bytes,
        /// The most of the host's memory that it may take.
        limit: Bytes,
    },
    /// Let it take this much of the host's memory. What it holds already stays.
    Limit(Bytes),
    /// Detach it, and remove it once the guest has let it go.
    Detach,
}

impl TierOrder {
    /// The most that the tier may take afterwards.
    #[must_use]
    pub const fn limit(self) -> Bytes {
        match self {
            Self::Attach { limit, .. } | Self::Limit(limit) => limit,
            Self::Detach => Bytes::ZERO,
        }
    }
}

/// For people.
impl fmt::Display for TierOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attach { size, limit } => write!(f, "attach a tier of {size} in at most {limit}"),
            Self::Limit(limit) => write!(f, "let its tier take at most {limit}"),
            Self::Detach => f.write_str("detach its tier"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gain_is_what_the_tier_does_not_take() {
        let mib = Bytes::from_mib;
        let tier = Tier { stored: mib(100), held: mib(40), incompressible: mib(50), ..Tier::default() };
        assert_eq!((tier.gained(), tier.compresses_badly()), (mib(60), false));
        let bad = Tier { held: mib(104), incompressible: mib(90), ..tier };
        assert_eq!((bad.gained(), bad.compresses_badly()), (Bytes::ZERO, true));
    }
}
