//! How well the simulator's guests follow real ones.
//!
//! **Problem.** A simulator is worth what its guests are. Real ones were recorded: the journals of lab runs tell what each guest
//! cost its host over time.
//!
//! **Terms.** A [`Case`] is a recorded run and what its guests did. A [`Course`] is what guests cost
//! over time. Each case gives three of them: *measured*; *simulated*, under memtide's own engine as it is now; and *with the
//! recorded targets*, which leaves out what memtide decides, and so shows the model of the guests alone.
//!
//! **Rule.** The error is the difference of the sums of all guests' footprints, in percent of the host's capacity. Its median is
//! at most [`MOST_MEDIAN`] percent; docs/calibration.md shows the plots and says what the model does not show.

use std::fmt::Write as _;
use std::path::Path;

use memtide_model::Span;

use self::course::{Apart, Course, decided, followed, moments, seconds};
use self::recording::Recording;
use self::work::{CASES, Case};
use crate::error::LabError;
use crate::places::write_whole;
use crate::plot::lines::{self, Curve, Panel};
use crate::plot::png;
use crate::report::Table;
use crate::show;

pub mod course;
pub mod recording;
pub mod work;

/// The most that the median of the error may be, in percent of the capacity.
pub const MOST_MEDIAN: f64 = 5.0;

/// A recorded run beside its simulation.
#[derive(Debug)]
pub struct Compared {
    /// The run.
    pub case: Case,
    /// What was recorded.
    pub recording: Recording,
    /// Under memtide's own engine.
    pub decided: Course,
    /// With the recorded targets.
    pub followed: Course,
    /// How far `decided` lies from what was measured.
    pub error: Apart,
    /// How far `followed` does.
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
        let file = |ending: &str| dir.join(self.case.name).with_extension(ending);
        let svg = self.svg()?;
        write_whole(&file("svg"), svg.as_bytes())?;
        write_whole(&file("png"), &png(&svg)?)?;
        write_whole(&file("csv"), self.csv().as_bytes())
    }

    fn svg(&self) -> Result<String, LabError> {
        let lasts = self.recording.course.lasts();
        let curve = |name: &str, color: usize, is_thin: bool, value: &dyn Fn(Span) -> f64| Curve {
            name: name.to_owned(),
            points: moments(lasts).map(|at| (seconds(at), value(at))).collect(),
            color,
            is_thin,
        };
        let (measured, decided, followed) = (&self.recording.course, &self.decided, &self.followed);
        let capacity = show::mib(self.recording.capacity);
        let mut panels = vec![Panel {
            title: "all guests".to_owned(),
            curves: vec![
                curve("with the recorded targets", 2, true, &|at| followed.all(at)),
                curve("simulated", 5, false, &|at| decided.all(at)),
                curve("measured", 0, false, &|at| measured.all(at)),
            ],
            line: Some((capacity, format!("the host has {capacity:.0} MiB"))),
            is_detail: false,
        }];
        for name in self.case.shown {
            let number = |course: &Course| course.names().iter().position(|other| other == name);
            let (Some(real), Some(own)) = (number(measured), number(decided)) else { continue };
            panels.push(Panel {
                title: (*name).to_owned(),
                curves: vec![
                    curve("keeps, simulated", 3, true, &|at| decided.actual(own, at)),
                    curve("keeps, measured", 4, true, &|at| measured.actual(real, at)),
                    curve("costs, simulated", 5, false, &|at| decided.footprint(own, at)),
                    curve("costs, measured", 0, false, &|at| measured.footprint(real, at)),
                ],
                line: None,
                is_detail: true,
            });
        }
        let about =
            "What the guests cost the host: measured on real guests, and simulated with the same work.";
        lines::svg(self.case.about, about, &panels)
    }

    fn csv(&self) -> String {
        let mut text = "seconds,measured_mib,simulated_mib,with_recorded_targets_mib\n".to_owned();
        for at in moments(self.recording.course.lasts()) {
            let (measured, decided) = (self.recording.course.all(at), self.decided.all(at));
            let (at, followed) = (seconds(at), self.followed.all(at));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{at:.2},{measured:.1},{decided:.1},{followed:.1}");
        }
        text
    }
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
        "recorded targets: median",
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
