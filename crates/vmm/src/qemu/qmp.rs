//! One QMP connection: greeting, commands with identifiers and deadlines, events.
//!
//! QMP is one JSON object per line. The monitor greets, the client answers with `qmp_capabilities`, and then every command
//! gets one answer, in order, with its `id`. Events come in between. A monitor serves one client. A second client connects
//! and hears nothing, so *no greeting* means *another client holds the monitor*.
//!
//! Rules:
//!
//! - Every wait has a deadline. A late answer is skipped, and nothing more is sent before it comes. So a monitor that hangs does not
//!   collect commands to carry out when it wakes.
//! - Several commands may go out at once ([`Qmp::batch`]), with one or two writes and few reads instead of many.
//! - Unknown fields, events and unexpected answers are skipped. Data that is not QMP closes the connection.
//! - Memory is bounded: lines (see `lines`), events by number and size, error texts by 200 characters.
//! - Processor time is bounded: unrequested data is read no faster than [`MOST_NOISE`] allows.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_host::ProcFs;
use memtide_model::{Absence, stays_in_line};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::lines::{Charge, LineError, Lines};
use super::socket::Peer;
use super::{listed, socket};
use crate::round::Patience;

/// The most events that wait to be read. A newer event replaces the oldest.
const MOST_EVENTS: usize = 256;
/// The longest kept data of an event, in bytes. No relevant event comes near this length.
const LONGEST_DATA: usize = 4 << 10;
/// The most bytes of events and unexpected answers that are read within [`NOISE_WITHIN`]: some 1,600 events a second.
const MOST_NOISE: usize = 16 << 10;
const NOISE_WITHIN: Duration = Duration::from_millis(100);
/// The length at which an event's name is cut, in characters.
const LONGEST_NAME: usize = 64;
/// The length at which an error text is cut, in characters.
const LONGEST_TEXT: usize = 200;

/// Why the monitor could not be used.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The socket could not be connected to.
    #[error("cannot connect to {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No greeting came: another client holds the monitor.
    #[error("{path}: no greeting: another client holds the monitor")]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// Another process than expected listens at this path.
    #[error("{path}: process {pid} listens there, not the guest's process")]
    WrongPeer {
        /// The socket.
        path: PathBuf,
        /// The process that listens.
        pid: u32,
    },
    /// No answer came within the deadline.
    #[error("no answer within the deadline")]
    Timeout,
    /// The monitor closed the connection.
    #[error("the monitor closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// The received data is not QMP.
    #[error("not QMP: {0}")]
    Malformed(&'static str),
    /// QEMU refused the command.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// No attempt to connect at the moment, because of earlier failures.
    #[error("not tried again yet: {0}")]
    BackingOff(Absence),
    /// There is no socket to connect to.
    #[error("no QMP monitor on a Unix socket is known")]
    NoControl,
}

/// QEMU's refusal of a command, bounded and safe to show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{desc} ({class})")]
pub struct Refusal {
    /// The error's class: `GenericError`, `CommandNotFound`, `DeviceNotActive`, …
    pub class: String,
    /// The description for people.
    pub desc: String,
}

impl QmpError {
    /// Why there is no measurement, in the model's types.
    #[must_use]
    pub fn absence(&self) -> Absence {
        match self {
            Self::Connect { source, .. } | Self::Io(source) => match source.kind() {
                io::ErrorKind::PermissionDenied => Absence::Forbidden,
                // The listener's queue is full of waiting clients.
                io::ErrorKind::WouldBlock => Absence::ControlTaken,
                _ => Absence::Disconnected,
            },
            Self::Taken { .. } => Absence::ControlTaken,
            Self::WrongPeer { .. } | Self::Closed => Absence::Disconnected,
            Self::Timeout => Absence::Timeout,
            Self::Malformed(_) => Absence::Malformed,
            Self::Refused(refusal) => refusal.absence(),
            Self::BackingOff(absence) => absence.clone(),
            Self::NoControl => Absence::NoControl,
        }
    }
}

impl Refusal {
    /// Why there is no measurement, in the model's types.
    #[must_use]
    pub fn absence(&self) -> Absence {
        match self.class.as_str() {
            "CommandNotFound" => Absence::Unsupported,
            _ => Absence::Refused(self.desc.clone()),
        }
    }
}

