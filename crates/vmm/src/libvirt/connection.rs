//! One connection to a daemon of libvirt: calls with deadlines, answers in any order, events.
//!
//! **Problem.** A daemon answers a client's calls with several threads at once, each when its domain answers. A call about a domain whose QEMU is stopped is
//! not answered before QEMU goes on, and holds one of the few calls that a daemon takes of a client at once (`max_client_requests`, 5).
//!
//! **Rule.** A call that is late stays known as a [`Pending`] until it is answered. Until then, its caller makes no other call about the domain.
//! A connection with [`MOST_LATE`] late calls is *congested*: further calls to the daemon go over a new connection. The old one stays open for as long as a caller waits for an answer on it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memtide_model::Absence;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use super::protocol::{
    self, Auth, Event, HEADER, Header, Kind, LONGEST_EVENT, LONGEST_FRAME, Procedure, Refusal, Uuid,
};
use super::xdr::Malformed;

/// A daemon takes 5 calls of a client at once: more late ones would hold up all others.
const MOST_LATE: usize = 3;
/// A call without an answer for this long is late.
const LATE: Duration = Duration::from_millis(500);
/// Events that wait for somebody to hear them. A daemon that sends more is left: after the next connection everything is looked at anew.
pub(super) const MOST_EVENTS: usize = 1024;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The daemon cannot be connected to.
    #[error("libvirt's daemon is not reachable: {0}")]
    Connect(io::ErrorKind),
    /// The connection ended.
    #[error("libvirt's daemon closed the connection")]
    Closed,
    /// No answer within the deadline, or an earlier call about the same domain has none yet.
    #[error("libvirt did not answer in time")]
    Timeout,
    /// It does not speak the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It wants a proof of who memtide is that memtide does not have.
    #[error("libvirt's daemon asks for a password")]
    Password,
}

impl CallError {
    /// The same as the reason for a missing reading.
    pub(super) fn absence(&self) -> Absence {
        match self {
            Self::Connect(io::ErrorKind::PermissionDenied) | Self::Password => Absence::Forbidden,
            // Nobody is there.
            Self::Connect(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Absence::NoControl,
            Self::Connect(_) | Self::Closed => Absence::Disconnected,
            Self::Timeout => Absence::Timeout,
            Self::Malformed(_) => Absence::Malformed,
            Self::Refused(refusal) if refusal.is_a_lack_of_rights() => Absence::Forbidden,
            Self::Refused(refusal) => Absence::Refused(refusal.to_string()),
        }
    }

    /// Whether the connection may work on.
    pub(super) const fn is_about_one_call(&self) -> bool {
        matches!(self, Self::Timeout | Self::Refused(_))
    }
}

type Answer = Result<Vec<u8>, CallError>;

/// A connection that was opened. It ends when nobody has it or waits at it any more.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    reader: AbortHandle,
}

/// An event, and the domain that it is about.
pub(super) type Heard = (Event, Uuid);

/// The most bytes that are read from a daemon in a second.
const MOST_A_SECOND: usize = 8 << 20;

#[derive(Debug, Default)]
struct Shared(Mutex<Waiting>);

/// The calls without an answer.
#[derive(Debug, Default)]
struct Waiting {
    last_serial: u32,
    calls: HashMap<u32, Call>,
    /// Why the connection has ended.
    ended: Option<CallError>,
}

#[derive(Debug)]
struct Call {
    procedure: Procedure,
    since: Instant,
    reply: oneshot::Sender<Answer>,
}

/// A call whose answer is awaited.
#[derive(Debug)]
pub(super) struct Pending {
    answer: oneshot::Receiver<Answer>,
    /// So that the answer can still come.
    _connection: Arc<Connection>,
}

impl Pending {
    /// The answer, if it has come.
    pub(super) fn take(&mut self) -> Option<Answer> {
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(CallError::Closed)),
        }
    }

    /// Waits for it until `by`; `None`: it is late, and this can be asked again.
    pub(super) async fn within(&mut self, by: Instant) -> Option<Answer> {
        let answer = timeout_at(by.into(), &mut self.answer).await.ok()?;
        Some(answer.unwrap_or(Err(CallError::Closed)))
    }
}

impl Connection {
    /// Begins to speak over `stream`, and opens `uri`. Events go to `heard`, if they are wanted. Must be called within the runtime.
    ///
    /// # Errors
    /// If the daemon refuses, does not answer until `by`, or asks for a password.
    pub(super) async fn open(
        stream: UnixStream,
        uri: &str,
        read_only: bool,
        heard: Option<mpsc::Sender<Heard>>,
        by: Instant,
    ) -> Result<Arc<Self>, CallError> {
        let (read, write) = stream.into_split();
        let shared = Arc::<Shared>::default();

        let reader = tokio::spawn(listen(read, Arc::clone(&shared), heard)).abort_handle();
        let connection = Arc::new(Self { shared, writer: tokio::sync::Mutex::new(write), reader });
        match Auth::read(&connection.call(Procedure::AuthList, &[], by).await?)? {
            Auth::None => {}
            Auth::Polkit => _ = connection.call(Procedure::AuthPolkit, &[], by).await?,
            Auth::Other => return Err(CallError::Password),
        }
        connection.call(Procedure::ConnectOpen, &protocol::open(uri, read_only), by).await?;
        Ok(connection)
    }

