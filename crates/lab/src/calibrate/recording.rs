//! A recorded run: what the daemon saw of its guests.
//!
//! What it ordered is left out: the plans of a trace are decided anew whenever the policy changes, and are not those that the
//! guests were given.

use std::path::Path;

use memtide_engine::journal::Reader;
use memtide_model::{Bytes, Commitment, GuestSeen, GuestStats, Reading, Record, Span, Tick};

use super::course::{Course, Look, since};
use crate::error::LabError;

/// The pages that a guest's kernel counts faults of.
const PAGE: u64 = 4_096;
/// Two answers of a guest are at least this far apart: what is closer is the same one, seen again.
const APART: Span = Span::from_millis(50);

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
}

/// What a guest's kernel told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// When.
    pub at: Span,
    /// What kernel and programs had.
    pub used: Bytes,
    /// What programs have touched for the first time since the guest's boot.
    pub touched: Bytes,
    /// What the page cache has gained since then: what it holds, and what was reclaimed.
    pub read: Bytes,
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
            names,
        };
        let first = ticks.first().map(|tick| tick.seen.taken_at).unwrap_or_default();
        let ticks = || ticks.iter().map(|tick| (tick, tick.seen.taken_at.since(first)));
        ticks().for_each(|(tick, at)| recording.add(tick, at));
        ticks().for_each(|(tick, at)| recording.listen(tick, at));
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
            // A guest that did not answer in time keeps what it kept.
            let actual = balloon.map(|balloon| balloon.actual).or_else(|| self.course.actual(index, at));
            looks[index] = Some(Look { footprint, actual });
        }
        self.course.push(at, looks);
    }

    /// Notes what the guests' kernels told at `now`. Balloons move meanwhile: an answer is set against the size that its guest had
    /// when it was made.
    fn listen(&mut self, tick: &Tick, now: Span) {
        for guest in &tick.seen.guests {
            let Some(index) = self.index(guest.id.name()) else { continue };
            let Reading::Fresh { value: stats, age } = &guest.stats else { continue };
            let at = since(now, *age);
            let told = self.course.actual(index, at).and_then(|actual| told(guest, stats, at, actual));
            self.told[index].extend(told);
            self.told[index].dedup_by(|later, told| since(later.at, told.at) < APART);
        }
    }
}

/// What a guest told at `at`, when it kept `actual`.
fn told(guest: &GuestSeen, stats: &GuestStats, at: Span, actual: Bytes) -> Option<Told> {
    let (total, free, cache) = (stats.total?, stats.free?, stats.disk_caches?);
    // A guest that may deflate its own balloon goes on to tell of its full size.
    let deflates_itself = guest.balloon.latest()?.deflate_on_oom;
    let hidden = if deflates_itself { guest.full.saturating_sub(actual) } else { Bytes::ZERO };
    let used = total.saturating_sub(hidden).saturating_sub(free).saturating_sub(cache);
    let reclaimed = Bytes::new(stats.async_reclaims? + stats.direct_reclaims?);
    let touched = Bytes::new(stats.minor_faults? * PAGE);
    Some(Told { at, used, touched, read: cache.saturating_add(reclaimed) })
}
