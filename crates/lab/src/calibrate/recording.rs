//! A recorded run: the daemon's observations of its guests.
//!
//! The daemon's orders are left out: the plans of a trace are decided anew whenever the policy changes, and are not the plans
//! that the guests received.

use std::path::Path;

use memtide_engine::journal::Reader;
use memtide_model::{Bytes, Commitment, GuestSeen, GuestStats, Reading, Record, Span, Tick};

use super::course::{Course, Sizes, since};
use crate::error::LabError;

/// The page size in which a guest's kernel counts faults.
const PAGE: u64 = 4_096;
/// Two answers of a guest are at least this far apart. A closer one is the same answer, seen again.
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
    /// The guests' cost at each decision.
    pub course: Course,
    /// The reports of each guest's kernel, in the order of the names, each answer once.
    pub told: Vec<Vec<Told>>,
    /// The times when each guest and its driver were first seen.
    pub came: Vec<(Span, Option<Span>)>,
}

/// A report of a guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The time of the report.
    pub at: Span,
    /// Memory used by the kernel and programs.
    pub used: Bytes,
    /// Memory that programs have touched for the first time since the guest's boot.
    pub touched: Bytes,
    /// Everything that the page cache has gained since then: its present content, and reclaimed pages.
    pub read: Bytes,
}

impl Recording {
    /// Reads the journal at `path`.
    ///
    /// # Errors
    /// If the journal cannot be read, or contains no decision.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let wrong = |why: String| LabError::Results(format!("{}: {why}", path.display()));
        let (mut ticks, mut commitment) = (Vec::new(), None);
        for record in Reader::open(path).map_err(|error| wrong(error.to_string()))? {
            match record.map_err(|error| wrong(error.to_string()))? {
                Record::Start { config, .. } => commitment = Some(config.commitment),
                Record::Tick(tick) => ticks.push(*tick),
                Record::SetsKsm { .. } | Record::Note { .. } => {}
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
        let mut guests = vec![None; self.names.len()];
        for guest in &tick.seen.guests {
            let Some(index) = self.index(guest.id.name()) else { continue };
            let balloon = guest.told.balloon.latest();
            if self.course.is_new(index) {
                self.came[index].0 = at;
            }
            if balloon.is_some() {
                self.came[index].1.get_or_insert(at);
            }
            let footprint = guest.cost.footprint.latest().copied().unwrap_or_default();
            // If a guest did not answer in time, its last size counts.
            let actual = balloon.map(|balloon| balloon.actual).or_else(|| self.course.actual(index, at));
            guests[index] = Some(Sizes { footprint, actual });
        }
        self.course.push(at, guests);
    }

    /// Notes the reports of the guests' kernels at `now`. Balloons move meanwhile: an answer is compared with the guest's
    /// size at the time of the answer.
    fn listen(&mut self, tick: &Tick, now: Span) {
        for guest in &tick.seen.guests {
            let Some(index) = self.index(guest.id.name()) else { continue };
            let Reading::Fresh { value: stats, age } = &guest.told.stats else { continue };
            let at = since(now, *age);
            let told = self.course.actual(index, at).and_then(|actual| told(guest, stats, at, actual));
            self.told[index].extend(told);
            self.told[index].dedup_by(|later, told| since(later.at, told.at) < APART);
        }
    }
}

/// The report of a guest that kept `actual` at `at`.
fn told(guest: &GuestSeen, stats: &GuestStats, at: Span, actual: Bytes) -> Option<Told> {
    let (total, free, cache) = (stats.total?, stats.free?, stats.disk_caches?);
    // If a guest may deflate its own balloon, its driver always reports the full size.
    let deflates_itself = guest.told.balloon.latest()?.deflate_on_oom;
    let hidden = if deflates_itself { guest.told.full.saturating_sub(actual) } else { Bytes::ZERO };
    let used = total.saturating_sub(hidden).saturating_sub(free).saturating_sub(cache);
    let reclaimed = Bytes::new(stats.async_reclaims? + stats.direct_reclaims?);
    let touched = Bytes::new(stats.minor_faults? * PAGE);
    Some(Told { at, used, touched, read: cache.saturating_add(reclaimed) })
}
