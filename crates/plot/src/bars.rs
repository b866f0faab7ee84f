//! Figures of arms side by side: a horizontal bar each, with its interval if there is one.

use crate::axes::Scale;
use crate::canvas::{Canvas, Height, Letters, Rgb, Side, Stroke};
use crate::{ALARM, GRID, INK, MARGIN, QUIET, WIDTH, picture, series};

const ROW: f64 = 34.0;
const BAR: f64 = 20.0;
/// The space for a group's title, and below its last bar.
const HEAD: f64 = 34.0;
const FOOT: f64 = 34.0;
/// The left end of bars, and the space for the text after them.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 250.0;

/// A bar.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// The text before it.
    pub label: String,
    /// Its length.
    pub value: f64,
    /// The bounds of its interval.
    pub interval: Option<(f64, f64)>,
    /// The text after it.
    pub text: String,
}

/// Bars on one scale.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// The title, in bold above the bars.
    pub title: String,
    /// The bars from top to bottom.
    pub bars: Vec<Bar>,
    /// A line for comparison, and its name.
    pub line: Option<(f64, String)>,
}

/// Draws groups of bars one above the other, each on its own scale.
#[must_use]
pub fn svg(title: &str, subtitle: &str, groups: &[Bars]) -> String {
    picture(title, subtitle, 1.0, groups.iter().map(height).sum(), |canvas, mut top| {
        for group in groups {
            draw(canvas, group, top);
            top += height(group);
        }
    })
}

fn height(group: &Bars) -> f64 {
    HEAD + rows(group) + FOOT
}

fn rows(group: &Bars) -> f64 {
    group.bars.iter().map(|_| ROW).sum()
}

fn scale(group: &Bars) -> Scale {
    let ends = group.bars.iter().flat_map(|bar| {
        let (low, high) = bar.interval.unwrap_or((bar.value, bar.value));
        [bar.value, low, high]
    });
    let all = ends.chain(group.line.iter().map(|(at, _)| *at));
    let values = all.fold((0.0_f64, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
    Scale { values, places: (LEFT, WIDTH - RIGHT) }
}

fn draw(canvas: &mut Canvas, group: &Bars, top: f64) {
    canvas.text((MARGIN, top), &group.title, Letters::of(17.0, INK).bold());
    let scale = scale(group);
    let (first, last) = (top + HEAD, top + HEAD + rows(group));
    let upright = |canvas: &mut Canvas, x: f64, colour| {
        canvas.rule((x, first - 4.0), (x, last), Stroke::of(colour, 2.0))
    };
    upright(canvas, scale.at(0.0), GRID);
    let mut middle = first + ROW / 2.0;
    for (nth, bar) in group.bars.iter().enumerate() {
        draw_bar(canvas, bar, scale, middle, series(nth));
        middle += ROW;
    }
    if let Some((at, name)) = &group.line {
        upright(canvas, scale.at(*at), ALARM);
        let letters = Letters::of(13.0, ALARM).at(Side::Middle, Height::Top);
        canvas.text((scale.at(*at), last + 4.0), name, letters);
    }
}

fn draw_bar(canvas: &mut Canvas, bar: &Bar, scale: Scale, middle: f64, colour: Rgb) {
    let label = Letters::of(14.0, INK).at(Side::Left, Height::Middle);
    canvas.text((LEFT - 14.0, middle), &bar.label, label);
    let (from, to) = (scale.at(0.0), scale.at(bar.value));
    let (left, mut end) = (from.min(to), from.max(to));
    canvas.rectangle((left, middle - BAR / 2.0), (end, middle + BAR / 2.0), colour);
    if let Some((low, high)) = bar.interval {
        let (low, high) = (scale.at(low), scale.at(high));
        canvas.rule((low, middle), (high, middle), Stroke::of(INK, 2.0));
        for x in [low, high] {
            canvas.rule((x, middle - 5.0), (x, middle + 5.0), Stroke::of(INK, 2.0));
        }
        end = end.max(high);
    }
    let text = Letters::of(14.0, QUIET).bold().at(Side::Right, Height::Middle);
    canvas.text((end + 12.0, middle), &bar.text, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_holds_all_that_is_drawn() {
        let bar = |value, interval| Bar { value, interval, ..Bar::default() };
        let bars = vec![bar(3.0, None), bar(-1.0, Some((-2.0, 1.0)))];
        let scale = scale(&Bars { bars, line: Some((8.0, String::new())), ..Bars::default() });
        for (value, place) in [(-2.0, LEFT), (8.0, WIDTH - RIGHT), (3.0, f64::midpoint(LEFT, WIDTH - RIGHT))]
        {
            assert!((scale.at(value) - place).abs() < 1e-9);
        }
    }
}
