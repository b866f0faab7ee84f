//! The host's end of the channel to a guest's agent: one task for each guest, beside the one of its monitor.
//!
//! **Problem.** A virtio-serial port accepts a connection whether or not an agent has opened it in the guest, and loses everything that is said
//! before. The agent may end and start again unnoticed. All that comes from a guest may be false, late, or without an end.
//!
//! **Rule.**
//! - The task greets until it is answered. Then it asks for a report each second, and for events of pressure.
//! - An agent reports at least every 5 s. If it does not, it is asked whether it lives ([`SILENT`]). If it does not answer within
//!   [`ANSWERS`], its last report is old, and it is greeted anew.
//! - At most one deed is under way. If an agent never answers for it, it has ended after [`DEED`], and freed nothing.
//! - Of an agent that talks too much only [`MOST_A_SECOND`] is read. A line is at most [`MAX_LINE`](memtide_agent::wire::MAX_LINE) bytes long.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memtide_agent::wire::{Answer, Ask, Can, Hello, MAX_AGES, PressureEvent, Reply, Report, VERSION};
use memtide_agent::{Line, Lines, wire};
use memtide_model::{Absence, Agent, Bytes, Deed, Reading, Share, Span, printable};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::back_off::BackOff;
use crate::qemu::socket::{self, Peer};
use crate::uml::Terminal;

/// After this much silence the agent is asked whether it lives.
const SILENT: Duration = Duration::from_secs(5);
/// An agent that lives answers within this time.
const ANSWERS: Duration = Duration::from_secs(2);
/// The longest time of a deed. An agent gives up a trim after 10 s, waits for a tier for 5 s, and for the end of reading one back for 10 s: then it
/// refuses, and goes on.
const DEED: Duration = Duration::from_secs(15);
/// A report is too old to act on after this time. An agent that saves processor time reports each 10 s.
const OLD: Duration = Duration::from_secs(15);
/// The interval of reports, in milliseconds.
const REPORT_MS: u64 = 1000;
/// An event is sent when tasks have stalled for this long within a window, in microseconds.
const STALL_US: [u64; 2] = [70_000, 1_000_000];
/// The waits after a connection was refused or broke: the first and the longest.
const RECONNECTS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];
/// The waits between greetings that nobody answers: the first and the longest.
const GREETS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(8)];
/// The most characters of a reason why an agent cannot do something.
const LONGEST_REASON: usize = 160;
/// The most bytes that are read from an agent in a second.
const MOST_A_SECOND: usize = 256 << 10;

/// The channel to one guest's agent. It ends when this is dropped.
#[derive(Debug)]
pub struct AgentLink {
    shared: Arc<Shared>,
    deeds: mpsc::Sender<Ask>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    pressed: Notify,
}

/// What is known about the agent.
#[derive(Debug, Default)]
struct State {
    agent: Agent,
    /// When it reported last.
    reported_at: Option<Instant>,
    /// Why there is nothing newer.
    missing: Option<Absence>,
}

impl AgentLink {
    /// Begins to connect to the socket at `path`, where the process `peer` must listen. Must be called within the runtime.
    #[must_use]
    pub fn start(path: PathBuf, peer: Option<Peer>) -> Self {
        Self::over(Way::Socket(path, peer))
    }

    /// Begins to talk over a terminal. Must be called within the runtime.
    #[must_use]
    pub fn over_terminal(terminal: Terminal) -> Self {
        Self::over(Way::Terminal(terminal))
    }

    fn over(way: Way) -> Self {
        let shared = Arc::new(Shared::default());
        let (deeds, asked) = mpsc::channel(1);
        let task = tokio::spawn(run(way, Arc::clone(&shared), asked));
        Self { shared, deeds, task: task.abort_handle() }
    }

    /// What the agent told last, with its age.
    #[must_use]
    pub fn told(&self) -> Reading<Agent> {
        let state = self.shared.state();
        let missing = state.missing();
        let Some(at) = state.reported_at else { return Reading::absent(missing.unwrap_or(Absence::NotYet)) };
        let (value, age) = (state.agent.clone(), Span::from(at.elapsed()));
        match missing {
            Some(why) => Reading::Stale { value, age, why },
            None => Reading::Fresh { value, age },
        }
    }

    /// Gives the agent something to do. Its end shows in [`Agent::ended`].
    ///
    /// # Errors
    /// If the agent does not answer, or is busy.
    pub fn ask(&self, ask: Ask) -> Result<(), Absence> {
        let mut state = self.shared.state();
        if let Some(why) = state.missing() {
            return Err(why);
        }
        if state.reported_at.is_none() {
            return Err(Absence::NotYet);
        }
        if state.agent.busy {
            return Err(Absence::Refused("the agent is busy".to_owned()));
        }
        self.deeds.try_send(ask).map_err(|_| Absence::Disconnected)?;
        state.agent.busy = true;
        Ok(())
    }

