//! A QEMU's monitor as the way to its guest, shared with other clients.
//!
//! **Problem.** A monitor serves one client at a time, and a discovered monitor is not for memtide alone. But a new connection for
//! each poll costs both sides more than the poll, and a connection to a monitor that another client holds stays in its queue until that
//! client leaves. Programs such as Incus never leave.
//!
//! **Rule.** The kernel's list of sockets says who listens, who is served and who waits ([`listed`]).
//!
//! - memtide does not connect until the process listens at one of the paths that it names.
//! - While memtide manages, it keeps a discovered monitor open until somebody knocks: until a client waits there. memtide then closes the
//!   connection, lets the other client be served first, and uses the monitor briefly as long as somebody waits. If nobody is served although the
//!   monitor is free, nobody waits: as many lines of the list are not believed for [`DISBELIEVES_FOR`].
//! - If no greeting came, another client holds the monitor. memtide does not connect again while the list shows that a client is served.
//!
//! If the list cannot be read, the monitor is used briefly.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memtide_host::ProcFs;
use memtide_model::{Absence, Fence, Reading, Request, TierOrder, Told};
use tokio::sync::watch;

use super::listed::{self, OfMonitors};
use super::monitor::{Monitor, MonitorError};
use super::socket::Peer;
use crate::agent::{AgentLink, pressed};
use crate::backend::{Control, Later, TierDevice, Wish};
use crate::round::Patience;

/// How long memtide leaves a monitor alone after it closed the connection for a waiting client.
const YIELDS_FOR: Duration = Duration::from_secs(1);

/// How long lines about waiting clients are not believed after nobody was served in their place.
const DISBELIEVES_FOR: Duration = Duration::from_secs(60);

/// The sockets at the paths of all monitors; `None` if they cannot be found out.
pub(super) type Knocks = Option<OfMonitors>;

/// What shows who else uses a monitor.
#[derive(Debug)]
pub(super) struct Shared {
    /// The guest's process.
    pub(super) pid: u32,
    /// The paths of the monitor's listeners; empty if the list does not tell of them.
    pub(super) bound: Vec<PathBuf>,
    /// The monitor is memtide's alone, so nobody may knock.
    pub(super) is_dedicated: bool,
    /// Why its owner's configuration makes memtide leave the guest alone.
    pub(super) owned: Arc<Mutex<Option<Fence>>>,
    pub(super) knocks: watch::Receiver<Knocks>,
}

impl Shared {
    fn owned(&self) -> Option<Fence> {
        *self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clients that seem to wait at the monitor; `None` if it is not shared, or if a knock would not be heard.
    fn waiting(&self) -> Option<usize> {
        if self.bound.is_empty() || self.is_dedicated {
            return None;
        }
        let knocks = self.knocks.borrow();
        let seen = knocks.as_ref()?;
        Some(seen.waiting_at(self.pid, &self.bound))
    }

    /// Whether the process serves a client.
    fn serves(&self) -> bool {
        let descriptors = ProcFs::new(Path::new("/proc")).descriptors(self.pid).unwrap_or_default();
        let knocks = self.knocks.borrow();
        let sockets = listed::sockets_among(&descriptors);
        knocks.as_ref().is_some_and(|seen| seen.has_client(&self.bound, &sockets))
    }

    /// Why a connection would be in vain; `None` if it would not, or if nobody knows. `taken`: the last one was not greeted.
    fn why_not(&self, taken: bool) -> Option<Absence> {
        let knocks = self.knocks.borrow();
        let seen = knocks.as_ref().filter(|_| !self.bound.is_empty())?;
        let descriptors = ProcFs::new(Path::new("/proc")).descriptors(self.pid)?;
        let sockets = listed::sockets_among(&descriptors);
        if !seen.has_listener(&self.bound, &sockets) {
            return Some(Absence::Disconnected);
        }
        (taken && seen.has_client(&self.bound, &sockets)).then_some(Absence::ControlTaken)
    }
}

/// The port for a guest's agent.
#[derive(Debug)]
pub(super) struct AgentPort {
    /// Its socket.
    pub(super) path: PathBuf,
    /// The process that must listen there.
    pub(super) peer: Option<Peer>,
}

/// The way to one guest.
pub(super) struct QemuControl {
    monitor: Monitor,
    shared: Shared,
    /// Whether the monitor is kept open.
    kept: bool,
    /// When the monitor was closed for a waiting client, and whether one was served since.
    yielded: Option<(Instant, bool)>,
    /// The number of waiting clients that are not believed, until then.
    disbelieved: Option<(usize, Instant)>,
    /// The port for its agent, if it has one.
    port: Option<AgentPort>,
    agent: Option<AgentLink>,
}

impl QemuControl {
    pub(super) const fn new(monitor: Monitor, shared: Shared, port: Option<AgentPort>) -> Self {
        Self { monitor, shared, kept: false, yielded: None, disbelieved: None, port, agent: None }
    }

