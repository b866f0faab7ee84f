//! A daemon of libvirt: its socket, who must listen there, its connections, and what it tells of its domains.
//!
//! **Problem.** libvirtd is upgraded and restarted under running guests. A frozen QEMU holds up calls about its domain. A user who may not write to a
//! daemon's socket may perhaps read from it.
//!
//! **Rule.** Calls go over one connection, which is opened again with pauses that become longer; a congested one is replaced. Events come over a connection of their
//! own: after each reconnection memtide reads everything again, because it may have missed events. If the daemon allows only reading, memtide still reads.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use memtide_model::Absence;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use super::connection::{CallError, Connection, Heard, MOST_EVENTS};
use super::protocol::{Domain, Event, Procedure, Uuid};
use crate::back_off::BackOff;
use crate::qemu::socket::{self, Peer};

/// The first and the longest wait after a connection that failed. A restarted daemon is there again within seconds.
const CONNECTS_AGAIN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// The longest that the opening of a connection takes. A daemon that systemd starts reads the state of all domains first.
const OPENS_WITHIN: Duration = Duration::from_secs(5);
/// Events are heard anew after at least this long.
const HEARS_AGAIN: Duration = Duration::from_millis(500);

/// The most calls of memtide without an answer. A daemon has 20 threads for all its clients (`max_workers`): the rest stays for others.
const MOST_LATE: usize = 14;

/// Where a daemon listens, who it must be, and what the operator allows there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Its socket.
    pub(super) socket: PathBuf,
    /// Its user.
    pub(super) owner: Owner,
    /// QEMU's monitors may be asked through it, which it notes as a taint of its guests.
    pub(super) monitor_commands: bool,
}

/// Whose daemon it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// The operator has named the socket.
    Named,
    /// Root: the socket is in a directory of root's.
    Root,
    /// This user.
    User(u32),
}

/// A daemon, shared by the controls of its domains.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(super) place: Place,
    opening: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// Calls without an answer, over all connections.
    late: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct State {
    link: Option<Link>,
    back_off: BackOff,
    mailboxes: HashMap<Uuid, Arc<Mailbox>>,
    /// A process of the user that the daemon must belong to: the last one that asked for a connection.
    pid: u32,
    listener: Option<AbortHandle>,
}

/// A connection for calls.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) connection: Arc<Connection>,
    /// The daemon lets memtide only read.
    pub(super) is_read_only: bool,
    /// The user of the daemon's process, as the kernel says.
    pub(super) user: u32,
    /// Calls to this daemon without an answer.
    late: Arc<AtomicUsize>,
}

impl Link {
    /// One more call has no answer, as long as this lives.
    pub(super) fn late_call(&self) -> LateCall {
        self.late.fetch_add(1, Ordering::Relaxed);
        LateCall(Arc::clone(&self.late))
    }
}

/// A call without an answer.
#[derive(Debug)]
pub(super) struct LateCall(Arc<AtomicUsize>);

impl Drop for LateCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection to open.
struct Opening {
    path: PathBuf,
    is_read_only: bool,
    /// Where events go that are heard over it.
    heard: Option<mpsc::Sender<Heard>>,
    /// A process of the user that the daemon must belong to.
    pid: u32,
}

/// What events have told of a domain since somebody looked.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    news: Mutex<News>,
    pub(super) arrived: Notify,
}

/// Kinds of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Events may have been missed.
    pub(super) missed: bool,
    pub(super) events: std::collections::BTreeSet<Event>,
}

impl Mailbox {
    pub(super) fn take(&self) -> News {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.arrived.notify_one();
    }
}

