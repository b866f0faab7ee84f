//! A measurement that can be fresh, old or missing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Span;

/// A measurement, or the reason why there is none. Missing is never zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// Measured for this snapshot, or recently enough to decide on.
    Fresh {
        /// What was measured.
        value: T,
        /// How long before the snapshot.
        age: Span,
    },
    /// The last measurement is too old to decide on; shown, never taken for idleness.
    Stale {
        /// What was measured last.
        value: T,
        /// How long before the snapshot.
        age: Span,
        /// Why there is nothing newer.
        why: Absence,
    },
    /// There is no measurement.
    Absent {
        /// Why not.
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

    /// The value, only if it may be decided on.
    #[must_use]
    pub const fn fresh(&self) -> Option<&T> {
        match self {
            Self::Fresh { value, .. } => Some(value),
            Self::Stale { .. } | Self::Absent { .. } => None,
        }
    }

    /// The newest value there is, however old.
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

    /// The same reading of another value.
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
    /// Nothing has been asked yet.
    NotYet,
    /// The kernel, the VMM or the guest does not offer it.
    Unsupported,
    /// The guest has no balloon device.
    NoBalloon,
    /// The balloon device has no working driver in the guest (not booted yet, or reset).
    NoDriver,
    /// Nobody has set the polling interval of the balloon statistics.
    NotPolled,
    /// The guest's driver stopped answering requests for statistics.
    Silent,
    /// No monitor on a Unix socket is known for this guest.
    NoMonitor,
    /// Another client holds the monitor: there was no greeting.
    MonitorTaken,
    /// The monitor did not answer within its deadline.
    Timeout,
    /// The connection was refused or broke.
    Disconnected,
    /// The monitor answered something that is no QMP.
    Malformed,
    /// The permission is missing.
    Forbidden,
    /// libvirt owns this guest; its monitor is left alone.
    OwnedByLibvirt,
    /// The process is gone.
    Gone,
    /// The VMM refused with this message (bounded, cleaned).
    Refused(String),
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NotYet => "not measured yet",
            Self::Unsupported => "not supported here",
            Self::NoBalloon => "no balloon device",
            Self::NoDriver => "no balloon driver runs in the guest",
            Self::NotPolled => "nobody polls the balloon statistics",
            Self::Silent => "the guest's balloon driver does not answer",
            Self::NoMonitor => "no QMP monitor on a Unix socket",
            Self::MonitorTaken => "no greeting from the monitor: another client holds it, or QEMU is stopped",
            Self::Timeout => "the monitor did not answer in time",
            Self::Disconnected => "the monitor is not reachable",
            Self::Malformed => "the monitor does not speak QMP",
            Self::Forbidden => "permission denied",
            Self::OwnedByLibvirt => "owned by libvirt",
            Self::Gone => "the process is gone",
            Self::Refused(message) => return write!(f, "refused: {message}"),
        };
        f.pad(text)
    }
}
