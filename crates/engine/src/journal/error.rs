//! Errors of a journal.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{FORMAT, LONGEST_FRAME};

/// An error of a journal, and its place.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or directory could not be used.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process writes this journal.
    #[error("another process writes the journal in {}", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The journal was moved away or deleted while it was written.
    #[error("the journal in {} was moved away or deleted", path.display())]
    Gone {
        /// The directory.
        path: PathBuf,
    },
    /// The file does not begin like a journal's.
    #[error("{} is not a journal of memtide", path.display())]
    NotAJournal {
        /// The file.
        path: PathBuf,
    },
    /// The file has another format.
    #[error("{} has the journal format {format}, this memtide reads format {FORMAT}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The file's format.
        format: u32,
    },
    /// Bytes that are not a frame, with more data after them.
    #[error("{} is corrupt at byte {offset}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The offset of the broken frame, in bytes.
        offset: u64,
    },
    /// A whole frame whose content is not a record.
    #[error("{} holds an unknown record at byte {offset}: {why}", path.display())]
    UnknownRecord {
        /// The file.
        path: PathBuf,
        /// The offset of its frame, in bytes.
        offset: u64,
        /// Why it is not a record, in one line that quotes the file's content.
        why: String,
    },
    /// Nothing was decided at the place that was asked for.
    #[error("the journal has no decision there")]
    NoDecision,
    /// A record that is too large to be written.
    #[error("a record of {bytes} bytes exceeds the largest frame ({LONGEST_FRAME} bytes)")]
    TooLarge {
        /// The record's size in bytes.
        bytes: usize,
    },
}

impl JournalError {
    /// How an operator can fix it.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        let source = match self {
            Self::Io { source, .. } => source,
            Self::Gone { .. } => return "a new segment begins",
            _ => return "delete the file or move it away, if you do not need it",
        };
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "make room on its file system, or move the journal (`journal.dir`) or limit it (`journal.max`)"
            }
            ErrorKind::FileTooLarge => "raise memtide's limit of file sizes (`LimitFSIZE=`, `ulimit -f`)",
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "make the directory writable for memtide's user, or name a configuration (`--config FILE`) that moves the journal \
                 (`journal = { dir = … }`)"
            }
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                "put a directory there, or move the journal (`journal.dir`)"
            }
            _ => "check the file system, or move the journal (`journal.dir`)",
        }
    }

    /// An [`JournalError::Io`] at `path`, for `map_err`.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