    /// Closes a monitor that is kept open if another client waits at it, or if memtide could not hear it. The other client is then served
    /// first.
    fn yield_to_others(&mut self) {
        self.shared.knocks.mark_unchanged();
        if self.kept && !self.is_quiet() {
            self.monitor.close();
            self.kept = false;
            self.yielded = Some((Instant::now(), false));
        }
    }

    /// Whether the monitor is shared, a knock would be heard, and nobody knocks.
    fn is_quiet(&self) -> bool {
        let disbelieved = self.disbelieved.filter(|(_, until)| Instant::now() < *until);
        self.shared.waiting().is_some_and(|waiting| waiting <= disbelieved.map_or(0, |(lines, _)| lines))
    }

    /// Whether the monitor is left to another client. At the end of that time, lines in whose place nobody was served are not believed.
    fn is_left(&mut self) -> bool {
        let Some((at, served)) = self.yielded else { return false };
        let served = served || self.shared.serves();
        if at.elapsed() < YIELDS_FOR {
            self.yielded = Some((at, served));
            return true;
        }
        self.yielded = None;
        if !served {
            let lines = self.shared.waiting().unwrap_or_default();
            self.disbelieved = (lines > 0).then(|| (lines, Instant::now() + DISBELIEVES_FOR));
        }
        false
    }

    async fn observe(&mut self, wish: Wish, deadline: Duration) -> Told {
        // Who only observes leaves the port to the memtide that manages: it takes one connection.
        self.agent = match (&self.port, self.agent.take()) {
            (Some(port), None) if wish.keep_open => Some(AgentLink::start(port.path.clone(), port.peer)),
            (_, agent) => agent.filter(|_| wish.keep_open),
        };
        let told = self.ask_monitor(wish, deadline).await;
        let agent = self.agent.as_ref().map_or_else(Reading::unsupported, AgentLink::told);
        Told { agent, fence: told.fence.or(self.shared.owned()), ..told }
    }

    async fn ask_monitor(&mut self, wish: Wish, deadline: Duration) -> Told {
        if wish.sizes {
            // At the next poll, even if that is later.
            self.monitor.doubt_sizes();
        }
        if self.shared.knocks.has_changed().unwrap_or(false) {
            self.yield_to_others();
        }
        if self.is_left() {
            return self.monitor.view();
        }
        if let Some(why) = self.in_vain() {
            return self.monitor.leave_alone(why);
        }
        self.kept = wish.keep_open && self.is_quiet();
        self.monitor.poll(Wish { keep_open: self.kept, ..wish }, deadline).await
    }

    /// Why a connection that is needed now would be in vain. Asked only as long as the monitor does not work.
    fn in_vain(&self) -> Option<Absence> {
        let why = self.monitor.why_not_connected()?;
        self.shared.why_not(why == Absence::ControlTaken)
    }

    async fn apply(&mut self, request: Request, deadline: Duration) -> Result<(), Absence> {
        if request.size().is_some() && matches!(self.shared.owned(), Some(Fence::Owned(_))) {
            return Err(Absence::Forbidden);
        }
        let done = match request {
            Request::SetTarget(target) => self.monitor.set_target(target, deadline).await,
            Request::PollStats(every) => self.monitor.set_polling(every, deadline).await,
            Request::Agent(deed) => {
                return self.agent.as_ref().ok_or(Absence::Unsupported)?.request(deed);
            }
            Request::Share(shares) => self.monitor.set_sharing(shares, deadline).await,
            Request::Tier(TierOrder::Detach) => self.monitor.detach_tier(deadline).await,
            Request::Reclaim(_) | Request::Split | Request::Merge(_) | Request::Tier(_) => {
                return Err(Absence::Unsupported);
            }
        };
        done.map_err(|error| absence(&error))
    }

    async fn attach(&mut self, tier: TierDevice, deadline: Duration) -> Result<(), Absence> {
        self.monitor.attach_tier(&tier.file, deadline).await.map_err(|error| absence(&error))
    }

