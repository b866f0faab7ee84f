//! How short of memory the host is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The shortage of memory on the host; it sets how hard memtide acts (GLOSSARY.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// Enough is free: nothing to do.
    #[default]
    High,
    /// Ask the guests.
    Soft,
    /// Take from the guests.
    Hard,
    /// Emergency: inflate at full speed.
    Low,
}

impl fmt::Display for HostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::High => "high",
            Self::Soft => "soft",
            Self::Hard => "hard",
            Self::Low => "low",
        })
    }
}
