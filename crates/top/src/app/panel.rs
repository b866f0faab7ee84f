//! What covers the screen for a while.

use std::sync::Arc;

use super::orders::Order;

/// What covers the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Panel {
    /// The keys.
    Help {
        /// The first visible line.
        scroll: usize,
    },
    /// Why a guest has its memory.
    Explain {
        /// The guest.
        guest: Arc<str>,
        /// The text; `None` until the daemon answers.
        text: Option<String>,
        /// The first visible line.
        scroll: usize,
    },
    /// A question before an order.
    Confirm {
        /// The order.
        order: Order,
        /// What will happen.
        says: String,
        /// What a reclaim would bring; `None` until the daemon answers.
        preview: Option<String>,
    },
    /// Something to read.
    Text {
        /// Its title.
        title: String,
        /// The text.
        text: String,
        /// The first visible line.
        scroll: usize,
    },
}

impl Panel {
    /// Moves the text.
    pub(super) fn scroll_by(&mut self, lines: isize) {
        match self {
            Self::Help { scroll } | Self::Explain { scroll, .. } | Self::Text { scroll, .. } => {
                *scroll = scroll.saturating_add_signed(lines);
            }
            Self::Confirm { .. } => {}
        }
    }

    /// Goes to the first line.
    pub(super) fn scroll_home(&mut self) {
        self.scroll_by(isize::MIN);
    }
}
