//! Numbers of the wire, with a check that they are possible.
//!
//! Sizes beyond any machine are refused: such a number would count in the ledger of all guests.

use serde::{Deserialize, Deserializer, de::Error};

/// No guest has this much memory, in bytes (1 PiB).
pub(super) const MOST_MEMORY: u64 = 1 << 50;

/// Reads the size of memory, in bytes.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    match bytes <= MOST_MEMORY {
        true => Ok(bytes),
        false => Err(D::Error::custom("no guest has this much memory")),
    }
}
