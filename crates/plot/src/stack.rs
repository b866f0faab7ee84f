//! The guests' memory over time, stacked, below the host's capacity; one panel for each arm.

use crate::axes::{Axes, Scale};
use crate::canvas::{Canvas, Height, Letters, Side, Stroke};
use crate::{ALARM, INK, MARGIN, PAPER, QUIET, WIDTH, picture, series};

const PANEL: f64 = 340.0;
/// The space for the title of a panel, for the numbers on the left and for those below.
const HEAD: f64 = 34.0;
const LEFT: f64 = 82.0;
const BELOW: f64 = 46.0;
/// The top of the scale as a multiple of the capacity: room for two rows of kill marks above it.
const HEADROOM: f64 = 1.24;
/// Kills within this many seconds share one mark.
const TOGETHER: f64 = 1.5;
/// The height of a line of labels.
const LINE: f64 = 18.0;

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

/// Draws `panels` one above the other, on the same scales, with a line at `capacity_mib`.
#[must_use]
pub fn svg(title: &str, subtitle: &str, capacity_mib: f64, panels: &[Panel]) -> String {
    let end = panels.iter().flat_map(|panel| panel.points.last()).map(|(at, _)| *at).fold(1.0, f64::max);
    picture(title, subtitle, 1.0, panels.iter().map(|_| PANEL).sum(), |canvas, mut top| {
        for panel in panels {
            Drawing::of(panel, top, capacity_mib, end).draw(canvas);
            top += PANEL;
        }
    })
}

/// A panel at its place.
struct Drawing<'a> {
    panel: &'a Panel,
    axes: Axes<'a>,
    capacity: f64,
    end: f64,
    top: f64,
}

impl<'a> Drawing<'a> {
    fn of(panel: &'a Panel, top: f64, capacity: f64, end: f64) -> Self {
        let axes = Axes {
            x: Scale { values: (0.0, end), places: (LEFT, WIDTH - MARGIN) },
            y: Scale { values: (0.0, capacity * HEADROOM), places: (top + PANEL - BELOW, top + HEAD) },
            words: ("time in seconds", "memory in MiB"),
            numbers: (&|x| format!("{x:.0}"), &|y| format!("{y:.0}")),
        };
        Self { panel, axes, capacity, end, top }
    }

    fn draw(&self, canvas: &mut Canvas) {
        canvas.text((MARGIN, self.top + 6.0), &self.panel.title, Letters::of(17.0, INK).bold());
        let note = Letters::of(14.0, INK).at(Side::Left, Height::Top);
        canvas.text((WIDTH - MARGIN, self.top + 8.0), &self.panel.note, note);
        self.axes.draw(canvas, &self.axes.x.steps(12), &self.axes.y.steps(6));
        self.draw_stack(canvas);
        self.draw_capacity(canvas);
        self.draw_names(canvas);
        self.draw_end(canvas);
        self.draw_kills(canvas);
    }

    fn draw_stack(&self, canvas: &mut Canvas) {
        for guest in 0..self.panel.names.len() {
            let outline = edge(self.panel, guest + 1).chain(edge(self.panel, guest).rev());
            canvas.area(outline.map(|point| self.axes.at(point)), series(guest));
            let top = edge(self.panel, guest + 1).map(|point| Some(self.axes.at(point)));
            canvas.line(top, Stroke::of(PAPER, 1.0));
        }
    }

    fn draw_capacity(&self, canvas: &mut Canvas) {
        let (from, to) = (self.axes.at((0.0, self.capacity)), self.axes.at((self.end, self.capacity)));
        canvas.rule(from, to, Stroke::of(INK, 2.0).dashed());
        let text = format!("the host has {:.0} MiB", self.capacity);
        canvas.text((to.0 - 2.0, to.1 - 5.0), &text, Letters::of(13.0, INK).at(Side::Left, Height::Bottom));
    }

    /// Draws each guest's name in its band, if the band is high enough for the whole length of the name.
    fn draw_names(&self, canvas: &mut Canvas) {
        let letters = Letters::of(13.0, PAPER).bold().at(Side::Middle, Height::Middle);
        let least = self.axes.y.unit() * LINE;
        for (guest, name) in self.panel.names.iter().enumerate() {
            let length = letters.width(name) * self.axes.x.unit();
            if let Some(middle) = roomiest(self.panel, guest, length, least) {
                canvas.text(self.axes.at(middle), name, letters);
            }
        }
    }

    fn draw_end(&self, canvas: &mut Canvas) {
        let Some((last, memory)) = self.panel.points.last().filter(|(last, _)| *last < self.end * 0.8) else {
            return;
        };
        let (x, y) = self.axes.at((*last, memory.iter().sum::<f64>() / 2.0));
        canvas.text((x + 10.0, y), self.panel.end, Letters::of(13.0, QUIET).at(Side::Right, Height::Middle));
    }

    fn draw_kills(&self, canvas: &mut Canvas) {
        for (nth, (at, names)) in marks(self.panel).into_iter().enumerate() {
            let (x, bottom) = self.axes.at((at, 0.0));
            // Each mark is as high as its row, so that none crosses the text of the one before.
            let top = self.axes.y.places.1 + if nth % 2 == 0 { 0.0 } else { LINE };
            canvas.rule((x, bottom), (x, top), Stroke::of(ALARM, 2.0));
            // Next to the line, on the side with more space.
            let (side, x) = if at > self.end * 0.75 { (Side::Left, x - 7.0) } else { (Side::Right, x + 7.0) };
            let letters = Letters::of(13.0, ALARM).bold().at(side, Height::Top);
            canvas.text((x, top + 1.0), &format!("{names} killed"), letters);
        }
    }
}

/// The top edges of the first `guests` guests: the sums of their memory.
fn edge(panel: &Panel, guests: usize) -> impl DoubleEndedIterator<Item = (f64, f64)> + '_ {
    panel.points.iter().map(move |(at, memory)| (*at, memory.iter().take(guests).sum()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        Panel {
            names: (1..=4).map(|nth| format!("g{nth}")).collect(),
            points: (0..60).map(|at| (f64::from(at), vec![220.0 + f64::from(at) * 5.0; 4])).collect(),
            ..Panel::default()
        }
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
}
