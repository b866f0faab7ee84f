//! Reads one segment, frame by frame. A length in the file is not trusted before that many bytes are read.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::JournalError;
use super::LONGEST_FRAME;
use super::frame::{self, FRAME, HEADER, Header};

/// The distance in bytes in which a whole frame is searched after a broken one: enough for any two frames.
const SEARCHED: u64 = 2 * (LONGEST_FRAME as u64 + FRAME as u64);

/// A segment that is being read.
#[derive(Debug)]
pub(super) struct Segment {
    path: PathBuf,
    file: BufReader<File>,
    offset: u64,
}

/// The next thing in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The payload of a whole frame that begins at `offset`.
    Payload { offset: u64, payload: Vec<u8> },
    /// Nothing more.
    End,
    /// No whole frame begins at `offset`. `torn`: no whole frame follows either. Otherwise the next frame is a whole one.
    Broken { offset: u64, torn: bool },
}

impl Segment {
    /// Opens the file `path`. `Ok(Err(length))`: the file ends within its header, after `length` bytes.
    pub(super) fn open(path: &Path) -> Result<Result<Self, u64>, JournalError> {
        let path = path.to_owned();
        // An open of a pipe would wait for its other end, and an open of a device may act on it.
        if !fs::metadata(&path).map_err(JournalError::io("look at", &path))?.is_file() {
            return Err(JournalError::NotAJournal { path });
        }
        let file = File::open(&path).map_err(JournalError::io("open", &path))?;
        let mut file = BufReader::new(file);
        let bytes = read_up_to(&mut file, HEADER).map_err(JournalError::io("read", &path))?;
        match frame::read_header(&bytes) {
            Header::Ours => Ok(Ok(Self { path, file, offset: HEADER as u64 })),
            Header::Cut => Ok(Err(bytes.len() as u64)),
            Header::Foreign => Err(JournalError::NotAJournal { path }),
            Header::Format(format) => Err(JournalError::OtherFormat { path, format }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next frame. Must not be called again after a torn frame.
    pub(super) fn next(&mut self) -> Result<Next, JournalError> {
        self.read_frame().map_err(JournalError::io("read", &self.path))
    }

    fn read_frame(&mut self) -> io::Result<Next> {
        let offset = self.offset;
        let begin = read_up_to(&mut self.file, FRAME)?;
        if begin.is_empty() {
            return Ok(Next::End);
        }
        let Some((length, crc)) = frame::announced(&begin) else { return self.broken(offset) };
        let payload = read_up_to(&mut self.file, length)?;
        if payload.len() < length || crc32fast::hash(&payload) != crc {
            return self.broken(offset);
        }
        self.offset += (FRAME + length) as u64;
        Ok(Next::Payload { offset, payload })
    }

    fn broken(&mut self, offset: u64) -> io::Result<Next> {
        self.file.seek(SeekFrom::Start(offset + 1))?;
        let mut rest = Vec::new();
        (&mut self.file).take(SEARCHED).read_to_end(&mut rest)?;
        let next = frame::find_frame(&rest).map(|at| offset + 1 + at as u64);
        if let Some(next) = next {
            self.file.seek(SeekFrom::Start(next))?;
            self.offset = next;
        }
        Ok(Next::Broken { offset, torn: next.is_none() })
    }
}

/// The next `most` bytes, or fewer at the end of the file.
fn read_up_to(file: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
