//! A measurement that can be fresh, old or missing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Span;

/// A measurement, or the reason for its absence. A missing measurement is never zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// Measured for this snapshot, or recently enough for decisions.
    Fresh {
        /// The measured value.
        value: T,
        /// The value's age at the snapshot.
        age: Span,
    },
    /// The last measurement is too old for decisions. It is shown, but an old value never counts as idle memory.
    Stale {
        /// The last measured value.
        value: T,
        /// The value's age at the snapshot.
        age: Span,
        /// Why there is no newer value.
        why: Absence,
    },
    /// There is no measurement.
    Absent {
        /// The reason.
        why: Absence,
    },
}

impl<T> Reading<T> {
    /// A measurement made for this snapshot.
    #[must_use]
    pub const fn now(value: T) -> Self {
        Self::Fresh { value, age: Span::ZERO }
    }

    /// No measurement, because of `why`.
    #[must_use]
    pub const fn absent(why: Absence) -> Self {
        Self::Absent { why }
    }

    /// No measurement, because nothing offers it. The journal leaves such readings out where they are common.
    #[must_use]
    pub const fn unsupported() -> Self {
        Self::absent(Absence::Unsupported)
    }

    /// Whether nothing offers this measurement.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Absent { why: Absence::Unsupported })
    }

    /// The value, if decisions may use it.
    #[must_use]
    pub const fn fresh(&self) -> Option<&T> {
        match self {
            Self::Fresh { value, .. } => Some(value),
            Self::Stale { .. } | Self::Absent { .. } => None,
        }
    }

    /// The newest value, at any age.
    #[must_use]
    pub const fn latest(&self) -> Option<&T> {
        match self {
            Self::Fresh { value, .. } | Self::Stale { value, .. } => Some(value),
            Self::Absent { .. } => None,
        }
    }

    /// Why there is no fresh value.
    #[must_use]
    pub const fn why_not(&self) -> Option<&Absence> {
        match self {
            Self::Fresh { .. } => None,
            Self::Stale { why, .. } | Self::Absent { why } => Some(why),
        }
    }

    /// The same reading after `by`, if nobody measured again.
    #[must_use]
    pub fn later(self, by: Span) -> Self {
        match self {
            Self::Fresh { value, age } => Self::Fresh { value, age: age.plus(by) },
            Self::Stale { value, age, why } => Self::Stale { value, age: age.plus(by), why },
            absent @ Self::Absent { .. } => absent,
        }
    }

    /// The same reading after `by`, if a newer one is not available because of `why`.
    #[must_use]
    pub fn aged(self, by: Span, why: &Absence) -> Self {
        match self {
            Self::Fresh { value, age } | Self::Stale { value, age, .. } => {
                Self::Stale { value, age: age.plus(by), why: why.clone() }
            }
            // A guest without the device has no device later either.
            Self::Absent { why: lasting @ (Absence::NoBalloon | Absence::Unsupported) } => {
                Self::absent(lasting)
            }
            Self::Absent { .. } => Self::absent(why.clone()),
        }
    }

    /// The same reading with another value.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Fresh { value, age } => Reading::Fresh { value: f(value), age },
            Self::Stale { value, age, why } => Reading::Stale { value: f(value), age, why },
            Self::Absent { why } => Reading::Absent { why },
        }
    }
}

/// Why there is no fresh measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// Not measured yet.
    NotYet,
    /// The kernel, the VMM or the guest does not offer it.
    Unsupported,
    /// The guest has no balloon device.
    NoBalloon,
    /// The balloon device has no working driver in the guest (not booted yet, or reset).
    NoDriver,
    /// Nobody has set a polling interval for the guest's statistics.
    NotPolled,
    /// The guest's driver does not answer requests for statistics.
    Silent,
    /// The guest has no known control socket.
    NoControl,
    /// Another client holds the control socket, so it did not answer.
    ControlTaken,
    /// The VMM did not answer within its deadline.
    Timeout,
    /// It took longer to read than its time budget.
    Overran,
    /// The connection was refused or broke.
    Disconnected,
    /// The answer does not follow the control socket's protocol.
    Malformed,
    /// Permission denied.
    Forbidden,
    /// This other manager owns the guest, and memtide leaves its control socket alone.
    OwnedBy(String),
    /// The process has ended.
    Gone,
    /// The VMM refused with this message (cleaned, and limited in length).
    Refused(String),
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NotYet => "not measured yet",
            Self::Unsupported => "not supported here",
            Self::NoBalloon => "no balloon device",
            Self::NoDriver => "no balloon driver runs in the guest",
            Self::NotPolled => "nobody polls the statistics",
            Self::Silent => "the guest's driver does not answer",
            Self::NoControl => "no control socket (QEMU: a QMP monitor on a Unix socket)",
            Self::ControlTaken => {
                "no answer from the control socket: another client holds it, or the VMM is stopped"
            }
            Self::Timeout => "the VMM did not answer in time",
            Self::Overran => "it takes too long to read",
            Self::Disconnected => "the control socket is not reachable",
            Self::Malformed => "the control socket does not speak its protocol",
            Self::Forbidden => "permission denied",
            Self::Gone => "the process is gone",
            Self::OwnedBy(owner) => return write!(f, "owned by {owner}"),
            Self::Refused(message) => return write!(f, "refused: {message}"),
        };
        f.pad(text)
    }
}
