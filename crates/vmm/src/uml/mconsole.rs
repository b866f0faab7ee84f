//! A client of one console.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::Duration;

use memtide_model::{Absence, MAX_NAME, printable};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::time::Instant;

use super::replies::Slot;
use super::wire::{self, Answer, Malformed};

/// Why a console did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum MconsoleError {
    /// There is no socket for its answers at the moment.
    #[error("{0}")]
    NoSocket(Absence),
    /// It did not answer in time.
    #[error("no answer in time")]
    Timeout,
    /// It refused, with this message.
    #[error("refused: {0}")]
    Refused(String),
    /// Its answer is not mconsole's, or is longer than any.
    #[error("an answer that is not mconsole's")]
    Malformed,
    /// Another process than the instance's has answered.
    #[error("another process has answered")]
    AnothersAnswer,
    /// A command that does not fit into a request.
    #[error("a command that does not fit into a request")]
    TooLong,
    /// The socket failed.
    #[error("{0}")]
    Socket(#[from] io::Error),
}

impl MconsoleError {
    /// A refusal with this message, cut and cleaned so that it may be shown.
    #[must_use]
    pub fn refused(message: &str) -> Self {
        let message: String = message.trim().chars().take(MAX_NAME).collect();
        Self::Refused(if message.is_empty() { "without a reason".to_owned() } else { printable(&message) })
    }

    /// The reason for a missing value.
    #[must_use]
    pub fn absence(self) -> Absence {
        match self {
            Self::NoSocket(why) => why,
            Self::Timeout => Absence::Timeout,
            Self::Refused(message) => Absence::Refused(message),
            Self::Malformed => Absence::Malformed,
            Self::AnothersAnswer => Absence::Forbidden,
            Self::TooLong => Absence::Unsupported,
            Self::Socket(error) if error.kind() == io::ErrorKind::PermissionDenied => Absence::Forbidden,
            Self::Socket(_) => Absence::Disconnected,
        }
    }
}

/// A client of one console. It has at most one request under way.
#[derive(Debug)]
pub struct Mconsole {
    slot: Slot<std::os::unix::net::UnixDatagram>,
    /// The instance's process: only its answers count.
    process: u32,
    socket: Option<UnixDatagram>,
    /// A request whose answer nobody waits for any more: the caller was dropped.
    owed: bool,
}

impl Mconsole {
    /// The console of the instance whose process is `process`, which answers to the socket in `slot`.
    #[must_use]
    pub const fn new(slot: Slot<std::os::unix::net::UnixDatagram>, process: u32) -> Self {
        Self { slot, process, socket: None, owed: false }
    }

    /// Sends a command and waits for its answer. If the future is dropped, the command may have been carried out; the next call leaves out its
    /// answer.
    ///
    /// # Errors
    /// See [`MconsoleError`]. After an error other than a refusal, the socket is given up and a new one is used when there is one.
    pub async fn ask(&mut self, command: &str, deadline: Duration) -> Result<String, MconsoleError> {
        let request = wire::request(command).ok_or(MconsoleError::TooLong)?;
        let until = Instant::now() + deadline;
        let asked = self.exchange(&request, until).await;
        if asked.is_err() {
            self.distrust();
        }
        asked?.map_err(|message| MconsoleError::refused(&message))
    }

    /// Gives the socket up: replies do not say what they answer, so a late one, or one too many, would be taken for the next answer.
    pub fn distrust(&mut self) {
        self.owed = false;
        if self.socket.take().is_some() {
            self.slot.give_up();
        }
    }

    async fn exchange(&mut self, request: &[u8], until: Instant) -> Result<wire::Complete, MconsoleError> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => UnixDatagram::from_std(self.slot.take().map_err(MconsoleError::NoSocket)?)?,
        };
        let socket = self.socket.insert(socket);
        if self.owed {
            let _left_out = answer(socket, self.process, until).await?;
        }
        // Nobody has asked for this one.
        if socket.try_recv(&mut [0; 1]).is_ok() {
            return Err(MconsoleError::Malformed);
        }
        self.owed = true;
        within(until, socket.send(request)).await?;
        let answer = answer(socket, self.process, until).await?;
        self.owed = false;
        Ok(answer)
    }
}

