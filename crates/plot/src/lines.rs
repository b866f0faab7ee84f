//! Curves, with a panel for each comparison: over time, or over what was varied.

use crate::axes::{Axes, Scale};
use crate::canvas::{Canvas, Height, Letters, Side, Stroke};
use crate::{INK, MARGIN, WIDTH, picture, series};

/// The height of a panel, and of a panel that is only a detail.
const PANEL: f64 = 342.0;
const DETAIL: f64 = 262.0;
/// The distance from the panel above to a panel's title.
const TOP: f64 = 16.0;
/// The space for the title and the legend, for the numbers on the left and for those below.
const HEAD: f64 = 44.0;
const LEFT: f64 = 82.0;
const BELOW: f64 = 46.0;
/// The part of its size at which it is displayed: the picture is made for a column of text, and its file stays small.
const SHOWN: f64 = 0.75;
/// The top of the scale as a multiple of the highest value.
const HEADROOM: f64 = 1.08;
/// In the legend: the length of a sample line, and the space next to it.
const SAMPLE: f64 = 26.0;
const GAP: f64 = 8.0;
/// Scales that end below this are shown in tenths.
const SHORT: f64 = 12.0;
/// The radius of a mark, and the room beside the first and the last one as a part of the scale.
const MARK: f64 = 4.0;
const MARK_ROOM: f64 = 0.04;

/// What the scales mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The scale below.
    pub x: &'static str,
    /// The scale on the left.
    pub y: &'static str,
    /// Whether each point is a measurement of its own: it is marked, and the scale below begins near the first one.
    pub marks: bool,
}

impl Default for Meaning {
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
    pub meaning: Meaning,
    /// The curves, the first one below the others.
    pub curves: Vec<Curve>,
    /// A horizontal line and its meaning.
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
    /// The number of its series, for its colour.
    pub color: usize,
    /// Whether it is a thin line.
    pub is_thin: bool,
}

impl Curve {
    fn stroke(&self) -> Stroke {
        Stroke::of(series(self.color), if self.is_thin { 1.0 } else { 3.0 })
    }
}

/// Draws `panels` one above the other, over the same time or range.
#[must_use]
pub fn svg(title: &str, subtitle: &str, panels: &[Panel]) -> String {
    let points = panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points);
    let ends = points.map(|(at, _)| *at).fold((f64::MAX, 1.0), |(from, to), at| (from.min(at), at.max(to)));
    picture(title, subtitle, SHOWN, panels.iter().map(height).sum(), |canvas, mut top| {
        for panel in panels {
            draw(canvas, panel, top, ends);
            top += height(panel);
        }
    })
}

const fn height(panel: &Panel) -> f64 {
    if panel.is_detail { DETAIL } else { PANEL }
}

fn draw(canvas: &mut Canvas, panel: &Panel, top: f64, (first, last): (f64, f64)) {
    let Meaning { x, y, marks } = panel.meaning;
    // A mark at the edge needs room.
    let room = if marks { (last - first).max(1.0) * MARK_ROOM } else { 0.0 };
    let (begin, end) = (if marks { (first - room).max(0.0).min(last) } else { 0.0 }, last + room);
    canvas.text((MARGIN, top + TOP), &panel.title, Letters::of(17.0, INK).bold());
    draw_legend(canvas, panel, top + TOP);
    let values = panel.curves.iter().flat_map(|curve| &curve.points).map(|(_, value)| *value);
    let high = values.chain(panel.line.iter().map(|(at, _)| *at)).fold(1.0, f64::max) * HEADROOM;
    let axes = Axes {
        x: Scale { values: (begin, end), places: (LEFT, WIDTH - MARGIN) },
        y: Scale { values: (0.0, high), places: (top + height(panel) - BELOW, top + HEAD) },
        words: (x, y),
        numbers: (&|x| if end < SHORT { format!("{x:.1}") } else { format!("{x:.0}") }, &|y| {
            format!("{y:.0}")
        }),
    };
    axes.draw(canvas, &axes.x.steps(12), &axes.y.steps(5));
    for curve in &panel.curves {
        canvas.line(curve.points.iter().map(|point| Some(axes.at(*point))), curve.stroke());
        for point in curve.points.iter().filter(|_| marks) {
            canvas.dot(axes.at(*point), MARK, series(curve.color));
        }
    }
    if let Some((at, name)) = &panel.line {
        let (from, to) = (axes.at((begin, *at)), axes.at((end, *at)));
        canvas.rule(from, to, Stroke::of(INK, 2.0).dashed());
        let letters = Letters::of(13.0, INK).at(Side::Right, Height::Bottom);
        canvas.text((from.0 + 6.0, from.1 - 5.0), name, letters);
    }
}

/// The names of the curves, at the top right, each after a sample of its line.
fn draw_legend(canvas: &mut Canvas, panel: &Panel, top: f64) {
    let mut right = WIDTH - MARGIN;
    let letters = Letters::of(14.0, INK);
    for curve in panel.curves.iter().rev() {
        let left = right - letters.width(&curve.name);
        canvas.text((left, top + 2.0), &curve.name, letters);
        let to = left - GAP;
        canvas.rule((to - SAMPLE, top + 10.0), (to, top + 10.0), curve.stroke());
        right = to - SAMPLE - 2.0 * GAP;
    }
}
