//! Work that moves from guest to guest.
//!
//! A *turn* is one guest's part: it reads the disk through its page cache, fills anonymous memory at a fixed rate, reads
//! all of it back, and keeps it until the next guest's turn has read its disk. So two guests are busy for a moment, and
//! the others are idle with the page cache that their last turn has left behind. A *round* is one turn of each guest.
//!
//! Every byte is checked: what counts as done is what was found intact.

use std::time::{Duration, Instant};

use memtide_load::agent::wire::Ask;
use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_model::{Bytes, MIB};
use serde::de::DeserializeOwned;

use crate::channel::{Job, Standing, outcome};
use crate::disk::Disk;
use crate::error::LabError;
use crate::exercise::{fill, read_disk, verified, verified_by};
use crate::guest::Guest;

/// How long a turn may take before it counts as failed.
pub const TURN: Duration = Duration::from_secs(120);
/// How long the last turn keeps its memory, since no other one follows.
const LAST_HOLD: Duration = Duration::from_secs(3);

/// What each turn does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Rounds.
    pub rounds: usize,
    /// Read through the page cache, in MiB.
    pub cache_mib: u64,
    /// Anonymous memory, in MiB.
    pub anon_mib: u64,
    /// The rate of both, in MiB/s.
    pub mib_per_s: u64,
}

impl Load {
    /// What one turn checks.
    #[must_use]
    pub const fn turn(&self) -> Bytes {
        Bytes::from_mib(self.cache_mib + self.anon_mib)
    }
}

/// What was done of what was planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// What the turns were to check.
    pub planned: Bytes,
    /// What they have found intact.
    pub verified: Bytes,
    /// Words that were not what they should have been.
    pub mismatches: u64,
    /// Jobs that failed in a guest that lived: no memory, or its own OOM killer.
    pub failures: u64,
    /// Turns that did all their work.
    pub turns: u64,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Reading(Job),
    Filling(Job),
    Verifying(Job),
    Holding(Instant),
    Freeing(Job),
    Finished,
    Failed(String),
}

struct Turn {
    guest: usize,
    seed: u64,
    stage: Stage,
    begun: Option<Instant>,
    /// The load that fills the memory.
    memory: Option<Job>,
}

/// The turns of all guests.
pub struct Work<'a> {
    load: Load,
    disk: &'a Disk,
    guests: &'a [Guest],
    turns: Vec<Turn>,
    done: Done,
}

impl<'a> Work<'a> {
    /// Work for `guests`, which all have `disk`.
    #[must_use]
    pub fn new(load: Load, disk: &'a Disk, guests: &'a [Guest]) -> Self {
        let order = (0..load.rounds).flat_map(|_| 0..guests.len());
        let turns: Vec<Turn> = (1..)
            .zip(order)
            .map(|(seed, guest)| Turn { guest, seed, stage: Stage::Waiting, begun: None, memory: None })
            .collect();
        let planned = load.turn().mul_div(turns.len() as u64, 1);
        Self { load, disk, guests, turns, done: Done { planned, ..Done::default() } }
    }

    /// Goes on as far as can be gone without waiting. True once there is nothing left to do.
    ///
    /// # Errors
    /// None of a guest's: its turn fails, and the work goes on with the next one. Only an interrupt ends it.
    pub fn step(&mut self) -> Result<bool, LabError> {
        crate::wait::check_interrupt()?;
        for nth in 0..self.turns.len() {
            let before = nth.checked_sub(1).map(|before| &self.turns[before].stage);
            let may_begin = before.is_none_or(Stage::filled);
            let may_free = match self.turns.get(nth + 1).map(|next| &next.stage) {
                Some(next) => next.has_read(),
                None => {
                    matches!(self.turns[nth].stage, Stage::Holding(since) if since.elapsed() >= LAST_HOLD)
                }
            };
            self.step_turn(nth, may_begin, may_free);
        }
        Ok(self.turns.iter().all(|turn| turn.stage.over()))
    }

    /// What was done so far.
    #[must_use]
    pub const fn done(&self) -> Done {
        self.done
    }

    /// What the guest `guest` does at the moment.
    #[must_use]
    pub fn doing(&self, guest: usize) -> String {
        if !self.guests[guest].alive() {
            return "killed".to_owned();
        }
        let mut own = self.turns.iter().filter(|turn| turn.guest == guest && turn.begun.is_some());
        own.next_back().map_or_else(|| "waits for its turn".to_owned(), |turn| self.describe(turn))
    }

    fn describe(&self, turn: &Turn) -> String {
        let so_far = |job: Job| match self.guests[turn.guest].standing(job) {
            Standing::Running { bytes } => bytes / MIB,
            _ => 0,
        };
        let Load { cache_mib, anon_mib, .. } = self.load;
        match &turn.stage {
            Stage::Waiting => "waits for its turn".to_owned(),
            Stage::Reading(job) => format!("reads its disk, {} of {cache_mib} MiB", so_far(*job)),
            Stage::Filling(job) => format!("fills memory, {} of {anon_mib} MiB", so_far(*job)),
            Stage::Verifying(job) => format!("reads memory back, {} of {anon_mib} MiB", so_far(*job)),
            Stage::Holding(_) => format!("keeps {anon_mib} MiB in use"),
            Stage::Freeing(_) => "frees its memory".to_owned(),
            Stage::Finished => "idle".to_owned(),
            Stage::Failed(why) => format!("failed: {why}"),
        }
    }

