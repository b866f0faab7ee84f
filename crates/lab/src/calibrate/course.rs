//! The cost of guests over time, recorded or simulated, and the distance between two such courses.

use memtide_model::{Bytes, Span};

use crate::output::show;
use crate::output::statistics::median;

/// The interval at which two courses are compared.
pub const EVERY: Span = Span::from_millis(250);

/// The cost of guests over time.
#[derive(Clone, Debug)]
pub struct Course {
    names: Vec<String>,
    points: Vec<(Span, Vec<Option<Sizes>>)>,
}

/// A guest's sizes at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Its cost to the host.
    pub footprint: Bytes,
    /// The memory that it keeps; `None` while no driver reports it.
    pub actual: Option<Bytes>,
}

/// The distance between two courses, in percent of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    /// The distance is smaller half of the time.
    pub median: f64,
    /// The distance is smaller nine tenths of the time.
    pub p90: f64,
}

impl Course {
    /// A course of these guests, without any moments yet.
    #[must_use]
    pub const fn new(names: Vec<String>) -> Self {
        Self { names, points: Vec::new() }
    }

    /// The guests' names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the guest with this number has not appeared yet.
    #[must_use]
    pub fn is_new(&self, guest: usize) -> bool {
        self.points.iter().all(|(_, guests)| guests[guest].is_none())
    }

    /// Adds a moment; `None` means that a guest is absent.
    pub fn push(&mut self, at: Span, guests: Vec<Option<Sizes>>) {
        self.points.push((at, guests));
    }

    /// The last moment.
    #[must_use]
    pub fn lasts(&self) -> Span {
        self.points.last().map_or(Span::ZERO, |(at, _)| *at)
    }

    /// A value at `at`, interpolated linearly if the moments before and after both have it.
    fn between(&self, at: Span, value: impl Fn(&[Option<Sizes>]) -> Option<Bytes>) -> Option<Bytes> {
        let after = self.points.partition_point(|(point, _)| *point <= at);
        let before = after.checked_sub(1).and_then(|before| self.points.get(before));
        let known = |point: Option<&(Span, Vec<Option<Sizes>>)>| {
            let (at, guests) = point?;
            Some((*at, value(guests)?))
        };
        match (known(before), known(self.points.get(after))) {
            (Some((left, low)), Some((right, high))) => {
                let (part, whole) = (since(at, left).as_millis(), since(right, left).as_millis().max(1));
                let step = low.abs_diff(high).mul_div(part, whole);
                Some(if low < high { low.saturating_add(step) } else { low.saturating_sub(step) })
            }
            (known, next) => known.or(next).map(|(_, value)| value),
        }
    }

    /// The cost of all guests at `at`.
    #[must_use]
    pub fn all(&self, at: Span) -> Bytes {
        let sum =
            |guests: &[Option<Sizes>]| Some(Bytes::sum(guests.iter().flatten().map(|one| one.footprint)));
        self.between(at, sum).unwrap_or_default()
    }

    /// The cost of the guest with this number at `at`; `None` while it is absent.
    #[must_use]
    pub fn footprint(&self, guest: usize, at: Span) -> Option<Bytes> {
        self.between(at, |guests| guests[guest].map(|one| one.footprint))
    }

    /// The memory that it keeps at `at`; `None` while no driver reports it.
    #[must_use]
    pub fn actual(&self, guest: usize, at: Span) -> Option<Bytes> {
        self.between(at, |guests| guests[guest]?.actual)
    }

    /// The distance between the sums of both courses.
    #[must_use]
    pub fn apart(&self, other: &Self, capacity: Bytes) -> Apart {
        let percent = 100.0 / show::mib(capacity);
        let apart = |at| show::mib(self.all(at).abs_diff(other.all(at))) * percent;
        let mut errors: Vec<f64> = moments(self.lasts()).map(apart).collect();
        errors.sort_by(f64::total_cmp);
        let p90 = errors.get(errors.len() * 9 / 10).copied();
        Apart { median: median(errors).unwrap_or_default(), p90: p90.unwrap_or_default() }
    }
}

/// The moments when courses are compared.
pub fn moments(lasts: Span) -> impl Iterator<Item = Span> {
    (0..=lasts.as_millis() / EVERY.as_millis()).map(|nth| Span::from_millis(nth * EVERY.as_millis()))
}

/// The time from `earlier` to `later`; zero if they are in the wrong order.
#[must_use]
pub const fn since(later: Span, earlier: Span) -> Span {
    Span::from_millis(later.as_millis().saturating_sub(earlier.as_millis()))
}

/// Seconds, for calculations and plots.
#[must_use]
pub fn seconds(span: Span) -> f64 {
    show::float(span.as_millis()) / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(mib: u64, actual: Option<u64>) -> Option<Sizes> {
        Some(Sizes { footprint: Bytes::from_mib(mib), actual: actual.map(Bytes::from_mib) })
    }

    #[test]
    fn between_two_moments_lies_a_straight_line() {
        let mut course = Course::new(vec!["a".to_owned(), "b".to_owned()]);
        course.push(Span::ZERO, vec![sizes(100, None), None]);
        course.push(Span::from_secs(1), vec![sizes(300, Some(1_024)), sizes(50, None)]);
        let at = Span::from_millis(250);
        assert_eq!(course.all(at), Bytes::from_mib(162).saturating_add(Bytes::from_kib(512)));
        assert_eq!(course.footprint(0, at), Some(Bytes::from_mib(150)));
        assert_eq!(
            (course.actual(0, Span::from_secs(2)), course.actual(1, at)),
            (Some(Bytes::from_mib(1_024)), None)
        );
    }

    #[test]
    fn courses_lie_apart_in_percent_of_the_capacity() {
        let course = |mib: u64| {
            let mut course = Course::new(vec!["a".to_owned()]);
            course.push(Span::ZERO, vec![sizes(mib, None)]);
            course.push(Span::from_secs(1), vec![sizes(mib, None)]);
            course
        };
        let apart = course(100).apart(&course(150), Bytes::from_mib(1_000));
        assert!((apart.median - 5.0).abs() < 1e-9 && (apart.p90 - 5.0).abs() < 1e-9, "{apart:?}");
    }
}