/// A command and its arguments.
#[derive(Clone, Debug)]
pub struct Command {
    execute: &'static str,
    arguments: Option<Box<RawValue>>,
}

impl Command {
    /// A command without arguments.
    #[must_use]
    pub const fn plain(execute: &'static str) -> Self {
        Self { execute, arguments: None }
    }

    /// A command with arguments, which must always convert to a JSON object.
    #[must_use]
    pub fn with(execute: &'static str, arguments: &impl Serialize) -> Self {
        Self { execute, arguments: to_raw_value(arguments).ok() }
    }
}

/// An event in the VMM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QmpEvent {
    /// Its name: `RESET`, `BALLOON_CHANGE`, …
    pub name: String,
    /// When it happened, in seconds since 1970 by the VMM's clock; `None` if the VMM did not say.
    pub at: Option<u64>,
    /// Its data as JSON; empty if there is none, or if it is too large to keep.
    pub data: String,
}

/// An answer to one command of a batch.
pub(super) type Reply = Result<Box<RawValue>, Refusal>;

/// A connection to a QMP monitor.
#[derive(Debug)]
pub struct Qmp {
    lines: Lines<UnixStream>,
    /// The identifier of the last command. Identifiers count up.
    sent: u64,
    /// The highest identifier with an answer.
    answered: u64,
    events: VecDeque<QmpEvent>,
    dropped_events: u64,
    /// Whether the capabilities are negotiated, or requested.
    negotiated: bool,
    /// Until it is over, the answers to the next commands are not looked for.
    patience: Option<Patience>,
    /// A command was cut in the middle, or the received data is not QMP. The connection cannot be used.
    broken: bool,
    noise: Noise,
    /// A file that goes with the next commands.
    file: Option<OwnedFd>,
}

/// Unrequested data.
#[derive(Debug)]
struct Noise {
    bytes: usize,
    /// The end of the period in which the bytes are counted.
    until: Instant,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, rename = "QMP")]
    greeting: Option<&'a RawValue>,
    #[serde(borrow, rename = "return")]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
}

/// The meaning of a line for the waiting caller.
enum Heard {
    Greeting,
    Answer(Reply),
    Other,
}

impl Qmp {
    /// Connects to the monitor at `path`, waits for its greeting and negotiates, all before `deadline`. If `peer` is given,
    /// this process must be the listener, or hold a listener that a process of its user has passed to it.
    ///
    /// # Errors
    /// [`QmpError::Taken`] if no greeting comes; the other variants as documented there.
    pub async fn connect(path: &Path, peer: Option<Peer>, deadline: Instant) -> Result<Self, QmpError> {
        let mut qmp = Self::greeted(path, peer, deadline).await?;
        qmp.negotiate(deadline).await?;
        Ok(qmp)
    }

