//! Runs as one self-contained HTML page: a description, the table, and plots of each run's course.
//!
//! The plot of the host shows the total cost against the capacity. The plot of a guest shows the memory that it keeps, its target, the
//! memory that its programs use, and its cost to the host.

use std::fmt::Write as _;

use memtide_model::{Bytes, SizePart};
use memtide_plot::axes::{Axes, Scale};
use memtide_plot::canvas::{Canvas, Stroke, escape, hex};
use memtide_plot::{FONT, QUIET, series};

use crate::measure::Sample;
use crate::run::Outcome;
use crate::scenario::{Judged, percent, work};
use crate::table;

/// The most guests of each run on a page: those with the least work done.
const MOST_GUESTS: usize = 12;
/// The size of a plot, and of its margins.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 28.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 20.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1220px;margin:2em auto;padding:0 1em;color:#1b2733}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}h3{font-size:1em;margin:.8em 0 .2em}pre{background:#f5f7f9;padding:1em;\
overflow-x:auto;font-size:13px;line-height:1.45}.plots{display:flex;flex-wrap:wrap;gap:4px 24px}\
.key span{margin-right:1.4em}.key i{display:inline-block;width:1.6em;height:3px;margin-right:.4em;\
vertical-align:middle}th,td{text-align:left;padding:.1em 1em .1em 0}";

/// What lines mean, and their look.
const ACTUAL: (&str, Stroke) = ("keeps", Stroke::of(series(0), 1.5));
const TARGET: (&str, Stroke) = ("is asked to keep", Stroke::of(series(2), 1.5));
const USED: (&str, Stroke) = ("uses", Stroke::of(SizePart::Used.colour().rgb, 1.5));
const FOOTPRINT: (&str, Stroke) = ("costs the host", Stroke::of(series(4), 1.5));
const CAPACITY: (&str, Stroke) = ("capacity", Stroke::of(QUIET, 1.5).dashed());

/// The content of a page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Its title.
    pub title: &'a str,
    /// The simulation in a sentence or two.
    pub about: &'a str,
    /// The scenario's text, if there is one.
    pub source: Option<&'a str>,
    /// The host, the guests and the time in a line.
    pub what: &'a str,
    /// How the scenario's bounds held.
    pub bounds: &'a [Judged],
    /// The host's capacity.
    pub capacity: Bytes,
    /// The guests' names.
    pub names: &'a [&'a str],
}

/// The page of `runs`.
#[must_use]
pub fn html(page: Page<'_>, runs: &[Outcome]) -> String {
    let mut text = String::new();
    let title = escape(page.title);
    let _ = write!(
        text,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\
         <h1>{title}</h1><p>{}</p><p>{}</p><pre>{}</pre>",
        escape(page.about),
        escape(page.what),
        escape(&table::table(page.names, runs))
    );
    bounds(&mut text, page.bounds);
    for run in runs {
        section(&mut text, page, run);
    }
    if let Some(source) = page.source {
        let _ = write!(text, "<h2>The scenario</h2><pre>{}</pre>", escape(source));
    }
    text.push_str("</html>\n");
    text
}

/// A table of how the bounds held, if there are any.
fn bounds(text: &mut String, judged: &[Judged]) {
    if judged.is_empty() {
        return;
    }
    text.push_str("<h2>Bounds</h2><table><tr>");
    for head in ["line", "policy", "key", "guest", "bound", "value", "verdict"] {
        let _ = write!(text, "<th>{head}</th>");
    }
    text.push_str("</tr>");
    let mut row = |cells: [String; 7]| {
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = write!(text, "<tr>{cells}</tr>");
    };
    for verdict in judged {
        let (line, policy) = (verdict.line.to_string(), verdict.policy.clone());
        let word = match &verdict.fails {
            Some(why) => format!("{}: {why}", verdict.verdict.word()),
            None => verdict.verdict.word().to_owned(),
        };
        if verdict.measured.is_empty() {
            let none = String::new;
            row([line.clone(), policy.clone(), none(), none(), none(), none(), word.clone()]);
        }
        for one in &verdict.measured {
            let (key, guest) = (one.key.to_owned(), one.guest.clone().unwrap_or_default());
            let (bound, value) = (one.bound.to_string(), one.value.to_string());
            row([line.clone(), policy.clone(), key, guest, bound, value, word.clone()]);
        }
    }
    text.push_str("</table>");
}

