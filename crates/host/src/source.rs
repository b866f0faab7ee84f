//! A kernel file that stays open.
//!
//! The kernel generates a file of `/proc`, `/sys` or a cgroup again whenever it is read from its start. Opening costs more than reading, so
//! files that are read every tick stay open. An open file below `/proc/PID` also never describes another process with the same number: once
//! its process has ended, reading fails.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{HostError, ParseError};

/// The buffer that sources are read into. One is enough for a thread.
#[derive(Debug, Default)]
pub struct Scratch(Vec<u8>);

/// The initial size of the buffer: larger than each of these files, so it rarely grows.
const FIRST_SIZE: usize = 16 << 10;
/// Longer than any of the files that are read whole.
const MAX_SIZE: usize = 1 << 20;

/// A kernel file that stays open and is read again from its start.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    file: File,
}

impl Source {
    /// Opens the file.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, HostError> {
        let path = path.into();
        match File::open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(HostError::Read { path, source }),
        }
    }

    /// The file that is open already; errors name `path`.
    pub(crate) const fn of(path: PathBuf, file: File) -> Self {
        Self { path, file }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file and parses it.
    ///
    /// # Errors
    /// If the file cannot be read, or if `parse` refuses it.
    pub fn parse<T>(
        &self,
        scratch: &mut Scratch,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, HostError> {
        let bytes = self.fill(scratch, false)?;
        self.apply(bytes, parse)
    }

    /// Does the same for a file of a single line, with one system call: the end of the line is the end of the file.
    ///
    /// # Errors
    /// If the file cannot be read, or if `parse` refuses it.
    pub fn parse_line<T>(
        &self,
        scratch: &mut Scratch,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, HostError> {
        let bytes = self.fill(scratch, true)?;
        self.apply(bytes, parse)
    }

    fn apply<T>(
        &self,
        bytes: &[u8],
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, HostError> {
        std::str::from_utf8(bytes)
            .map_err(|_| ParseError::NotText)
            .and_then(parse)
            .map_err(|source| HostError::malformed(&self.path, source))
    }

    fn fill<'s>(&self, Scratch(buffer): &'s mut Scratch, line: bool) -> Result<&'s [u8], HostError> {
        if buffer.is_empty() {
            buffer.resize(FIRST_SIZE, 0);
        }
        let mut filled = 0;
        loop {
            if filled == buffer.len() {
                if filled >= MAX_SIZE {
                    return Err(HostError::malformed(&self.path, ParseError::TooLong(MAX_SIZE)));
                }
                buffer.resize(filled * 2, 0);
            }
            match self.file.read_at(&mut buffer[filled..], filled as u64) {
                Ok(0) => return Ok(&buffer[..filled]),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(HostError::read(&self.path, error)),
            }
            if line && buffer[..filled].ends_with(b"\n") {
                return Ok(&buffer[..filled]);
            }
        }
    }
}

/// Reads a file once.
pub(crate) fn parse_once<T>(
    path: PathBuf,
    parse: impl FnOnce(&str) -> Result<T, ParseError>,
) -> Result<T, HostError> {
    Source::open(path)?.parse(&mut Scratch::default(), parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    #[test]
    fn a_source_is_read_again_from_its_start() {
        let file = file_with(b"1\n");
        let source = Source::open(file.path()).unwrap();
        let mut scratch = Scratch::default();
        let read = |scratch: &mut Scratch| source.parse(scratch, |text| Ok(text.to_owned())).unwrap();
        assert_eq!(read(&mut scratch), "1\n");
        std::fs::write(file.path(), "22\n").unwrap();
        assert_eq!(read(&mut scratch), "22\n");
        assert_eq!(source.parse_line(&mut scratch, |text| Ok(text.len())).unwrap(), 3);
    }

    #[test]
    fn a_long_file_grows_the_buffer_up_to_a_bound() {
        let long = file_with(&vec![b'x'; 3 * FIRST_SIZE]);
        let source = Source::open(long.path()).unwrap();
        let length = source.parse(&mut Scratch::default(), |text| Ok(text.len())).unwrap();
        assert_eq!(length, 3 * FIRST_SIZE);

        let endless = Source::open("/dev/zero").unwrap();
        let error = endless.parse(&mut Scratch::default(), |_| Ok(())).unwrap_err();
        assert!(matches!(error, HostError::Malformed { source: ParseError::TooLong(_), .. }), "{error}");
    }

    #[test]
    fn binary_junk_is_no_text() {
        let file = file_with(&[0xff, 0xfe, 0, 1]);
        let error = parse_once(file.path().to_owned(), |_| Ok(())).unwrap_err();
        assert!(matches!(error, HostError::Malformed { source: ParseError::NotText, .. }), "{error}");
    }
}