impl Daemon {
    pub(super) fn new(place: Place) -> Arc<Self> {
        let state = State {
            link: None,
            back_off: BackOff::new(CONNECTS_AGAIN.0, CONNECTS_AGAIN.1),
            mailboxes: HashMap::new(),
            pid: std::process::id(),
            listener: None,
        };
        let late = Arc::default();
        Arc::new(Self { place, opening: tokio::sync::Mutex::default(), state: Mutex::new(state), late })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its connection for calls, opened if there is none. `pid` is a process of the user that the daemon must belong to.
    pub(super) async fn link(self: &Arc<Self>, pid: u32, by: Instant) -> Result<Link, Absence> {
        if self.late.load(Ordering::Relaxed) >= MOST_LATE {
            return Err(Absence::Timeout);
        }
        let _one = timeout_at(by.into(), self.opening.lock()).await.map_err(|_| Absence::Timeout)?;
        {
            let mut state = self.state();
            state.pid = pid;
            if let Some(link) = state.link.as_ref().filter(|link| link.connection.is_usable()) {
                return Ok(link.clone());
            }
            if let Some(why) = state.back_off.why() {
                return Err(why);
            }
        }
        let opened = self.open(pid, None, by.min(Instant::now() + OPENS_WITHIN)).await;
        let mut state = self.state();
        match opened {
            Ok(link) => {
                state.back_off.worked();
                state.link = Some(link.clone());
                if state.listener.is_none() {
                    let listens = tokio::spawn(listen(Arc::downgrade(self)));
                    state.listener = Some(listens.abort_handle());
                }
                Ok(link)
            }
            Err(error) => {
                state.link = None;
                state.back_off.failed(error.absence());
                Err(error.absence())
            }
        }
    }

    /// Opens a connection: to its socket for reading and writing, else to the one for reading.
    async fn open(
        &self,
        pid: u32,
        heard: Option<mpsc::Sender<Heard>>,
        by: Instant,
    ) -> Result<Link, CallError> {
        let to = |path: &Path, is_read_only| Opening {
            path: path.to_owned(),
            is_read_only,
            heard: heard.clone(),
            pid,
        };
        match self.open_at(to(&self.place.socket, false), by).await {
            Err(error) if error.absence() == Absence::Forbidden => {
                let mut read_only = self.place.socket.clone().into_os_string();
                read_only.push("-ro");
                self.open_at(to(Path::new(&read_only), true), by).await.map_err(|_| error)
            }
            opened => opened,
        }
    }

    async fn open_at(&self, opening: Opening, by: Instant) -> Result<Link, CallError> {
        let Opening { path, is_read_only, heard, pid } = opening;
        let (stream, user) =
            self.connect(&path, pid).await.map_err(|error| CallError::Connect(error.kind()))?;
        let uri = if user == 0 { "qemu:///system" } else { "qemu:///session" };
        let connection = Connection::open(stream, uri, is_read_only, heard, by).await?;
        Ok(Link { connection, is_read_only, user, late: Arc::clone(&self.late) })
    }

    async fn connect(&self, path: &Path, pid: u32) -> io::Result<(UnixStream, u32)> {
        let peer = match self.place.owner {
            Owner::Named | Owner::Root => None,
            Owner::User(user) => Some(Peer::OfUser { pid, user }),
        };
        let stream = socket::connect(path, peer).await?;
        let user = stream.peer_cred()?.uid();
        let is_its = match self.place.owner {
            Owner::Named => true,
            Owner::Root => user == 0,
            Owner::User(owner) => user == owner,
        };
        if is_its { Ok((stream, user)) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// The file in which a daemon of `user` keeps the number of a domain's process (`virPidFileBuildPath` in its state directory).
    pub(super) fn pid_file(&self, user: u32, domain: &Domain) -> Option<PathBuf> {
        let is_plain = !domain.name.is_empty() && !domain.name.contains(['/', '\0']);
        let directory = self.place.socket.parent().filter(|_| is_plain)?;
        let directory = directory.join(if user == 0 { "qemu" } else { "qemu/run" });
        Some(directory.join(format!("{}.pid", domain.name)))
    }

    /// Where the events of a domain arrive from now on, in place of where they arrived before.
    pub(super) fn mailbox(&self, uuid: Uuid) -> Arc<Mailbox> {
        let mailbox = Arc::<Mailbox>::default();
        self.state().mailboxes.insert(uuid, Arc::clone(&mailbox));
        mailbox
    }

    /// The domains that somebody wants to hear of.
    pub(super) fn guests(&self) -> u32 {
        u32::try_from(self.state().mailboxes.len()).unwrap_or(u32::MAX)
    }

    /// Nobody wants to hear of a domain any more. Its next start may have a mailbox already.
    pub(super) fn forget(&self, uuid: Uuid, mailbox: &Arc<Mailbox>) {
        let mut state = self.state();
        if state.mailboxes.get(&uuid).is_some_and(|now| Arc::ptr_eq(now, mailbox)) {
            state.mailboxes.remove(&uuid);
        }
    }

    fn deliver(&self, event: Event, uuid: Uuid) {
        let mailbox = self.state().mailboxes.get(&uuid).cloned();
        if let Some(mailbox) = mailbox {
            mailbox.put(|news| _ = news.events.insert(event));
        }
    }

    fn events_were_missed(&self) {
        let all: Vec<_> = self.state().mailboxes.values().cloned().collect();
        all.iter().for_each(|mailbox| mailbox.put(|news| news.missed = true));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(listener) = &self.state().listener {
            listener.abort();
        }
    }
}

/// Hears events for as long as the daemon is wanted.
async fn listen(daemon: Weak<Daemon>) {
    let mut back_off = BackOff::new(HEARS_AGAIN, CONNECTS_AGAIN.1);
    loop {
        let Some(strong) = daemon.upgrade() else { return };
        let pid = strong.state().pid;
        let heard = hear(&strong, pid).await;
        drop(strong);
        match heard {
            Ok((_connection, mut events)) => {
                back_off.worked();
                if let Some(daemon) = daemon.upgrade() {
                    daemon.events_were_missed();
                }
                while let Some((event, uuid)) = events.recv().await {
                    let Some(daemon) = daemon.upgrade() else { return };
                    daemon.deliver(event, uuid);
                }
                if let Some(daemon) = daemon.upgrade() {
                    daemon.events_were_missed();
                }
                tokio::time::sleep(HEARS_AGAIN).await;
            }
            Err(error) => {
                tracing::debug!(%error, "no events from libvirt");
                back_off.failed(error.absence());
                let until = back_off.until().unwrap_or_else(Instant::now);
                tokio::time::sleep_until(until.into()).await;
            }
        }
    }
}

/// A connection, and what is heard over it.
type Hearing = (Arc<Connection>, mpsc::Receiver<Heard>);

/// Opens a connection and registers for all events that this daemon knows.
async fn hear(daemon: &Daemon, pid: u32) -> Result<Hearing, CallError> {
    let by = Instant::now() + OPENS_WITHIN;
    let (heard, events) = mpsc::channel(MOST_EVENTS);
    let link = daemon.open(pid, Some(heard), by).await?;
    for event in Event::ALL {
        match link.connection.call(Procedure::RegisterEvent, &event.registration(), by).await {
            // An older daemon does not know each of them.
            Ok(_) | Err(CallError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((link.connection, events))
}
