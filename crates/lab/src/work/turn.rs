//! A *turn* is one guest's part of the work: it reads its disk through its page cache, fills anonymous memory, reads all of
//! it back, keeps it until it may free it, and frees it.
//!
//! Every byte is checked: only bytes found intact count as done.

use std::time::{Duration, Instant};

use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_model::{Bytes, MIB};

use crate::error::LabError;
use crate::guest::Guest;
use crate::guest::channel::{Job, Standing};
use crate::guest::disk::Disk;
use crate::work::exercise::{fill, read_disk, verified, verified_by};

/// The time after which a turn counts as failed, unless its load gives another.
pub const LONGEST: Duration = Duration::from_secs(120);
/// The same for the turn of a guest that has its host to itself. Its time tells how long the turns of others may take.
pub const LONGEST_ALONE: Duration = Duration::from_secs(600);

/// The work of each turn.
#[derive(Clone, Debug)]
pub struct Load {
    /// The disk, and the MiB read from it through the page cache; `None` reads nothing.
    pub cache: Option<(Disk, u64)>,
    /// Anonymous memory, in MiB.
    pub anon_mib: u64,
    /// The rate of both, in MiB/s; `None` for as fast as possible.
    pub mib_per_s: Option<u64>,
    /// The time after which a turn counts as failed.
    pub longest: Duration,
}

impl Load {
    /// The bytes that one turn checks.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::from_mib(self.cache_mib() + self.anon_mib)
    }

    fn cache_mib(&self) -> u64 {
        self.cache.as_ref().map_or(0, |(_, mib)| *mib)
    }
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
    /// The reason, and whether the guest survived.
    Failed(String, bool),
}

/// One guest's turn.
#[derive(Debug)]
pub struct Turn {
    guest: usize,
    seed: u64,
    stage: Stage,
    /// When it began. If it is freeing its memory: when it began to.
    begun: Option<Instant>,
    took: Option<Duration>,
    /// The load that fills the memory.
    memory: Option<Job>,
    verified: Bytes,
    mismatches: u64,
}

impl Turn {
    /// A turn of the guest with this number. Its memory gets the content of `seed`. It waits until it is started.
    #[must_use]
    pub const fn new(guest: usize, seed: u64) -> Self {
        Self {
            guest,
            seed,
            stage: Stage::Waiting,
            begun: None,
            took: None,
            memory: None,
            verified: Bytes::ZERO,
            mismatches: 0,
        }
    }

    /// The number of its guest.
    #[must_use]
    pub const fn guest(&self) -> usize {
        self.guest
    }

    /// Whether it has begun.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Whether the disk was read, or never will be.
    #[must_use]
    pub const fn has_read(&self) -> bool {
        matches!(self.stage, Stage::Filling(_) | Stage::Verifying(_)) || self.has_filled()
    }

    /// Whether the memory was filled and read back, or never will be.
    #[must_use]
    pub const fn has_filled(&self) -> bool {
        matches!(self.stage, Stage::Holding(_) | Stage::Freeing(_)) || self.is_over()
    }

