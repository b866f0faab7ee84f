//! Fewer points of a course, with its extremes.
//!
//! **Rule.** Time is divided into equal parts. Of each part, the point with the least and the point with the greatest value stay, and the last
//! point of all. So a peak of a second is in a report of a month.

/// A course of which at most two points stay for each part of its time.
#[derive(Clone, Debug)]
pub struct Thinned<T> {
    begins: u64,
    lasts: u64,
    parts: Vec<Option<(Point<T>, Point<T>)>>,
    last: Option<Point<T>>,
}

/// A point of a course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point<T> {
    /// When it was.
    pub at: u64,
    /// The value that can be an extreme.
    pub value: u64,
    /// Points of different runs are not connected.
    pub run: u32,
    /// All that is known of it.
    pub what: T,
}

impl<T: Copy> Thinned<T> {
    /// A course from `begins` to `ends`, of at most `most` points.
    pub fn new((begins, ends): (u64, u64), most: usize) -> Self {
        let parts = vec![None; (most.saturating_sub(1) / 2).max(1)];
        Self { begins, lasts: ends.saturating_sub(begins).saturating_add(1), parts, last: None }
    }

    /// Takes the next point.
    pub fn push(&mut self, point: Point<T>) {
        let since = u128::from(point.at.saturating_sub(self.begins));
        let place = since * self.parts.len() as u128 / u128::from(self.lasts);
        let place = usize::try_from(place).unwrap_or(usize::MAX).min(self.parts.len() - 1);
        let (least, most) = self.parts[place].get_or_insert((point, point));
        if point.value < least.value {
            *least = point;
        }
        if point.value > most.value {
            *most = point;
        }
        self.last = Some(point);
    }

    /// The points that stayed, in their order.
    pub fn points(&self) -> Vec<Point<T>> {
        let mut points: Vec<Point<T>> =
            self.parts.iter().flatten().flat_map(|(least, most)| [*least, *most]).chain(self.last).collect();
        points.sort_by_key(|point| (point.at, point.run));
        points.dedup_by_key(|point| (point.at, point.run));
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_stay_however_many_points_there_are() {
        let mut course = Thinned::new((1_000, 100_999), 100);
        for at in 0..100_000 {
            let value = if at == 54_321 { 9 } else { 5 - u64::from(at == 20_000) };
            course.push(Point { at: 1_000 + at, value, run: 0, what: () });
        }
        let points = course.points();
        assert!(points.len() <= 100 && points.is_sorted_by_key(|point| point.at), "{}", points.len());
        let values = |value| {
            points.iter().filter(|point| point.value == value).map(|point| point.at).collect::<Vec<_>>()
        };
        assert_eq!((values(9), values(4)), (vec![55_321], vec![21_000]));
        assert_eq!((points[0].at, points[points.len() - 1].at), (1_000, 100_999));
    }

    #[test]
    fn a_single_moment_is_a_course() {
        let mut course = Thinned::new((7, 7), 1);
        course.push(Point { at: 7, value: 1, run: 0, what: 'a' });
        assert_eq!(course.points().len(), 1);
    }
}
