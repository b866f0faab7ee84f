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
    /// The most of the host's memory that it may take ([`Tier::limit_of`]).
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
    /// What lies in a tier shows how well its guest's memory compresses once it is this much.
    const SAYS_ENOUGH: Bytes = Bytes::from_mib(16);

    /// The most of the host's memory that a tier of this size may take: its size, in case nothing in it compresses, an eighth for partly filled pages of zram, and
    /// its table. zram that reaches its limit refuses writes, and a guest whose swap refuses writes tries again for minutes; so there is room for whatever the
    /// guest's kernel writes.
    #[must_use]
    pub fn limit_of(size: Bytes) -> Bytes {
        size.saturating_add(size.mul_div(1, 8)).saturating_add(Self::table_of(size))
    }

    /// The host's memory for the table of a tier's pages, whatever lies in it: 16 bytes for each page (`struct zram_table_entry`, drivers/block/zram/zram_drv.h).
    #[must_use]
    pub fn table_of(size: Bytes) -> Bytes {
        size.mul_div(1, 256)
    }

    /// The memory that the host has gained with what lies in it.
    #[must_use]
    pub fn gained(&self) -> Bytes {
        self.stored.saturating_sub(self.held)
    }

    /// The host's memory that it will take for `bytes` more: as what lies in it, and all of it as long as that says little.
    #[must_use]
    pub fn takes(&self, bytes: Bytes) -> Bytes {
        match self.is_proved() {
            true => bytes.mul_div(self.held.min(self.stored).get(), self.stored.get()),
            false => bytes,
        }
    }

    /// Whether what lies in it shows how well its guest's memory compresses.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.stored >= Self::SAYS_ENOUGH
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
    /// Make a tier of this size, in the guest's eyes, and attach it to the guest.
    Attach(Bytes),
    /// Detach it, and remove it once the guest has let it go.
    Detach,
}

/// For people.
impl fmt::Display for TierOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attach(size) => write!(f, "attach a tier of {size}"),
            Self::Detach => f.write_str("detach its tier"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_room_for_all_of_the_size() {
        let size = Bytes::from_mib(512);
        assert_eq!((Tier::table_of(size), Tier::limit_of(size)), (Bytes::from_mib(2), Bytes::from_mib(578)));
    }

    #[test]
    fn the_gain_is_what_the_tier_does_not_take() {
        let mib = Bytes::from_mib;
        let tier = Tier { stored: mib(100), held: mib(40), incompressible: mib(50), ..Tier::default() };
        assert_eq!((tier.gained(), tier.compresses_badly()), (mib(60), false));
        let bad = Tier { held: mib(104), incompressible: mib(90), ..tier };
        assert_eq!((bad.gained(), bad.compresses_badly()), (Bytes::ZERO, true));
        assert_eq!([tier, bad, Tier::default()].map(|tier| tier.takes(mib(10))), [mib(4), mib(10), mib(10)]);
    }
}