fn section(text: &mut String, page: Page<'_>, run: &Outcome) {
    let _ = write!(text, "<h2>{}</h2><p class=\"key\">", run.manager);
    for (what, stroke) in [FOOTPRINT, CAPACITY, ACTUAL, TARGET, USED] {
        let _ = write!(text, "<span><i style=\"background:{}\"></i>{what}</span>", hex(stroke.colour));
    }
    text.push_str("</p><div class=\"plots\">");
    let of_host = |of: fn(&Sample) -> u64| move |sample: &Sample| Some(of(sample));
    let capacity = page.capacity.get();
    let lines: [Line<'_>; 2] = [
        Line { stroke: FOOTPRINT.1, value: &of_host(|sample| sample.used) },
        Line { stroke: CAPACITY.1, value: &|_| Some(capacity) },
    ];
    let _ = write!(text, "<div><h3>host</h3>{}</div>", plot(&run.samples, &lines));
    for index in worst(run) {
        let guest = |of: fn(&crate::measure::GuestSample) -> u64| {
            move |sample: &Sample| sample.guests.get(index).copied().flatten().map(|guest| of(&guest))
        };
        let lines: [Line<'_>; 4] = [
            Line { stroke: FOOTPRINT.1, value: &guest(|guest| guest.footprint) },
            Line { stroke: USED.1, value: &guest(|guest| guest.used) },
            Line { stroke: TARGET.1, value: &guest(|guest| guest.target) },
            Line { stroke: ACTUAL.1, value: &guest(|guest| guest.actual) },
        ];
        let name = escape(page.names.get(index).copied().unwrap_or_default());
        let done = percent(work(&run.guests[index]));
        let _ = write!(text, "<div><h3>{name}: work {done}</h3>{}</div>", plot(&run.samples, &lines));
    }
    text.push_str("</div>");
    if run.guests.len() > MOST_GUESTS {
        let _ = write!(
            text,
            "<p>{MOST_GUESTS} of {} guests: those with the least work done.</p>",
            run.guests.len()
        );
    }
}

/// The guests to show, in their order.
fn worst(run: &Outcome) -> Vec<usize> {
    let mut order: Vec<usize> = (0..run.guests.len()).collect();
    order.sort_by_key(|&index| work(&run.guests[index]));
    order.truncate(MOST_GUESTS);
    order.sort_unstable();
    order
}

struct Line<'a> {
    stroke: Stroke,
    value: &'a dyn Fn(&Sample) -> Option<u64>,
}

/// Lines over the time of the samples. A line is interrupted if a sample has no value.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions in a picture"
)]
fn plot(samples: &[Sample], lines: &[Line<'_>]) -> String {
    let last = samples.last().map_or(1, |sample| sample.at).max(1);
    let values = samples.iter().flat_map(|sample| lines.iter().filter_map(|line| (line.value)(sample)));
    let step = even_step(values.max().unwrap_or(1));
    let most = 4 * step;
    let axes = Axes {
        x: Scale { values: (0.0, last as f64), places: (LEFT, WIDTH - RIGHT) },
        y: Scale { values: (0.0, most as f64), places: (HEIGHT - BOTTOM, TOP) },
        words: ("", ""),
        numbers: (&|at| axis_time(at as u64), &|value| Bytes::new(value as u64).to_string()),
    };
    let quarters = |whole: u64| [0, 1, 2, 3, 4].map(|part| (whole / 4 * part) as f64);
    let mut canvas = Canvas::new(WIDTH, HEIGHT, FONT, 1.0);
    axes.draw(&mut canvas, &quarters(last), &quarters(most));
    for line in lines {
        let place = |sample: &Sample| Some(axes.at((sample.at as f64, (line.value)(sample)? as f64)));
        canvas.line(samples.iter().map(place), line.stroke);
    }
    canvas.svg()
}

/// A quarter of an axis that covers `most`: a round number of MiB.
fn even_step(most: u64) -> u64 {
    let quarter = most.div_ceil(4).max(4 << 20);
    let unit = quarter.next_power_of_two() / 8;
    quarter.div_ceil(unit) * unit
}

/// A time on the axis: `0`, `90 s`, `15 min`, `6 h`.
fn axis_time(millis: u64) -> String {
    match millis / 1_000 {
        0 => "0".to_owned(),
        secs @ ..=300 => format!("{secs} s"),
        secs @ ..=18_000 => format!("{} min", (secs + 30) / 60),
        secs => format!("{} h", (secs + 1_800) / 3_600),
    }
}
