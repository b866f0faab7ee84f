//! Writes a journal: one write per tick, bounded in size, able to continue after any failure.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::{Bytes, Record};

use super::JournalError;
use super::folder::{self, DirLock, Place};
use super::frame::{HEADER, beginning, encode};
use super::segment::{Next, Segment};

/// The least size of a segment. Otherwise a segment is an eighth of the whole journal.
const SMALLEST_SEGMENT: u64 = 1 << 20;

/// The longest wait for a writer whose daemon has ended.
const FINISHES_WITHIN: Duration = Duration::from_secs(1);

/// Writes the segments of one directory.
///
/// Deletes the oldest segments, so that all segments together stay within the allowed size. The segment being written always
/// stays, so a journal of less than 2 MiB can exceed its allowed size.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    most: u64,
    /// The right to write there, unless another process holds it.
    lock: Option<DirLock>,
    /// The directory that the right is for.
    place: Place,
    current: Option<Open>,
}

/// The segment that is being written.
#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
    /// The size of all whole frames, in bytes.
    size: u64,
}

/// A torn tail that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub path: PathBuf,
    /// The remaining size in bytes; 0: no whole frame was left, and the file was deleted.
    pub kept: u64,
    /// The size of the removed tail, in bytes.
    pub cut: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.kept {
            0 => write!(f, "{path}: deleted, because it held no complete record ({} bytes)", self.cut),
            _ => write!(f, "{path}: a torn tail of {} bytes was cut off", self.cut),
        }
    }
}

impl Writer {
    /// A writer of the journal in `dir`, of at most `most` bytes in all. Creates the directory if it is missing, and cuts off a
    /// torn tail of the newest segment. The first write begins a new segment. If another process still writes the newest segment, it gets a
    /// moment to finish.
    ///
    /// # Errors
    /// If the directory cannot be created or used, or if another process writes the journal in it.
    pub fn open(dir: &Path, most: Bytes) -> Result<(Self, Option<Cut>), JournalError> {
        let lock = DirLock::take(dir)?;
        let cut = match folder::list(dir)?.last() {
            Some(newest) if is_finished(&newest.path) => cut_torn_tail(&newest.path)?,
            _ => None,
        };
        let place = lock.place();
        Ok((Self { dir: dir.to_owned(), most: most.get(), lock: Some(lock), place, current: None }, cut))
    }

    /// Writes `records` with one system call. If the write begins a new segment and `records` does not begin with a
    /// [`Record::Start`], `start` gives the segment's first record.
    ///
    /// # Errors
    /// If a record is too large, or if the disk does not accept the write. The journal then contains none of `records`, and
    /// the next write begins a new segment.
    pub fn write(&mut self, start: impl FnOnce() -> Record, records: &[Record]) -> Result<(), JournalError> {
        // Taken out: after any failure from here on, the next write begins a new segment.
        let open = self.current.take();
        let mut frames = Vec::new();
        for record in records {
            encode(record, &mut frames)?;
        }
        let open = match open.filter(|open| self.goes_on(open, frames.len() as u64)) {
            Some(open) => open.append(&frames)?,
            None => self.begin(&beginning(start, records, frames)?)?,
        };
        self.current = Some(open);
        Ok(())
    }

    /// Writes whole frames with one system call: more of the present segment, or the [`beginning`] of a new one if it `begins`.
    ///
    /// # Errors
    /// If the disk does not accept the write, or if the present segment cannot go on. The next write must then begin a new segment.
    pub fn put(&mut self, frames: &[u8], begins: bool) -> Result<(), JournalError> {
        let open = self.current.take();
        let open = match open.filter(|open| self.goes_on(open, frames.len() as u64)) {
            _ if begins => self.begin(frames)?,
            Some(open) => open.append(frames)?,
            None => return Err(JournalError::Gone { path: self.dir.clone() }),
        };
        self.current = Some(open);
        Ok(())
    }

    /// The right to write into the directory, for another process that shall hold it in place of this one. There is one after the journal was
    /// opened, and after its directory was moved away.
    pub fn take_lock(&mut self) -> Option<OwnedFd> {
        self.lock.take().map(OwnedFd::from)
    }

    fn goes_on(&self, open: &Open, more: u64) -> bool {
        self.is_here() && open.takes(more, segment_limit(self.most))
    }

    /// Whether the directory is still the same one. If the journal was moved away, the next run would not read it.
    fn is_here(&self) -> bool {
        self.place.is(&self.dir)
    }

