//! Medians, and how far they can be trusted.

use serde::Serialize;

/// The value in the middle, the mean of the two there; `None` of nothing.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// The value that 95 of 100 do not exceed; `None` of nothing.
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
    /// That of `values` by Hodges and Lehmann: the median of the means of all pairs, a value with itself included, within the bounds
    /// that Wilcoxon's signed ranks give (normal approximation). What something else on the machine did to a few of them moves
    /// it little, where it would move a mean. `None` of fewer than six, which leave no 5 % out.
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
        // 1 to 8: 36 means around 4.5. 8 × 9 / 4 = 18, less 1.96 × √(8 × 9 × 17 / 24) = 14.0 and a half for continuity: at each end
        // three are left out, as in the exact table: 1, 1.5 and 2.
        let values: Vec<f64> = (1..=8).map(f64::from).collect();
        assert_eq!(Interval::of(&values), Some(Interval { low: 2.0, middle: 4.5, high: 7.0 }));
        // 6: none is.
        assert_eq!(Interval::of(&values[..6]), Some(Interval { low: 1.0, middle: 3.5, high: 6.0 }));
        // One that something else has spoiled moves the middle little.
        let spoiled = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0, 600.0]).unwrap();
        assert!(spoiled.middle < 4.5, "{spoiled:?}");
        assert_eq!(Interval::of(&[1.0; 5]), None);
    }
}
