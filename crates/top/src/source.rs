//! Where frames come from, at the edge of the program: a live daemon, or a journal.
//!
//! **Rule.** Time is the host's boot clock. A source gives the frame of any moment between its first and its last: the newest one
//! that is not later. The screen asks the same questions of every source, so the same keys work on each.

use std::sync::Arc;

use memtide_model::{Moment, WallClock};

use crate::frame::{Frame, Host};

/// Something that happened, for the running log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time, by the host's boot clock.
    pub at: Moment,
    /// The time, for people.
    pub wall: WallClock,
    /// What kind of event it is.
    pub kind: Kind,
    /// The guest, as the status shows it; `None` if it is about the host.
    pub guest: Option<Arc<str>>,
    /// What happened, as a sentence; that of a guest goes on after its name.
    pub says: String,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// memtide changed a guest.
    Change,
    /// A change failed, or was refused.
    Failure,
    /// A guest began to wait for memory, or no longer waits; it stalled, or a program was killed.
    Wait,
    /// A guest came or went.
    Guests,
    /// The operator gave an order.
    Order,
    /// The host became shorter of memory, or less short; or the daemon started or ended.
    Host,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Wait, Self::Change, Self::Failure, Self::Order, Self::Guests, Self::Host];

    /// The name of these events, in the plural.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Change => "changes",
            Self::Failure => "failures",
            Self::Wait => "waits and stalls",
            Self::Guests => "guests that come or go",
            Self::Order => "orders",
            Self::Host => "states of the host",
        }
    }
}

/// Which way to look for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Towards the present.
    Later,
    /// Towards the past.
    Earlier,
}

/// Whether frames still come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing has come yet.
    Awaited,
    /// New frames come by themselves.
    Live,
    /// The daemon does not answer, for this reason; somebody keeps asking.
    Lost(String),
    /// Nothing new ever comes: it is a journal, and orders are refused.
    Recorded {
        /// Whether the graph is complete; if not, each refresh fills some of it.
        complete: bool,
    },
}

impl Link {
    /// Whether it is a journal.
    #[must_use]
    pub const fn is_recorded(&self) -> bool {
        matches!(self, Self::Recorded { .. })
    }
}

/// Delivers frames.
pub trait Source {
    /// Takes over everything that has come since the last call, without waiting.
    fn refresh(&mut self);
    /// Whether frames still come.
    fn link(&self) -> Link;
    /// The first moment and the last one; `None` before the first frame.
    fn moments(&self) -> Option<(Moment, Moment)>;
    /// The frame at a moment: the newest that is not later, or the first one.
    fn at(&mut self, moment: Moment) -> Option<Arc<Frame>>;
    /// The moment of the frame beside this moment.
    fn beside(&mut self, moment: Moment, direction: Direction) -> Option<Moment>;
    /// The event beside this moment, of one kind or of any.
    fn event(&mut self, moment: Moment, direction: Direction, kind: Option<Kind>) -> Option<Entry>;
    /// The last events up to a moment, at most this number of them, the oldest first.
    fn log(&mut self, until: Moment, most: usize) -> Vec<Arc<Entry>>;
    /// The first events after a moment, at most this number of them, the oldest first.
    fn later(&mut self, after: Moment, most: usize) -> Vec<Arc<Entry>>;
    /// Why a guest had its memory at a moment, if the source itself can tell.
    fn explain(&mut self, _at: Moment, _guest: &str) -> Option<String> {
        None
    }
    /// The host's memory from one moment to another, at most this number of points, the oldest first.
    fn course(&mut self, from: Moment, until: Moment, most: usize) -> Vec<Host>;
}