/// Waits for a whole answer of the process.
async fn answer(
    socket: &UnixDatagram,
    process: u32,
    until: Instant,
) -> Result<wire::Complete, MconsoleError> {
    let mut answer = Answer::default();
    // One byte more: a longer datagram is not a reply.
    let mut buffer = [0; wire::LONGEST + 1];
    loop {
        let receive = || received(socket, &mut buffer);
        let (got, sender) = within(until, socket.async_io(Interest::READABLE, receive)).await?;
        if sender != Some(process) {
            return Err(MconsoleError::AnothersAnswer);
        }
        let datagram = buffer.get(..got).filter(|datagram| datagram.len() <= wire::LONGEST);
        let taken = datagram.ok_or(Malformed).and_then(|datagram| answer.add(datagram));
        if let Some(complete) = taken.map_err(|Malformed| MconsoleError::Malformed)? {
            return Ok(complete);
        }
    }
}

/// A datagram in `buffer`: its length, and the process that has sent it, as the kernel says.
fn received(socket: &UnixDatagram, buffer: &mut [u8]) -> io::Result<(usize, Option<u32>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut with, flags)?;
    let senders = with.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => u32::try_from(sender.pid.as_raw_nonzero().get()).ok(),
        _ => None,
    });
    Ok((got.bytes, senders.last()))
}

async fn within<T>(until: Instant, work: impl Future<Output = io::Result<T>>) -> Result<T, MconsoleError> {
    let done = tokio::time::timeout_at(until, work).await;
    Ok(done.map_err(|_| MconsoleError::Timeout)??)
}

#[cfg(test)]
mod tests {
    use super::super::replies::{Console, ReplySockets};
    use super::*;
    use std::os::unix::net::UnixDatagram as Socket;

    #[tokio::test(flavor = "current_thread")]
    async fn an_answer_that_nobody_asked_for_ends_the_use_of_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mconsole");
        let console = Socket::bind(&path).unwrap();
        let user = rustix::process::getuid().as_raw();
        let mut sockets = ReplySockets::new(dir.path().join("replies"));
        let mut client = Mconsole::new(sockets.open(Console { path, user }), std::process::id());
        let soon = Duration::from_millis(1);
        // The first request makes the socket known.
        assert!(matches!(client.ask("version", soon).await, Err(MconsoleError::Timeout)));
        let (_, first) = console.recv_from(&mut [0; 2 * wire::LONGEST]).unwrap();
        assert!(console.send_to(b"late", first.as_pathname().unwrap()).is_err(), "nobody hears it");
        sockets.tend();
        let next = std::fs::read_dir(dir.path().join("replies")).unwrap().next().unwrap().unwrap().path();
        console.send_to(b"unasked", &next).unwrap();
        assert!(matches!(client.ask("version", soon).await, Err(MconsoleError::Malformed)));
        assert!(
            matches!(client.ask("version", soon).await, Err(MconsoleError::NoSocket(_))),
            "until there is a new one"
        );
        sockets.tend();
        assert!(matches!(client.ask("version", soon).await, Err(MconsoleError::Timeout)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_answers_of_the_instances_process_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mconsole");
        let console = Socket::bind(&path).unwrap();
        let user = rustix::process::getuid().as_raw();
        let mut sockets = ReplySockets::new(dir.path().join("replies"));
        let me = std::process::id();
        for (process, is_it) in [(me, true), (me + 1, false)] {
            let slot = sockets.open(Console { path: path.clone(), user });
            let mut client = Mconsole::new(slot, process);
            let answers = async {
                let mut buffer = [0; 2 * wire::LONGEST];
                let (_, from) = loop {
                    match console.recv_from(&mut buffer) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            tokio::task::yield_now().await
                        }
                        got => break got.unwrap(),
                    }
                };
                let mut reply = vec![0; 12];
                reply[8] = 3;
                reply.extend(b"OK\0");
                console.send_to(&reply, from.as_pathname().unwrap()).unwrap();
            };
            console.set_nonblocking(true).unwrap();
            let (asked, ()) = tokio::join!(client.ask("version", Duration::from_secs(60)), answers);
            match asked {
                Ok(text) => assert!(is_it && text == "OK", "{text}"),
                Err(error) => assert!(!is_it && matches!(error, MconsoleError::AnothersAnswer), "{error}"),
            }
        }
    }
}