    /// Begins a new segment with `bytes`, and makes room for its greatest size.
    fn begin(&mut self, bytes: &[u8]) -> Result<Open, JournalError> {
        if !self.is_here() {
            self.lock = None;
            let lock = DirLock::take(&self.dir)?;
            self.place = lock.place();
            self.lock = Some(lock);
        }
        let size = bytes.len() as u64;
        let segments = folder::list(&self.dir)?;
        folder::shrink(&segments, self.most.saturating_sub(size.max(segment_limit(self.most))))?;
        let number = segments.last().map_or(1, |newest| newest.number.saturating_add(1));
        let path = folder::path_of(&self.dir, number);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let mut file = file.map_err(JournalError::io("create", &path))?;
        // For the next writer, which waits for this one. A file system without such locks has no journal either.
        let _nobody_else_knows_it = file.try_lock();
        match file.write_all(bytes) {
            Ok(()) => Ok(Open { file, path, size }),
            Err(error) => {
                // A segment without a whole first record is useless. If the removal fails, a reader reports the segment.
                let _ = fs::remove_file(&path);
                Err(JournalError::io("write", &path)(error))
            }
        }
    }
}

impl Open {
    /// Whether `more` bytes can go into this segment: there is room, and its file has not been deleted.
    fn takes(&self, more: u64, limit: u64) -> bool {
        self.size.saturating_add(more) <= limit && self.file.metadata().is_ok_and(|now| now.nlink() > 0)
    }

    fn append(mut self, bytes: &[u8]) -> Result<Self, JournalError> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.size += bytes.len() as u64;
                Ok(self)
            }
            Err(error) => {
                // A full disk leaves half a frame. After the cut, the segment can be read to its end. If the cut fails, too, a reader
                // reports the place.
                let _ = self.file.set_len(self.size);
                Err(JournalError::io("write", &self.path)(error))
            }
        }
    }
}

/// The size of a segment, in bytes, beyond which a new one begins, in a journal of at most `most` bytes.
#[must_use]
pub fn segment_limit(most: u64) -> u64 {
    (most / 8).max(SMALLEST_SEGMENT)
}

/// Whether nobody writes this segment any more. Waits a moment for a writer whose daemon has ended.
fn is_finished(path: &Path) -> bool {
    // Opening a pipe would wait.
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return true;
    }
    let Ok(file) = File::open(path) else { return true };
    let begun = Instant::now();
    while let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
        if begun.elapsed() >= FINISHES_WITHIN {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Cuts off everything that a crash left after the last whole frame of a segment. Leaves a corrupt or foreign file alone:
/// a reader reports the error, and no new record goes into that file.
fn cut_torn_tail(path: &Path) -> Result<Option<Cut>, JournalError> {
    let kept = match Segment::open(path) {
        Ok(Ok(mut segment)) => loop {
            match segment.next()? {
                Next::Payload { .. } => {}
                Next::Broken { offset, torn: true } => break offset,
                Next::End | Next::Broken { .. } => return Ok(None),
            }
        },
        Ok(Err(_)) => 0,
        Err(JournalError::NotAJournal { .. } | JournalError::OtherFormat { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let failed = |source| JournalError::Io { doing: "cut the torn tail of", path: path.to_owned(), source };
    let size = fs::metadata(path).map_err(failed)?.len();
    if kept <= HEADER as u64 {
        fs::remove_file(path).map_err(failed)?;
        return Ok(Some(Cut { path: path.to_owned(), kept: 0, cut: size }));
    }
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    file.set_len(kept).map_err(failed)?;
    Ok(Some(Cut { path: path.to_owned(), kept, cut: size - kept }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Reader;
    use memtide_model::Moment;
    use memtide_testing::start;

    fn note(number: u64) -> Record {
        Record::Note { at: Moment::from_millis(number), text: String::new() }
    }

    #[test]
    fn after_a_full_disk_the_journal_begins_a_new_segment() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = Writer::open(dir.path(), Bytes::from_mib(8)).unwrap();
        writer.write(start, &[note(0)]).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        writer.current.as_mut().unwrap().file = full;
        let error = writer.write(start, &[note(1)]).unwrap_err();
        assert!(
            matches!(&error, JournalError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull),
            "{error}"
        );
        writer.write(start, &[note(2)]).unwrap();
        let records: Vec<Record> = Reader::open(dir.path()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(records, [start(), note(0), start(), note(2)]);
    }

    #[test]
    fn after_a_record_that_is_too_large_the_journal_begins_a_new_segment() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = Writer::open(dir.path(), Bytes::from_mib(8)).unwrap();
        writer.write(start, &[note(0)]).unwrap();
        let large = Record::Note { at: Moment::default(), text: "x".repeat(crate::journal::LONGEST_FRAME) };
        assert!(matches!(writer.write(start, &[large]), Err(JournalError::TooLarge { .. })));
        writer.write(start, &[note(1)]).unwrap();
        let records: Vec<Record> = Reader::open(dir.path()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(records, [start(), note(0), start(), note(1)]);
    }
}
