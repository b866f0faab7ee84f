//! The state of the screen, and what each event changes of it. No clock, no terminal, no socket.

mod answers;
mod keys;
mod mouse;
mod moving;
pub mod orders;
pub mod panel;
mod reading;
pub mod why;

use std::sync::Arc;

use jiff::tz::TimeZone;
use memtide_model::{Moment, Span};
use ratatui::crossterm::event::{KeyEvent, MouseEvent};
use ratatui::layout::Size;

use crate::clock;
use crate::frame::{Frame, Host, Row};
use crate::layout::{Layout, Needs, View};
use crate::source::{Entry, Kind, Link, Source};
use crate::text;
use orders::{Answer, Wish};
use panel::Panel;

/// The time that the graph shows.
pub const WINDOW: Span = Span::from_secs(600);
/// The time over which stalls are counted.
pub const STALLS: Span = Span::from_secs(10);
/// The most points of the graph.
const MOST_POINTS: usize = 1_000;
/// The most entries of the log that a screen shows.
const MOST_ENTRIES: usize = 200;

/// Something that happened to the screen.
#[derive(Debug)]
pub enum Event {
    /// A key was pressed.
    Key(KeyEvent),
    /// The mouse was used.
    Mouse(MouseEvent),
    /// The terminal has another size.
    Resized(Size),
    /// The source has something new.
    Arrived,
    /// This time has passed, and a journal is played or its graph is filled.
    Beat(Span),
    /// The daemon has answered.
    Answered(Answer),
    /// The program is to end.
    End,
}

/// The order of the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Those first that matter now.
    Now,
    /// By name.
    Name,
    /// The most expensive first.
    Cost,
    /// Those first that use most.
    Used,
    /// Those first that stall most.
    Stalls,
}

impl Sort {
    /// The next order.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::Now => Self::Name,
            Self::Name => Self::Cost,
            Self::Cost => Self::Used,
            Self::Used => Self::Stalls,
            Self::Stalls => Self::Now,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Now => "what matters now",
            Self::Name => "name",
            Self::Cost => "cost",
            Self::Used => "memory in use",
            Self::Stalls => "stalls",
        }
    }
}

/// What is being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// A filter of names.
    Filter,
    /// A time of day: digits.
    Time(String),
}

/// What the screen shows of the source at the chosen moment.
#[derive(Debug, Default)]
pub struct Shown {
    /// The frame.
    pub frame: Option<Arc<Frame>>,
    /// The frame from which stalls are counted.
    pub earlier: Option<Arc<Frame>>,
    /// The guests that the filter lets pass, in their order.
    pub list: Vec<Arc<Row>>,
    /// The host's memory in the window of the graph, the oldest first.
    pub course: Vec<Host>,
    /// The end of this window.
    pub end: Moment,
    /// What happened until the moment, the oldest first.
    pub log: Vec<Arc<Entry>>,
    /// What happened after it, the oldest first.
    pub later: Vec<Arc<Entry>>,
}

/// The screen.
pub struct App {
    source: Box<dyn Source>,
    /// The time zone of the people who look.
    pub zone: TimeZone,
    /// The size of the terminal.
    pub size: Size,
    /// The moment that is looked at; `None` follows the newest.
    pub at: Option<Moment>,
    /// What there is to see.
    pub shown: Shown,
    /// The name of the guest under the cursor.
    pub cursor: Option<Arc<str>>,
    /// The first guest of the list that is visible.
    pub first: usize,
    /// The order of the guests.
    pub sort: Sort,
    /// Only guests with this text in their names are shown.
    pub filter: String,
    /// What is being typed.
    pub typed: Option<Typed>,
    /// What covers the screen.
    pub panel: Option<Panel>,
    /// What fills the screen.
    pub view: View,
    /// Whether a journal is being played.
    pub plays: bool,
    /// How many times faster than it was recorded.
    pub speed: u64,
    /// The kind of events to jump to; `None` means any.
    pub kind: Option<Kind>,
    /// A sentence about the last key.
    pub notice: Option<String>,
    wishes: Vec<Wish>,
}

impl App {
    /// A screen of this size for a source.
    #[must_use]
    pub fn new(source: Box<dyn Source>, zone: TimeZone, size: Size) -> Self {
        let mut app = Self {
            source,
            zone,
            size,
            at: None,
            shown: Shown::default(),
            cursor: None,
            first: 0,
            sort: Sort::Now,
            filter: String::new(),
            typed: None,
            panel: None,
            view: View::All,
            plays: false,
            speed: 1,
            kind: None,
            notice: None,
            wishes: Vec::new(),
        };
        app.look();
        app
    }

    /// Takes an event over, and returns what is to be done outside of the screen.
    pub fn update(&mut self, event: Event) -> Vec<Wish> {
        match event {
            Event::Key(key) => self.key(key),
            Event::Mouse(mouse) => self.mouse(mouse),
            Event::Resized(size) => self.size = size,
            Event::Arrived => self.arrived(),
            Event::Beat(passed) => {
                self.source.refresh();
                self.play(passed);
            }
            Event::Answered(answer) => self.answered(answer),
            Event::End => self.wishes.push(Wish::Quit),
        }
        self.look();
        std::mem::take(&mut self.wishes)
    }

