//! Compares the simulator's guests with real ones.
//!
//! **Problem.** A simulator is only as good as its guests. Real guests were recorded: the journals of lab runs contain each
//! guest's cost to its host over time.
//!
//! **Terms.** A [`Case`] is a recorded run and the work of its guests. A [`Course`] is the cost of guests over time. Each
//! case gives three courses: *measured*; *simulated*, under memtide's own engine as it is now; and *with the recorded
//! balloons*, without memtide's decisions, which shows the guest model alone.
//!
//! **Rule.** The error is the difference between the sums of all guests' footprints, in percent of the host's capacity. Its
//! median is at most [`MOST_MEDIAN`] percent. docs/calibration.md shows the plots and lists the effects that the model leaves
//! out.

use std::fmt::Write as _;
use std::path::Path;

use memtide_model::{Bytes, Span};
use memtide_plot::lines::{self, Curve, Panel};

use self::course::{Apart, Course, moments, seconds};
use self::recording::Recording;
use self::simulated::{decided, followed};
use self::work::{CASES, Case};
use crate::error::LabError;
use crate::machine::places::write_whole;
use crate::output::png::png;
use crate::output::report::Table;
use crate::output::show;

pub mod course;
pub mod recording;
pub mod simulated;
pub mod work;

/// The highest allowed median of the error, in percent of the capacity.
pub const MOST_MEDIAN: f64 = 5.0;

/// The colours of the curves, by number.
const MEASURED: usize = 0;
const SIMULATED: usize = 2;
const BALLOONS: usize = 3;

/// A recorded run beside its simulation.
#[derive(Debug)]
pub struct Compared {
    /// The run.
    pub case: Case,
    /// The recording.
    pub recording: Recording,
    /// The course under memtide's own engine.
    pub decided: Course,
    /// The course with the recorded balloons.
    pub followed: Course,
    /// The distance of `decided` from the measured course.
    pub error: Apart,
    /// The distance of `followed` from the measured course.
    pub error_of_guests: Apart,
}

/// Simulates all recorded runs.
///
/// # Errors
/// If a recording cannot be read.
pub fn compare() -> Result<Vec<Compared>, LabError> {
    CASES.into_iter().map(Compared::of).collect()
}

impl Compared {
    fn of(case: Case) -> Result<Self, LabError> {
        let recording = case.recording()?;
        let setup = case.setup(&recording)?;
        let (decided, followed) = (decided(&setup, &recording), followed(&setup, &recording));
        let error = recording.course.apart(&decided, recording.capacity);
        let error_of_guests = recording.course.apart(&followed, recording.capacity);
        Ok(Self { case, recording, decided, followed, error, error_of_guests })
    }

    /// Writes its plot and its course into `dir`.
    ///
    /// # Errors
    /// If a file cannot be written or the plot cannot be drawn.
    pub fn write(&self, dir: &Path) -> Result<(), LabError> {
        let file = |ending: &str| dir.join(format!("calibration-{}.{ending}", self.case.name));
        let svg = self.svg();
        write_whole(&file("svg"), svg.as_bytes())?;
        write_whole(&file("png"), &png(&svg)?)?;
        write_whole(&file("csv"), self.csv().as_bytes())
    }

    fn svg(&self) -> String {
        let about = format!(
            "{} Percentages: how far a curve lies from the measured one, as a share of the host's memory (median over time).",
            self.case.about
        );
        let panels: Vec<Panel> = [Some(self.all()), self.one()].into_iter().flatten().collect();
        lines::svg(self.case.title, &about, &panels)
    }

    /// The cost of all guests together.
    fn all(&self) -> Panel {
        let all = |course: &Course| self.points(|at| Some(course.all(at)));
        let capacity = self.recording.capacity.whole_mib();
        let simulated = format!("simulated: {:.1} %", self.error.median);
        let balloons = format!("simulated with the recorded balloons: {:.1} %", self.error_of_guests.median);
        Panel {
            title: "What all guests cost the host".to_owned(),
            curves: vec![
                Curve { is_thin: true, ..curve(&balloons, BALLOONS, all(&self.followed)) },
                curve(&simulated, SIMULATED, all(&self.decided)),
                curve("measured", MEASURED, all(&self.recording.course)),
            ],
            line: Some((show::mib(self.recording.capacity), format!("the host's memory: {capacity} MiB"))),
            ..Panel::default()
        }
    }

