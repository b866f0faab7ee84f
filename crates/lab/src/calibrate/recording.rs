//! A recorded run: what the daemon saw of its guests, and what it ordered.

use std::path::Path;

use memtide_engine::journal::Reader;
use memtide_model::{Bytes, Change, Commitment, GuestSeen, Reading, Record, Span, Tick};

use super::course::{Course, Look};
use crate::error::LabError;

/// Statistics that are older cannot be set against the size of a balloon that moves.
const NEW: Span = Span::from_millis(300);

/// A recorded run. Times are counted from its first decision.
#[derive(Debug)]
pub struct Recording {
    /// The host's memory.
    pub capacity: Bytes,
    /// The commitment that the daemon kept.
    pub commitment: Commitment,
    /// The guests' names in their order.
    pub names: Vec<String>,
    /// What the guests cost, at each decision.
    pub course: Course,
    /// What each guest's kernel told, in the order of the names, each answer once.
    pub told: Vec<Vec<Told>>,
    /// When each guest was seen for the first time, and when its driver was.
    pub came: Vec<(Span, Option<Span>)>,
    /// The targets that the daemon set: when, of which guest, and which.
    pub targets: Vec<(Span, usize, Bytes)>,
}

/// What a guest's kernel told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// When.
    pub at: Span,
    /// What kernel and programs had.
    pub used: Bytes,
    /// Page cache.
    pub cache: Bytes,
}

impl Recording {
    /// Reads the journal at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or holds no decision.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let wrong = |why: String| LabError::Results(format!("{}: {why}", path.display()));
        let (mut ticks, mut commitment) = (Vec::new(), None);
        for record in Reader::open(path).map_err(|error| wrong(error.to_string()))? {
            match record.map_err(|error| wrong(error.to_string()))? {
                Record::Start { config, .. } => commitment = Some(config.commitment),
                Record::Tick(tick) => ticks.push(*tick),
                Record::Note { .. } => {}
            }
        }
        match commitment.filter(|_| !ticks.is_empty()) {
            Some(commitment) => Ok(Self::of(&ticks, commitment)),
            None => Err(wrong("holds no decision".to_owned())),
        }
    }

    fn of(ticks: &[Tick], commitment: Commitment) -> Self {
        let mut names: Vec<String> = Vec::new();
        for guest in ticks.iter().flat_map(|tick| &tick.seen.guests) {
            if !names.iter().any(|name| name == guest.id.name()) {
                names.push(guest.id.name().to_owned());
            }
        }
        let count = names.len();
        let mut recording = Self {
            capacity: ticks.iter().map(|tick| tick.seen.host.capacity).max().unwrap_or_default(),
            commitment,
            course: Course::new(names.clone()),
            told: vec![Vec::new(); count],
            came: vec![(Span::ZERO, None); count],
            targets: Vec::new(),
            names,
        };
        let first = ticks.first().map(|tick| tick.seen.taken_at).unwrap_or_default();
        for tick in ticks {
            recording.add(tick, tick.seen.taken_at.since(first));
        }
        recording
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|other| other == name)
    }

    fn add(&mut self, tick: &Tick, at: Span) {
        let mut looks = vec![None; self.names.len()];
        for guest in &tick.seen.guests {
            let Some(index) = self.index(guest.id.name()) else { continue };
            let balloon = guest.balloon.latest();
            if self.course.is_new(index) {
                self.came[index].0 = at;
            }
            if balloon.is_some() {
                self.came[index].1.get_or_insert(at);
            }
            let footprint = guest.footprint.latest().copied().unwrap_or_default();
            looks[index] = Some(Look { footprint, actual: balloon.map(|balloon| balloon.actual) });
            self.told[index].extend(told(guest, at));
            self.told[index].dedup_by_key(|told| (told.used, told.cache));
        }
        self.course.push(at, looks);
        for action in &tick.plan.actions {
            if let (Change::SetTarget(target), Some(index)) = (action.change, self.index(action.guest.name()))
            {
                self.targets.push((at, index, target));
            }
        }
    }
}

/// What a guest tells at a decision, if that is new enough to be set against the size of its balloon.
fn told(guest: &GuestSeen, now: Span) -> Option<Told> {
    let Reading::Fresh { value: stats, age } = &guest.stats else { return None };
    let (total, free, cache) = (stats.total?, stats.free?, stats.disk_caches?);
    let balloon = guest.balloon.latest()?;
    // A guest that may deflate its own balloon goes on to tell of its full size.
    let hidden = if balloon.deflate_on_oom { guest.full.saturating_sub(balloon.actual) } else { Bytes::ZERO };
    let used = total.saturating_sub(hidden).saturating_sub(free).saturating_sub(cache);
    let at = Span::from_millis(now.as_millis().saturating_sub(age.as_millis()));
    (*age <= NEW).then_some(Told { at, used, cache })
}
