//! The guests' memory over time, stacked, below the host's capacity; one panel for each arm.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, TextStyle};

use super::{ALARM, Area, COLORS, GRID, INK, MARGIN, QUIET, WIDTH, error, picture, style};
use crate::error::LabError;
use crate::output::sample::Samples;
use crate::output::show;

const PANEL: i32 = 340;
/// The top of the scale as a multiple of the capacity: room for two rows of kill marks above it.
const HEADROOM: f64 = 1.24;
/// Kills within this many seconds share one mark.
const TOGETHER: f64 = 1.5;

/// The height of a line of labels, and the largest width of a letter in it.
const LINE: u8 = 18;
const LETTER: u8 = 10;

/// The memory of some guests over time.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// The title, in bold on the left.
    pub title: String,
    /// The outcome, on the right.
    pub note: String,
    /// The guests' names, from the bottom to the top.
    pub names: Vec<String>,
    /// The moments in seconds and the guests' memory in MiB at each.
    pub points: Vec<(f64, Vec<f64>)>,
    /// The text after curves that end long before the others, to explain why.
    pub end: &'static str,
    /// The time of each kill in seconds, and the guest.
    pub kills: Vec<(f64, usize)>,
}

impl Panel {
    /// The memory that the guests of `samples` took from the host for themselves.
    #[must_use]
    pub fn of(title: &str, note: &str, end: &'static str, names: &[String], samples: &Samples) -> Self {
        let points = samples.all().iter().map(|sample| {
            let memory = sample.guests.iter().map(|guest| show::mib(guest.private)).collect();
            (sample.at.as_secs_f64(), memory)
        });
        Self {
            title: title.to_owned(),
            note: note.to_owned(),
            end,
            names: names.to_vec(),
            points: points.collect(),
            kills: samples.kills().iter().map(|kill| (kill.at.as_secs_f64(), kill.guest)).collect(),
        }
    }
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws `panels` one above the other, on the same scales, with a line at `capacity_mib`.
///
/// # Errors
/// If the drawing library fails.
pub fn svg(title: &str, subtitle: &str, capacity_mib: f64, panels: &[Panel]) -> Result<String, LabError> {
    let count = i32::try_from(panels.len()).map_err(error)?;
    let end = panels.iter().flat_map(|panel| panel.points.last()).map(|(at, _)| *at).fold(1.0, f64::max);
    picture(title, subtitle, PANEL * count, |area| {
        let mut rest = area.clone();
        for panel in panels {
            let (area, below) = rest.split_vertically(PANEL);
            rest = below;
            draw_panel(&area, panel, capacity_mib, end)?;
        }
        Ok(())
    })
}

fn draw_panel(area: &Area<'_>, panel: &Panel, capacity: f64, end: f64) -> Result<(), LabError> {
    let right = i32::try_from(WIDTH).map_err(error)? - MARGIN;
    area.draw_text(&panel.title, &style(17, FontStyle::Bold, INK), (MARGIN, 6)).map_err(error)?;
    let note = style(14, FontStyle::Normal, INK).pos(Pos::new(HPos::Right, VPos::Top));
    area.draw_text(&panel.note, &note, (right, 8)).map_err(error)?;
    let mut chart = ChartBuilder::on(area)
        .margin_left(MARGIN - 12)
        .margin_right(MARGIN)
        .margin_top(34)
        .x_label_area_size(46)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..end, 0.0..capacity * HEADROOM)
        .map_err(error)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(QUIET)
        .label_style(style(12, FontStyle::Normal, QUIET))
        .axis_desc_style(style(13, FontStyle::Normal, QUIET))
        .x_desc("time in seconds")
        .y_desc("memory in MiB")
        .x_labels(12)
        .y_labels(6)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()
        .map_err(error)?;
    draw_stack(&mut chart, panel)?;
    draw_capacity(&mut chart, capacity, end)?;
    draw_names(&mut chart, panel, end)?;
    draw_end(&mut chart, panel, end)?;
    draw_kills(&mut chart, panel, capacity, end)
}

/// The top edges of the first `guests` guests: the sums of their memory.
fn edge(panel: &Panel, guests: usize) -> impl DoubleEndedIterator<Item = (f64, f64)> + '_ {
    panel.points.iter().map(move |(at, memory)| (*at, memory.iter().take(guests).sum()))
}

