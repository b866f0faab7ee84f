//! The engine's side of the journal: a journal that cannot be written never stops the management of guests.
//!
//! A failed write loses its tick and becomes a warning. The next tick begins a new segment, whose first record holds everything
//! that the following decisions depend on, and a note gives the number of missing ticks. A journal that could not be opened is
//! tried again every [`TRIES_EVERY`].

use std::path::PathBuf;

use memtide_model::{Bytes, Mode, Moment, Record, Span, State, Tick, Witness};
use tracing::{info, warn};

use crate::journal::{JournalError, Writer};
use crate::step::{Decider, Step};
use crate::text::{one_line, with_causes};

/// The most notes that wait for the next tick. Further notes are dropped.
const MOST_NOTES: usize = 64;

/// The time between two attempts to open a journal.
const TRIES_EVERY: Span = Span::from_secs(30);

/// The policy's state, and the check's own record.
type Memory = (State, Witness);

/// Writes ticks and notes, and remembers failed writes.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    writer: Option<Writer>,
    notes: Vec<String>,
    new_config: bool,
    missing: u64,
    failure: Option<String>,
    /// The journal that could not be opened.
    absent: Option<Absent>,
}

/// A journal that could not be opened.
#[derive(Debug)]
struct Absent {
    dir: PathBuf,
    most: Bytes,
    why: String,
    tried_at: Option<Moment>,
}

impl Recorder {
    pub(crate) fn to(writer: Writer) -> Self {
        Self { writer: Some(writer), ..Self::default() }
    }

    /// A recorder whose journal in `dir`, of at most `most` bytes, could not be opened because of `error`.
    pub(crate) fn later(dir: PathBuf, most: Bytes, error: &JournalError) -> Self {
        let absent = Absent { dir, most, why: why(error), tried_at: None };
        Self { absent: Some(absent), ..Self::default() }
    }

    /// Whether there is a journal, even one that could not be opened yet.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.writer.is_some() || self.absent.is_some()
    }

    /// Keeps `text` for the next write.
    pub(crate) fn note(&mut self, text: &str) {
        if self.is_wanted() && self.notes.len() < MOST_NOTES {
            self.notes.push(one_line(text));
        }
    }

    /// Makes the next write begin with the configuration.
    pub(crate) const fn config_changed(&mut self) {
        self.new_config = true;
    }

    /// Writes the tick that `decider` decided from what it remembered `before`, and returns it. `false`: it could not be written.
    pub(crate) fn tick(&mut self, decider: &Decider, before: Memory, tick: Tick) -> (Tick, bool) {
        let at = tick.seen.taken_at;
        self.try_to_open(at);
        if self.writer.is_none() {
            self.missing += u64::from(self.absent.is_some());
            return (tick, self.absent.is_none());
        }
        let mut records = self.pending(decider, &before, at);
        records.push(Record::Tick(Box::new(tick)));
        let written = self.write(decider, before, &records);
        self.missing = if written { 0 } else { self.missing.saturating_add(1) };
        match records.pop() {
            Some(Record::Tick(tick)) => (*tick, written),
            _ => unreachable!("the tick was pushed last"),
        }
    }

    /// Writes that KSM is set next, if the plan of `step` does so. `before` is what was remembered before the step. So the next run knows
    /// what was found, also after a kill in the middle.
    pub(crate) fn sets_ksm(&mut self, decider: &Decider, before: impl FnOnce() -> Memory, step: &Step) {
        let Some((before_order, wanted)) = step.sets_ksm().filter(|_| self.writer.is_some()) else { return };
        let (at, memory) = (step.seen.taken_at, before());
        let mut records = self.pending(decider, &memory, at);
        records.push(Record::SetsKsm { at, before: before_order, wanted });
        self.write(decider, memory, &records);
    }

    /// Tries to open the journal that could not be opened yet, if the time for the next attempt has come.
    fn try_to_open(&mut self, now: Moment) {
        let Some(absent) = &mut self.absent else { return };
        let tried_at = absent.tried_at.get_or_insert(now);
        if now.since(*tried_at) < TRIES_EVERY {
            return;
        }
        *tried_at = now;
        match Writer::open(&absent.dir, absent.most) {
            Ok((writer, cut)) => {
                // The first write then says that ticks are missing, and why.
                self.failure = Some(std::mem::take(&mut absent.why));
                self.absent = None;
                self.writer = Some(writer);
                if let Some(cut) = cut {
                    self.note(&cut.to_string());
                }
            }
            Err(error) => absent.why = why(&error),
        }
    }

    /// Writes the remaining notes at the end, and the state from which the next run continues.
    pub(crate) fn finish(&mut self, decider: &Decider, at: Moment) {
        self.new_config = false;
        let memory = || (decider.state.clone(), decider.witness.clone());
        let mut records = self.pending(decider, &memory(), at);
        if self.writer.is_some() {
            records.push(start(decider, memory()));
            self.write(decider, memory(), &records);
        }
    }

    /// Why the journal is not being written.
    pub(crate) fn warning(&self, mode: Mode) -> Option<String> {
        if let Some(Absent { why, .. }) = self.absent.as_ref().filter(|_| mode == Mode::Manage) {
            return Some(format!(
                "no journal is written, so nobody can see later why memory moved: {why}; trying again every {} s",
                TRIES_EVERY.as_millis() / 1_000
            ));
        }
        let failure = self.failure.as_ref()?;
        let missing = self.missing;
        Some(format!(
            "guests are managed, but the journal cannot be written: {failure}; {missing} decisions are missing so far; memtide keeps \
             trying"
        ))
    }

    fn pending(&self, decider: &Decider, memory: &Memory, at: Moment) -> Vec<Record> {
        let mut records = Vec::new();
        if self.new_config {
            records.push(start(decider, memory.clone()));
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

    fn write(&mut self, decider: &Decider, before: Memory, records: &[Record]) -> bool {
        let Some(writer) = &mut self.writer else { return true };
        match writer.write(|| start(decider, before), records) {
            Ok(()) => {
                if self.failure.take().is_some() {
                    info!(missing = self.missing, "the journal is written again");
                }
                self.notes.clear();
                self.new_config = false;
                true
            }
            Err(error) => {
                let failure = why(&error);
                if self.failure.as_ref() != Some(&failure) {
                    warn!(failure, "the journal cannot be written; decisions continue");
                }
                self.failure = Some(failure);
                false
            }
        }
    }
}

/// The error and its fix.
fn why(error: &JournalError) -> String {
    format!("{} ({})", with_causes(error), error.fix())
}

/// Everything that decisions from this memory on depend on.
fn start(decider: &Decider, (state, witness): Memory) -> Record {
    Record::Start {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        policy: decider.policy.identity().to_owned(),
        config: Box::new(decider.config.clone()),
        state,
        witness: Some(Box::new(witness)),
    }
}
