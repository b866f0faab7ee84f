//! The helper that writes the journal. Its one right is to write files in the journal's directory.
//!
//! **Problem.** A disk can be slow, frozen or gone. Who writes to it waits for it, and not even a kill ends this wait: a daemon that wrote
//! its own journal could neither decide nor end meanwhile.
//!
//! **Rule.** All that touches the journal's directory happens in this process, also reading what the last run has left. The exclusive right
//! to write there is a lock, which this process takes and passes to its client. So it is free once the client has ended, although this process
//! may still wait for the disk.
//!
//! A message is one line of JSON, and as many bytes as the line says.

use std::io::{self, BufRead as _, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use memtide_engine::journal::{JournalError, LONGEST_FRAME, Writer, why};
use memtide_engine::{resume, with_causes};
use memtide_model::{Bytes, Moment, State, Witness};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{client_stream, let_go, read_line, report, spawn};
use crate::confine::Confinement;

/// The name of the helper on the command line.
pub const NAME: &str = "journal";
/// systemd's socket for it.
pub const SOCKET: &str = "/run/memtide-journal.sock";

/// The longest line of a message, in bytes: an error names a path.
const LONGEST_LINE: u64 = 64 << 10;
/// The most bytes after a line: the start of a segment and a tick are two frames, and notes are short.
const MOST_BYTES: u64 = 3 * LONGEST_FRAME as u64;

/// The journal that a helper writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// The most that all segments may take.
    pub most: Bytes,
}

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// Open the journal, and read what the last run has left at this moment. The answer brings [`Left`].
    Open(Place, Moment),
    /// Write the frames that follow.
    Put {
        /// Whether they begin a new segment.
        begins: bool,
        /// Their length.
        bytes: u64,
    },
}

/// The line of an answer.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    done: Result<(), Failure>,
    /// The bytes that follow.
    bytes: u64,
}

/// Why the helper has not done what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Another daemon has the journal.
    InUse(String),
    /// The journal cannot be opened; with the fix.
    NotOpened(String),
    /// The frames are not in the journal, and the next ones must begin a new segment; with the fix.
    NotWritten(String),
}

/// What the last run has left.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Left {
    /// The state from which the next run continues; `None` if there is none from this boot of the host.
    pub memory: Option<(State, Witness)>,
    /// What could not be read, and was skipped.
    pub unread: Vec<String>,
    /// The torn tail that was cut off.
    pub cut: Option<String>,
}

impl Left {
    /// The policy's state at the end of the last run.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.memory.as_ref().map(|(state, _)| state)
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Whether it was done.
    pub done: Result<(), Failure>,
    /// What the last run has left, if the answer is to an opening.
    pub left: Left,
    /// The right to write the journal, if it is a new one: it lasts as long as this descriptor.
    pub lock: Option<OwnedFd>,
}

/// A running helper.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<Receiver>,
    /// The process, if this daemon started it.
    process: Option<Child>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let_go(&self.stream.get_ref().socket, self.process.as_mut());
    }
}

impl Connection {
    /// The helper at systemd's socket.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn at(socket: &Path) -> io::Result<Self> {
        Ok(Self::new(UnixStream::connect(socket)?, None))
    }

    /// This program as the helper.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn own() -> io::Result<Self> {
        let (stream, process) = spawn(NAME)?;
        Ok(Self::new(stream, Some(process)))
    }

    pub(crate) fn new(socket: UnixStream, process: Option<Child>) -> Self {
        Self { stream: BufReader::new(Receiver { socket, passed: None }), process }
    }

    /// Asks the helper to open the journal at `now`.
    ///
    /// # Errors
    /// If the helper has ended.
    pub fn ask_to_open(&mut self, place: &Place, now: Moment) -> io::Result<()> {
        self.send(&Ask::Open(place.clone(), now), &[])
    }

    /// Asks the helper to write `frames`.
    ///
    /// # Errors
    /// If the helper has ended.
    pub fn ask_to_put(&mut self, frames: &[u8], begins: bool) -> io::Result<()> {
        self.send(&Ask::Put { begins, bytes: frames.len() as u64 }, frames)
    }

    fn send(&mut self, ask: &Ask, bytes: &[u8]) -> io::Result<()> {
        let mut line = serde_json::to_vec(ask)?;
        line.push(b'\n');
        let mut socket = &self.stream.get_ref().socket;
        socket.write_all(&line)?;
        socket.write_all(bytes)
    }

    /// Waits at most `within` for the beginning of an answer; without a limit if it is `None`.
    ///
    /// # Errors
    /// If the helper has ended.
    pub fn is_answered(&mut self, within: Option<Duration>) -> io::Result<bool> {
        self.stream.get_ref().socket.set_read_timeout(within)?;
        let begun = self.stream.fill_buf().map(|bytes| !bytes.is_empty());
        self.stream.get_ref().socket.set_read_timeout(None)?;
        match begun {
            Ok(true) => Ok(true),
            Ok(false) => Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for the answer to the last request.
    ///
    /// # Errors
    /// If the helper has ended, or answers something else.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let Line { done, bytes } = heard(&mut self.stream)?.ok_or(ErrorKind::UnexpectedEof)?;
        let text = read_bytes(&mut self.stream, bytes)?;
        let left = if text.is_empty() { Left::default() } else { serde_json::from_slice(&text)? };
        Ok(Answer { done, left, lock: self.stream.get_mut().passed.take() })
    }
}