    /// Passes a request on to the agent.
    ///
    /// # Errors
    /// As [`AgentLink::ask`].
    pub fn request(&self, deed: Deed) -> Result<(), Absence> {
        self.ask(match deed {
            Deed::Trim(bytes) => Ask::Trim { bytes, may_swap: false, last_resort: false },
            Deed::Compact => Ask::Compact,
            Deed::LimitCache(share) => Ask::CacheLimit { share: share.map(Share::basis_points) },
            Deed::ReportPieces(on) => Ask::ReportPieces { on },
            Deed::UseTier(on) => Ask::UseTier { on },
            Deed::PageOut(bytes) => Ask::PageOut { bytes },
        })
    }
}

/// Waits until the agent tells of stalls; forever if there is none.
pub(crate) fn pressed(agent: Option<&AgentLink>) -> impl Future<Output = ()> + Send + use<> {
    let shared = agent.map(|agent| Arc::clone(&agent.shared));
    async move {
        match shared {
            Some(shared) => shared.pressed.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for AgentLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Why there is nothing newer than the last report. An agent that answers, and reports nothing, knows nothing either.
    fn missing(&self) -> Option<Absence> {
        let is_old = self.reported_at.is_some_and(|at| at.elapsed() >= OLD);
        self.missing.clone().or(is_old.then_some(Absence::Silent))
    }

    /// The agent cannot be heard.
    fn is_lost(&mut self, why: Absence) {
        self.missing = Some(why);
        if self.agent.busy {
            self.deed_ended(None);
        }
    }

    /// A deed has ended.
    fn deed_ended(&mut self, answer: Option<&Answer>) {
        self.agent.busy = false;
        self.agent.ended += 1;
        self.agent.freed = match answer {
            Some(Answer::Done(done)) => done.bytes.unwrap_or_default(),
            _ => Bytes::ZERO,
        };
    }

    fn take_hello(&mut self, hello: &Hello) {
        let can = |ability: Can| hello.can.contains(&ability);
        self.agent.counts_refaults = can(Can::Refaults);
        self.agent.trims = can(Can::Trim);
        self.agent.compacts = can(Can::Compact);
        self.agent.reports_pieces = can(Can::ReportPieces);
        self.agent.tiers = can(Can::Tier);
        self.agent.least_cache = hello.least_cache;
        self.agent.ages.clear();
        let known = hello.cannot.iter().filter(|(can, _)| **can != Can::Unknown);
        self.agent.cannot = known.map(|(can, why)| (*can, for_people(why))).collect();
        (self.agent.cache_limit, self.agent.pieces_return) = (None, false);
    }

    fn take_report(&mut self, report: &Report) {
        self.agent.memory = report.memory;
        self.agent.counters = report.counters;
        self.agent.stalls = report.stalls;
        // Most reports are without.
        if !report.ages.is_empty() {
            self.agent.ages = report.ages.iter().take(MAX_AGES).copied().collect();
        }
        self.reported_at = Some(Instant::now());
        self.missing = None;
    }

    /// What an event tells, on top of the last report, which it does not make younger: its counters are of then.
    fn take_event(&mut self, event: &PressureEvent) {
        self.agent.memory.available = event.available;
    }
}

/// The beginning of an agent's reason, without anything that a terminal obeys.
fn for_people(why: &str) -> String {
    printable(why).chars().take(LONGEST_REASON).collect()
}

/// The way to an agent.
#[derive(Debug)]
enum Way {
    /// A socket, where this process must listen.
    Socket(PathBuf, Option<Peer>),
    /// A terminal that somebody else opens.
    Terminal(Terminal),
}

/// Both directions of a connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Way {
    async fn connect(&self) -> Result<Box<dyn Stream>, Absence> {
        match self {
            Self::Socket(path, peer) => connect(path, *peer).await.map(|stream| Box::new(stream) as _),
            Self::Terminal(terminal) => {
                let file = terminal.take()?;
                let broken = |_: io::Error| Absence::Disconnected;
                let reads = pipe::Receiver::from_file_unchecked(file.try_clone().map_err(broken)?);
                let writes = pipe::Sender::from_file_unchecked(file).map_err(broken)?;
                Ok(Box::new(tokio::io::join(reads.map_err(broken)?, writes)))
            }
        }
    }

    /// The connection has broken.
    fn give_up(&self) {
        if let Self::Terminal(terminal) = self {
            terminal.give_up();
        }
    }
}

async fn run(way: Way, shared: Arc<Shared>, mut deeds: mpsc::Receiver<Ask>) {
    let [first, longest] = RECONNECTS;
    let mut back_off = BackOff::new(first, longest);
    // Ids go on: answers to an earlier connection are told apart.
    let mut ids = 0;
    loop {
        let connected = way.connect().await;
        let why = match connected {
            Ok(stream) => {
                let mut talk = Talk::new(stream, &shared, &mut ids);
                let ended = talk.go_on(&mut deeds).await;
                way.give_up();
                if talk.greeted {
                    back_off.worked();
                }
                ended
            }
            Err(why) => why,
        };
        shared.state().is_lost(why.clone());
        while deeds.try_recv().is_ok() {}
        back_off.failed(why);
        if let Some(until) = back_off.until() {
            tokio::time::sleep_until(until.into()).await;
        }
    }
}

async fn connect(path: &Path, peer: Option<Peer>) -> Result<UnixStream, Absence> {
    let connecting = timeout(ANSWERS, socket::connect(path, peer)).await;
    let stream = match connecting {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Absence::Forbidden);
        }
        Ok(Err(_)) => return Err(Absence::Disconnected),
        Err(_) => return Err(Absence::Timeout),
    };
    let listener = stream.peer_cred().ok();
    let pid = listener.and_then(|cred| cred.pid()).and_then(|pid| u32::try_from(pid).ok());
    match (peer, pid) {
        // A service of this user has made the socket for its guest.
        (Some(Peer::OfUser { user, .. }), _) => match listener.is_some_and(|cred| cred.uid() == user) {
            true => Ok(stream),
            false => Err(Absence::Forbidden),
        },
        (Some(peer), Some(pid)) if pid != peer.pid() && pid != 0 => {
            Err(Absence::Refused(format!("process {pid} listens at the agent's socket")))
        }
        _ => Ok(stream),
    }
}

