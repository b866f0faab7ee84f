//! Reads the records of a journal, or of one segment, in their order.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use memtide_model::Record;

use super::segment::{Next, Segment};
use super::{JournalError, folder};

/// Reads records one by one, even while the journal is being written.
///
/// After an error, reading can continue: the next whole record after a corrupt place or an unknown record follows.
#[derive(Debug)]
pub struct Reader {
    /// The segments still to read, and whether one of them may already be deleted.
    waiting: VecDeque<PathBuf>,
    may_vanish: bool,
    current: Option<Segment>,
    torn: Option<TornTail>,
}

/// Part of a frame at the end of the newest segment, left by a crash or by a writer in the middle of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub path: PathBuf,
    /// The end of the last whole frame, in bytes.
    pub offset: u64,
}

impl Reader {
    /// A reader of `path`: a directory with a journal, or one segment.
    ///
    /// # Errors
    /// If the file or directory does not exist or cannot be read.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let metadata = fs::metadata(path).map_err(JournalError::io("open", path))?;
        let waiting = if metadata.is_dir() {
            folder::list(path)?.into_iter().map(|segment| segment.path).collect()
        } else {
            VecDeque::from([path.to_owned()])
        };
        Ok(Self { waiting, may_vanish: metadata.is_dir(), current: None, torn: None })
    }

    /// Whether there are no segments. Valid only before the first record is read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none()
    }

    /// The torn tail that was skipped, known after the last record.
    #[must_use]
    pub const fn torn(&self) -> Option<&TornTail> {
        self.torn.as_ref()
    }

    /// Opens the next segment. `Ok(false)`: there is no next segment.
    fn open_next(&mut self) -> Result<bool, JournalError> {
        while let Some(path) = self.waiting.pop_front() {
            match Segment::open(&path) {
                Ok(Ok(segment)) => {
                    self.current = Some(segment);
                    return Ok(true);
                }
                Ok(Err(_)) => self.broken(path, 0, true)?,
                // The writer deletes the oldest segments, and the list with this one is old.
                Err(JournalError::Io { source, .. })
                    if self.may_vanish && source.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Handles a broken place: a torn tail if it can be one, otherwise an error. If no whole frame follows, the segment ends here.
    fn broken(&mut self, path: PathBuf, offset: u64, torn: bool) -> Result<(), JournalError> {
        if torn {
            self.current = None;
        }
        if torn && self.waiting.is_empty() {
            self.torn = Some(TornTail { path, offset });
            Ok(())
        } else {
            Err(JournalError::Corrupt { path, offset })
        }
    }

    fn read(&mut self) -> Result<Option<Record>, JournalError> {
        loop {
            let Some(segment) = &mut self.current else {
                if self.open_next()? {
                    continue;
                }
                return Ok(None);
            };
            match segment.next() {
                Ok(Next::Payload { offset, payload }) => {
                    return segment.record(offset, &payload).map(Some);
                }
                Ok(Next::End) => self.current = None,
                Ok(Next::Broken { offset, torn }) => {
                    let path = segment.path().to_owned();
                    self.broken(path, offset, torn)?;
                }
                Err(error) => {
                    self.current = None;
                    return Err(error);
                }
            }
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Record, JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
