//! A journal as a source: the same screen for any moment of the past.
//!
//! **Problem.** Each moment of a journal is decided again, which takes time, and the graph needs ten minutes of them.
//!
//! **Rule.** Time is the wall clock here: a journal may hold several starts of the host, each with a boot clock of its own. The moment itself is
//! shown at once, with what happened around it. The rest of the graph is filled in small portions (`PORTION`), so keys are answered meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memtide_api::past;
use memtide_api::recent::says;
use memtide_api::view::GuestDetail;
use memtide_engine::journal::JournalError;
use memtide_engine::{Event, Past, Recorded};
use memtide_model::{Moment, WallClock, printable};

use crate::events::of_event;
use crate::frame::{Frame, Host};
use crate::source::{Direction, Entry, Kind, Link, Source};

/// The longest time that filling the graph takes between two keys.
const PORTION: Duration = Duration::from_millis(60);
/// The decisions around a moment whose events are needed at once.
const AROUND: usize = 15;
/// The decisions of the graph's window whose host is shown.
const POINTS: usize = 120;
/// The most decisions that are remembered.
const MOST_SEEN: usize = 20_000;
/// The most frames that are remembered.
const MOST_FRAMES: usize = 32;

/// What is remembered of a decision.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The host's memory; `None` if only the events were looked for.
    host: Option<Host>,
    entries: Vec<Arc<Entry>>,
}

/// A journal.
pub struct Journal {
    recorded: Recorded,
    explain: fn(&GuestDetail) -> String,
    frames: Vec<(usize, Arc<Frame>)>,
    seen: BTreeMap<usize, Seen>,
    /// The window that the screen shows, as places: from the first one up to the last.
    window: Option<(usize, usize)>,
}

const fn moment(wall: WallClock) -> Moment {
    Moment::from_millis(wall.0)
}

const fn wall(moment: Moment) -> WallClock {
    WallClock(moment.as_millis())
}

impl Journal {
    /// Opens a directory with a journal, or one file of it; `explain` words why a guest had its memory.
    ///
    /// # Errors
    /// If it cannot be read, or has no decision.
    pub fn open(path: &Path, explain: fn(&GuestDetail) -> String) -> Result<Self, JournalError> {
        let recorded = Recorded::open(path)?;
        if recorded.is_empty() {
            return Err(JournalError::NoDecision);
        }
        Ok(Self { recorded, explain, frames: Vec::new(), seen: BTreeMap::new(), window: None })
    }

    /// The times of the first and the last decision.
    #[must_use]
    pub fn walls(&self) -> Option<(WallClock, WallClock)> {
        self.recorded.moments().map(|((_, first), (_, last))| (first, last))
    }

    fn place(&self, at: Moment) -> usize {
        self.recorded.place_at(wall(at))
    }

    /// The frame of a decision; `None` if it cannot be read.
    fn frame(&mut self, place: usize) -> Option<Arc<Frame>> {
        if let Some((_, frame)) = self.frames.iter().find(|(known, _)| *known == place) {
            return Some(Arc::clone(frame));
        }
        let past = self.recorded.show(place).ok()?;
        let frame = Arc::new(frame_of(&past));
        let entries = entries(&past.events);
        self.remember(place, Seen { host: Some(frame.host), entries });
        if self.frames.len() >= MOST_FRAMES {
            self.frames.remove(0);
        }
        self.frames.push((place, Arc::clone(&frame)));
        Some(frame)
    }

    fn remember(&mut self, place: usize, seen: Seen) {
        if self.seen.len() >= MOST_SEEN {
            self.seen.clear();
        }
        self.seen.insert(place, seen);
    }

