//! What the screen asks for outside of itself, and the operator's orders in words.

use std::sync::Arc;

use memtide_api::view::Wanted;
use memtide_model::Mode;

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
        let (name, actual, full) = (&row.shown, row.actual, row.full);
        let says = match self {
            Self::Hold(Wanted::Hold) => {
                format!(
                    "{name} keeps its present {actual} of {full}. memtide neither takes memory from it nor gives it any until you resume it."
                )
            }
            Self::Hold(Wanted::Release) => {
                format!(
                    "{name} keeps {actual} now, and gets its limit as soon as the host has room. Other guests may have to give memory for it. memtide then leaves {name} alone until you resume it."
                )
            }
            Self::Hold(Wanted::Resume) => {
                let needs = row.needs.map_or_else(String::new, |needs| format!(", needs {needs}"));
                format!(
                    "memtide manages {name} again: it keeps {actual}{needs}, and its fair share is {}.",
                    row.entitlement
                )
            }
            Self::Reclaim => {
                format!(
                    "The agent in {name} drops page cache, and its balloon takes free memory. Page cache that is read again then comes from the disk."
                )
            }
        };
        match (frame.mode, self) {
            (Mode::Observe, Self::Reclaim) => format!("{says} This memtide only observes, and will refuse."),
            (Mode::Observe, _) => format!(
                "{says} This memtide only observes: it remembers the order, and changes nothing until it manages."
            ),
            (Mode::Manage, _) => says,
        }
    }
}
