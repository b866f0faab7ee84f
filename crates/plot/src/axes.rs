//! Scales: from values to places in a picture, with even steps.

use crate::canvas::{Canvas, Height, Letters, Place, Side, Stroke};
use crate::{GRID, QUIET};

/// The gap between a scale and its numbers.
const NUMBERS: f64 = 8.0;
/// The size of the numbers' font.
const LETTERS: f64 = 12.0;

/// A scale: the values at its two ends, and their places in the picture.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The values at its beginning and at its end.
    pub values: (f64, f64),
    /// The places of these, in units of the picture.
    pub places: (f64, f64),
}

impl Scale {
    /// The place of a value.
    #[must_use]
    pub fn at(self, value: f64) -> f64 {
        let ((first, last), (from, to)) = (self.values, self.places);
        from + (value - first) * (to - from) / (last - first).max(f64::MIN_POSITIVE)
    }

    /// How much of the values one unit of the picture is.
    #[must_use]
    pub fn unit(self) -> f64 {
        let ((first, last), (from, to)) = (self.values, self.places);
        (last - first) / (to - from).abs().max(f64::MIN_POSITIVE)
    }

    /// The values to name: no more than `most`, in steps of 1, 2 or 5 times a power of ten.
    #[must_use]
    pub fn steps(self, most: u32) -> Vec<f64> {
        let (first, last) = self.values;
        let least = (last - first).max(f64::MIN_POSITIVE) / f64::from(most.max(1));
        let power = 10_f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let step = step.into_iter().find(|step| *step >= least * 0.999).unwrap_or(10.0 * power);
        let begin = (first / step).ceil();
        let nth = (0..=most).map(|nth| (begin + f64::from(nth)) * step);
        nth.take_while(|value| *value <= last + step * 1e-6).collect()
    }
}

/// The two scales of a plot.
#[derive(Clone, Copy)]
pub struct Axes<'a> {
    /// From left to right.
    pub x: Scale,
    /// From bottom to top.
    pub y: Scale,
    /// What the scales are; nothing is written beside a scale without a word.
    pub words: (&'a str, &'a str),
    /// How to write a value of each.
    pub numbers: (&'a dyn Fn(f64) -> String, &'a dyn Fn(f64) -> String),
}

impl Axes<'_> {
    /// The place of a pair of values.
    #[must_use]
    pub fn at(&self, (x, y): (f64, f64)) -> Place {
        (self.x.at(x), self.y.at(y))
    }

    /// Draws both scales: a number and a line across the plot for each value in `rows`, a number and a tick for each value in `columns`.
    pub fn draw(&self, canvas: &mut Canvas, columns: &[f64], rows: &[f64]) {
        let ((left, right), (bottom, top)) = (self.x.places, self.y.places);
        let letters = Letters::of(LETTERS, QUIET);
        for value in rows {
            let y = self.y.at(*value);
            canvas.rule((left, y), (right, y), Stroke::of(GRID, 1.0));
            let text = (self.numbers.1)(*value);
            canvas.text((left - NUMBERS, y), &text, letters.at(Side::Left, Height::Middle));
        }
        for value in columns {
            let x = self.x.at(*value);
            canvas.rule((x, bottom), (x, bottom + NUMBERS / 2.0), Stroke::of(QUIET, 1.0));
            let text = (self.numbers.0)(*value);
            canvas.text((x, bottom + NUMBERS), &text, letters.at(Side::Middle, Height::Top));
        }
        canvas.line([Some((left, top)), Some((left, bottom)), Some((right, bottom))], Stroke::of(QUIET, 1.0));
        let words = Letters::of(LETTERS + 1.0, QUIET);
        let (below, beside) = self.words;
        if !below.is_empty() {
            let place = (f64::midpoint(left, right), bottom + 2.0 * NUMBERS + LETTERS);
            canvas.text(place, below, words.at(Side::Middle, Height::Top));
        }
        if !beside.is_empty() {
            canvas.text_upwards((left - 52.0, f64::midpoint(bottom, top)), beside, words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_within_the_scale() {
        let steps = |first, last, most| Scale { values: (first, last), places: (0.0, 1.0) }.steps(most);
        assert_eq!(steps(0.0, 2_540.0, 6), [0.0, 500.0, 1_000.0, 1_500.0, 2_000.0, 2_500.0]);
        assert_eq!(steps(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(steps(37.0, 62.0, 3), [40.0, 50.0, 60.0]);
        assert!(steps(5.0, 5.0, 3).len() <= 1);
    }

    #[test]
    fn a_value_has_a_place() {
        let down = Scale { values: (0.0, 10.0), places: (100.0, 0.0) };
        assert!((down.at(2.5) - 75.0).abs() < 1e-9);
        assert!((down.unit() - 0.1).abs() < 1e-9);
    }
}