    /// Looks for what is not known of a decision: its events, and with `host` also the host's memory.
    fn look_at(&mut self, place: usize, host: bool) {
        let is_known = self.seen.get(&place).is_some_and(|seen| !host || seen.host.is_some());
        if is_known {
            return;
        }
        let seen = match host {
            true => self.recorded.show(place).ok().map(|past| {
                let last = past.published.last.as_ref();
                let host = last.map(|last| Host::of(&last.report.host, moment(past.wall())));
                Seen { host: Some(host.unwrap_or_default()), entries: entries(&past.events) }
            }),
            false => self
                .recorded
                .events_between(place, place + 1)
                .ok()
                .map(|events| Seen { host: None, entries: entries(&events) }),
        };
        // What cannot be read has no events, and is not looked for again.
        let lost = Seen { host: host.then(Host::default), entries: Vec::new() };
        self.remember(place, seen.unwrap_or(lost));
    }

    /// Whether the host's memory at this place is a point of the window from `first` to `last`.
    fn is_point(place: usize, first: usize, last: usize) -> bool {
        let every = (last - first).div_ceil(POINTS).max(1);
        (place - first).is_multiple_of(every)
    }

    /// The events of these decisions, as long as they are remembered one after the other: what is missing must not look as if nothing had
    /// happened.
    fn entries_of(&self, places: impl Iterator<Item = usize>) -> Vec<Vec<Arc<Entry>>> {
        places.map_while(|place| Some(self.seen.get(&place)?.entries.clone())).collect()
    }
}

fn frame_of(past: &Past) -> Frame {
    let mut status = past::status(past);
    status.decided_at = Some(moment(past.wall()));
    Frame::of(&status, past.wall(), None)
}

fn entries(events: &[Event]) -> Vec<Arc<Entry>> {
    let entry = |event: &Event| Entry {
        at: moment(event.wall),
        wall: event.wall,
        kind: of_event(event.kind),
        guest: event.guest.as_ref().map(|guest| printable(guest).into()),
        says: printable(&says(event.kind, event.guest.is_some(), &event.text)),
    };
    events.iter().map(|event| Arc::new(entry(event))).collect()
}

impl Source for Journal {
    fn refresh(&mut self) {
        let Some((first, last)) = self.window else { return };
        let begun = Instant::now();
        for place in first..=last {
            self.look_at(place, Self::is_point(place, first, last));
            if begun.elapsed() > PORTION {
                return;
            }
        }
        self.window = None;
    }

    fn link(&self) -> Link {
        Link::Recorded { complete: self.window.is_none() }
    }

    fn moments(&self) -> Option<(Moment, Moment)> {
        self.walls().map(|(first, last)| (moment(first), moment(last)))
    }

    fn at(&mut self, at: Moment) -> Option<Arc<Frame>> {
        let place = self.place(at);
        self.frame(place)
    }

    fn beside(&mut self, at: Moment, direction: Direction) -> Option<Moment> {
        let place = self.place(at);
        let beside = match direction {
            Direction::Later => place + 1,
            Direction::Earlier => place.checked_sub(1)?,
        };
        self.recorded.moment(beside).map(|(_, wall)| moment(wall))
    }

    fn event(&mut self, at: Moment, direction: Direction, wanted: Option<Kind>) -> Option<Entry> {
        let place = self.place(at);
        self.recorded.show(place).ok()?;
        let is_it = |event: &Event| wanted.is_none_or(|wanted| of_event(event.kind) == wanted);
        let past = match direction {
            Direction::Later => self.recorded.next_event(is_it),
            Direction::Earlier => self.recorded.previous_event(is_it),
        };
        let past = past.ok()??;
        let found = past.events.iter().find(|event| is_it(event))?;
        let mut entry = Entry::clone(entries(std::slice::from_ref(found)).first()?);
        // A note has a moment of its own, between two decisions.
        (entry.at, entry.wall) = (moment(past.wall()), past.wall());
        Some(entry)
    }

    fn log(&mut self, until: Moment, most: usize) -> Vec<Arc<Entry>> {
        let place = self.place(until);
        (place.saturating_sub(AROUND)..=place).for_each(|place| self.look_at(place, false));
        let mut decisions = self.entries_of((0..=place).rev());
        decisions.reverse();
        let all: Vec<Arc<Entry>> = decisions.into_iter().flatten().collect();
        all[all.len().saturating_sub(most)..].to_vec()
    }

