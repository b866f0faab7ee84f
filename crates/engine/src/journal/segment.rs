//! Reads one segment, frame by frame. A length in the file is not trusted before that many bytes are read.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memtide_model::Record;

use super::JournalError;
use super::LONGEST_FRAME;
use super::frame::{self, FRAME, HEADER, Header};
use crate::text::one_line;

/// The distance in bytes in which a whole frame is searched after a broken one: enough for any two frames.
const SEARCHED: u64 = 2 * (LONGEST_FRAME as u64 + FRAME as u64);
/// The first bytes of a payload that [`Segment::skim`] reads.
const HEAD: usize = 96;

/// A segment that is being read.
#[derive(Debug)]
pub(super) struct Segment {
    path: PathBuf,
    file: BufReader<File>,
    offset: u64,
    /// The size of the file when it was last looked at.
    size: u64,
}

/// The next thing in a segment, of which only the beginning was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Skimmed {
    /// A frame at `offset`, with the first bytes of its payload. Nobody has looked whether it is whole.
    Head { offset: u64, head: Vec<u8> },
    /// Nothing more.
    End,
    /// As in [`Next`].
    Broken { offset: u64, torn: bool },
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
            Header::Ours => {
                let size = file.get_ref().metadata().map_err(JournalError::io("look at", &path))?.len();
                Ok(Ok(Self { path, file, offset: HEADER as u64, size }))
            }
            Header::Cut => Ok(Err(bytes.len() as u64)),
            Header::Foreign => Err(JournalError::NotAJournal { path }),
            Header::Format(format) => Err(JournalError::OtherFormat { path, format }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The place of the next frame.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes to the frame at `offset`.
    pub(super) fn go_to(&mut self, offset: u64) -> Result<(), JournalError> {
        self.offset = offset;
        self.file.seek(SeekFrom::Start(offset)).map(drop).map_err(JournalError::io("read", &self.path))
    }

    /// Passes the next frame, and reads only its beginning. [`go_to`](Self::go_to) must come before [`next`](Self::next).
    pub(super) fn skim(&mut self) -> Result<Skimmed, JournalError> {
        self.skim_frame().map_err(JournalError::io("read", &self.path))
    }

    fn skim_frame(&mut self) -> io::Result<Skimmed> {
        let offset = self.offset;
        let mut bytes = [0; FRAME + HEAD];
        let got = read_at_up_to(self.file.get_ref(), &mut bytes, offset)?;
        if got == 0 {
            return Ok(Skimmed::End);
        }
        let announced = frame::announced(&bytes[..got]);
        let end = announced.map_or(u64::MAX, |(length, _)| offset + (FRAME + length) as u64);
        if end > self.size {
            self.size = self.file.get_ref().metadata()?.len();
        }
        let length = match announced {
            Some((length, _)) if end <= self.size => length,
            _ => return Ok(Skimmed::Broken { offset, torn: self.is_torn(offset)? }),
        };
        self.offset = end;
        let head = bytes[FRAME..got.min(FRAME + length)].to_vec();
        Ok(Skimmed::Head { offset, head })
    }

    /// The record in the payload of its frame at `offset`.
    pub(super) fn record(&self, offset: u64, payload: &[u8]) -> Result<Record, JournalError> {
        frame::decode(payload).map_err(|error| {
            let (path, why) = (self.path.clone(), one_line(&error.to_string()));
            JournalError::UnknownRecord { path, offset, why }
        })
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
        let Some((length, crc)) = frame::announced(&begin) else {
            return Ok(Next::Broken { offset, torn: self.is_torn(offset)? });
        };
        let payload = read_up_to(&mut self.file, length)?;
        if payload.len() < length || crc32fast::hash(&payload) != crc {
            return Ok(Next::Broken { offset, torn: self.is_torn(offset)? });
        }
        self.offset += (FRAME + length) as u64;
        Ok(Next::Payload { offset, payload })
    }

    /// Whether no whole frame follows the broken one at `offset`. Goes to the one that follows.
    fn is_torn(&mut self, offset: u64) -> io::Result<bool> {
        self.file.seek(SeekFrom::Start(offset + 1))?;
        let mut rest = Vec::new();
        (&mut self.file).take(SEARCHED).read_to_end(&mut rest)?;
        let next = frame::find_frame(&rest).map(|at| offset + 1 + at as u64);
        if let Some(next) = next {
            self.file.seek(SeekFrom::Start(next))?;
            self.offset = next;
        }
        Ok(next.is_none())
    }
}

/// The next `most` bytes, or fewer at the end of the file.
fn read_up_to(file: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` from `offset` of the file, as far as the file goes. Returns how much that is.
fn read_at_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
