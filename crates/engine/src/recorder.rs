//! The engine's side of the journal: a journal that cannot be written never stops the management of guests.
//!
//! A tick that cannot be written is lost, and becomes a warning. The next tick begins a new segment, whose first record holds everything
//! that the following decisions depend on, and a note gives the number of missing ticks. What a sink has taken can be lost, too: it tells so
//! later.
//!
//! An order to KSM is not given before the journal has it.

use std::time::Duration;

use memtide_model::{Mode, Moment, Record, Span, State, Tick, Witness};
use tracing::{info, warn};

use crate::journal::{Lost, Sink, TRIES_EVERY};
use crate::step::{Decider, Step};
use crate::text::one_line;

/// The most notes that wait for the next tick. Further notes are dropped.
const MOST_NOTES: usize = 64;

/// The longest wait of the engine for the journal, in a tick that somebody waits for.
const WAITS_FOR: Duration = Duration::from_millis(50);

/// The longest wait for the journal at the end.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// A journal that is further behind is a warning.
const BEHIND: Duration = Duration::from_secs(5);

/// The policy's state, and the check's own record.
type Memory = (State, Witness);

/// Writes ticks and notes, and remembers what was not written.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    sink: Option<Box<dyn Sink>>,
    notes: Vec<String>,
    new_config: bool,
    /// Ticks that are missing since the last one that was written, and whether the sink has taken a note about them.
    missing: u64,
    gap_is_told: bool,
    /// Why.
    failure: Option<String>,
    /// Whether something was ever written.
    has_written: bool,
}

impl Recorder {
    pub(crate) fn to(sink: impl Sink + 'static) -> Self {
        Self { sink: Some(Box::new(sink)), ..Self::default() }
    }

    /// Whether there is a journal, even one that could not be opened yet.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.sink.is_some()
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

    /// Writes the tick that `decider` decided from what it remembered `before`. Returns it, and the number of ticks that are missing since the
    /// last call.
    pub(crate) fn tick(&mut self, decider: &Decider, before: Memory, tick: Tick) -> (Tick, u64) {
        let at = tick.seen.taken_at;
        let lost = self.hear();
        if !self.is_ready(at) {
            self.missing = self.missing.saturating_add(1);
            return (tick, lost + 1);
        }
        let mut records = self.pending(decider, &before, at);
        records.push(Record::Tick(Box::new(tick)));
        let taken = self.write(decider, &before, &records);
        self.missing = self.missing.saturating_add(u64::from(!taken));
        let lost = lost + u64::from(!taken) + self.hear();
        match records.pop() {
            Some(Record::Tick(tick)) => (*tick, lost),
            _ => unreachable!("the tick was pushed last"),
        }
    }

    /// Writes that KSM is set next, if the plan of `step` does so. `before` is what was remembered before the step. So the next run knows
    /// what was found, also after a kill in the middle. `false`: the journal does not have it yet.
    pub(crate) fn sets_ksm(
        &mut self,
        decider: &Decider,
        before: impl FnOnce() -> Memory,
        step: &Step,
    ) -> bool {
        let Some((before_order, wanted)) = step.sets_ksm().filter(|_| self.is_wanted()) else {
            return true;
        };
        let (at, memory) = (step.seen.taken_at, before());
        if !self.is_ready(at) || self.behind(Duration::ZERO).is_some() {
            return false;
        }
        let mut records = self.pending(decider, &memory, at);
        records.push(Record::SetsKsm { at, before: before_order, wanted });
        let taken = self.write(decider, &memory, &records);
        let is_through = taken && self.behind(WAITS_FOR).is_none();
        self.hear();
        is_through && self.failure.is_none()
    }

    /// How long the oldest tick waits that the journal has yet to get; `None` if that is less than the engine may wait for. It does so if
    /// `somebody_waits`, who is told that it waits as long as the journal cannot be written.
    pub(crate) fn waits(&mut self, somebody_waits: bool) -> Option<Span> {
        let behind = self.behind(if somebody_waits { WAITS_FOR } else { Duration::ZERO });
        if somebody_waits && self.failure.is_some() {
            return Some(Span::from(behind.unwrap_or_default().max(WAITS_FOR)));
        }
        behind.filter(|behind| *behind >= WAITS_FOR).map(Span::from)
    }

