//! What goes wrong with a journal.

use std::io;
use std::path::{Path, PathBuf};

use super::frame::{FORMAT, LONGEST_FRAME};

/// What went wrong with a journal, and where.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or directory could not be used.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another process writes this journal.
    #[error("another process writes the journal in {}", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The file does not begin like a journal's.
    #[error("{} is no journal of memtide's", path.display())]
    NotAJournal {
        /// The file.
        path: PathBuf,
    },
    /// The file was written in another format.
    #[error("{} has the journal format {format}, this memtide reads format {FORMAT}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// Bytes that are no frame, with something after them.
    #[error("{} is corrupt at byte {offset}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where the broken frame begins, in bytes.
        offset: u64,
    },
    /// A whole frame whose content is no record.
    #[error("{} holds an unknown record at byte {offset}", path.display())]
    UnknownRecord {
        /// The file.
        path: PathBuf,
        /// Where its frame begins, in bytes.
        offset: u64,
        /// Why it is no record.
        source: serde_json::Error,
    },
    /// A record that is too large to be written.
    #[error("a record of {bytes} bytes is larger than a frame may be ({LONGEST_FRAME} bytes)")]
    TooLarge {
        /// The record's size in bytes.
        bytes: usize,
    },
}

impl JournalError {
    /// An [`JournalError::Io`] at `path`, for `map_err`.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