    /// The same without negotiating. That happens together with the first command, which saves a round trip.
    pub(super) async fn greeted(
        path: &Path,
        peer: Option<Peer>,
        deadline: Instant,
    ) -> Result<Self, QmpError> {
        let connecting = within(deadline, async { Ok(socket::connect(path, peer).await) });
        let stream =
            connecting.await?.map_err(|source| QmpError::Connect { path: path.to_owned(), source })?;
        if let (Some(expected), Ok(actual)) = (peer.map(Peer::pid), stream.peer_cred()) {
            let pid = actual.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0);
            let was_passed =
                || listed::was_passed(&ProcFs::new(Path::new("/proc")), expected, path, actual.uid());
            if let Some(pid) = pid.filter(|&pid| pid != expected && !was_passed()) {
                return Err(QmpError::WrongPeer { path: path.to_owned(), pid });
            }
        }
        let mut qmp = Self {
            lines: Lines::new(stream),
            sent: 0,
            answered: 0,
            events: VecDeque::new(),
            dropped_events: 0,
            broken: false,
            negotiated: false,
            patience: None,
            noise: Noise { bytes: 0, until: Instant::now() },
            file: None,
        };
        match within(deadline, qmp.hear()).await {
            Ok(Heard::Greeting) => {}
            Ok(_) => return Err(QmpError::Malformed("no greeting first")),
            Err(QmpError::Timeout) if !qmp.lines.is_within_a_line() => {
                return Err(QmpError::Taken { path: path.to_owned() });
            }
            Err(other) => return Err(other),
        }
        Ok(qmp)
    }

    /// Executes one command and reads its answer as `T`.
    ///
    /// # Errors
    /// [`QmpError::Refused`] leaves the connection usable. After other errors, ask [`Qmp::is_usable`].
    pub async fn execute<T: DeserializeOwned>(
        &mut self,
        command: Command,
        deadline: Instant,
    ) -> Result<T, QmpError> {
        let replies = self.batch(std::slice::from_ref(&command), deadline).await?;
        let reply = replies.into_iter().next().ok_or(QmpError::Malformed("no answer"))?;
        decode(&reply.map_err(QmpError::Refused)?)
    }

    /// The same with an open file beside the command.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(super) async fn execute_with_file<T: DeserializeOwned>(
        &mut self,
        command: Command,
        file: BorrowedFd<'_>,
        deadline: Instant,
    ) -> Result<T, QmpError> {
        self.file = Some(file.try_clone_to_owned().map_err(QmpError::Io)?);
        let done = self.execute(command, deadline).await;
        self.file = None;
        done
    }

    /// Sends all commands at once and waits for all answers, in order. A refusal is an answer.
    ///
    /// # Errors
    /// See [`Qmp::execute`].
    pub(super) async fn batch(
        &mut self,
        commands: &[Command],
        deadline: Instant,
    ) -> Result<Vec<Reply>, QmpError> {
        self.batch_and_then(commands, Duration::ZERO, &[], deadline).await
    }

    /// Sends commands at once and further ones after `pause`. Only then waits for the answers to all of them, in order.
    ///
    /// # Errors
    /// See [`Qmp::execute`].
    pub(super) async fn batch_and_then(
        &mut self,
        commands: &[Command],
        pause: Duration,
        then: &[Command],
        deadline: Instant,
    ) -> Result<Vec<Reply>, QmpError> {
        if self.broken {
            return Err(QmpError::Closed);
        }
        while self.answered < self.sent {
            self.hear_before(deadline).await?;
        }
        let mut agreed = self.negotiated;
        self.send(commands, deadline).await?;
        if !then.is_empty() {
            sleep(pause, deadline).await;
            self.send(then, deadline).await?;
        }
        if let Some(patience) = self.patience.take() {
            patience.over().await;
        }
        let mut replies = Vec::with_capacity(commands.len() + then.len());
        let (mut charge, mut bytes) = (Charge::of_all(), 0);
        while self.answered < self.sent {
            match self.hear_before(deadline).await? {
                Heard::Answer(reply) if agreed => {
                    bytes += reply.as_ref().map_or(0, |value| value.get().len());
                    if !charge.set(bytes) {
                        return Err(self.no_qmp("an answer that is too long"));
                    }
                    replies.push(reply);
                }
                Heard::Answer(Ok(_)) => agreed = true,
                Heard::Answer(Err(refusal)) => {
                    self.broken = true;
                    return Err(QmpError::Refused(refusal));
                }
                Heard::Greeting | Heard::Other => {}
            }
        }
        Ok(replies)
    }

    /// Negotiates without a command. Before this, a monitor sends no events.
    pub(super) async fn negotiate(&mut self, deadline: Instant) -> Result<(), QmpError> {
        if self.negotiated { Ok(()) } else { self.batch(&[], deadline).await.map(drop) }
    }

    /// Makes the next commands look for their answers only after `patience` is over. If many guests are asked at once, all have then
    /// answered, and the thread wakes once for all of them instead of once for each.
    pub(super) fn be_patient(&mut self, patience: Option<Patience>) {
        self.patience = patience;
    }

    /// Nothing is expected for a while: frees memory.
    pub(super) fn free_buffer(&mut self) {
        self.lines.free_buffer();
    }

    /// Whether a command has no answer yet.
    pub(super) const fn owes_an_answer(&self) -> bool {
        self.answered < self.sent
    }

    /// Whether the connection can still be used.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        !self.broken
    }

    async fn send(&mut self, commands: &[Command], deadline: Instant) -> Result<(), QmpError> {
        #[derive(Serialize)]
        struct Numbered<'a> {
            execute: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            arguments: Option<&'a RawValue>,
            id: u64,
        }
        let mut text = Vec::new();
        let first = self.sent + 1;
        let negotiation = (!self.negotiated).then(|| Command::plain("qmp_capabilities"));
        for (id, command) in (first..).zip(negotiation.iter().chain(commands)) {
            let arguments = command.arguments.as_deref();
            serde_json::to_writer(&mut text, &Numbered { execute: command.execute, arguments, id })
                .map_err(|_| QmpError::Malformed("a command that cannot be written"))?;
            text.push(b'\n');
            self.sent = id;
        }
        // If this future is cancelled in the middle, the rest of the line will be missing forever.
        self.broken = true;
        let file = self.file.take();
        let writing = async {
            let stream = self.lines.source_mut();
            let sent = match &file {
                Some(file) => {
                    socket::send_with_file(stream, &text, file.as_fd()).await.map_err(QmpError::Io)?
                }
                None => 0,
            };
            stream.write_all(&text[sent..]).await.map_err(QmpError::Io)
        };
        within(deadline, writing).await?;
        (self.broken, self.negotiated) = (false, true);
        Ok(())
    }

    /// The next event: one that has come, or one that will come. Cancel-safe.
    ///
    /// # Errors
    /// If the connection ends, or if the received data is not QMP.
    pub async fn next_event(&mut self) -> Result<QmpEvent, QmpError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.hear().await?;
        }
    }

    /// The events that have come so far.
    pub fn take_events(&mut self) -> impl Iterator<Item = QmpEvent> + '_ {
        self.events.drain(..)
    }

    /// The number of events that were dropped because nobody read them in time.
    #[must_use]
    pub const fn dropped_events(&self) -> u64 {
        self.dropped_events
    }

    async fn hear_before(&mut self, deadline: Instant) -> Result<Heard, QmpError> {
        within(deadline, self.hear()).await
    }

    /// Reads one line and notes its content.
    async fn hear(&mut self) -> Result<Heard, QmpError> {
        self.noise.throttle().await;
        let line = match self.lines.next().await {
            Ok(line) => line,
            Err(error) => {
                self.broken = true;
                return Err(match error {
                    LineError::Ended => QmpError::Closed,
                    LineError::TooLong => QmpError::Malformed("a line that is too long"),
                    LineError::Io(source) if source.kind() == io::ErrorKind::ConnectionReset => {
                        QmpError::Closed
                    }
                    LineError::Io(source) => QmpError::Io(source),
                });
            }
        };
        let length = line.len();
        let Ok(message) = serde_json::from_slice::<Message<'_>>(line) else {
            return Err(self.no_qmp("a line that is not a JSON object"));
        };
        if message.greeting.is_some() {
            return Ok(Heard::Greeting);
        }
        if let Some(event) = event_of(&message) {
            self.noise.bytes += length;
            self.keep(event);
            return Ok(Heard::Other);
        }
        let id = message.id.and_then(|id| id.get().parse::<u64>().ok());
        // Unexpected and repeated answers are skipped.
        let Some(id) = id.filter(|&id| id == self.answered + 1 && id <= self.sent) else {
            self.noise.bytes += length;
            return Ok(Heard::Other);
        };
        let Some(reply) = reply_of(&message) else {
            return Err(self.no_qmp("an answer without a value"));
        };
        self.answered = id;
        Ok(Heard::Answer(reply))
    }

    fn keep(&mut self, event: QmpEvent) {
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
            self.dropped_events += 1;
        }
        self.events.push_back(event);
    }

    fn no_qmp(&mut self, what: &'static str) -> QmpError {
        self.broken = true;
        QmpError::Malformed(what)
    }
}

