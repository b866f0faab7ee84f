//! Where the records of a journal go.
//!
//! **Problem.** A disk can be slow, frozen or gone. A program that writes to it waits for it, and nothing can end this wait.
//!
//! **Rule.** The engine gives its records to a [`Sink`]. A sink of a daemon takes them at once, and another process writes them. What it has
//! taken can be lost: then it tells so, and the next records begin a new segment. The [`Writer`] itself is a sink that writes at once, for
//! simulations and tests.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memtide_model::{Bytes, Moment, Record, Span};
use tracing::warn;

use super::{JournalError, Writer};
use crate::text::with_causes;

/// The time between two attempts to open a journal.
pub const TRIES_EVERY: Span = Span::from_secs(30);

/// Takes the records of a journal.
pub trait Sink: fmt::Debug + Send {
    /// Whether it would take records at this moment.
    ///
    /// # Errors
    /// Why not, and how to fix it.
    fn ready(&mut self, _now: Moment) -> Result<(), String> {
        Ok(())
    }

    /// Takes `records`. If they begin a new segment and do not begin with a [`Record::Start`], `start` gives the segment's first record.
    ///
    /// # Errors
    /// Why it takes none of them, and how to fix it. The next records begin a new segment.
    fn write(&mut self, start: &mut dyn FnMut() -> Record, records: &[Record]) -> Result<(), String>;

    /// The ticks that it has taken, but that were not written, since the last call; `None` if there are none, as of a sink that writes at once.
    fn lost(&mut self) -> Option<Lost> {
        None
    }

    /// Waits at most this long until all that it has taken is written or lost. How long the oldest of it waits; `None` if there is nothing left, as of a sink that writes at once.
    fn behind(&mut self, _within: Duration) -> Option<Duration> {
        None
    }
}

/// Ticks that a sink has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Their number.
    pub ticks: u64,
    /// Why, and how to fix it.
    pub why: String,
}

impl Sink for Writer {
    fn write(&mut self, start: &mut dyn FnMut() -> Record, records: &[Record]) -> Result<(), String> {
        Self::write(self, start, records).map_err(|error| why(&error))
    }
}

/// A writer of a journal that could not be opened yet. It tries again every [`TRIES_EVERY`].
#[derive(Debug)]
pub struct LateWriter {
    dir: PathBuf,
    most: Bytes,
    writer: Result<Writer, String>,
    tried_at: Option<Moment>,
}

impl LateWriter {
    /// A writer of the journal in `dir`, of at most `most` bytes, which could not be opened because of `error`.
    #[must_use]
    pub fn new(dir: &Path, most: Bytes, error: &JournalError) -> Self {
        Self { dir: dir.to_owned(), most, writer: Err(why(error)), tried_at: None }
    }
}

impl Sink for LateWriter {
    fn ready(&mut self, now: Moment) -> Result<(), String> {
        let tried_at = self.tried_at.get_or_insert(now);
        if self.writer.is_err() && now.since(*tried_at) >= TRIES_EVERY {
            *tried_at = now;
            self.writer =
                Writer::open(&self.dir, self.most).map_err(|error| why(&error)).map(|(writer, cut)| {
                    cut.iter().for_each(|cut| warn!("{cut}"));
                    writer
                });
        }
        self.writer.as_ref().map(drop).map_err(Clone::clone)
    }

    fn write(&mut self, start: &mut dyn FnMut() -> Record, records: &[Record]) -> Result<(), String> {
        Sink::write(self.writer.as_mut().map_err(|why| why.clone())?, start, records)
    }
}

/// The error and its fix.
#[must_use]
pub fn why(error: &JournalError) -> String {
    format!("{} ({})", with_causes(error), error.fix())
}
