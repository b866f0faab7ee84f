//! The duration of touches: a histogram that one thread writes and others read.
//!
//! **Rule.** Buckets grow by powers of two, each split into 32, so percentiles are accurate to 3 %. One touch in each chunk
//! is measured, or every touch if touches are slow (see [`super::worker`]).

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

const SPLIT_BITS: u32 = 5;
const SPLIT: u64 = 1 << SPLIT_BITS;
/// 2⁴⁰ ns are 18 minutes.
const LARGEST_BITS: u32 = 40;
const BUCKETS: usize = ((LARGEST_BITS - SPLIT_BITS + 1) as usize) << SPLIT_BITS;

/// A histogram of times in nanoseconds.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    longest: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), longest: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts a touch. Only one thread may call this.
    pub fn record(&self, nanos: u64) {
        let bucket = &self.buckets[bucket_of(nanos)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if nanos > self.longest.load(Ordering::Relaxed) {
            self.longest.store(nanos, Ordering::Relaxed);
        }
    }

    /// Adds the counts so far to `to`. The longest time is the longest since the last call.
    pub fn add_to(&self, to: &mut Counts) {
        for (count, bucket) in to.buckets.iter_mut().zip(&self.buckets) {
            *count += bucket.load(Ordering::Relaxed);
        }
        to.longest = to.longest.max(self.longest.swap(0, Ordering::Relaxed));
    }
}

/// The counts of histograms.
#[derive(Clone, Debug)]
pub struct Counts {
    buckets: Vec<u64>,
    /// The longest time in nanoseconds.
    pub longest: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], longest: 0 }
    }
}

/// Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Measured touches.
    pub samples: u64,
    /// The median.
    pub p50: u64,
    /// Only one in a hundred took longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Counts {
    /// The latency of touches counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Latency {
        let new: Vec<u64> =
            self.buckets.iter().zip(&before.buckets).map(|(now, before)| now - before).collect();
        let samples: u64 = new.iter().sum();
        let percentile = |percent: u64| {
            let rank = (samples * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let bucket = new.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            bucket.map_or(0, value_of).min(self.longest)
        };
        Latency { samples, p50: percentile(50), p99: percentile(99), max: self.longest }
    }
}

fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.min((1 << LARGEST_BITS) - 1);
    if nanos < SPLIT {
        return usize::try_from(nanos).unwrap_or(0);
    }
    let exponent = nanos.ilog2() - SPLIT_BITS;
    let within = (nanos >> exponent) - SPLIT;
    usize::try_from((u64::from(exponent) + 1) * SPLIT + within).unwrap_or(BUCKETS - 1)
}

/// The middle value of a bucket.
fn value_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let (exponent, within) = (bucket / SPLIT, bucket % SPLIT);
    match exponent.checked_sub(1) {
        None => within,
        Some(exponent) => ((SPLIT + within) << exponent) + (1 << exponent) / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_3_percent() {
        let histogram = Histogram::default();
        for nanos in 1..=100_000 {
            histogram.record(nanos);
        }
        let mut counts = Counts::default();
        histogram.add_to(&mut counts);
        let latency = counts.since(&Counts::default());
        assert_eq!((latency.samples, latency.max), (100_000, 100_000));
        assert!(latency.p50.abs_diff(50_000) < 1_500, "{latency:?}");
        assert!(latency.p99.abs_diff(99_000) < 3_000, "{latency:?}");
    }

    #[test]
    fn every_time_has_a_bucket_and_every_bucket_its_time() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(value_of(bucket)), bucket);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(Counts::default().since(&Counts::default()), Latency::default());
    }
}
