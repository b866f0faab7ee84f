//! A directory of segments. Only one writer at a time can hold it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::JournalError;

const ENDING: &str = ".mtj";

/// A segment in its directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listed {
    pub(super) number: u64,
    pub(super) path: PathBuf,
}

/// The segments in `dir`, oldest first. Other files are ignored.
pub(super) fn list(dir: &Path) -> Result<Vec<Listed>, JournalError> {
    let failed = |source| JournalError::Io { doing: "list", path: dir.to_owned(), source };
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Some(number) = entry.file_name().to_str().and_then(number_of) {
            segments.push(Listed { number, path: entry.path() });
        }
    }
    segments.sort();
    Ok(segments)
}

/// The segments in `dir`, oldest first.
///
/// # Errors
/// If the directory cannot be listed.
pub fn segments(dir: &Path) -> Result<Vec<PathBuf>, JournalError> {
    Ok(list(dir)?.into_iter().map(|segment| segment.path).collect())
}

/// The path of segment `number`.
pub(super) fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:06}{ENDING}"))
}

fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(ENDING)?;
    let is_number = digits.len() >= 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// The exclusive right to write into a directory. Dropping it gives the right up.
#[derive(Debug)]
pub(super) struct DirLock {
    directory: File,
}

impl DirLock {
    /// Takes `dir`. Creates it with mode 0700 if it is missing.
    pub(super) fn take(dir: &Path) -> Result<Self, JournalError> {
        // Opened first: on a frozen file system, making a directory waits, also one that is there.
        let opened = match File::open(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
                made.map_err(JournalError::io("create the directory", dir))?;
                File::open(dir)
            }
            opened => opened,
        };
        let directory = opened.map_err(JournalError::io("open", dir))?;
        match directory.try_lock() {
            Ok(()) => Ok(Self { directory }),
            Err(TryLockError::WouldBlock) => Err(JournalError::InUse { path: dir.to_owned() }),
            Err(TryLockError::Error(source)) => {
                Err(JournalError::Io { doing: "lock", path: dir.to_owned(), source })
            }
        }
    }

    /// The directory that this right is for.
    pub(super) fn place(&self) -> Place {
        Place(self.directory.metadata().ok().map(|now| (now.dev(), now.ino())))
    }
}

impl From<DirLock> for OwnedFd {
    /// The right lasts as long as this descriptor.
    fn from(lock: DirLock) -> Self {
        lock.directory.into()
    }
}

/// A directory's device and inode, if they could be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(Option<(u64, u64)>);

impl Place {
    /// Whether `dir` still is this directory.
    pub(super) fn is(self, dir: &Path) -> bool {
        let now = || fs::metadata(dir).ok().map(|now| (now.dev(), now.ino()));
        self.0.is_some_and(|place| now() == Some(place))
    }
}

/// Deletes the oldest of `segments` until the rest is at most `most` bytes.
pub(super) fn shrink(segments: &[Listed], most: u64) -> Result<(), JournalError> {
    let mut sizes = Vec::with_capacity(segments.len());
    for segment in segments {
        match fs::metadata(&segment.path) {
            Ok(metadata) => sizes.push(metadata.len()),
            Err(error) if error.kind() == ErrorKind::NotFound => sizes.push(0),
            Err(error) => return Err(JournalError::io("look at", &segment.path)(error)),
        }
    }
    let mut total: u64 = sizes.iter().sum();
    for (segment, size) in segments.iter().zip(sizes) {
        if total <= most {
            break;
        }
        match fs::remove_file(&segment.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(JournalError::io("delete", &segment.path)(error));
            }
            _ => total -= size,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_told_from_other_files_and_sorted_by_number() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["1000000.mtj", "000002.mtj", "999999.mtj", "12.mtj", "000003.txt", "00000x.mtj", "+00001.mtj"]
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let numbers: Vec<u64> = list(dir.path()).unwrap().iter().map(|segment| segment.number).collect();
        assert_eq!(numbers, [2, 999_999, 1_000_000]);
        assert_eq!(path_of(dir.path(), 2), dir.path().join("000002.mtj"));
    }

    #[test]
    fn a_directory_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::take(dir.path()).unwrap();
        assert!(lock.place().is(dir.path()));
        assert!(matches!(DirLock::take(dir.path()), Err(JournalError::InUse { .. })));
        drop(lock);
        DirLock::take(dir.path()).unwrap();
    }
}