    /// How long it has kept its memory, if it does.
    #[must_use]
    pub fn held_for(&self) -> Option<Duration> {
        match self.stage {
            Stage::Holding(since) => Some(since.elapsed()),
            _ => None,
        }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Finished | Stage::Failed(..))
    }

    /// Whether all of it was done.
    #[must_use]
    pub const fn has_finished(&self) -> bool {
        matches!(self.stage, Stage::Finished)
    }

    /// The reason if it failed.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.stage {
            Stage::Failed(why, _) => Some(why),
            _ => None,
        }
    }

    /// Whether it failed although its guest survived: no memory, its own OOM killer, or too slow.
    #[must_use]
    pub const fn was_refused(&self) -> bool {
        matches!(self.stage, Stage::Failed(_, true))
    }

    /// Bytes found intact so far.
    #[must_use]
    pub const fn verified(&self) -> Bytes {
        self.verified
    }

    /// Words that differ from their expected value.
    #[must_use]
    pub const fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// The time from its beginning until all was read back.
    #[must_use]
    pub const fn took(&self) -> Option<Duration> {
        self.took
    }

    /// Its present work, as text.
    #[must_use]
    pub fn doing(&self, load: &Load, guest: &Guest) -> String {
        let so_far = |job: Job| match guest.standing(job) {
            Standing::Running { bytes, .. } => bytes / MIB,
            _ => 0,
        };
        let (cache_mib, anon_mib) = (load.cache_mib(), load.anon_mib);
        match &self.stage {
            Stage::Waiting => "waits for its turn".to_owned(),
            Stage::Reading(job) => format!("reads its disk, {} of {cache_mib} MiB", so_far(*job)),
            Stage::Filling(job) => format!("fills memory, {} of {anon_mib} MiB", so_far(*job)),
            Stage::Verifying(job) => format!("reads memory back, {} of {anon_mib} MiB", so_far(*job)),
            Stage::Holding(_) => format!("keeps {anon_mib} MiB in use"),
            Stage::Freeing(_) => "frees its memory".to_owned(),
            Stage::Finished => "idle".to_owned(),
            Stage::Failed(why, _) => format!("failed: {why}"),
        }
    }

    /// Continues as far as possible without waiting. The first call begins the turn. It frees its memory once `may_free` is
    /// true.
    pub fn step(&mut self, load: &Load, guest: &Guest, may_free: bool) {
        while !self.is_over() {
            match self.next(load, guest, may_free) {
                Ok(Some(stage)) => self.stage = stage,
                Ok(None) => return,
                Err(e) => {
                    if guest.alive() {
                        // If the memory exists, it must not stay. The answer does not matter.
                        let _ = self.memory.map(|job| guest.begin(Ask::Cancel { job: job.id() }));
                    }
                    self.stage = Stage::Failed(e.with_cause(), guest.alive());
                }
            }
        }
    }

    /// The next stage; `None` if the turn stays in its stage.
    fn next(&mut self, load: &Load, guest: &Guest, may_free: bool) -> Result<Option<Stage>, LabError> {
        if let Some(how) = guest.ended()? {
            return Err(LabError::Gone { guest: guest.name().to_owned(), how });
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        // A guest that has done its work may keep its memory for as long as others need.
        if !matches!(self.stage, Stage::Holding(_)) && begun.elapsed() > load.longest {
            let what = "the end of its work".to_owned();
            return Err(LabError::Deadline { what, seconds: load.longest.as_secs() });
        }
        match self.stage {
            Stage::Waiting => match &load.cache {
                Some((disk, mib)) => {
                    let job = guest.begin(read_disk(disk, *mib, load.mib_per_s))?;
                    Ok(Some(Stage::Reading(job)))
                }
                None => self.fill(load, guest).map(Some),
            },
            Stage::Reading(job) => {
                let Some(summary) = guest.outcome::<Summary>(job)? else { return Ok(None) };
                let seed = load.cache.as_ref().map_or(0, |(disk, _)| disk.seed);
                self.count(summary.errors, verified_by(&summary, seed));
                self.fill(load, guest).map(Some)
            }
            Stage::Filling(job) => {
                let Some(_) = guest.outcome::<Summary>(job)? else { return Ok(None) };
                let ask = Ask::Order { load: job.id(), line: "check".to_owned() };
                guest.begin(ask).map(|job| Some(Stage::Verifying(job)))
            }
            Stage::Verifying(job) => {
                let Some(tally) = guest.outcome::<Tally>(job)? else { return Ok(None) };
                self.took = Some(begun.elapsed());
                self.count(tally.mismatches, verified(self.seed, tally.bytes, tally.checksum));
                Ok(Some(Stage::Holding(Instant::now())))
            }
            Stage::Holding(_) if !may_free => Ok(None),
            Stage::Holding(_) => match self.memory {
                Some(job) => {
                    self.begun = Some(Instant::now());
                    guest.begin(Ask::Cancel { job: job.id() }).map(|job| Some(Stage::Freeing(job)))
                }
                None => Ok(Some(Stage::Finished)),
            },
            Stage::Freeing(job) => Ok(guest.outcome::<serde_json::Value>(job)?.map(|_| Stage::Finished)),
            Stage::Finished | Stage::Failed(..) => Ok(None),
        }
    }

    fn fill(&mut self, load: &Load, guest: &Guest) -> Result<Stage, LabError> {
        let job = guest.begin(fill(self.seed, load.anon_mib, load.mib_per_s))?;
        self.memory = Some(job);
        Ok(Stage::Filling(job))
    }

    const fn count(&mut self, mismatches: u64, verified: u64) {
        self.mismatches += mismatches;
        self.verified = self.verified.saturating_add(Bytes::new(verified));
    }
}
