//! How much strict keeps free for guests that deflate their own balloons.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Bytes, ParseBytesError};

/// Strict: how much of what a guest can take by deflating its own balloon counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelfDeflationWithin {
    /// All of it: the promise also holds while no daemon runs.
    Whole,
    /// What a guest can take before memtide has answered: this much, or more if more was seen on this host.
    Size(Bytes),
}

impl Default for SelfDeflationWithin {
    /// Guests were measured to deflate by 35 MiB a second under emulation, and by up to 300 under KVM.
    fn default() -> Self {
        Self::Size(Bytes::from_mib(512))
    }
}

impl SelfDeflationWithin {
    /// The most of a guest's own deflation that counts, on a host where guests were `seen` to take that much at once.
    #[must_use]
    pub fn most(self, seen: Bytes) -> Bytes {
        match self {
            Self::Whole => Bytes::MAX,
            Self::Size(size) => size.max(seen),
        }
    }
}

impl fmt::Display for SelfDeflationWithin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Size(size) => size.fmt(f),
        }
    }
}

/// Why a text is not a [`SelfDeflationWithin`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseWithinError {
    /// Neither `whole` nor a size.
    #[error("write \"whole\" or a size, as in \"512 MiB\"")]
    Unknown,
    /// An invalid size.
    #[error(transparent)]
    Size(#[from] ParseBytesError),
}

impl FromStr for SelfDeflationWithin {
    type Err = ParseWithinError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "whole" => Ok(Self::Whole),
            _ => Ok(Self::Size(Bytes::if_size(text).ok_or(ParseWithinError::Unknown)??)),
        }
    }
}