    /// Writes the remaining notes at the end, and the state from which the next run continues.
    pub(crate) fn finish(&mut self, decider: &Decider, at: Moment) {
        self.new_config = false;
        self.hear();
        if !self.is_wanted() || !self.is_ready(at) {
            return;
        }
        let memory = (decider.state.clone(), decider.witness.clone());
        let mut records = self.pending(decider, &memory, at);
        records.push(start(decider, memory.clone()));
        self.write(decider, &memory, &records);
        if self.behind(ENDS_WITHIN).is_some() {
            warn!("the journal is behind: memtide ends without its last decisions in it");
        }
    }

    /// Why the journal is not being written.
    pub(crate) fn warning(&mut self, mode: Mode) -> Option<String> {
        if let Some(behind) = self.behind(Duration::ZERO).filter(|behind| *behind >= BEHIND) {
            return Some(format!(
                "the journal is {} s behind: its disk takes no more; decisions go on, KSM does not scan meanwhile",
                behind.as_secs()
            ));
        }
        let (failure, missing) = (self.failure.as_ref()?, self.missing);
        if self.has_written {
            return Some(format!(
                "guests are managed, but the journal cannot be written: {failure}; {missing} decisions are missing so far; memtide keeps \
                 trying"
            ));
        }
        let tries_every = TRIES_EVERY.as_millis() / 1_000;
        (mode == Mode::Manage).then(|| {
            format!(
                "no journal is written, so nobody can see later why memory moved: {failure}; trying again every {tries_every} s"
            )
        })
    }

    fn is_ready(&mut self, now: Moment) -> bool {
        let ready = self.sink.as_mut().map_or(Ok(()), |sink| sink.ready(now));
        ready.map_err(|why| self.fails(why)).is_ok()
    }

    fn behind(&mut self, within: Duration) -> Option<Duration> {
        self.sink.as_mut()?.behind(within)
    }

    /// Hears what became of the ticks that the sink has taken. Returns the number of those that it has lost.
    fn hear(&mut self) -> u64 {
        let Some(sink) = &mut self.sink else { return 0 };
        if let Some(Lost { ticks, why }) = sink.lost() {
            self.missing = self.missing.saturating_add(ticks);
            self.fails(why);
            return ticks;
        }
        if sink.behind(Duration::ZERO).is_none() && self.gap_is_told && self.failure.take().is_some() {
            info!(missing = self.missing, "the journal is written again");
            self.missing = 0;
        }
        0
    }

    fn pending(&self, decider: &Decider, memory: &Memory, at: Moment) -> Vec<Record> {
        let mut records = Vec::new();
        if self.new_config {
            records.push(start(decider, memory.clone()));
        }
        let gap = match &self.failure {
            Some(failure) if self.missing > 0 && !self.gap_is_told => {
                Some(format!("{} ticks before this one could not be written: {failure}", self.missing))
            }
            _ => None,
        };
        records
            .extend(gap.into_iter().chain(self.notes.iter().cloned()).map(|text| Record::Note { at, text }));
        records
    }

    /// Gives `records` to the sink. Returns whether it has taken them.
    fn write(&mut self, decider: &Decider, before: &Memory, records: &[Record]) -> bool {
        let Some(sink) = &mut self.sink else { return true };
        match sink.write(&mut || start(decider, before.clone()), records) {
            Ok(()) => {
                self.notes.clear();
                self.new_config = false;
                (self.gap_is_told, self.has_written) = (true, true);
                true
            }
            Err(why) => {
                self.fails(why);
                false
            }
        }
    }

    fn fails(&mut self, why: String) {
        self.gap_is_told = false;
        match &self.failure {
            Some(before) if *before == why => {}
            _ if self.has_written => warn!("the journal cannot be written; decisions continue: {why}"),
            _ => warn!("no journal: {why}; decisions continue, trying again"),
        }
        self.failure = Some(why);
    }
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