impl Noise {
    /// Waits if there was too much noise recently. Meanwhile the socket fills, and the sender must wait. Cancel-safe.
    async fn throttle(&mut self) {
        if self.bytes > MOST_NOISE {
            tokio::time::sleep_until(self.until.into()).await;
        }
        let now = Instant::now();
        if now >= self.until {
            *self = Self { bytes: 0, until: now + NOISE_WITHIN };
        }
    }
}

fn event_of(message: &Message<'_>) -> Option<QmpEvent> {
    #[derive(Deserialize)]
    struct Timestamp {
        seconds: i64,
    }
    let name: Cow<'_, str> = serde_json::from_str(message.event?.get()).ok()?;
    let timestamp = message.timestamp.and_then(|raw| serde_json::from_str::<Timestamp>(raw.get()).ok());
    let data = message.data.map_or("", RawValue::get);
    Some(QmpEvent {
        name: clean(&name, LONGEST_NAME),
        at: timestamp.and_then(|timestamp| u64::try_from(timestamp.seconds).ok()),
        data: if data.len() <= LONGEST_DATA { data.to_owned() } else { String::new() },
    })
}

fn reply_of(message: &Message<'_>) -> Option<Reply> {
    #[derive(Deserialize)]
    struct Error {
        #[serde(default)]
        class: String,
        #[serde(default)]
        desc: String,
    }
    if let Some(error) = message.error {
        let error: Error = serde_json::from_str(error.get()).ok()?;
        let (class, desc) = (clean(&error.class, LONGEST_NAME), clean(&error.desc, LONGEST_TEXT));
        return Some(Err(Refusal { class, desc }));
    }
    message.value.map(|value| Ok(value.to_owned()))
}

