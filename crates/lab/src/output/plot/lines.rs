//! Curves, with a panel for each comparison: over time, or over what was varied.

use plotters::prelude::*;
use plotters::style::FontStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, COLORS, GRID, INK, MARGIN, QUIET, WIDTH, error, picture, style};
use crate::error::LabError;

/// The height of a panel, and of a panel that is only a detail.
const PANEL: i32 = 342;
const DETAIL: i32 = 262;
/// The distance from the panel above to a panel's title.
const TOP: i32 = 16;
/// The displayed size in percent: the picture is made for a column of text, and its file stays small.
const SHOWN: u32 = 75;
/// The top of the scale as a multiple of the highest value.
const HEADROOM: f64 = 1.08;
/// In the legend: the length of a sample line, and the space next to it.
const SAMPLE: i32 = 26;
const GAP: i32 = 8;
/// Times below this, in seconds, are shown in tenths.
const SHORT: f64 = 12.0;
/// The radius of a mark, and the room beside the first and the last one as a part of the scale.
const MARK: i32 = 4;
const MARK_ROOM: f64 = 0.04;

/// What the scales mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axes {
    /// The scale below.
    pub x: &'static str,
    /// The scale on the left.
    pub y: &'static str,
    /// Whether each point is a measurement of its own: it is marked, and the scale below begins near the first one.
    pub marks: bool,
}

impl Default for Axes {
    fn default() -> Self {
        Self { x: "time in seconds", y: "memory in MiB", marks: false }
    }
}

/// Curves on the same scales.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// The title, in bold on the left.
    pub title: String,
    /// What the scales mean.
    pub axes: Axes,
    /// The curves, the first one below the others.
    pub curves: Vec<Curve>,
    /// A horizontal line, in MiB, and its meaning.
    pub line: Option<(f64, String)>,
    /// Whether it is only a detail.
    pub is_detail: bool,
}

/// A curve.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Places on the scale below, such as moments in seconds, and values, such as MiB.
    pub points: Vec<(f64, f64)>,
    /// Its colour, by number.
    pub color: usize,
    /// Whether it is a thin line.
    pub is_thin: bool,
}

impl Curve {
    fn style(&self) -> ShapeStyle {
        COLORS[self.color % COLORS.len()].stroke_width(if self.is_thin { 1 } else { 3 })
    }
}

/// Draws `panels` one above the other, over the same time or range.
///
/// # Errors
/// If the drawing library fails.
pub fn svg(title: &str, subtitle: &str, panels: &[Panel]) -> Result<String, LabError> {
    let points = panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points);
    let ends = points.map(|(at, _)| *at).fold((f64::MAX, 1.0), |(from, to), at| (from.min(at), at.max(to)));
    let text = picture(title, subtitle, panels.iter().map(height).sum(), |area| {
        let mut rest = area.clone();
        for panel in panels {
            let (area, below) = rest.split_vertically(height(panel));
            rest = below;
            draw(&area, panel, ends)?;
        }
        Ok(())
    })?;
    Ok(shown(&text).unwrap_or(text))
}

/// The same picture, displayed at the size of [`SHOWN`]. Its head begins with `<svg width="…" height="…"`.
fn shown(svg: &str) -> Option<String> {
    let mut parts = svg.splitn(5, '"');
    let mut text = || parts.next();
    let (head, width, between, height, rest) = (text()?, text()?, text()?, text()?, text()?);
    let scaled = |size: &str| size.parse::<u32>().ok().map(|size| size * SHOWN / 100);
    Some(format!("{head}\"{}\"{between}\"{}\"{rest}", scaled(width)?, scaled(height)?))
}

const fn height(panel: &Panel) -> i32 {
    if panel.is_detail { DETAIL } else { PANEL }
}