fn draw_stack(chart: &mut Chart<'_, '_>, panel: &Panel) -> Result<(), LabError> {
    for guest in 0..panel.names.len() {
        let outline: Vec<(f64, f64)> = edge(panel, guest + 1).chain(edge(panel, guest).rev()).collect();
        let color = COLORS[guest % COLORS.len()];
        chart.draw_series([Polygon::new(outline, color.filled())]).map_err(error)?;
        let top = LineSeries::new(edge(panel, guest + 1), WHITE.stroke_width(1));
        chart.draw_series(top).map_err(error)?;
    }
    Ok(())
}

fn draw_capacity(chart: &mut Chart<'_, '_>, capacity: f64, end: f64) -> Result<(), LabError> {
    let line = [(0.0, capacity), (end, capacity)];
    let dashes = DashedLineSeries::new(line, 6, 4, INK.stroke_width(2));
    chart.draw_series(dashes).map_err(error)?;
    let text = format!("the host has {capacity:.0} MiB");
    let style = style(13, FontStyle::Normal, INK).pos(Pos::new(HPos::Right, VPos::Bottom));
    label(chart, (end, capacity), (-2, -5), text, style)
}

/// Draws each guest's name in its band, if the band is high enough for the whole length of the name.
fn draw_names(chart: &mut Chart<'_, '_>, panel: &Panel, end: f64) -> Result<(), LabError> {
    let (width, height) = chart.plotting_area().dim_in_pixel();
    let seconds = end / f64::from(width);
    let least = chart.y_range().end / f64::from(height) * f64::from(LINE);
    for (guest, name) in panel.names.iter().enumerate() {
        let length =
            f64::from(u16::try_from(name.chars().count()).map_err(error)?) * f64::from(LETTER) * seconds;
        if let Some((at, middle)) = roomiest(panel, guest, length, least) {
            let style = style(13, FontStyle::Bold, WHITE).pos(Pos::new(HPos::Center, VPos::Center));
            label(chart, (at, middle), (0, 0), name.clone(), style)?;
        }
    }
    Ok(())
}

fn draw_end(chart: &mut Chart<'_, '_>, panel: &Panel, end: f64) -> Result<(), LabError> {
    let Some((last, memory)) = panel.points.last().filter(|(last, _)| *last < end * 0.8) else {
        return Ok(());
    };
    let middle = memory.iter().sum::<f64>() / 2.0;
    let style = style(13, FontStyle::Normal, QUIET).pos(Pos::new(HPos::Left, VPos::Center));
    label(chart, (*last, middle), (10, 0), panel.end.to_owned(), style)
}

/// The middle of the highest rectangle of `length` seconds within the band of `guest`, if it is at least `least` MiB high.
fn roomiest(panel: &Panel, guest: usize, length: f64, least: f64) -> Option<(f64, f64)> {
    let (lower, upper): (Vec<_>, Vec<_>) = (edge(panel, guest).collect(), edge(panel, guest + 1).collect());
    let last = lower.last()?.0;
    let mut best: Option<(f64, f64, f64)> = None;
    for (nth, (begin, _)) in lower.iter().enumerate().filter(|(_, (begin, _))| begin + length <= last) {
        let within = |line: &[(f64, f64)]| {
            let line: Vec<f64> =
                line[nth..].iter().take_while(|(at, _)| *at <= begin + length).map(|p| p.1).collect();
            (line.iter().copied().fold(f64::MAX, f64::min), line.iter().copied().fold(0.0, f64::max))
        };
        let (floor, ceiling) = (within(&lower).1, within(&upper).0);
        if ceiling - floor >= least
            && best.is_none_or(|(_, floor, ceiling_before)| ceiling - floor > ceiling_before)
        {
            best = Some((*begin, floor, ceiling - floor));
        }
    }
    best.map(|(begin, floor, height)| (begin + length / 2.0, floor + height / 2.0))
}