/// Reads a socket, and keeps the descriptor that came with the bytes.
#[derive(Debug)]
struct Receiver {
    socket: UnixStream,
    passed: Option<OwnedFd>,
}

impl Read for Receiver {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(buffer)];
        let read = rustix::net::recvmsg(&self.socket, &mut buffers, &mut with, RecvFlags::CMSG_CLOEXEC)?;
        for message in with.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.passed = descriptors.last().or(self.passed.take());
            }
        }
        Ok(read.bytes)
    }
}

/// The line of a message; `None` at the end of the stream.
fn heard<T: for<'de> Deserialize<'de>>(stream: &mut BufReader<impl Read>) -> io::Result<Option<T>> {
    let line = read_line(stream, LONGEST_LINE)?;
    Ok(line.map(|line| serde_json::from_slice(&line)).transpose()?)
}

fn read_bytes(stream: &mut BufReader<impl Read>, bytes: u64) -> io::Result<Vec<u8>> {
    if bytes > MOST_BYTES {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut all = Vec::new();
    if stream.take(bytes).read_to_end(&mut all)? as u64 == bytes {
        Ok(all)
    } else {
        Err(ErrorKind::UnexpectedEof.into())
    }
}

/// Runs the helper on its standard input until its client is gone.
///
/// # Errors
/// If the standard input is no socket of a client that speaks its protocol.
pub fn run() -> io::Result<()> {
    // It ends with its client, and with nothing else: a service manager or a terminal may signal both at once. A limit of the size of files
    // only fails the write.
    let too_large = rustix::process::Signal::XFSZ.as_raw();
    for signal in [SIGTERM, SIGINT, SIGHUP, too_large] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    // Landlock must know the directory.
    serve(client_stream()?, |dir| report(NAME, &Confinement::On.writer(dir.parent().unwrap_or(dir))))
}

/// Answers the requests on `stream` until its client is gone. `confine` is called once, with the directory of the journal, before it is opened.
fn serve(stream: UnixStream, confine: impl FnOnce(&Path)) -> io::Result<()> {
    let (mut stream, mut confine) = (BufReader::new(stream), Some(confine));
    let mut writer: Option<Writer> = None;
    while let Some(ask) = heard(&mut stream)? {
        let (done, left) = match ask {
            Ask::Open(place, now) => {
                if let Some(confine) = confine.take() {
                    confine(&place.dir);
                }
                writer = None;
                let (opened, left) = open(&place, now);
                let done = opened.map(|opened| writer = Some(opened));
                (done, serde_json::to_vec(&left)?)
            }
            Ask::Put { begins, bytes } => {
                let frames = read_bytes(&mut stream, bytes)?;
                let put = writer.as_mut().map(|writer| writer.put(&frames, begins));
                let done = put.unwrap_or(Ok(())).map_err(|error| Failure::NotWritten(why(&error)));
                (if writer.is_some() { done } else { Err(not_open()) }, Vec::new())
            }
        };
        let mut line = serde_json::to_vec(&Line { done, bytes: left.len() as u64 })?;
        line.push(b'\n');
        let lock = writer.as_mut().and_then(Writer::take_lock);
        send_with(stream.get_ref(), &line, lock)?;
        stream.get_mut().write_all(&left)?;
    }
    Ok(())
}

fn not_open() -> Failure {
    Failure::NotOpened("the journal was not opened".to_owned())
}

/// Opens the journal. What the last run has left is read unless another daemon has it, even if it cannot be written.
fn open(place: &Place, now: Moment) -> (Result<Writer, Failure>, Left) {
    let opened = Writer::open(&place.dir, place.most);
    let (opened, cut) = match opened {
        Ok((writer, cut)) => (Ok(writer), cut.map(|cut| cut.to_string())),
        Err(error @ JournalError::InUse { .. }) => {
            return (Err(Failure::InUse(with_causes(&error))), Left::default());
        }
        Err(error) => (Err(Failure::NotOpened(why(&error))), None),
    };
    // A directory that cannot be listed has no state, and cannot be written to either, which is reported.
    let before = resume(&place.dir, now).unwrap_or_default();
    let unread = before.unread.iter().map(|error| with_causes(error)).collect();
    (opened, Left { memory: before.memory, unread, cut })
}

/// Sends `bytes`, the first of them with the descriptor. Nothing of it is left here.
fn send_with(mut socket: &UnixStream, bytes: &[u8], passed: Option<OwnedFd>) -> io::Result<()> {
    let Some(passed) = passed else { return socket.write_all(bytes) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let descriptors = [passed.as_fd()];
    with.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut with, SendFlags::NOSIGNAL)?;
    socket.write_all(&bytes[sent..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_engine::journal::{Reader, beginning, encode};
    use memtide_model::Record;
    use memtide_testing::start;

    fn note(number: u64) -> Record {
        Record::Note { at: Moment::from_millis(number), text: String::new() }
    }

    fn frames(number: u64, begins: bool) -> Vec<u8> {
        let (note, mut frames) = (note(number), Vec::new());
        encode(&note, &mut frames).unwrap();
        if begins { beginning(start, &[note], frames).unwrap() } else { frames }
    }

    fn helper() -> (Connection, std::thread::JoinHandle<io::Result<()>>) {
        let (ours, its) = UnixStream::pair().unwrap();
        (Connection::new(ours, None), std::thread::spawn(|| serve(its, |_| ())))
    }

    fn open(connection: &mut Connection, dir: &Path) -> Answer {
        let place = Place { dir: dir.to_owned(), most: Bytes::from_mib(8) };
        connection.ask_to_open(&place, Moment::from_millis(99)).unwrap();
        connection.answer().unwrap()
    }

    fn put(connection: &mut Connection, number: u64, begins: bool) -> Answer {
        connection.ask_to_put(&frames(number, begins), begins).unwrap();
        connection.answer().unwrap()
    }

    fn records(dir: &Path) -> Vec<Record> {
        Reader::open(dir).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn the_client_has_the_right_to_write_and_the_helper_has_not() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, serving) = helper();
        let Answer { done, lock, .. } = open(&mut first, dir.path());
        assert!(done.is_ok() && lock.is_some());
        let (mut second, _) = helper();
        assert!(matches!(open(&mut second, dir.path()).done, Err(Failure::InUse(_))));
        // The daemon has ended; its helper is still there.
        drop(lock);
        let Answer { done, lock, .. } = open(&mut second, dir.path());
        assert!(done.is_ok() && lock.is_some());
        drop(first);
        serving.join().unwrap().unwrap();
    }

    #[test]
    fn frames_become_segments_and_a_gap_needs_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (mut helper, _) = helper();
        assert_eq!(put(&mut helper, 0, true).done, Err(not_open()));
        let _lock = open(&mut helper, dir.path()).lock;
        assert!(matches!(put(&mut helper, 0, false).done, Err(Failure::NotWritten(_))), "nothing has begun");
        for (number, begins) in [(1, true), (2, false), (3, true)] {
            assert_eq!(put(&mut helper, number, begins).done, Ok(()));
        }
        assert_eq!(records(dir.path()), [start(), note(1), note(2), start(), note(3)]);
    }

    #[test]
    fn the_right_follows_a_journal_that_was_moved_away() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, away) = (dir.path().join("journal"), dir.path().join("away"));
        let (mut helper, _) = helper();
        let _lock = open(&mut helper, &journal).lock;
        assert_eq!(put(&mut helper, 1, true).done, Ok(()));
        std::fs::rename(&journal, &away).unwrap();
        assert!(matches!(put(&mut helper, 2, false).done, Err(Failure::NotWritten(_))));
        let Answer { done, lock, .. } = put(&mut helper, 3, true);
        assert!(done.is_ok() && lock.is_some());
        assert_eq!((records(&away), records(&journal)), (vec![start(), note(1)], vec![start(), note(3)]));
    }

    #[test]
    fn garbage_ends_the_helper_and_half_a_message_is_not_written() {
        for text in [
            b"no json\n".to_vec(),
            vec![b'x'; 100_000],
            br#"{"put":{"begins":true,"bytes":9999999999}}"#.to_vec(),
        ] {
            let (ours, its) = UnixStream::pair().unwrap();
            let serving = std::thread::spawn(|| serve(its, |_| ()));
            let _closed_early = (&ours).write_all(&[text, b"\n".to_vec()].concat());
            assert!(serving.join().unwrap().is_err());
        }
        let dir = tempfile::tempdir().unwrap();
        let (mut helper, serving) = helper();
        let _lock = open(&mut helper, dir.path()).lock;
        assert_eq!(put(&mut helper, 1, true).done, Ok(()));
        let mut socket = &helper.stream.get_ref().socket;
        socket.write_all(b"{\"put\":{\"begins\":false,\"bytes\":1000}}\nfew").unwrap();
        drop(helper);
        assert!(serving.join().unwrap().is_err());
        assert_eq!(records(dir.path()), [start(), note(1)]);
    }
}