    /// Makes a call, and waits for its answer until `by`.
    pub(super) async fn call(self: &Arc<Self>, procedure: Procedure, body: &[u8], by: Instant) -> Answer {
        let mut pending = self.begin(procedure, body, by).await?;
        pending.within(by).await.unwrap_or(Err(CallError::Timeout))
    }

    /// Makes a call whose answer may come later.
    pub(super) async fn begin(
        self: &Arc<Self>,
        procedure: Procedure,
        body: &[u8],
        by: Instant,
    ) -> Result<Pending, CallError> {
        let (serial, answer) = self.shared.expect(procedure)?;
        let frame = protocol::call(procedure, serial, body);
        let written = timeout_at(by.into(), async { self.writer.lock().await.write_all(&frame).await }).await;
        match written {
            Ok(Ok(())) => Ok(Pending { answer, _connection: Arc::clone(self) }),
            // A frame that is written by half ends the connection.
            Ok(Err(_)) | Err(_) => {
                self.end(CallError::Closed);
                Err(CallError::Closed)
            }
        }
    }

    /// Whether it can be used for new calls.
    pub(super) fn is_usable(&self) -> bool {
        let waiting = self.shared.lock();
        let late = waiting.calls.values().filter(|call| call.since.elapsed() >= LATE).count();
        waiting.ended.is_none() && late < MOST_LATE
    }

    fn end(&self, why: CallError) {
        self.shared.end(why);
        self.reader.abort();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A serial for a new call, and where its answer will come.
    fn expect(&self, procedure: Procedure) -> Result<(u32, oneshot::Receiver<Answer>), CallError> {
        let mut waiting = self.lock();
        if let Some(why) = &waiting.ended {
            return Err(why.clone());
        }
        let (reply, answer) = oneshot::channel();
        waiting.last_serial = waiting.last_serial.wrapping_add(1);
        let serial = waiting.last_serial;
        waiting.calls.insert(serial, Call { procedure, since: Instant::now(), reply });
        Ok((serial, answer))
    }

    fn end(&self, why: CallError) {
        let mut waiting = self.lock();
        let why = waiting.ended.get_or_insert(why).clone();
        for (_, call) in waiting.calls.drain() {
            let _unwanted = call.reply.send(Err(why.clone()));
        }
    }

    /// Hands an answer to the one who waits for it.
    fn answer(&self, header: &Header, failed: bool, body: Vec<u8>) -> Result<(), CallError> {
        let Some(call) = self.lock().calls.remove(&header.serial) else {
            return Err(Malformed.into());
        };
        if !header.answers(call.procedure) {
            return Err(Malformed.into());
        }
        let answer = if failed { Err(Refusal::read(&body)?.into()) } else { Ok(body) };
        // Nobody may want it any more.
        let _unwanted = call.reply.send(answer);
        Ok(())
    }
}

/// Reads frames until the connection ends.
async fn listen(mut read: OwnedReadHalf, shared: Arc<Shared>, heard: Option<mpsc::Sender<Heard>>) {
    let (mut second, mut taken) = (Instant::now(), 0_usize);
    loop {
        match hear(&mut read, &shared, heard.as_ref()).await {
            Ok(length) => taken = taken.saturating_add(length),
            Err(why) => {
                tracing::debug!(%why, "the connection to libvirt ended");
                shared.end(why);
                return;
            }
        }
        if second.elapsed() >= Duration::from_secs(1) {
            (second, taken) = (Instant::now(), 0);
        } else if taken > MOST_A_SECOND {
            tokio::time::sleep_until((second + Duration::from_secs(1)).into()).await;
        }
    }
}

/// Reads one frame. Returns its length.
async fn hear(
    read: &mut OwnedReadHalf,
    shared: &Shared,
    heard: Option<&mpsc::Sender<Heard>>,
) -> Result<usize, CallError> {
    let mut header = [0; HEADER];
    read.read_exact(&mut header).await.map_err(|_| CallError::Closed)?;
    let (length, header) = header.split_first_chunk::<4>().ok_or(Malformed)?;
    let length = u32::from_be_bytes(*length) as usize;
    if !(HEADER..=LONGEST_FRAME).contains(&length) {
        return Err(Malformed.into());
    }
    let header = Header::read(header)?;
    if header.kind == Kind::Message && length > LONGEST_EVENT {
        return Err(Malformed.into());
    }
    let mut body = Vec::new();
    let expected = (length - HEADER) as u64;
    // No more than has come is kept.
    read.take(expected).read_to_end(&mut body).await.map_err(|_| CallError::Closed)?;
    if body.len() as u64 != expected {
        return Err(CallError::Closed);
    }
    match header.kind {
        Kind::Reply { failed } => shared.answer(&header, failed, body)?,
        Kind::Message => {
            if let (Some(heard), Some(event)) = (heard, header.event()) {
                // Events that are lost are missed: the connection ends, too.
                heard.try_send((event, Event::domain(&body)?)).map_err(|_| CallError::Closed)?;
            }
        }
        Kind::Other => {}
    }
    Ok(length)
}