/// One connection.
struct Talk<'a> {
    stream: Box<dyn Stream>,
    shared: &'a Shared,
    ids: &'a mut u64,
    lines: Lines,
    greeted: bool,
    /// The last greeting: its id, and when the next one follows.
    greeting: (u64, Instant),
    greets_in: Duration,
    heard_at: Instant,
    pinged: bool,
    /// The deed under way: its id, what it is, and when it counts as ended.
    deed: Option<(u64, Ask, Instant)>,
    /// The bytes read in the present second, and its end.
    read: (usize, Instant),
}

impl<'a> Talk<'a> {
    fn new(stream: Box<dyn Stream>, shared: &'a Shared, ids: &'a mut u64) -> Self {
        let now = Instant::now();
        Self {
            stream,
            shared,
            ids,
            lines: Lines::default(),
            greeted: false,
            greeting: (0, now),
            greets_in: GREETS[0],
            heard_at: now,
            pinged: false,
            deed: None,
            read: (0, now),
        }
    }

    /// Talks until the connection breaks. Returns why it did.
    async fn go_on(&mut self, deeds: &mut mpsc::Receiver<Ask>) -> Absence {
        loop {
            if let Err(why) = self.turn(deeds).await {
                return why;
            }
        }
    }

    async fn turn(&mut self, deeds: &mut mpsc::Receiver<Ask>) -> Result<(), Absence> {
        self.look_at_the_clock().await?;
        if !self.greeted {
            // What a silent agent was asked for has ended.
            while deeds.try_recv().is_ok() {}
        }
        let (until, reads_at) = (self.next_look(), self.reads_at());
        let mut piece = [0_u8; 4096];
        tokio::select! {
            count = read_at(&mut self.stream, &mut piece, reads_at) => match count {
                Ok(count @ 1..) => self.hear(&piece[..count]).await,
                _ => Err(Absence::Disconnected),
            },
            ask = deeds.recv(), if self.greeted && self.deed.is_none() => {
                // The other end of the channel lives as long as this task.
                let Some(ask) = ask else { return Err(Absence::Gone) };
                let id = self.send(ask).await?;
                self.deed = Some((id, ask, Instant::now() + DEED));
                Ok(())
            }
            () = tokio::time::sleep_until(until.into()) => Ok(()),
        }
    }

    /// Does what is due.
    async fn look_at_the_clock(&mut self) -> Result<(), Absence> {
        let now = Instant::now();
        if let Some((_, ask, _)) = self.deed.take_if(|(.., until)| *until <= now) {
            let mut state = self.shared.state();
            state.deed_ended(None);
            // It may have been done: then it must be ended, too.
            state.agent.pieces_return |= ask == Ask::ReportPieces { on: true };
        }
        if self.greeted && now >= self.heard_at + SILENT && !self.pinged {
            self.pinged = true;
            self.send(Ask::Ping).await?;
        }
        if self.greeted && now >= self.heard_at + SILENT + ANSWERS {
            // It may have ended, and another one may have started.
            self.greeted = false;
            self.deed = None;
            (self.greeting.1, self.greets_in) = (now, GREETS[0]);
            self.shared.state().is_lost(Absence::Silent);
        }
        if !self.greeted && now >= self.greeting.1 {
            self.greeting = (self.send(Ask::Hello { version: VERSION }).await?, now + self.greets_in);
            self.greets_in = (self.greets_in * 2).min(GREETS[1]);
            if now >= self.heard_at + SILENT {
                self.shared.state().is_lost(Absence::Silent);
            }
        }
        Ok(())
    }

