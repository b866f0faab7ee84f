//! The rules of other memory managers, with their published constants, applied to the same guests.
//!
//! **Problem.** A claim such as "more guests fit" needs a comparison. The other managers cannot all run here: two of them need Xen, one
//! needs libvirt, one needs Proxmox VE. Their rules are public, and they are short.
//!
//! **Shape.** Each rule is a pure function in the rule's own terms: [`mom`], [`proxmox`], [`squeezed`], [`qubes`] and [`fixed`]. A
//! [`Comparator`] samples a host and its guests over time, gives each rule the readings that its own sensors would give, and returns the
//! targets to write. The lab samples real guests, the simulator at simulated ones; both use the same comparator.
//!
//! **Properties.** No clock, no randomness, no order that depends on a seed. Floating-point numbers appear only if the original uses them,
//! and only with `+ - * /`, so the results are the same bytes on every machine.

pub mod comparator;
pub mod fixed;
pub mod mom;
pub mod proxmox;
pub mod qubes;
pub mod squeezed;

use std::fmt;
use std::str::FromStr;

use memtide_model::Span;

pub use comparator::{Comparator, GuestInput, HostInput};

/// The least memory that a guest keeps under a comparator, in percent of its full size. No manager publishes a value, because an operator
/// sets it for each guest. The lab and the simulator set this one.
pub const LEAST_PERCENT: u64 = 25;

/// A manager to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// oVirt's MOM: see [`mom`].
    Mom,
    /// Proxmox VE's autoballoon: see [`proxmox`].
    Proxmox,
    /// XenServer's squeezed: see [`squeezed`].
    Squeezed,
    /// Qubes OS's qmemman: see [`qubes`].
    Qubes,
    /// A static partition, without a manager: see [`fixed`].
    Fixed,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 5] = [Self::Mom, Self::Proxmox, Self::Squeezed, Self::Qubes, Self::Fixed];

    /// The name that [`FromStr`] reads and [`fmt::Display`] writes.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Mom => "mom",
            Self::Proxmox => "proxmox",
            Self::Squeezed => "squeezed",
            Self::Qubes => "qubes",
            Self::Fixed => "fixed",
        }
    }

    /// How often guests' balloon statistics are polled. The statistics in a sample are at most this old.
    ///
    /// `squeezed` and `fixed` read no statistics. For them, polling only shows that a guest's balloon driver works.
    #[must_use]
    pub const fn polls_every(self) -> Span {
        match self {
            Self::Mom => mom::MONITOR_EVERY,
            Self::Proxmox => proxmox::POLL_EVERY,
            Self::Squeezed => squeezed::STEP,
            Self::Qubes => qubes::POLL_EVERY,
            Self::Fixed => fixed::SAMPLE_EVERY,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.key())
    }
}

/// A text that names no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a rule: use mom, proxmox, squeezed, qubes or fixed")]
pub struct UnknownRule(String);

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|rule| rule.key() == text).ok_or_else(|| UnknownRule(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_reads_back() {
        for rule in Rule::ALL {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        let error = "MOM".parse::<Rule>().unwrap_err().to_string();
        assert_eq!(error, "`MOM` is not a rule: use mom, proxmox, squeezed, qubes or fixed");
    }
}
