//! The cost of guests over time.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use memtide_model::Bytes;
use memtide_plot::stack::Panel;

use crate::error::LabError;
use crate::guest::Guest;
use crate::output::show;

/// The sampling interval.
pub const EVERY: Duration = Duration::from_millis(250);

/// All guests at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time since the beginning.
    pub at: Duration,
    /// The guests started so far, in their order.
    pub guests: Vec<GuestSample>,
}

/// One guest at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSample {
    /// Its cost to the host; zero once it is gone.
    pub footprint: Bytes,
    /// The part of its cost that no other guest shares.
    pub private: Bytes,
    /// The memory that it keeps; `None` while no driver reports it.
    pub actual: Option<Bytes>,
    /// Its work at the moment.
    pub doing: String,
}

/// A guest that was found gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The time when this was noticed.
    pub at: Duration,
    /// The number of the guest.
    pub guest: usize,
}

/// The samples of one arm.
#[derive(Debug)]
pub struct Samples {
    begun: Instant,
    next: Duration,
    all: Vec<Sample>,
    kills: Vec<Kill>,
}

impl Default for Samples {
    fn default() -> Self {
        Self { begun: Instant::now(), next: Duration::ZERO, all: Vec::new(), kills: Vec::new() }
    }
}

impl Samples {
    /// Samples `guests` if it is time, and returns the sample. `doing` describes the work of each guest.
    pub fn take(&mut self, guests: &[Guest], doing: impl Fn(usize) -> String) -> Option<&Sample> {
        let at = self.begun.elapsed();
        for (guest, _) in guests.iter().enumerate().filter(|(_, guest)| !guest.alive()) {
            if self.kills.iter().all(|kill| kill.guest != guest) {
                self.kills.push(Kill { at, guest });
            }
        }
        if at < self.next {
            return None;
        }
        self.next = at + EVERY;
        let sample = |(nth, guest): (usize, &Guest)| GuestSample {
            footprint: guest.footprint(),
            private: guest.private(),
            actual: if guest.alive() { guest.actual().ok() } else { None },
            doing: doing(nth),
        };
        self.all.push(Sample { at, guests: guests.iter().enumerate().map(sample).collect() });
        self.all.last()
    }

    /// All samples in their order.
    #[must_use]
    pub fn all(&self) -> &[Sample] {
        &self.all
    }

    /// The guests that were found gone.
    #[must_use]
    pub fn kills(&self) -> &[Kill] {
        &self.kills
    }

    /// The memory that the balloons have moved, in both directions.
    #[must_use]
    pub fn moved(&self) -> Bytes {
        moved(&self.all)
    }

    /// What the guests took from the host for themselves, for a plot: the panel's `title`, the outcome, and why its curves may end early.
    #[must_use]
    pub fn panel(&self, title: &str, note: &str, end: &'static str, names: &[String]) -> Panel {
        let points = self.all.iter().map(|sample| {
            let memory = sample.guests.iter().map(|guest| show::mib(guest.private)).collect();
            (sample.at.as_secs_f64(), memory)
        });
        Panel {
            title: title.to_owned(),
            note: note.to_owned(),
            end,
            names: names.to_vec(),
            points: points.collect(),
            kills: self.kills.iter().map(|kill| (kill.at.as_secs_f64(), kill.guest)).collect(),
        }
    }

    /// Writes all samples as CSV, one line for each guest and moment.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_csv(&self, path: &Path, names: &[String]) -> Result<(), LabError> {
        fs::write(path, csv(&self.all, names)).map_err(LabError::file(path))
    }
}

fn moved(samples: &[Sample]) -> Bytes {
    let guests = samples.last().map_or(0, |sample| sample.guests.len());
    Bytes::sum((0..guests).map(|guest| {
        let known: Vec<Bytes> =
            samples.iter().filter_map(|sample| sample.guests.get(guest)?.actual).collect();
        Bytes::sum(known.windows(2).map(|pair| pair[0].abs_diff(pair[1])))
    }))
}

fn csv(samples: &[Sample], names: &[String]) -> String {
    let mut text = "seconds,guest,footprint_bytes,private_bytes,actual_bytes,doing\n".to_owned();
    for sample in samples {
        for (guest, name) in sample.guests.iter().zip(names) {
            let actual = guest.actual.map_or_else(String::new, |actual| actual.get().to_string());
            let doing = guest.doing.replace('"', "'");
            let seconds = sample.at.as_secs_f64();
            let (footprint, private) = (guest.footprint.get(), guest.private.get());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{seconds:.3},{name},{footprint},{private},{actual},\"{doing}\"");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(millis: u64, actual: Option<u64>) -> Sample {
        let guest = GuestSample {
            footprint: Bytes::from_mib(1),
            private: Bytes::from_kib(1),
            actual: actual.map(Bytes::from_mib),
            doing: "says \"hi\"".to_owned(),
        };
        Sample { at: Duration::from_millis(millis), guests: vec![guest] }
    }

    #[test]
    fn both_directions_count_and_gaps_do_not() {
        let samples =
            [sample(0, Some(1024)), sample(250, Some(512)), sample(500, None), sample(750, Some(768))];
        assert_eq!(moved(&samples), Bytes::from_mib(512 + 256));
        assert_eq!(moved(&[]), Bytes::ZERO);
    }

    #[test]
    fn samples_are_written_as_csv() {
        let text = csv(&[sample(250, None)], &["g1".to_owned()]);
        assert_eq!(text.lines().nth(1), Some("0.250,g1,1048576,1024,,\"says 'hi'\""));
    }
}
