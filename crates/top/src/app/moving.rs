//! Moving through the guests, and through time.

use std::sync::Arc;

use memtide_model::{Moment, Span};

use super::{App, Typed};
use crate::clock;
use crate::source::{Direction, Kind};

/// The fastest play.
const FASTEST: u64 = 256;

impl App {
    /// Puts the cursor this number of guests further down.
    pub(super) fn move_by(&mut self, guests: isize) {
        let last = self.shown.list.len().saturating_sub(1);
        self.move_to(self.cursor_at().unwrap_or(0).saturating_add_signed(guests).min(last));
    }

    /// Puts the cursor on a guest of the list.
    pub(super) fn move_to(&mut self, place: usize) {
        if let Some(row) = self.shown.list.get(place) {
            self.cursor = Some(Arc::clone(&row.name));
        }
    }

    /// The moment that is shown, also if it is the newest.
    fn now(&self) -> Option<Moment> {
        self.shown.frame.as_ref().map(|frame| frame.at).or(self.at)
    }

    /// Stops at the present frame, or goes on: live with the newest, in a journal from here, or from the beginning at its end.
    pub(super) fn pause(&mut self) {
        if !self.link().is_recorded() {
            self.at = if self.at.is_some() { None } else { self.now() };
            return;
        }
        self.plays = !self.plays;
        let Some((first, last)) = self.source.moments() else { return };
        if self.plays && self.at.is_none_or(|at| at >= last) {
            self.at = Some(first);
        }
    }

    /// Plays a journal on by this span.
    pub(super) fn play(&mut self, passed: Span) {
        let (true, Some((_, last))) = (self.plays, self.source.moments()) else { return };
        let passed = Span::from_millis(passed.as_millis().saturating_mul(self.speed));
        self.at = self.at.map(|at| at.after(passed)).filter(|at| *at < last);
        self.plays = self.at.is_some();
    }

    /// Plays faster or slower.
    pub(super) fn change_speed(&mut self, direction: Direction) {
        self.speed = match direction {
            Direction::Later => (self.speed * 2).min(FASTEST),
            Direction::Earlier => (self.speed / 2).max(1),
        };
        self.notice = Some(format!("a journal plays at {} × its speed", self.speed));
    }

    /// Looks at the frame beside this one.
    pub(super) fn step(&mut self, direction: Direction) {
        let Some(now) = self.now() else { return };
        match (self.source.beside(now, direction), direction) {
            (Some(moment), _) => self.at = Some(moment),
            // Beyond the newest frame is the present.
            (None, Direction::Later) => self.at = None,
            (None, Direction::Earlier) => {
                self.at = Some(now);
                self.notice = Some("nothing earlier is kept".to_owned());
            }
        }
    }

    /// Goes back or forward by this number of seconds.
    pub(super) fn leap(&mut self, direction: Direction, seconds: u64) {
        let (Some(now), Some((first, last))) = (self.now(), self.source.moments()) else { return };
        let span = Span::from_secs(seconds);
        self.at = match direction {
            Direction::Earlier => Some(now.before(span).max(first)),
            Direction::Later => Some(now.after(span)).filter(|moment| *moment < last),
        };
    }

    /// Looks at the moment of the event beside this one.
    pub(super) fn jump(&mut self, direction: Direction) {
        let Some(now) = self.now() else { return };
        match self.source.event(now, direction, self.kind) {
            Some(entry) => {
                // The event's frame is the newest that is not later. Where frames are sparse, its moment is exact all the same.
                self.at = Some(entry.at);
                if let Some(guest) = &entry.guest
                    && let Some(row) = self.shown.list.iter().find(|row| row.shown == *guest)
                {
                    self.cursor = Some(Arc::clone(&row.name));
                }
            }
            None => {
                let what = self.kind.map_or("events", Kind::name);
                let place = match direction {
                    Direction::Later => "later",
                    Direction::Earlier => "earlier",
                };
                self.notice = Some(format!("no {place} {what} are kept"));
            }
        }
    }

    /// Chooses the next kind of events.
    pub(super) fn next_kind(&mut self) {
        self.kind = match self.kind {
            None => Some(Kind::ALL[0]),
            Some(kind) => {
                let at = Kind::ALL.iter().position(|other| *other == kind).unwrap_or(0);
                Kind::ALL.get(at + 1).copied()
            }
        };
        let what = self.kind.map_or("all events", Kind::name);
        self.notice = Some(format!("n and N now go to {what}"));
    }

    /// Takes a digit of a time of day, and goes there with the fourth.
    pub(super) fn digit(&mut self, digit: char) {
        let mut digits = match self.typed.take() {
            Some(Typed::Time(digits)) => digits,
            _ => String::new(),
        };
        digits.push(digit);
        if digits.len() < 4 {
            self.typed = Some(Typed::Time(digits));
            return;
        }
        let (hour, minute) = (digits[..2].parse().unwrap_or(-1), digits[2..].parse().unwrap_or(-1));
        let time = format!("{}:{}", &digits[..2], &digits[2..]);
        let (Some(frame), Some(kept)) = (self.shown.frame.clone(), self.source.moments()) else { return };
        match clock::moment_of((hour, minute), &frame, kept, &self.zone) {
            Some(moment) => self.at = Some(moment),
            None => self.say_what_is_kept(&time),
        }
    }

    /// Says that this time is not among those that can be looked at, and which are.
    pub(super) fn say_what_is_kept(&mut self, time: &str) {
        let (Some(frame), Some((first, last))) = (&self.shown.frame, self.source.moments()) else { return };
        let [from, to] = [first, last].map(|moment| clock::time(clock::at(frame, moment), &self.zone));
        let what = if self.link().is_recorded() { "the journal" } else { "what is kept" };
        self.notice = Some(format!("{time} is not in {what}: from {from} to {to}"));
    }
}
