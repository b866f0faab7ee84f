//! What the screen asks for outside of itself, and the operator's orders in words.

use std::sync::Arc;

use memtide_api::orders::{self, Values};
use memtide_api::view::Wanted;

use crate::frame::{Frame, Row};

/// Something to be done outside of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// End the program.
    Quit,
    /// Draw everything again.
    Redraw,
    /// Give the order to the daemon.
    Order(Order),
    /// Ask the daemon what a reclaim from this guest would bring.
    Preview(Arc<str>),
    /// Ask the daemon to explain this guest.
    Explain(Arc<str>),
}

/// An order for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The guest.
    pub guest: Arc<str>,
    /// What is to happen to it.
    pub what: What,
}

/// What is to happen to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It is held, released or resumed.
    Hold(Wanted),
    /// It gives what it can spare.
    Reclaim,
}

/// What the daemon answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Why a guest has its memory, or why this is not known.
    Explained {
        /// The guest.
        guest: Arc<str>,
        /// The text.
        text: Result<String, String>,
    },
    /// What a reclaim would bring, or why this is not known.
    Previewed {
        /// The guest.
        guest: Arc<str>,
        /// The text.
        text: Result<String, String>,
    },
    /// What became of an order.
    Done {
        /// The order.
        order: Order,
        /// The daemon's answer, or why there is none.
        text: Result<String, String>,
    },
}

impl What {
    /// Its verb, for titles.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Hold(Wanted::Hold) => "hold",
            Self::Hold(Wanted::Release) => "release",
            Self::Hold(Wanted::Resume) => "resume",
            Self::Reclaim => "reclaim from",
        }
    }

    /// What will happen to this guest, in sentences.
    #[must_use]
    pub fn in_words(self, row: &Row, frame: &Frame) -> String {
        let order = match self {
            Self::Hold(wanted) => Some(wanted),
            Self::Reclaim => None,
        };
        let values = Values {
            name: &row.shown,
            actual: row.actual,
            full: row.full,
            needs: row.needs,
            share: row.entitlement,
        };
        orders::in_words(order, frame.mode, &values)
    }
}
