//! Why a run cannot start or has failed.

use std::io;

use memtide_model::Bytes;

/// Why a run cannot start or has failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Not enough memory.
    #[error(
        "{asked} is not available: {set_by} leaves {left}; ask for less, or let it --grow to see how far it gets"
    )]
    TooLittle {
        /// The requested memory.
        asked: Bytes,
        /// The memory left.
        left: Bytes,
        /// The part of the system that sets the limit.
        set_by: String,
    },
    /// The kernel refused the memory.
    #[error("{0} of memory is not available")]
    Memory(Bytes, #[source] io::Error),
    /// The file cannot be opened.
    #[error("{0}")]
    File(String, #[source] io::Error),
    /// The file holds other content.
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
        /// The requested size.
        wants: Bytes,
    },
    /// The control socket failed.
    #[error("--control {0}")]
    Control(String, #[source] io::Error),
    /// A thread failed.
    #[error("a thread cannot go on: {0}")]
    Thread(String),
    /// Nobody reads the output.
    #[error("the output cannot be written")]
    Output(#[from] io::Error),
}

impl RunError {
    /// Whether the memory was not available.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::TooLittle { .. } | Self::Memory(..))
    }
}