    fn later(&mut self, after: Moment, most: usize) -> Vec<Arc<Entry>> {
        let place = self.place(after);
        let end = (place + AROUND).min(self.recorded.len().saturating_sub(1));
        (place + 1..=end).for_each(|place| self.look_at(place, false));
        self.entries_of(place + 1..self.recorded.len()).into_iter().flatten().take(most).collect()
    }

    fn course(&mut self, from: Moment, until: Moment, _most: usize) -> Vec<Host> {
        let (first, last) = (self.place(from), self.place(until));
        let points = (first..=last).filter(|place| Self::is_point(*place, first, last));
        let is_complete = (first..=last).all(|place| {
            let needs_host = Self::is_point(place, first, last);
            self.seen.get(&place).is_some_and(|seen| !needs_host || seen.host.is_some())
        });
        self.window = (!is_complete).then_some((first, last));
        let hosts = points.filter_map(|place| self.seen.get(&place)?.host);
        hosts.filter(|host| from <= host.at && host.at <= until).collect()
    }

    fn explain(&mut self, at: Moment, guest: &str) -> Option<String> {
        let place = self.place(at);
        let past = self.recorded.show(place).ok()?;
        let detail = past::guest(&self.recorded, &past, guest).ok()??;
        Some((self.explain)(&detail))
    }
}

#[cfg(test)]
mod tests {
    use memtide_model::Span;

    use super::*;

    fn journal() -> Journal {
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/demo-elastic.mtj");
        Journal::open(&trace, |detail| format!("{} explained", detail.status.name)).unwrap()
    }

    #[test]
    fn each_moment_of_a_journal_has_the_frame_that_was_live() {
        let mut journal = journal();
        let (first, last) = journal.moments().unwrap();
        let mut other =
            Recorded::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/demo-elastic.mtj"))
                .unwrap();
        for place in (0..other.len()).step_by(17) {
            let past = other.show(place).unwrap();
            let frame = journal.at(moment(past.wall())).unwrap();
            assert_eq!(frame.sentence, past::status(&past).in_a_sentence(), "{place}");
            assert_eq!(frame.rows.len(), past.published.last.unwrap().report.guests.len(), "{place}");
        }
        assert_eq!(journal.at(first.before(Span::from_secs(9))).unwrap().at, first);
        assert_eq!(journal.beside(last, Direction::Later), None);
        let earlier = journal.beside(last, Direction::Earlier).unwrap();
        assert_eq!(journal.beside(earlier, Direction::Later), Some(last));
    }

    #[test]
    fn the_graph_is_filled_in_portions_and_the_log_has_no_gaps() {
        let mut journal = journal();
        let (_, last) = journal.moments().unwrap();
        let from = last.before(Span::from_secs(600));
        journal.log(last, 100);
        journal.course(from, last, 100);
        while journal.link() == (Link::Recorded { complete: false }) {
            journal.refresh();
            journal.course(from, last, 100);
        }
        let points = journal.course(from, last, 100);
        assert!(points.len() > 50 && points.is_sorted_by_key(|host| host.at), "{}", points.len());
        let whole = journal.log(last, usize::MAX);
        assert!(whole.len() > 50 && whole.is_sorted_by_key(|entry| entry.at));
    }

    #[test]
    fn events_are_found_in_both_directions_and_guests_explained() {
        let mut journal = journal();
        let (first, last) = journal.moments().unwrap();
        let grant = journal.event(first, Direction::Later, Some(Kind::Change)).unwrap();
        let later = journal.event(grant.at, Direction::Later, Some(Kind::Change)).unwrap();
        assert!(later.at > grant.at && later.kind == Kind::Change);
        let back = journal.event(later.at, Direction::Earlier, Some(Kind::Change)).unwrap();
        assert_eq!(back.at, grant.at);
        let guest = Arc::clone(&journal.at(last).unwrap().rows[0].name);
        assert_eq!(journal.explain(last, &guest), Some(format!("{guest} explained")));
        assert_eq!(journal.explain(last, "nobody"), None);
    }
}
