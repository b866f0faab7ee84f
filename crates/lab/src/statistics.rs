//! Medians, and how far a mean can be trusted.

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

/// A mean with the bounds of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The lower bound.
    pub low: f64,
    /// The mean.
    pub mean: f64,
    /// The upper bound.
    pub high: f64,
}

impl Interval {
    /// That of `values`, by Student's t; `None` of fewer than two.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = f64::from(u32::try_from(values.len()).ok()?);
        if values.len() < 2 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let half = student(values.len() - 1) * (variance / count).sqrt();
        Some(Self { low: mean - half, mean, high: mean + half })
    }
}

/// The quantile of Student's t that leaves 2.5 % above it, by degrees of freedom: the usual table, and for more than its
/// last entry that entry, which errs on the side of too wide.
fn student(freedom: usize) -> f64 {
    const FIRST: [f64; 15] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131,
    ];
    match freedom {
        0 => f64::INFINITY,
        1..=15 => FIRST[freedom - 1],
        16..20 => 2.120,
        20..30 => 2.086,
        30..60 => 2.042,
        _ => 2.000,
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
    fn an_interval_is_students() {
        // Mean 3, deviation √2.5, √5 values: 3 ± 2.776 × 0.7071.
        let interval = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((interval.mean - 3.0).abs() < 1e-9);
        assert!((interval.high - 4.963).abs() < 0.001, "{interval:?}");
        assert!((interval.low - 1.037).abs() < 0.001, "{interval:?}");
        assert_eq!(Interval::of(&[1.0]), None);
    }
}
