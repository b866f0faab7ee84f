//! Why a run cannot be, or ended badly.

use std::io;

use memtide_model::Bytes;

/// Why a run cannot be, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// More memory than there is.
    #[error(
        "{asked} cannot be had: {set_by} leaves {left}; ask for less, or let it --grow to see how far it gets"
    )]
    NoRoom {
        /// What was asked for.
        asked: Bytes,
        /// What is left.
        left: Bytes,
        /// By whom.
        set_by: String,
    },
    /// The kernel refuses the memory.
    #[error("{0} of memory cannot be had")]
    Memory(Bytes, #[source] io::Error),
    /// The file cannot be opened.
    #[error("{0}")]
    File(String, #[source] io::Error),
    /// The file holds something else.
    #[error(
        "{0}: it holds something else, and stays as it is; name another --file (what others wrote can be read with \
         --kind cache, without --writes and --verify)"
    )]
    Foreign(String),
    /// The file is too short.
    #[error("{path}: it has {has} and cannot grow to {wants}")]
    Short {
        /// The file.
        path: String,
        /// Its size.
        has: Bytes,
        /// What was asked for.
        wants: Bytes,
    },
    /// The socket for orders.
    #[error("--control {0}")]
    Control(String, #[source] io::Error),
    /// A thread cannot go on.
    #[error("a thread cannot go on: {0}")]
    Thread(String),
    /// Nobody reads what is said.
    #[error("the output cannot be written")]
    Output(#[from] io::Error),
}

impl RunError {
    /// Whether the memory could not be had.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::NoRoom { .. } | Self::Memory(..))
    }
}
