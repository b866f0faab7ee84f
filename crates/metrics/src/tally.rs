//! What is added up over all ticks.
//!
//! The engine publishes each tick, and the tally compares it with the one before: how far balloons moved, how long it took to decide, and how long each
//! wait for memory lasted. It begins at zero with the daemon.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use memtide_engine::{Board, LastTick, Published};
use memtide_model::{Bytes, GuestId, GuestReport, Moment, Span, Verdict};

/// The bounds of the waits that are counted, in seconds.
const BOUNDS: [f64; 10] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 300.0];

/// A handle to the sums. Its clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<Sums>>);

/// What was added up since the daemon began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// Memory that guests gave to the host.
    pub(crate) to_host: Bytes,
    /// Memory that guests got from it.
    pub(crate) to_guests: Bytes,
    /// Time spent observing, deciding and acting.
    pub(crate) decided: Span,
    /// Waits for memory that have ended.
    pub(crate) waits: Waits,
    guests: BTreeMap<GuestId, LastSeen>,
}

/// A guest at the last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LastSeen {
    /// What its balloon has given away; `None` if nobody knows.
    given: Option<Bytes>,
    waits_since: Option<Moment>,
}

/// How long waits lasted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: Span,
}

impl Tally {
    /// A tally of the engine that writes on `board`.
    #[must_use]
    pub fn of(board: &Board) -> Self {
        let tally = Self::default();
        let adds = tally.clone();
        board.on_publish(move |published| adds.add(published));
        tally
    }

    /// The sums up to now.
    #[must_use]
    pub fn sums(&self) -> Sums {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, published: &Published) {
        if let Some(last) = &published.last {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).add(last);
        }
    }
}

impl Sums {
    /// Adds a tick.
    pub fn add(&mut self, last: &LastTick) {
        self.decided = self.decided.plus(last.took);
        let mut before = std::mem::take(&mut self.guests);
        let mut now = BTreeMap::new();
        for report in &last.report.guests {
            let was = before.remove(&report.id).unwrap_or_default();
            let seen = last.seen.guest(&report.id);
            let known = seen.is_some_and(|seen| seen.told.balloon.latest().is_some());
            now.insert(report.id.clone(), self.follow(was, report, known, last.seen.taken_at));
        }
        self.guests = now;
    }

    fn follow(&mut self, was: LastSeen, report: &GuestReport, known: bool, now: Moment) -> LastSeen {
        let given = known.then(|| report.full.saturating_sub(report.actual));
        if let Some((before, now)) = was.given.zip(given) {
            self.to_host = self.to_host.saturating_add(now.saturating_sub(before));
            self.to_guests = self.to_guests.saturating_add(before.saturating_sub(now));
        }
        let waits = matches!(report.verdict, Verdict::WaitsForMemory { .. });
        if let Some(since) = was.waits_since.filter(|_| !waits) {
            self.waits.add(now.since(since));
        }
        LastSeen { given, waits_since: waits.then(|| was.waits_since.unwrap_or(now)) }
    }
}

impl Waits {
    fn add(&mut self, wait: Span) {
        let seconds = std::time::Duration::from(wait).as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.counts[at] += 1;
        }
        self.count += 1;
        self.sum = self.sum.plus(wait);
    }

    /// The number of waits up to each bound, but for the last one, which has none.
    pub(crate) fn cumulated(&self) -> impl Iterator<Item = (f64, u64)> {
        let sums = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BOUNDS.into_iter().zip(sums)
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    pub(crate) const fn sum(&self) -> Span {
        self.sum
    }
}