/// Reads an answer as `T`.
pub(super) fn decode<T: DeserializeOwned>(value: &RawValue) -> Result<T, QmpError> {
    serde_json::from_str(value.get()).map_err(|_| QmpError::Malformed("an answer of an unknown form"))
}

/// At most `longest` characters of `text`, without any that would not stay in the line.
fn clean(text: &str, longest: usize) -> String {
    text.chars().take(longest).map(|c| if stays_in_line(c) { c } else { ' ' }).collect()
}

/// Sleeps for `length`, but not beyond the deadline.
async fn sleep(length: Duration, deadline: Instant) {
    tokio::time::sleep_until((Instant::now() + length).min(deadline).into()).await;
}

async fn within<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, QmpError>>,
) -> Result<T, QmpError> {
    // A monitor that floods the socket would keep the work always ready, so the timer would not run. So this looks at the clock, too.
    if deadline.saturating_duration_since(Instant::now()) == Duration::ZERO {
        return Err(QmpError::Timeout);
    }
    tokio::time::timeout_at(deadline.into(), work).await.unwrap_or(Err(QmpError::Timeout))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_text_of_an_error_is_bounded() {
        let line = format!(r#"{{"error":{{"class":"{0}","desc":"{0}\u0007"}},"id":1}}"#, "e".repeat(5000));
        let message: Message<'_> = serde_json::from_str(&line).unwrap();
        let Some(Err(Refusal { class, desc })) = reply_of(&message) else { panic!("no refusal") };
        assert!(class.chars().count() <= LONGEST_NAME + 1 && desc.chars().count() <= LONGEST_TEXT + 1);
    }

    /// A monitor that answers each command with 200 KiB.
    fn answer_at_length(listener: &UnixListener) -> io::Result<()> {
        let (mut client, _) = listener.accept()?;
        client.write_all(b"{\"QMP\": {}}\n")?;
        let text = "x".repeat(200 << 10);
        for (id, line) in (1..).zip(BufReader::new(client.try_clone()?).lines()) {
            line?;
            writeln!(client, "{{\"return\": \"{text}\", \"id\": {id}}}")?;
        }
        Ok(())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_answers_of_one_exchange_cost_bounded_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || answer_at_length(&listener));
        let by = Instant::now() + Duration::from_secs(20);
        let mut qmp = Qmp::connect(&path, None, by).await.unwrap();
        let commands = vec![Command::plain("query-status"); 40];
        assert_eq!(qmp.batch(&commands[..2], by).await.unwrap().len(), 2);
        let error = qmp.batch(&commands, by).await.unwrap_err();
        assert_eq!(error.absence(), Absence::Malformed);
        drop(qmp);
        // Its client left in the middle.
        let _ = server.join().unwrap();
    }
}
