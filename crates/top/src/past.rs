//! The last ten minutes of a live daemon, in bounded memory.
//!
//! **Rule.** The graph keeps a point for each second or so. Of frames, as many stay as their guests allow: `MOST_ROWS` rows in all.
//! When there are more, every second frame of the older half goes. What is left is exact; only its steps become larger with age.

use std::collections::VecDeque;
use std::sync::Arc;

use memtide_api::recent::LastMinutes;
use memtide_model::{Moment, Span};

use crate::events;
use crate::frame::{Frame, Host};
use crate::source::{Direction, Entry, Kind};

/// How long frames stay.
pub const KEPT: Span = Span::from_secs(600);
/// The most rows of guests in all frames together.
const MOST_ROWS: usize = 12_000;
/// The most frames.
const MOST_FRAMES: usize = 1_200;
/// The most entries of the log.
const MOST_ENTRIES: usize = 2_000;
/// The least time between two points of the graph.
const POINT: Span = Span::from_millis(900);

/// What has come from a daemon.
#[derive(Debug, Default)]
pub struct Past {
    frames: VecDeque<Arc<Frame>>,
    rows: usize,
    points: VecDeque<Host>,
    entries: VecDeque<Arc<Entry>>,
}

impl Past {
    /// The newest frame.
    #[must_use]
    pub fn newest(&self) -> Option<&Arc<Frame>> {
        self.frames.back()
    }

    /// Takes over a frame, and the events that it shows beside the frame before it.
    pub fn push(&mut self, frame: Frame) {
        // A daemon on a host that was started anew has another clock.
        if self.newest().is_some_and(|newest| newest.at > frame.at) {
            *self = Self::default();
        }
        if self.newest().is_some_and(|newest| newest.at == frame.at) {
            return;
        }
        if let Some(before) = self.frames.back() {
            events::between(before, &frame)
                .into_iter()
                .for_each(|entry| self.entries.push_back(Arc::new(entry)));
        }
        if self.points.back().is_none_or(|last| frame.at.since(last.at) >= POINT) {
            self.points.push_back(frame.host);
        }
        self.rows += frame.rows.len();
        self.frames.push_back(Arc::new(frame));
        self.forget();
    }

    /// Takes over what was before the first frame: the course of the host, and what happened.
    pub fn begin(&mut self, minutes: &LastMinutes) {
        let Some(first) = self.frames.front().map(|frame| frame.at) else { return };
        let own = self.points.front().map_or(first, |point| point.at);
        for point in minutes.points.iter().rev().filter(|point| point.at < own) {
            self.points.push_front(Host::at_point(point));
        }
        // What happened with the first frame's decision is not in that frame.
        let after = first.after(Span::from_millis(1));
        let own = self.entries.front().map_or(after, |entry| entry.at.min(after));
        for happened in minutes.events.iter().rev().filter(|happened| happened.at < own) {
            self.entries.push_front(Arc::new(events::of_happened(happened)));
        }
        self.forget();
    }

    /// Takes over an event.
    pub fn log_entry(&mut self, entry: Entry) {
        self.entries.push_back(Arc::new(entry));
    }

    fn forget(&mut self) {
        let Some(newest) = self.newest().map(|frame| frame.at) else { return };
        let is_old = |at: Moment| newest.since(at) > KEPT;
        while self.frames.front().is_some_and(|frame| is_old(frame.at)) {
            let gone = self.frames.pop_front();
            self.rows -= gone.map_or(0, |frame| frame.rows.len());
        }
        while self.points.front().is_some_and(|point| is_old(point.at)) {
            self.points.pop_front();
        }
        while self.entries.front().is_some_and(|entry| is_old(entry.at)) || self.entries.len() > MOST_ENTRIES
        {
            self.entries.pop_front();
        }
        if self.rows > MOST_ROWS || self.frames.len() > MOST_FRAMES {
            self.thin();
        }
    }

    /// Drops every second frame of the older half.
    fn thin(&mut self) {
        let half = self.frames.len() / 2;
        let mut nth = 0;
        self.frames.retain(|_| {
            nth += 1;
            nth > half || nth % 2 == 1
        });
        self.rows = self.frames.iter().map(|frame| frame.rows.len()).sum();
    }

    /// The number of frames that are not later than this moment.
    fn until(&self, moment: Moment) -> usize {
        self.frames.partition_point(|frame| frame.at <= moment)
    }

    /// The first moment and the last one.
    #[must_use]
    pub fn moments(&self) -> Option<(Moment, Moment)> {
        Some((self.frames.front()?.at, self.frames.back()?.at))
    }

    /// The newest frame that is not later than the moment, or the first one.
    #[must_use]
    pub fn at(&self, moment: Moment) -> Option<Arc<Frame>> {
        self.frames.get(self.until(moment).saturating_sub(1)).cloned()
    }

    /// The moment of the frame beside this one.
    #[must_use]
    pub fn beside(&self, moment: Moment, direction: Direction) -> Option<Moment> {
        let at = match direction {
            Direction::Later => self.until(moment),
            Direction::Earlier => self.frames.partition_point(|frame| frame.at < moment).checked_sub(1)?,
        };
        self.frames.get(at).map(|frame| frame.at)
    }

