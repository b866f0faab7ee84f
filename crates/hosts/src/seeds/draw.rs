//! Random choices for setups.

use memtide_guest::Random;
use memtide_model::{Bytes, MIB, Span};

/// A stream of choices.
#[derive(Clone, Debug)]
pub(crate) struct Draw(Random);

impl Draw {
    /// The choices of `seed` for one purpose: each `stream` is independent of all others.
    pub(crate) const fn new(seed: u64, stream: u64) -> Self {
        Self(Random::new(seed).fork(stream))
    }

    /// A number from `low` to `high`, both included.
    pub(crate) const fn number(&mut self, low: u64, high: u64) -> u64 {
        self.0.between(low, high)
    }

    /// True in `part` out of `of` cases.
    pub(crate) const fn chance(&mut self, part: u64, of: u64) -> bool {
        self.0.chance(part, of)
    }

    /// One of `from`, which must not be empty.
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())].clone()
    }

    /// A number below `length`; zero if `length` is zero.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let last = (length as u64).saturating_sub(1);
        usize::try_from(self.number(0, last)).unwrap_or(0)
    }

    /// A size between `low` and `high` MiB, in steps of 10 MiB.
    pub(crate) fn mib(&mut self, low: u64, high: u64) -> Bytes {
        Bytes::from_mib(self.number(low.div_ceil(10), high / 10) * 10)
    }

    /// A part of `whole` between `low` and `high` percent, in steps of 10 MiB.
    pub(crate) fn part(&mut self, whole: Bytes, low: u64, high: u64) -> Bytes {
        let of = |percent: u64| whole.mul_div(percent, 100).whole_mib();
        self.mib(of(low), of(high))
    }

    /// A time between `low` and `high` seconds.
    pub(crate) fn secs(&mut self, low: u64, high: u64) -> Span {
        Span::from_secs(self.number(low, high))
    }

    /// One of these rates in MiB a second, in bytes a second.
    pub(crate) fn rate(&mut self, mib_per_second: &[u64]) -> u64 {
        self.pick(mib_per_second) * MIB
    }
}

/// The sum of two times.
pub(crate) const fn later(time: Span, by: Span) -> Span {
    Span::from_millis(time.as_millis().saturating_add(by.as_millis()))
}

/// A time less another; zero if the other is longer.
pub(crate) const fn less(time: Span, by: Span) -> Span {
    Span::from_millis(time.as_millis().saturating_sub(by.as_millis()))
}
