//! What the daemon published at any moment of a journal.
//!
//! **Problem.** A journal has the observations, the plans and the answers. The reasons and the state behind them are not in it, because they
//! follow from it. Somebody who asks what happened at 14:32 wants to see what the daemon showed then.
//!
//! **Rule.** [`Recorded`] decides again from the start of the segment, or from a checkpoint in memory. The state of the decision and of the one
//! before it are compared with the checksums in the journal. If they agree, a [`Past`] is what was published then. If another version wrote
//! the journal and decided differently, [`Past::differs`] says so: what was seen, asked and answered is as recorded; needs, shares and verdicts are
//! only what this version makes of it.
//!
//! **Not in a journal**, so not in a [`Past`]: how long the tick took, the counters, guests of other users that are kept out, notices and the
//! world's own warnings, and how far the journal was behind. These have their defaults in [`Past::published`].

mod course;
mod event;

use std::path::Path;
use std::sync::Arc;

use memtide_model::{Action, Answer, GuestId, Moment, Span, WallClock};

use crate::Published;
use crate::journal::{Cursor, Index, JournalError, TornTail};
use crate::policy::{Policy, own_policy};
use course::{Course, Shown, Want};

pub(crate) use event::note_of_kill;
pub use event::{Event, EventKind};

/// Decisions are at most two seconds apart: a longer silence is a gap.
const SILENCE: Span = Span::from_secs(10);
/// At most this many guests are remembered in checkpoints, each as often as it is in one.
const MOST_REMEMBERED: usize = 4_000;
/// The fewest decisions between two checkpoints.
const LEAST_BETWEEN: usize = 8;

/// What the daemon published with one decision, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// The place of the decision in the journal, from 0.
    pub place: usize,
    /// What was published, as far as a journal holds it.
    pub published: Published,
    /// The version of memtide that decided.
    pub version: String,
    /// Why its needs, shares and verdicts may not be those that were published; `None`: they are.
    pub differs: Option<Differs>,
    /// How long nothing was recorded before it; `None` if the decision before it was shortly before.
    pub silence: Option<Span>,
    /// What happened since the decision before it.
    pub events: Vec<Event>,
}

impl Past {
    /// The time of the decision, for people.
    #[must_use]
    pub fn wall(&self) -> WallClock {
        self.published.last.as_ref().map_or(WallClock(0), |last| last.seen.wall)
    }
}

/// A change that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The moment of its decision.
    pub at: Moment,
    /// The time, for people.
    pub wall: WallClock,
    /// The change.
    pub action: Action,
    /// The answer to it.
    pub answer: Answer,
}

/// A journal of decisions that this version does not make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differs {
    /// The version and the policy that wrote it.
    pub wrote: String,
}

/// For people.
impl std::fmt::Display for Differs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} wrote this journal, and memtide {} decides otherwise: sizes, changes and reasons are as recorded; needs, shares and \
             states are only what this version makes of them. The version that wrote it shows them as they were",
            self.wrote,
            env!("CARGO_PKG_VERSION")
        )
    }
}

/// Decisions made again up to a place, to go on from.
#[derive(Debug)]
struct Checkpoint {
    /// The decision that follows.
    next: usize,
    /// Where its records begin in the segment.
    offset: u64,
    course: Course,
}

/// A journal that can be shown at any moment.
#[derive(Debug)]
pub struct Recorded {
    policy: Arc<dyn Policy>,
    index: Index,
    /// The course that was shown last, and the reader behind it.
    current: Option<(Cursor, Checkpoint)>,
    /// The oldest first.
    checkpoints: Vec<Checkpoint>,
    /// The decision that was shown last.
    place: Option<usize>,
}

