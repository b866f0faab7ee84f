//! Medians, and their confidence intervals.

use memtide_model::Bytes;
use serde::Serialize;

/// The middle value, or the mean of the two middle values; `None` if there are no values.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// The same of amounts of memory.
#[must_use]
pub fn median_bytes(values: impl IntoIterator<Item = Bytes>) -> Option<Bytes> {
    let mut values: Vec<Bytes> = values.into_iter().collect();
    values.sort_unstable();
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(lower.saturating_add(upper.saturating_sub(lower).mul_div(1, 2)))
}

/// The median of values, and their range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The least value.
    pub low: f64,
    /// The median.
    pub middle: f64,
    /// The largest value.
    pub high: f64,
    /// The number of values.
    pub values: usize,
}

impl Spread {
    /// The spread of values; `None` if there are no values.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        Some(Self { low, middle: median(values.iter().copied())?, high, values: values.len() })
    }

    /// Whether the values differ.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.low < self.high
    }

    /// The median as text, with the range behind it if the values differ: `16 (15 to 16)`.
    #[must_use]
    pub fn text(&self, show: impl Fn(f64) -> String) -> String {
        let (low, middle, high) = (show(self.low), show(self.middle), show(self.high));
        if low == high { middle } else { format!("{middle} ({low} to {high})") }
    }
}

/// The value that 95 of 100 do not exceed; `None` if there are no values.
#[must_use]
pub fn p95(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get((values.len() * 95).div_ceil(100).checked_sub(1)?).copied()
}

/// The middle of values with the bounds of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The lower bound.
    pub low: f64,
    /// The middle.
    pub middle: f64,
    /// The upper bound.
    pub high: f64,
}

impl Interval {
    /// The interval of `values` by Hodges and Lehmann: the median of the means of all pairs (including each value with
    /// itself), within the bounds of Wilcoxon's signed ranks (normal approximation). If something else on the machine
    /// disturbed a few values, the median barely moves, unlike a mean. `None` for fewer than six values, which leave no 5 %
    /// out.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.len() < 6 {
            return None;
        }
        let count = f64::from(u32::try_from(values.len()).ok()?);
        let mut means: Vec<f64> = values
            .iter()
            .enumerate()
            .flat_map(|(nth, a)| values[nth..].iter().map(move |b| f64::midpoint(*a, *b)))
            .collect();
        means.sort_by(f64::total_cmp);
        let deviation = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
        let below = count * (count + 1.0) / 4.0 - 1.96 * deviation - 0.5;
        let left_out = means.iter().zip(1..).take_while(|(_, nth)| f64::from(*nth) <= below).count();
        let (low, high) = (means[left_out], means[means.len() - 1 - left_out]);
        Some(Self { low, middle: median(means)?, high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_shows_its_range_only_if_there_is_one() {
        let text =
            |values: &[f64]| Spread::of(values.iter().copied()).unwrap().text(|value| format!("{value:.0}"));
        assert_eq!(text(&[16.0, 14.0, 15.0]), "15 (14 to 16)");
        assert_eq!(text(&[16.0, 16.0]), "16");
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn middles_and_tails() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([1.0, 4.0]), Some(2.5));
        assert_eq!(median([]), None);
        assert_eq!(p95((1..=20).map(f64::from)), Some(19.0));
        assert_eq!(p95([7.0]), Some(7.0));
        assert_eq!(p95([]), None);
    }

    #[test]
    fn an_interval_is_that_of_hodges_and_lehmann() {
        // 1 to 8: 36 means around 4.5. 8 × 9 / 4 = 18, minus 1.96 × √(8 × 9 × 17 / 24) = 14.0, minus a half for continuity:
        // three are left out at each end, as in the exact table: 1, 1.5 and 2.
        let values: Vec<f64> = (1..=8).map(f64::from).collect();
        assert_eq!(Interval::of(&values), Some(Interval { low: 2.0, middle: 4.5, high: 7.0 }));
        // 6: none is left out.
        assert_eq!(Interval::of(&values[..6]), Some(Interval { low: 1.0, middle: 3.5, high: 6.0 }));
        // A single disturbed value moves the middle only a little.
        let spoiled = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0, 600.0]).unwrap();
        assert!(spoiled.middle < 4.5, "{spoiled:?}");
        assert_eq!(Interval::of(&[1.0; 5]), None);
    }
}
