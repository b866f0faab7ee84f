//! A QEMU's monitor as the way to its guest, shared with other clients: see [`super::knock`].

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memtide_model::{Absence, Reading, Request, Told};
use tokio::sync::watch;

use super::monitor::{Monitor, MonitorError};
use crate::agent::{AgentLink, pressed};
use crate::backend::{Control, Later, Wish};
use crate::round::Patience;

/// How long memtide leaves a monitor alone after it closed the connection for a waiting client.
const YIELDS_FOR: Duration = Duration::from_secs(1);

/// The paths at which clients wait for monitors; `None` if they cannot be found out.
pub(super) type Knocks = Option<BTreeSet<PathBuf>>;

/// The port for a guest's agent.
#[derive(Debug)]
pub(super) struct AgentPort {
    /// Its socket.
    pub(super) path: PathBuf,
    /// The process that must listen there.
    pub(super) peer: Option<u32>,
}

/// The way to one guest.
pub(super) struct QemuControl {
    monitor: Monitor,
    /// The names of the monitor's listeners; empty if the monitor must not be kept open.
    bound: Vec<PathBuf>,
    knocks: watch::Receiver<Knocks>,
    /// Whether the monitor is kept open.
    kept: bool,
    /// When the monitor was closed for a waiting client.
    yielded_at: Option<Instant>,
    /// The port for its agent, if it has one.
    port: Option<AgentPort>,
    agent: Option<AgentLink>,
}

impl QemuControl {
    pub(super) const fn new(
        monitor: Monitor,
        bound: Vec<PathBuf>,
        knocks: watch::Receiver<Knocks>,
        port: Option<AgentPort>,
    ) -> Self {
        Self { monitor, bound, knocks, kept: false, yielded_at: None, port, agent: None }
    }

    /// Closes a monitor that is kept open if another client waits at it, or if memtide could not hear it. The other client is then served
    /// first.
    fn yield_to_others(&mut self) {
        let is_heard = |waiting: &BTreeSet<PathBuf>| self.bound.iter().any(|path| waiting.contains(path));
        let yields = self.kept && self.knocks.borrow_and_update().as_ref().is_none_or(is_heard);
        if yields {
            self.monitor.close();
            self.kept = false;
            self.yielded_at = Some(Instant::now());
        }
    }

    async fn observe(&mut self, wish: Wish, deadline: Duration) -> Told {
        // Who only observes leaves the port to the memtide that manages: it takes one connection.
        self.agent = match (&self.port, self.agent.take()) {
            (Some(port), None) if wish.keep_open => Some(AgentLink::start(port.path.clone(), port.peer)),
            (_, agent) => agent.filter(|_| wish.keep_open),
        };
        let told = self.ask_monitor(wish, deadline).await;
        let agent = self.agent.as_ref().map_or_else(Reading::unsupported, AgentLink::told);
        Told { agent, ..told }
    }

    async fn ask_monitor(&mut self, wish: Wish, deadline: Duration) -> Told {
        if self.knocks.has_changed().unwrap_or(false) {
            self.yield_to_others();
        }
        if self.yielded_at.is_some_and(|at| at.elapsed() < YIELDS_FOR) {
            return self.monitor.view();
        }
        let hears = !self.bound.is_empty() && self.knocks.borrow().is_some();
        self.kept = wish.keep_open && hears;
        self.monitor.poll(Wish { keep_open: self.kept, ..wish }, deadline).await
    }

    async fn apply(&mut self, request: Request, deadline: Duration) -> Result<(), Absence> {
        let done = match request {
            Request::SetTarget(target) => self.monitor.set_target(target, deadline).await,
            Request::PollStats(every) => self.monitor.set_polling(every, deadline).await,
            Request::Trim(_) | Request::Compact | Request::LimitCache(_) => {
                return self.agent.as_ref().ok_or(Absence::Unsupported)?.request(request);
            }
            Request::Share(shares) => self.monitor.set_sharing(shares, deadline).await,
            Request::Reclaim(_) | Request::Split | Request::Merge(_) => return Err(Absence::Unsupported),
        };
        done.map_err(|error| match error {
            MonitorError::Qmp { source, .. } => source.absence(),
            MonitorError::NoBalloon { why, .. } => why,
            MonitorError::Target { .. } => Absence::Refused(error.to_string()),
        })
    }

    async fn next_event(&mut self) {
        loop {
            tokio::select! {
                _signal = self.monitor.next_event() => return,
                () = pressed(self.agent.as_ref()) => return,
                changed = self.knocks.changed() => match changed {
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

    fn next_event(&mut self) -> Later<'_, ()> {
        Box::pin(self.next_event())
    }

    fn be_patient(&mut self, patience: Patience) {
        self.monitor.be_patient(patience);
    }
}