    async fn next_event(&mut self) {
        loop {
            tokio::select! {
                _signal = self.monitor.next_event() => return,
                () = pressed(self.agent.as_ref()) => return,
                changed = self.shared.knocks.changed() => match changed {
                    Ok(()) => self.yield_to_others(),
                    // The backend is gone, and nobody needs events.
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }
}

impl Control for QemuControl {
    fn observe(&mut self, wish: Wish, deadline: Duration) -> Later<'_, Told> {
        Box::pin(self.observe(wish, deadline))
    }

    fn apply(&mut self, request: Request, deadline: Duration) -> Later<'_, Result<(), Absence>> {
        Box::pin(self.apply(request, deadline))
    }

    fn attach(&mut self, tier: TierDevice, deadline: Duration) -> Later<'_, Result<(), Absence>> {
        Box::pin(self.attach(tier, deadline))
    }

    fn next_event(&mut self) -> Later<'_, ()> {
        Box::pin(self.next_event())
    }

    fn be_patient(&mut self, patience: Patience) {
        self.monitor.be_patient(patience);
    }
}

/// Why a change failed, in the model's types.
fn absence(error: &MonitorError) -> Absence {
    match error {
        MonitorError::Qmp { source, .. } => source.absence(),
        MonitorError::NoBalloon { why, .. } => why.clone(),
        MonitorError::Target { .. } => Absence::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::net::{UnixListener, UnixStream};

    use memtide_model::GuestId;

    use super::super::monitor::{MonitorConfig, Use};
    use super::*;

    #[test]
    fn a_monitor_that_another_program_holds_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let (told, knocks) = watch::channel(None);
        let pid = std::process::id();
        let shared =
            Shared { pid, bound: vec![path.clone()], is_dedicated: false, owned: Arc::default(), knocks };
        let look = || {
            let mut seen = OfMonitors::default();
            seen.add(&ProcFs::new(Path::new("/proc")), pid, &BTreeSet::from([path.as_path()])).unwrap();
            told.send_replace(Some(seen));
        };
        assert_eq!((shared.why_not(true), shared.waiting()), (None, None));
        look();
        assert_eq!(shared.why_not(false), Some(Absence::Disconnected));
        let listener = UnixListener::bind(&path).unwrap();
        look();
        assert_eq!((shared.why_not(true), shared.waiting()), (None, Some(0)));
        let holder = UnixStream::connect(&path).unwrap();
        let (served, _) = listener.accept().unwrap();
        look();
        // It may be memtide's own last connection, unless a later one was not greeted.
        assert_eq!((shared.why_not(false), shared.why_not(true)), (None, Some(Absence::ControlTaken)));
        let _waits = UnixStream::connect(&path).unwrap();
        look();
        assert_eq!(shared.waiting(), Some(1));
        drop((holder, served));
        look();
        assert_eq!(shared.why_not(true), None);
    }

    /// The monitor of this process, which serves nobody, and what the list says of it.
    fn control(path: &Path) -> (QemuControl, watch::Sender<Knocks>) {
        let (told, knocks) = watch::channel(Some(OfMonitors::default()));
        let shared = Shared {
            pid: std::process::id(),
            bound: vec![path.to_owned()],
            is_dedicated: false,
            owned: Arc::default(),
            knocks,
        };
        let monitor = Monitor::new(MonitorConfig {
            guest: GuestId::new("web", 1, "boot"),
            paths: vec![path.to_owned()],
            peer: None,
            use_as: Use::Brief,
            memory: None,
        });
        (QemuControl::new(monitor, shared, None), told)
    }

    #[test]
    fn a_knock_with_nobody_behind_it_is_believed_once_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let (mut control, told) = control(&path);
        let wait = |lines: usize| {
            let mut seen = OfMonitors::default();
            seen.waiting.insert(path.clone(), lines);
            told.send_replace(Some(seen));
        };
        let yields = |control: &mut QemuControl| {
            control.kept = true;
            control.yield_to_others();
            !control.kept
        };
        let moment = YIELDS_FOR + Duration::from_millis(1);
        let is_over = |control: &mut QemuControl| {
            let (at, served) = control.yielded.unwrap();
            control.yielded = Some((at.checked_sub(moment).unwrap(), served));
            !control.is_left()
        };
        wait(1);
        assert!(yields(&mut control) && control.is_left());
        assert!(is_over(&mut control));
        // The line stays, and nobody is served.
        assert!(control.is_quiet() && !yields(&mut control));
        // Another client waits beside it.
        wait(2);
        assert!(yields(&mut control));
        wait(1);
        assert!(is_over(&mut control));
        assert!(!yields(&mut control));
        control.disbelieved = control.disbelieved.map(|(lines, _)| (lines, Instant::now()));
        assert!(yields(&mut control), "a minute later");
    }
}
