//! The engine's side of the journal: a journal that cannot be written never stops the management of guests.
//!
//! A failed write loses its tick and becomes a warning; the next tick begins a fresh segment, whose first record holds all
//! that the following decisions depend on, and a note says how many ticks are missing.

use memtide_model::{Config, Mode, Moment, Record, State, Tick};
use tracing::{info, warn};

use crate::journal::Writer;
use crate::text::{one_line, with_causes};

/// Notes that wait for the next tick; more than these are not kept.
const MOST_NOTES: usize = 64;

/// Writes ticks and notes, and remembers what could not be written.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    writer: Option<Writer>,
    notes: Vec<String>,
    new_config: bool,
    missing: u64,
    failure: Option<String>,
    /// Why there is none at all.
    absent: Option<String>,
}

impl Recorder {
    pub(crate) fn to(writer: Writer) -> Self {
        Self { writer: Some(writer), ..Self::default() }
    }

    pub(crate) fn absent(why: String) -> Self {
        Self { absent: Some(why), ..Self::default() }
    }

    /// Keeps `text` for the next write.
    pub(crate) fn note(&mut self, text: &str) {
        if self.writer.is_some() && self.notes.len() < MOST_NOTES {
            self.notes.push(one_line(text));
        }
    }

    /// The next write begins with the configuration.
    pub(crate) const fn config_changed(&mut self) {
        self.new_config = true;
    }

    /// Writes the tick that was decided from `config` and the state `before`, and gives it back. `false`: it could not
    /// be written.
    pub(crate) fn tick(&mut self, config: &Config, before: State, tick: Tick) -> (Tick, bool) {
        if self.writer.is_none() {
            return (tick, self.absent.is_none());
        }
        let at = tick.seen.taken_at;
        let mut records = self.pending(config, &before, at);
        records.push(Record::Tick(Box::new(tick)));
        let written = self.write(config, before, &records);
        self.missing = if written { 0 } else { self.missing.saturating_add(1) };
        match records.pop() {
            Some(Record::Tick(tick)) => (*tick, written),
            _ => unreachable!("the tick was pushed last"),
        }
    }

    /// Writes the notes that are left at the end.
    pub(crate) fn finish(&mut self, config: &Config, state: State, at: Moment) {
        let records = self.pending(config, &state, at);
        if self.writer.is_some() && !records.is_empty() {
            self.write(config, state, &records);
        }
    }

    /// Why the journal is not written at the moment.
    pub(crate) fn warning(&self, mode: Mode) -> Option<String> {
        if let Some(why) = self.absent.as_ref().filter(|_| mode == Mode::Manage) {
            return Some(format!(
                "no journal is written, so that nobody can see later why memory moved: {why}"
            ));
        }
        let failure = self.failure.as_ref()?;
        Some(format!("the journal cannot be written, {} ticks are missing so far: {failure}", self.missing))
    }

    fn pending(&self, config: &Config, state: &State, at: Moment) -> Vec<Record> {
        let mut records = Vec::new();
        if self.new_config {
            records.push(start(config.clone(), state.clone()));
        }
        let gap = match &self.failure {
            Some(failure) if self.missing > 0 => {
                Some(format!("{} ticks before this one could not be written: {failure}", self.missing))
            }
            _ => None,
        };
        records
            .extend(gap.into_iter().chain(self.notes.iter().cloned()).map(|text| Record::Note { at, text }));
        records
    }

    fn write(&mut self, config: &Config, before: State, records: &[Record]) -> bool {
        let Some(writer) = &mut self.writer else { return true };
        match writer.write(|| start(config.clone(), before), records) {
            Ok(()) => {
                if self.failure.take().is_some() {
                    info!(missing = self.missing, "the journal is written again");
                }
                self.notes.clear();
                self.new_config = false;
                true
            }
            Err(error) => {
                let failure = with_causes(&error);
                if self.failure.as_ref() != Some(&failure) {
                    warn!(failure, "the journal cannot be written; decisions go on");
                }
                self.failure = Some(failure);
                false
            }
        }
    }
}

fn start(config: Config, state: State) -> Record {
    Record::Start { version: env!("CARGO_PKG_VERSION").to_owned(), config: Box::new(config), state }
}