    /// Looks at this moment.
    pub fn go_to(&mut self, moment: Moment) {
        self.at = Some(moment);
        self.look();
        if self.source.moments().is_some_and(|(first, last)| moment < first || last < moment) {
            self.say_what_is_kept("this time");
        }
    }

    /// Whether frames still come.
    #[must_use]
    pub fn link(&self) -> Link {
        self.source.link()
    }

    /// Whether something changes with time alone: a journal that is played, or whose graph is not complete.
    #[must_use]
    pub fn has_beats(&self) -> bool {
        self.plays || self.link() == Link::Recorded { complete: false }
    }

    /// Whether the screen shows the newest frame of a live daemon.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.at.is_none() && self.link() == Link::Live
    }

    /// The places of everything on the screen.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let frame = self.shown.frame.as_ref();
        let needs = Needs {
            view: self.view,
            guests: self.shown.list.len(),
            sentence: frame.and_then(|frame| frame.sentence.as_deref()).map_or(0, text::width),
            warns: frame.is_some_and(|frame| !frame.warnings.is_empty()),
        };
        Layout::of(self.size, needs)
    }

    /// The place of the cursor in the list.
    #[must_use]
    pub fn cursor_at(&self) -> Option<usize> {
        let name = self.cursor.as_ref()?;
        self.shown.list.iter().position(|row| row.name == *name)
    }

    /// The guest under the cursor.
    #[must_use]
    pub fn chosen(&self) -> Option<&Arc<Row>> {
        self.shown.list.get(self.cursor_at()?)
    }

    fn arrived(&mut self) {
        self.source.refresh();
        if let Some(Panel::Explain { guest, .. }) = &self.panel
            && self.is_live()
        {
            self.wishes.push(Wish::Explain(Arc::clone(guest)));
        }
    }

    /// Gathers what there is to see.
    fn look(&mut self) {
        let Some((first, last)) = self.source.moments() else { return };
        let at = self.at.unwrap_or(last).clamp(first, last);
        let end = if last.since(at) <= WINDOW { last } else { at.after(Span::from_secs(300)) };
        // In the order of time: a journal is decided again from one to the next.
        let earlier = self.source.at(at.before(STALLS));
        let log = self.source.log(at, MOST_ENTRIES);
        let frame = self.source.at(at);
        let list = frame.as_ref().map(|frame| self.list(frame, earlier.as_deref())).unwrap_or_default();
        let course = self.source.course(end.before(WINDOW), end, MOST_POINTS);
        let later = if self.at.is_some() { self.source.later(at, MOST_ENTRIES) } else { Vec::new() };
        self.shown = Shown { frame, earlier, list, course, end, log, later };
        if self.cursor_at().is_none() {
            self.cursor = self.shown.list.first().map(|row| Arc::clone(&row.name));
        }
        self.keep_in_view();
        if let Some(Panel::Explain { guest, text, .. }) = &mut self.panel
            && let Some(told) = self.source.explain(at, guest)
        {
            *text = Some(text::printable_lines(&told));
        }
    }

    /// The guests that the filter lets pass, in their order.
    fn list(&self, frame: &Frame, earlier: Option<&Frame>) -> Vec<Arc<Row>> {
        let wanted = self.filter.to_lowercase();
        let passes = |row: &&Arc<Row>| wanted.is_empty() || row.shown.to_lowercase().contains(&wanted);
        let mut list: Vec<Arc<Row>> = frame.rows.iter().filter(passes).cloned().collect();
        match self.sort {
            Sort::Now => list.sort_by_key(|row| row.matter),
            Sort::Name => list.sort_by(|one, other| one.shown.cmp(&other.shown)),
            Sort::Cost => list.sort_by_key(|row| std::cmp::Reverse(row.cost.map(|cost| cost.sum()))),
            Sort::Used => list.sort_by_key(|row| std::cmp::Reverse(row.size.used)),
            Sort::Stalls => {
                let earlier: std::collections::HashMap<&str, &Row> =
                    earlier.iter().flat_map(|frame| &frame.rows).map(|row| (&*row.name, &**row)).collect();
                list.sort_by_cached_key(|row| {
                    let more = earlier.get(&*row.name).map(|before| row.stalled_since(before));
                    std::cmp::Reverse(more)
                });
            }
        }
        list
    }

    /// Moves the list so that the cursor is visible.
    fn keep_in_view(&mut self) {
        let visible = self.layout().visible().max(1);
        let at = self.cursor_at().unwrap_or(0);
        let most = self.shown.list.len().saturating_sub(visible);
        self.first = self.first.clamp((at + 1).saturating_sub(visible), at).min(most);
    }

    /// The time of day of a moment, by the frame that is shown.
    #[must_use]
    pub fn time_of(&self, moment: Moment) -> Option<String> {
        let frame = self.shown.frame.as_ref()?;
        Some(clock::time(clock::at(frame, moment), &self.zone))
    }
}