    /// One guest: its cost, and the memory that it keeps.
    fn one(&self) -> Option<Panel> {
        let number = |course: &Course| course.names().iter().position(|name| name == self.case.shown);
        let (measured, simulated) = (&self.recording.course, &self.decided);
        let (real, own) = (number(measured)?, number(simulated)?);
        let kept = |name, color, points| Curve { is_thin: true, ..curve(name, color, points) };
        Some(Panel {
            title: format!("One of them: {}", self.case.shown),
            curves: vec![
                kept("memory it keeps, simulated", SIMULATED, self.points(|at| simulated.actual(own, at))),
                kept("memory it keeps, measured", MEASURED, self.points(|at| measured.actual(real, at))),
                curve("cost, simulated", SIMULATED, self.points(|at| simulated.footprint(own, at))),
                curve("cost, measured", MEASURED, self.points(|at| measured.footprint(real, at))),
            ],
            line: None,
            is_detail: true,
            ..Panel::default()
        })
    }

    /// Seconds and MiB, for moments with a value.
    fn points(&self, value: impl Fn(Span) -> Option<Bytes>) -> Vec<(f64, f64)> {
        let point = |at| Some((seconds(at), show::mib(value(at)?)));
        moments(self.recording.course.lasts()).filter_map(point).collect()
    }

    fn csv(&self) -> String {
        let mut text = "seconds,measured_mib,simulated_mib,with_recorded_balloons_mib\n".to_owned();
        for at in moments(self.recording.course.lasts()) {
            let all = |course: &Course| show::mib(course.all(at));
            let (measured, decided, followed) =
                (all(&self.recording.course), all(&self.decided), all(&self.followed));
            let at = seconds(at);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{at:.2},{measured:.1},{decided:.1},{followed:.1}");
        }
        text
    }
}

fn curve(name: &str, color: usize, points: Vec<(f64, f64)>) -> Curve {
    Curve { name: name.to_owned(), points, color, is_thin: false }
}

/// The errors of all runs, in percent of the capacity.
#[must_use]
pub fn table(all: &[Compared]) -> Table {
    let head = [
        "run",
        "capacity",
        "guests",
        "lasts",
        "median",
        "90 of 100 below",
        "recorded balloons: median",
        "90 of 100 below",
    ];
    let percent = |value: f64| format!("{value:.1} %");
    let row = |one: &Compared| {
        vec![
            one.case.name.to_owned(),
            one.recording.capacity.to_string(),
            one.recording.names.len().to_string(),
            format!("{:.0} s", seconds(one.recording.course.lasts())),
            percent(one.error.median),
            percent(one.error.p90),
            percent(one.error_of_guests.median),
            percent(one.error_of_guests.p90),
        ]
    };
    let head = head.map(str::to_owned).to_vec();
    Table { caption: String::new(), rows: std::iter::once(head).chain(all.iter().map(row)).collect() }
}

/// Writes plots, courses and the table of errors into `dir`.
///
/// # Errors
/// If a file cannot be written or a plot cannot be drawn.
pub fn write(all: &[Compared], dir: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(dir).map_err(LabError::file(dir))?;
    for one in all {
        one.write(dir)?;
    }
    let rows = table(all).rows;
    let csv: String = rows.iter().map(|row| format!("{}\n", row.join(","))).collect();
    write_whole(&dir.join("errors.csv"), csv.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_guests_cost_what_real_ones_did() {
        for one in compare().unwrap() {
            let (name, guests, all) = (one.case.name, one.error_of_guests.median, one.error.median);
            assert!(
                guests <= MOST_MEDIAN,
                "{name}: {guests:.1} % with the recorded balloons: the model of a guest is off"
            );
            assert!(
                all <= MOST_MEDIAN,
                "{name}: {all:.1} %: memtide decides otherwise than when this was recorded"
            );
        }
    }
}