fn draw_kills(chart: &mut Chart<'_, '_>, panel: &Panel, capacity: f64, end: f64) -> Result<(), LabError> {
    let height = f64::from(chart.plotting_area().dim_in_pixel().1);
    let row_height = capacity * HEADROOM / height * f64::from(LINE);
    for (nth, (at, names)) in marks(panel).into_iter().enumerate() {
        // Each mark is as high as its row, so that none crosses the text of the one before.
        let row = f64::from(u8::try_from(nth % 2).map_err(error)?);
        let top = capacity * HEADROOM - row * row_height;
        chart
            .draw_series([PathElement::new([(at, 0.0), (at, top)], ALARM.stroke_width(2))])
            .map_err(error)?;
        // Next to the line, on the side with more space.
        let (side, offset) = if at > end * 0.75 { (HPos::Right, -7) } else { (HPos::Left, 7) };
        let style = style(13, FontStyle::Bold, ALARM).pos(Pos::new(side, VPos::Top));
        label(chart, (at, top), (offset, 1), format!("{names} killed"), style)?;
    }
    Ok(())
}

/// The kills; kills close together become one mark.
fn marks(panel: &Panel) -> Vec<(f64, String)> {
    let mut marks: Vec<(f64, String)> = Vec::new();
    for (at, guest) in &panel.kills {
        let name = panel.names.get(*guest).map_or("a guest", String::as_str);
        match marks.last_mut() {
            Some((before, names)) if at - *before <= TOGETHER => {
                names.push_str(", ");
                names.push_str(name);
            }
            _ => marks.push((*at, name.to_owned())),
        }
    }
    marks
}

/// Text at a point of the chart, moved by `offset` units.
fn label(
    chart: &mut Chart<'_, '_>,
    at: (f64, f64),
    offset: (i32, i32),
    text: String,
    style: TextStyle<'static>,
) -> Result<(), LabError> {
    let text = EmptyElement::at(at) + Text::new(text, offset, style);
    chart.draw_series([text]).map(|_| ()).map_err(error)
}

#[cfg(test)]
mod tests {
    use resvg::tiny_skia::Pixmap;

    use super::super::{PIXELS, png};
    use super::*;

    fn panel() -> Panel {
        Panel {
            title: "without memtide".to_owned(),
            note: "3 of 4 guests alive".to_owned(),
            end: "nothing left to do",
            names: (1..=4).map(|nth| format!("g{nth}")).collect(),
            points: (0..60).map(|at| (f64::from(at), vec![220.0 + f64::from(at) * 5.0; 4])).collect(),
            kills: vec![(40.0, 1)],
        }
    }

    /// Pixels darker than a shade of grey in a rectangle of the SVG's units.
    fn dark_pixels(picture: &Pixmap, (left, top): (u32, u32), (width, height): (u32, u32)) -> usize {
        let pixels = u32::from(PIXELS);
        let range = |start: u32, length: u32| start * pixels..(start + length) * pixels;
        let points = range(top, height).flat_map(|y| range(left, width).map(move |x| (x, y)));
        points.filter(|&(x, y)| picture.pixel(x, y).is_some_and(|pixel| pixel.red() < 0x90)).count()
    }

    #[test]
    fn text_is_really_drawn() {
        let drawn = svg("A title", "and what it is about", 2048.0, &[panel(), panel()]).unwrap();
        let picture = Pixmap::decode_png(&png(&drawn).unwrap()).unwrap();
        assert_eq!(picture.width(), WIDTH * u32::from(PIXELS));
        // The title, the subtitle, a panel's title and its note; nothing else there is dark.
        for place in [(28, 20), (28, 54), (28, 88), (1000, 90)] {
            assert!(dark_pixels(&picture, place, (90, 22)) > 100, "no text at {place:?}");
        }
        assert_eq!(dark_pixels(&picture, (600, 20), (500, 30)), 0);
    }

    #[test]
    fn names_go_where_their_bands_have_room() {
        let mut panel = panel();
        panel.points =
            (0..10).map(|at| (f64::from(at), vec![if at < 5 { 10.0 } else { 100.0 }, 5.0])).collect();
        assert_eq!(roomiest(&panel, 0, 3.0, 20.0), Some((6.5, 50.0)));
        assert_eq!(roomiest(&panel, 1, 3.0, 20.0), None);
        assert_eq!(roomiest(&panel, 0, 30.0, 20.0), None);
    }

    #[test]
    fn kills_that_come_together_share_a_mark() {
        let kills = vec![(18.0, 1), (27.0, 2), (27.8, 3)];
        let marks = marks(&Panel { kills, ..panel() });
        assert_eq!(marks, [(18.0, "g2".to_owned()), (27.0, "g3, g4".to_owned())]);
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let drawn = svg("empty", "", 2048.0, &[Panel::default()]).unwrap();
        assert!(png(&drawn).unwrap().starts_with(b"\x89PNG"));
    }
}