impl Recorded {
    /// Opens `path`: a directory with a journal, or one segment. Reads only where its decisions are.
    ///
    /// # Errors
    /// If the file or directory cannot be read.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        Self::open_with(path, own_policy())
    }

    /// The same for a journal of another policy.
    ///
    /// # Errors
    /// If the file or directory cannot be read.
    pub fn open_with(path: &Path, policy: Arc<dyn Policy>) -> Result<Self, JournalError> {
        let index = Index::open(path)?;
        Ok(Self { policy, index, current: None, checkpoints: Vec::new(), place: None })
    }

    /// The number of decisions.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.index.marks.len()
    }

    /// Whether it has no decision.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.index.marks.is_empty()
    }

    /// The moments of the decision at `place`.
    #[must_use]
    pub fn moment(&self, place: usize) -> Option<(Moment, WallClock)> {
        self.index.marks.get(place).map(|mark| (mark.at, mark.wall))
    }

    /// The moments of the first and the last decision.
    #[must_use]
    pub fn moments(&self) -> Option<((Moment, WallClock), (Moment, WallClock))> {
        Some((self.moment(0)?, self.moment(self.len().checked_sub(1)?)?))
    }

    /// The places that cannot be read, as far as they are known before they are shown. At most a hundred are kept.
    #[must_use]
    pub fn unread(&self) -> &[JournalError] {
        &self.index.unread
    }

    /// The torn tail of the newest segment, which was skipped.
    #[must_use]
    pub const fn torn(&self) -> Option<&TornTail> {
        self.index.torn.as_ref()
    }

    /// The number of segments that are missing between others.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.index.missing()
    }

    /// The decision that was shown last.
    #[must_use]
    pub const fn place(&self) -> Option<usize> {
        self.place
    }

    /// Looks for what was written since the journal was opened. Places count from the oldest segment: if segments are gone, `place` and
    /// all others move. Returns by how much.
    ///
    /// # Errors
    /// If the file or directory cannot be read.
    pub fn refresh(&mut self) -> Result<usize, JournalError> {
        let lost = self.index.refresh()?;
        if lost > 0 {
            self.current = None;
            self.checkpoints.clear();
            self.place = self.place.and_then(|place| place.checked_sub(lost));
        }
        Ok(lost)
    }

    /// The place of the last decision at or before `wall`; the first one if all are later.
    #[must_use]
    pub fn place_at(&self, wall: WallClock) -> usize {
        // Somebody may have set the clock back, so the newest such decision counts.
        self.index.marks.iter().rposition(|mark| mark.wall <= wall).unwrap_or(0)
    }

    /// What was published at `wall`.
    ///
    /// # Errors
    /// If there is no decision, or if its segment cannot be read up to there.
    pub fn at(&mut self, wall: WallClock) -> Result<Past, JournalError> {
        self.show(self.place_at(wall))
    }

    /// What was published with the next decision; `None` after the last.
    ///
    /// # Errors
    /// If its segment cannot be read up to there.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and the place can also go back")]
    pub fn next(&mut self) -> Result<Option<Past>, JournalError> {
        let next = self.place.map_or(0, |place| place + 1);
        if next < self.len() { self.show(next).map(Some) } else { Ok(None) }
    }

    /// What was published with the decision before; `None` before the first.
    ///
    /// # Errors
    /// If its segment cannot be read up to there.
    pub fn previous(&mut self) -> Result<Option<Past>, JournalError> {
        self.place.and_then(|place| place.checked_sub(1)).map(|place| self.show(place)).transpose()
    }

    /// What was published with the next decision at which something of this kind happened; `None` if there is none. The place then stays.
    ///
    /// # Errors
    /// If a segment cannot be read up to there.
    pub fn next_event(&mut self, is_wanted: impl Fn(&Event) -> bool) -> Result<Option<Past>, JournalError> {
        let first = self.place.map_or(0, |place| place + 1);
        for place in first..self.len() {
            if self.events(place)?.iter().any(&is_wanted) {
                return self.show(place).map(Some);
            }
        }
        Ok(None)
    }

    /// The same for the last such decision before.
    ///
    /// # Errors
    /// If a segment cannot be read up to there.
    pub fn previous_event(
        &mut self,
        is_wanted: impl Fn(&Event) -> bool,
    ) -> Result<Option<Past>, JournalError> {
        let mut end = self.place.unwrap_or(self.len());
        while end > 0 {
            let begin = self.first_of_segment(end - 1);
            let mut found = None;
            for place in begin..end {
                if self.events(place)?.iter().any(&is_wanted) {
                    found = Some(place);
                }
            }
            if let Some(place) = found {
                return self.show(place).map(Some);
            }
            end = begin;
        }
        Ok(None)
    }

    /// What happened from place `first` up to, but not with, place `end`, the oldest first.
    ///
    /// # Errors
    /// If a segment cannot be read up to there.
    pub fn events_between(&mut self, first: usize, end: usize) -> Result<Vec<Event>, JournalError> {
        let mut events = Vec::new();
        for place in first..end.min(self.len()) {
            events.extend(self.events(place)?);
        }
        Ok(events)
    }

    /// The last changes of a guest up to the decision at `place`, at most this many, the oldest first. Skips what cannot be read.
    ///
    /// # Errors
    /// If a segment cannot be opened.
    pub fn tried(&self, place: usize, guest: &GuestId, most: usize) -> Result<Vec<Done>, JournalError> {
        let mut tried = Vec::new();
        let mut open: Option<(u32, Cursor)> = None;
        for mark in self.index.marks.iter().take(place.saturating_add(1)).rev() {
            let mut cursor = match open.take() {
                Some((segment, cursor)) if segment == mark.segment => cursor,
                _ => Cursor::open(self.index.segment(mark.segment), 0)?,
            };
            let done = cursor.done(mark.offset).unwrap_or_default();
            let of_guest = done.plan.actions.into_iter().zip(done.answers).rev();
            let of_guest = of_guest.filter(|(action, _)| action.guest() == Some(guest));
            tried.extend(of_guest.map(|(action, answer)| Done {
                at: mark.at,
                wall: mark.wall,
                action,
                answer,
            }));
            if tried.len() >= most {
                break;
            }
            open = Some((mark.segment, cursor));
        }
        tried.truncate(most);
        tried.reverse();
        Ok(tried)
    }

    /// What was published with the decision at `place`.
    ///
    /// # Errors
    /// If there is no such decision, or if its segment cannot be read up to there.
    pub fn show(&mut self, place: usize) -> Result<Past, JournalError> {
        self.place = Some(place);
        let Shown { published: Some(published), version, differs, events } = self.go_to(place, Want::All)?
        else {
            return Err(JournalError::NoDecision);
        };
        let version = version.to_string();
        let silence = place.checked_sub(1).and_then(|before| {
            let (before, now) = (&self.index.marks[before], &self.index.marks[place]);
            // The clock of moments begins anew when the host starts.
            let passed = match now.at >= before.at {
                true => now.at.since(before.at),
                false => Span::from_millis(now.wall.0.saturating_sub(before.wall.0)),
            };
            (now.at < before.at || passed > SILENCE).then_some(passed)
        });
        Ok(Past { place, published, version, differs, silence, events })
    }

    /// What happened with the decision at `place`; nothing if it cannot be read.
    fn events(&mut self, place: usize) -> Result<Vec<Event>, JournalError> {
        match self.go_to(place, Want::Events) {
            Ok(shown) => Ok(shown.events),
            Err(error @ JournalError::Io { .. }) => Err(error),
            Err(_) => Ok(Vec::new()),
        }
    }

    /// The first decision in the segment of `place`.
    fn first_of_segment(&self, place: usize) -> usize {
        let segment = self.index.marks[place].segment;
        self.index.marks.partition_point(|mark| mark.segment < segment)
    }

    /// Decides again up to `place`.
    fn go_to(&mut self, place: usize, want: Want) -> Result<Shown, JournalError> {
        if place >= self.len() {
            return Err(JournalError::NoDecision);
        }
        let first = self.first_of_segment(place);
        let (mut cursor, mut one) = self.begin(first, place, want)?;
        let apart = self.apart(place, first, one.course.guests());
        loop {
            self.remember(&one, apart, first);
            let is_it = one.next == place;
            let want = match want {
                _ if is_it => want,
                // The state before the decision that is shown counts, too.
                Want::All if one.next + 1 == place => Want::Verify,
                _ => Want::Pass,
            };
            let mark = self.index.marks[one.next];
            let taken = one.course.take_until(&mut cursor, &mark, want);
            (one.next, one.offset) = (one.next + 1, cursor.offset());
            match taken {
                Ok(Some(mut shown)) if is_it => {
                    shown.events.iter_mut().for_each(|event| event.place = place);
                    self.current = Some((cursor, one));
                    return Ok(shown);
                }
                Ok(_) => {}
                Err(error) if is_it || matches!(error, JournalError::Io { .. }) => return Err(error),
                // Later decisions can be shown.
                Err(_) => {}
            }
        }
    }

    /// Where to begin to decide again up to `place`: where the last showing ended, at a checkpoint, or at the start of the segment.
    fn begin(
        &mut self,
        first: usize,
        place: usize,
        want: Want,
    ) -> Result<(Cursor, Checkpoint), JournalError> {
        let segment = self.index.marks[place].segment;
        let is_before = |one: &Checkpoint| {
            // What is shown depends on the state before it, and must not depend on the way there: if nobody compared this state, it is decided again.
            let suffices = one.next < place || want != Want::All || one.course.is_compared();
            // One that comes next to the first decision can be at the end of the segment before.
            one.next > first && one.next <= place && suffices
        };
        let known = self.checkpoints.iter().filter(|one| is_before(one)).max_by_key(|one| one.next);
        let current = self.current.take().filter(|(_, one)| is_before(one));
        if let Some(current) = current.filter(|(_, one)| known.is_none_or(|known| known.next <= one.next)) {
            return Ok(current);
        }
        let begin = match known {
            Some(one) => Checkpoint { next: one.next, offset: one.offset, course: one.course.clone() },
            None => Checkpoint { next: first, offset: 0, course: Course::new(Arc::clone(&self.policy)) },
        };
        Ok((Cursor::open(self.index.segment(segment), begin.offset)?, begin))
    }

    /// The decisions between two checkpoints in the segment of `place`, whose first decision is `first`.
    fn apart(&self, place: usize, first: usize, guests: usize) -> usize {
        let segment = self.index.marks[place].segment;
        let decisions = self.index.marks.partition_point(|mark| mark.segment <= segment) - first;
        let most = (MOST_REMEMBERED / 2 / guests.max(1)).max(1);
        (decisions / most).max(LEAST_BETWEEN)
    }

    /// Keeps a copy to go on from, if the last one is long ago.
    fn remember(&mut self, one: &Checkpoint, apart: usize, first: usize) {
        let is_due = one.next > first && (one.next - first).is_multiple_of(apart);
        if !is_due || self.checkpoints.iter().any(|known| known.next == one.next) {
            return;
        }
        let copy = Checkpoint { next: one.next, offset: one.offset, course: one.course.clone() };
        self.checkpoints.push(copy);
        let mut guests: usize = self.checkpoints.iter().map(|known| known.course.guests().max(1)).sum();
        while guests > MOST_REMEMBERED && self.checkpoints.len() > 1 {
            guests -= self.checkpoints.remove(0).course.guests().max(1);
        }
    }
}