    fn step_turn(&mut self, nth: usize, may_begin: bool, may_free: bool) {
        if matches!(self.turns[nth].stage, Stage::Finished | Stage::Failed(_)) {
            return;
        }
        match self.next_stage(nth, may_begin, may_free) {
            Ok(Some(stage)) => self.turns[nth].stage = stage,
            Ok(None) => {}
            Err(e) => {
                let turn = &self.turns[nth];
                let guest = &self.guests[turn.guest];
                if guest.alive() {
                    self.done.failures += 1;
                    // Where there is memory, it must not stay; the answer is of no interest.
                    let _ = turn.memory.map(|job| guest.begin(Ask::Cancel { job: job.id() }));
                }
                self.turns[nth].stage = Stage::Failed(e.to_string());
            }
        }
    }

    /// The stage that follows, `None` where the turn stays in its stage.
    fn next_stage(&mut self, nth: usize, may_begin: bool, may_free: bool) -> Result<Option<Stage>, LabError> {
        let Load { cache_mib, anon_mib, mib_per_s, .. } = self.load;
        let Turn { guest: index, seed, ref stage, begun, memory } = self.turns[nth];
        let guest = &self.guests[index];
        if matches!(stage, Stage::Waiting) && !may_begin {
            return Ok(None);
        }
        if let Some(how) = guest.ended()? {
            let how = if how.success() { "ended" } else { "killed" };
            return Err(LabError::Gone { guest: guest.name().to_owned(), how: how.to_owned() });
        }
        if begun.is_some_and(|begun| begun.elapsed() > TURN) {
            let what = format!("a turn of the guest {}", guest.name());
            return Err(LabError::Deadline { what, seconds: TURN.as_secs() });
        }
        match *stage {
            Stage::Waiting => {
                self.turns[nth].begun = Some(Instant::now());
                let ask = read_disk(self.disk, cache_mib, Some(mib_per_s));
                guest.begin(ask).map(|job| Some(Stage::Reading(job)))
            }
            Stage::Reading(job) => {
                let Some(summary) = ended::<Summary>(guest, job)? else { return Ok(None) };
                self.count(summary.errors, verified_by(&summary, self.disk.seed));
                let job = guest.begin(fill(seed, anon_mib, Some(mib_per_s)))?;
                self.turns[nth].memory = Some(job);
                Ok(Some(Stage::Filling(job)))
            }
            Stage::Filling(job) => {
                let Some(_) = ended::<Summary>(guest, job)? else { return Ok(None) };
                let ask = Ask::Order { load: job.id(), line: "check".to_owned() };
                guest.begin(ask).map(|job| Some(Stage::Verifying(job)))
            }
            Stage::Verifying(job) => {
                let Some(tally) = ended::<Tally>(guest, job)? else { return Ok(None) };
                self.count(tally.mismatches, verified(seed, tally.bytes, tally.checksum));
                Ok(Some(Stage::Holding(Instant::now())))
            }
            Stage::Holding(_) if !may_free => Ok(None),
            Stage::Holding(_) => match memory {
                Some(job) => guest.begin(Ask::Cancel { job: job.id() }).map(|job| Some(Stage::Freeing(job))),
                None => Ok(Some(Stage::Finished)),
            },
            Stage::Freeing(job) => {
                let Some(_) = ended::<serde_json::Value>(guest, job)? else { return Ok(None) };
                self.done.turns += 1;
                Ok(Some(Stage::Finished))
            }
            Stage::Finished | Stage::Failed(_) => Ok(None),
        }
    }

    fn count(&mut self, mismatches: u64, verified: u64) {
        self.done.mismatches += mismatches;
        self.done.verified = self.done.verified.saturating_add(Bytes::new(verified));
    }
}

impl Stage {
    /// The memory was filled and read back, or never will be: the next guest's turn begins.
    const fn filled(&self) -> bool {
        matches!(self, Self::Holding(_) | Self::Freeing(_)) || self.over()
    }

    /// The disk was read, or never will be: the guest before may free its memory.
    const fn has_read(&self) -> bool {
        matches!(self, Self::Filling(_) | Self::Verifying(_)) || self.filled()
    }

    const fn over(&self) -> bool {
        matches!(self, Self::Finished | Self::Failed(_))
    }
}

fn ended<T: DeserializeOwned>(guest: &Guest, job: Job) -> Result<Option<T>, LabError> {
    match guest.standing(job) {
        Standing::Running { .. } => Ok(None),
        Standing::Done(value) => outcome(guest.name(), value).map(Some),
        Standing::Failed(why) => Err(LabError::Load { guest: guest.name().to_owned(), why }),
    }
}
