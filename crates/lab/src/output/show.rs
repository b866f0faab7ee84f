//! Figures as text for people.

use std::fmt::Display;

use memtide_model::Bytes;

/// A ratio in whole percents.
#[must_use]
pub fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

/// A value, or `none` if there is no value.
#[must_use]
pub fn or(value: Option<impl Display>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

/// MiB for a plot: exact enough.
#[must_use]
pub fn mib(bytes: Bytes) -> f64 {
    let kib = u32::try_from(bytes.get() >> 10).unwrap_or(u32::MAX);
    f64::from(kib) / 1024.0
}

/// MiB, as bytes are written elsewhere.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a size is not negative, and a KiB is exact enough"
)]
pub fn of_mib(mib: f64) -> String {
    Bytes::new(((mib * 1024.0).round() as u64) << 10).to_string()
}

/// A count, or a median of counts: with a digit after the point only if it is between two counts.
#[must_use]
pub fn count(count: f64) -> String {
    if count.fract() == 0.0 { format!("{count:.0}") } else { format!("{count:.1}") }
}

/// A count as a number for calculations.
#[must_use]
pub fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