fn draw(area: &Area<'_>, panel: &Panel, (first, last): (f64, f64)) -> Result<(), LabError> {
    // A mark at the edge needs room.
    let room = if panel.axes.marks { (last - first).max(1.0) * MARK_ROOM } else { 0.0 };
    let (begin, end) = (if panel.axes.marks { (first - room).max(0.0).min(last) } else { 0.0 }, last + room);
    area.draw_text(&panel.title, &style(17, FontStyle::Bold, INK), (MARGIN, TOP)).map_err(error)?;
    draw_legend(area, panel)?;
    let values = panel.curves.iter().flat_map(|curve| &curve.points).map(|(_, value)| *value);
    let high = values.chain(panel.line.iter().map(|(at, _)| *at)).fold(1.0, f64::max) * HEADROOM;
    let mut chart = ChartBuilder::on(area)
        .margin_left(MARGIN - 12)
        .margin_right(MARGIN)
        .margin_top(TOP + 28)
        .x_label_area_size(46)
        .y_label_area_size(66)
        .build_cartesian_2d(begin..end, 0.0..high)
        .map_err(error)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(QUIET)
        .label_style(style(12, FontStyle::Normal, QUIET))
        .axis_desc_style(style(13, FontStyle::Normal, QUIET))
        .x_desc(panel.axes.x)
        .y_desc(panel.axes.y)
        .x_labels(12)
        .y_labels(5)
        .x_label_formatter(&|x| if end < SHORT { format!("{x:.1}") } else { format!("{x:.0}") })
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()
        .map_err(error)?;
    for curve in &panel.curves {
        let line = LineSeries::new(curve.points.iter().copied(), curve.style());
        chart.draw_series(line).map_err(error)?;
        if panel.axes.marks {
            let color = COLORS[curve.color % COLORS.len()].filled();
            let marks = curve.points.iter().map(|point| Circle::new(*point, MARK, color));
            chart.draw_series(marks).map_err(error)?;
        }
    }
    if let Some((at, name)) = &panel.line {
        let dashes = DashedLineSeries::new([(begin, *at), (end, *at)], 6, 4, INK.stroke_width(2));
        chart.draw_series(dashes).map_err(error)?;
        let style = style(13, FontStyle::Normal, INK).pos(Pos::new(HPos::Left, VPos::Bottom));
        let text = EmptyElement::at((begin, *at)) + Text::new(name.clone(), (6, -5), style);
        chart.draw_series([text]).map_err(error)?;
    }
    Ok(())
}

/// The names of the curves, at the top right, each after a sample of its line.
fn draw_legend(area: &Area<'_>, panel: &Panel) -> Result<(), LabError> {
    let mut right = i32::try_from(WIDTH).map_err(error)? - MARGIN;
    for curve in panel.curves.iter().rev() {
        let text = style(14, FontStyle::Normal, INK);
        let (width, _) = area.estimate_text_size(&curve.name, &text).map_err(error)?;
        let left = right - i32::try_from(width).map_err(error)?;
        area.draw_text(&curve.name, &text, (left, TOP + 2)).map_err(error)?;
        let (from, to) = (left - GAP - SAMPLE, left - GAP);
        area.draw(&PathElement::new([(from, TOP + 10), (to, TOP + 10)], curve.style())).map_err(error)?;
        right = from - 2 * GAP;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::png;
    use super::*;

    #[test]
    fn curves_and_nothing_to_draw_are_pictures() {
        let points = (0..50).map(|at| (f64::from(at), f64::from(at * at))).collect();
        let curve = Curve { name: "measured".to_owned(), points, ..Curve::default() };
        let line = Some((2_000.0, "the host has 2000 MiB".to_owned()));
        let panel = Panel { title: "all".to_owned(), curves: vec![curve], line, ..Panel::default() };
        let axes = Axes { x: "memory in MiB", y: "seconds", marks: true };
        let swept = Panel { axes, ..panel.clone() };
        let nothing = Panel { axes, ..Panel::default() };
        for panels in [vec![panel], vec![swept], vec![nothing], vec![Panel::default()]] {
            let drawn = svg("A title", "", &panels).unwrap();
            assert!(png(&drawn).unwrap().starts_with(b"\x89PNG"));
        }
    }
}
