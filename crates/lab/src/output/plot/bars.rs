//! Figures of arms side by side: a horizontal bar each, with its interval if there is one.

use plotters::prelude::*;
use plotters::style::FontStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{ALARM, Area, COLORS, GRID, INK, MARGIN, QUIET, WIDTH, error, picture, style};
use crate::error::LabError;

const ROW: i32 = 34;
const BAR: i32 = 20;
/// The space for a group's title, and below its last bar.
const HEAD: i32 = 34;
const FOOT: i32 = 34;
/// The left end of bars, and the space for the text after them.
const LEFT: i32 = 250;
const RIGHT: i32 = 250;

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
///
/// # Errors
/// If the drawing library fails.
pub fn svg(title: &str, subtitle: &str, groups: &[Bars]) -> Result<String, LabError> {
    picture(title, subtitle, groups.iter().map(height).sum(), |area| {
        let mut top = 0;
        for group in groups {
            draw(area, group, top)?;
            top += height(group);
        }
        Ok(())
    })
}

fn height(group: &Bars) -> i32 {
    HEAD + ROW * to_i32(group.bars.len()) + FOOT
}

/// Converts values to units of the picture.
struct Scale {
    low: f64,
    per_value: f64,
}

impl Scale {
    fn of(group: &Bars) -> Self {
        let ends = group.bars.iter().flat_map(|bar| {
            let (low, high) = bar.interval.unwrap_or((bar.value, bar.value));
            [bar.value, low, high]
        });
        let all = ends.chain(group.line.iter().map(|(at, _)| *at));
        let (low, high) = all.fold((0.0_f64, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
        let width = f64::from(WIDTH) - f64::from(LEFT + RIGHT);
        Self { low, per_value: width / (high - low).max(f64::MIN_POSITIVE) }
    }

    #[allow(clippy::cast_possible_truncation, reason = "within the picture's width")]
    fn at(&self, value: f64) -> i32 {
        LEFT + ((value - self.low) * self.per_value).round() as i32
    }
}

fn draw(area: &Area<'_>, group: &Bars, top: i32) -> Result<(), LabError> {
    area.draw_text(&group.title, &style(17, FontStyle::Bold, INK), (MARGIN, top)).map_err(error)?;
    let scale = Scale::of(group);
    let (first, last) = (top + HEAD, top + HEAD + ROW * to_i32(group.bars.len()));
    line(area, scale.at(0.0), (first - 4, last), GRID.stroke_width(2))?;
    for (nth, bar) in group.bars.iter().enumerate() {
        let middle = first + ROW * to_i32(nth) + ROW / 2;
        draw_bar(area, bar, &scale, middle, COLORS[nth % COLORS.len()])?;
    }
    if let Some((at, name)) = &group.line {
        line(area, scale.at(*at), (first - 4, last), ALARM.stroke_width(2))?;
        let style = style(13, FontStyle::Normal, ALARM).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw_text(name, &style, (scale.at(*at), last + 4)).map_err(error)?;
    }
    Ok(())
}

fn draw_bar(area: &Area<'_>, bar: &Bar, scale: &Scale, middle: i32, color: RGBColor) -> Result<(), LabError> {
    let label = style(14, FontStyle::Normal, INK).pos(Pos::new(HPos::Right, VPos::Center));
    area.draw_text(&bar.label, &label, (LEFT - 14, middle)).map_err(error)?;
    let (from, to) = (scale.at(0.0), scale.at(bar.value));
    let corners = [(from.min(to), middle - BAR / 2), (from.max(to), middle + BAR / 2)];
    area.draw(&Rectangle::new(corners, color.filled())).map_err(error)?;
    let mut end = from.max(to);
    if let Some((low, high)) = bar.interval {
        let (low, high) = (scale.at(low), scale.at(high));
        area.draw(&PathElement::new([(low, middle), (high, middle)], INK.stroke_width(2))).map_err(error)?;
        for at in [low, high] {
            line(area, at, (middle - 5, middle + 5), INK.stroke_width(2))?;
        }
        end = end.max(high);
    }
    let text = style(14, FontStyle::Bold, QUIET).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw_text(&bar.text, &text, (end + 12, middle)).map_err(error)
}

fn line(area: &Area<'_>, x: i32, (top, bottom): (i32, i32), style: ShapeStyle) -> Result<(), LabError> {
    area.draw(&PathElement::new([(x, top), (x, bottom)], style)).map_err(error)
}

fn to_i32(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX / ROW / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_holds_all_that_is_drawn() {
        let bar = |value, interval| Bar { value, interval, ..Bar::default() };
        let bars = vec![bar(3.0, None), bar(-1.0, Some((-2.0, 1.0)))];
        let scale = Scale::of(&Bars { bars, line: Some((8.0, String::new())), ..Bars::default() });
        let right = i32::try_from(WIDTH).unwrap() - RIGHT;
        assert_eq!((scale.at(-2.0), scale.at(8.0)), (LEFT, right));
        assert_eq!(scale.at(3.0), (LEFT + right) / 2);
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let drawn = svg("empty", "", &[Bars::default()]).unwrap();
        assert!(super::super::png(&drawn).unwrap().starts_with(b"\x89PNG"));
    }
}