    /// The event beside this moment.
    #[must_use]
    pub fn event(&self, moment: Moment, direction: Direction, kind: Option<Kind>) -> Option<Entry> {
        let is_it = |entry: &&Arc<Entry>| kind.is_none_or(|kind| entry.kind == kind);
        let found = match direction {
            Direction::Later => self.entries.iter().filter(|entry| entry.at > moment).find(is_it),
            Direction::Earlier => self.entries.iter().rev().filter(|entry| entry.at < moment).find(is_it),
        };
        found.map(|entry| Entry::clone(entry))
    }

    /// The last events up to a moment.
    #[must_use]
    pub fn log(&self, until: Moment, most: usize) -> Vec<Arc<Entry>> {
        let end = self.entries.partition_point(|entry| entry.at <= until);
        self.entries.range(end.saturating_sub(most)..end).cloned().collect()
    }

    /// The first events after a moment.
    #[must_use]
    pub fn later(&self, after: Moment, most: usize) -> Vec<Arc<Entry>> {
        let begin = self.entries.partition_point(|entry| entry.at <= after);
        self.entries.range(begin..).take(most).cloned().collect()
    }

    /// The host's memory between two moments.
    #[must_use]
    pub fn course(&self, from: Moment, until: Moment, most: usize) -> Vec<Host> {
        let within: Vec<Host> =
            self.points.iter().filter(|point| from <= point.at && point.at <= until).copied().collect();
        let every = within.len().div_ceil(most.max(1)).max(1);
        within.into_iter().rev().step_by(every).collect::<Vec<_>>().into_iter().rev().collect()
    }
}

#[cfg(test)]
mod tests {
    use memtide_api::recent::{Happened, HostPoint};
    use memtide_engine::EventKind;

    use super::*;
    use crate::sample;

    fn past(seconds: u64, guests: u64) -> Past {
        let mut past = Past::default();
        for second in 0..seconds {
            let status = sample::status(guests, second);
            let frame = Frame::of(&status, sample::wall(second), past.newest().map(AsRef::as_ref));
            past.push(frame);
        }
        past
    }

    #[test]
    fn ten_minutes_stay_and_no_more() {
        let past = past(700, 2);
        let (first, last) = past.moments().unwrap();
        assert_eq!(last.since(first), KEPT);
        assert_eq!(past.at(first.before(Span::from_secs(5))).unwrap().at, first, "nothing is earlier");
        let middle = first.after(Span::from_millis(10_500));
        assert_eq!(past.at(middle).unwrap().at, first.after(Span::from_secs(10)));
        assert_eq!(past.beside(middle, Direction::Later), Some(first.after(Span::from_secs(11))));
        assert_eq!(past.beside(middle, Direction::Earlier), Some(first.after(Span::from_secs(10))));
        assert_eq!(past.beside(last, Direction::Later), None);
        assert_eq!(past.beside(first, Direction::Earlier), None);
        assert!(past.course(first, last, 80).len() <= 80);
    }

    #[test]
    fn what_the_daemon_remembers_comes_before_the_first_frame() {
        let mut past = past(3, 1);
        let (first, _) = past.moments().unwrap();
        let point = |ago| HostPoint { at: first.before(Span::from_secs(ago)), ..HostPoint::default() };
        let event = |ago, says: &str| Happened {
            at: first.before(Span::from_secs(ago)),
            wall: sample::wall(0),
            kind: EventKind::Order,
            guest: None,
            says: says.to_owned(),
        };
        let own = past.course(first, first, 10);
        past.begin(&LastMinutes {
            points: vec![point(700), point(60), point(0)],
            events: vec![event(60, "earlier"), event(0, "with the first frame")],
            ..LastMinutes::default()
        });
        let course = past.course(first.before(Span::from_secs(900)), first, 10);
        assert_eq!(
            (course.len(), course[0].at),
            (2, first.before(Span::from_secs(60))),
            "ten minutes, each point once"
        );
        assert_eq!(course[1..], own);
        let says: Vec<String> = past.log(first, 10).iter().map(|entry| entry.says.clone()).collect();
        assert_eq!(says, ["earlier", "with the first frame"]);
    }

    #[test]
    fn many_guests_make_older_steps_larger_and_not_the_memory() {
        let past = past(600, 500);
        assert!(past.rows <= MOST_ROWS, "{}", past.rows);
        let (first, last) = past.moments().unwrap();
        assert!(
            last.since(first) > Span::from_secs(400),
            "the past still reaches back: {}",
            last.since(first)
        );
        let before = past.beside(last, Direction::Earlier).unwrap();
        assert_eq!(last.since(before), Span::from_secs(1), "the newest steps are whole");
    }

    #[test]
    fn a_host_that_was_started_anew_begins_again() {
        let mut past = past(10, 1);
        past.push(Frame::of(&sample::status(1, 3), sample::wall(20), None));
        assert_eq!(past.moments().map(|(first, last)| last.since(first)), Some(Span::ZERO));
    }

    #[test]
    fn what_does_not_change_is_kept_once() {
        let past = past(3, 2);
        let frames: Vec<_> = past.frames.iter().collect();
        assert!(Arc::ptr_eq(&frames[0].rows[1].name, &frames[2].rows[1].name));
        assert!(Arc::ptr_eq(&frames[0].rows[1], &frames[2].rows[1]), "a guest at rest");
        assert!(!Arc::ptr_eq(&frames[0].rows[0], &frames[2].rows[0]), "a guest that moves");
    }
}
