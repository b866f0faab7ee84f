//! Moments and spans in milliseconds. `Snapshot::taken_at` is the policy's only clock.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment in milliseconds of the host's `CLOCK_BOOTTIME`. This clock never goes back, and it counts suspended time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// `millis` milliseconds after the host's boot.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds after the host's boot.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The span since an earlier moment; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The moment `span` later.
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The moment `span` earlier: when something was made that is this old now.
    #[must_use]
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A span of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(u64);

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// `secs` seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// The number of milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The sum of both spans.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This span less `other`; zero if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Whether this is no time.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Twice the span.
    #[must_use]
    pub const fn doubled(self) -> Self {
        Self(self.0.saturating_mul(2))
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_millis(span.0)
    }
}

/// For people: `250 ms`, `4.2 s`, `3 min`, `2.5 h`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            ms if ms < 1_000 => format!("{ms} ms"),
            ms if ms < 120_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
            ms if ms < 7_200_000 => format!("{} min", (ms + 30_000) / 60_000),
            ms => {
                let tenths = ms.saturating_add(180_000) / 360_000;
                format!("{}.{} h", tenths / 10, tenths % 10)
            }
        };
        f.pad(&text)
    }
}

/// Wall-clock time in milliseconds since 1970, for people only. No decision reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WallClock(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_never_lies_before_an_earlier_one() {
        let (early, late) = (Moment::from_millis(5), Moment::from_millis(9));
        assert_eq!(late.since(early), Span::from_millis(4));
        assert_eq!(early.since(late), Span::ZERO);
        assert_eq!(early.after(Span::from_millis(4)), late);
    }

    #[test]
    fn spans_print_for_people() {
        let texts = [
            (250, "250 ms"),
            (4_250, "4.2 s"),
            (180_000, "3 min"),
            (3_599_900, "60 min"),
            (9_000_000, "2.5 h"),
            (86_399_900, "24.0 h"),
        ];
        for (ms, text) in texts {
            assert_eq!(Span::from_millis(ms).to_string(), text);
        }
    }
}