    /// When the clock must be looked at again.
    fn next_look(&self) -> Instant {
        let deed = self.deed.map(|(.., until)| until);
        let of_silence = match (self.greeted, self.pinged) {
            (false, _) => self.greeting.1,
            (true, false) => self.heard_at + SILENT,
            (true, true) => self.heard_at + SILENT + ANSWERS,
        };
        deed.map_or(of_silence, |deed| deed.min(of_silence))
    }

    /// When the next piece may be read.
    fn reads_at(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if self.read.1 <= now {
            self.read = (0, now + Duration::from_secs(1));
        }
        (self.read.0 >= MOST_A_SECOND).then_some(self.read.1)
    }

    async fn send(&mut self, ask: Ask) -> Result<u64, Absence> {
        *self.ids += 1;
        let id = *self.ids;
        let mut line = serde_json::to_vec(&wire::Request { id, ask }).map_err(|_| Absence::Malformed)?;
        line.push(b'\n');
        match timeout(ANSWERS, self.stream.write_all(&line)).await {
            Ok(Ok(())) => Ok(id),
            Ok(Err(_)) => Err(Absence::Disconnected),
            Err(_) => Err(Absence::Timeout),
        }
    }

    async fn hear(&mut self, piece: &[u8]) -> Result<(), Absence> {
        self.read.0 += piece.len();
        let mut replies = Vec::new();
        self.lines.take(piece, |line| {
            if let Line::Whole(line) = line {
                replies.extend(serde_json::from_slice::<Reply>(&line).ok());
            }
        });
        for reply in replies {
            self.take(reply).await?;
        }
        Ok(())
    }

    async fn take(&mut self, Reply { id, answer }: Reply) -> Result<(), Absence> {
        if let Answer::Hello(hello) = &answer {
            return if id == self.greeting.0 && !self.greeted {
                self.is_greeted(hello).await
            } else {
                Ok(())
            };
        }
        if !self.greeted {
            return Ok(());
        }
        (self.heard_at, self.pinged) = (Instant::now(), false);
        if let Some((_, ask, _)) = self.deed.take_if(|(deed, ..)| *deed == id) {
            let mut state = self.shared.state();
            state.deed_ended(Some(&answer));
            match (ask, &answer) {
                (Ask::CacheLimit { share }, Answer::Done(_)) => {
                    state.agent.cache_limit = share.and_then(Share::from_basis_points);
                }
                (Ask::ReportPieces { on }, Answer::Done(_)) => state.agent.pieces_return = on,
                // The next report comes up to a second later.
                (Ask::UseTier { on }, Answer::Done(done)) => {
                    let size = done.bytes.filter(|_| on).unwrap_or_default();
                    (state.agent.memory.tier_total, state.agent.memory.tier_free) = (size, size);
                }
                _ => {}
            }
        }
        match answer {
            Answer::Report(report) => self.shared.state().take_report(&report),
            Answer::Pressure(event) => {
                self.shared.state().take_event(&event);
                self.shared.pressed.notify_one();
            }
            Answer::Hello(_) | Answer::Done(_) | Answer::Refused(_) => {}
        }
        Ok(())
    }

    async fn is_greeted(&mut self, hello: &Hello) -> Result<(), Absence> {
        if hello.version != VERSION {
            return Err(Absence::Refused(format!(
                "the agent speaks version {}, not {VERSION}",
                hello.version
            )));
        }
        (self.greeted, self.heard_at, self.pinged) = (true, Instant::now(), false);
        self.shared.state().take_hello(hello);
        self.send(Ask::Report { every_ms: REPORT_MS }).await?;
        if hello.can.contains(&Can::Pressure) {
            let [stall_us, window_us] = STALL_US;
            self.send(Ask::Pressure { stall_us, window_us }).await?;
        }
        Ok(())
    }
}

/// Reads a piece, but not before `at`.
async fn read_at(
    stream: &mut Box<dyn Stream>,
    piece: &mut [u8],
    at: Option<Instant>,
) -> std::io::Result<usize> {
    if let Some(at) = at {
        tokio::time::sleep_until(at.into()).await;
    }
    stream.read(piece).await
}

#[cfg(test)]
mod tests;
