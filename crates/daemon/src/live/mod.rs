//! The real host and its QEMU guests as a [`World`].
//!
//! Each observation asks all guests at once and waits at most `ASK_WITHIN`. Then it reads the guests' cost (`costs`) and the host's
//! memory. A guest that does not answer gives an old or absent reading; it never delays the others. `pressure` wakes the engine.

mod costs;
mod pressure;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memtide_api::history::History;
use memtide_config::Settings;
use memtide_engine::{Applied, ApplyError, Ask, Asking, Wake, World, host_clock};
use memtide_host::{Cgroup, GuestCost, HostError, HostSensor, Meminfo, Root, Trigger};
use memtide_model::{
    Absence, Action, Answer, Budget, Bytes, Config, Cost, Fence, GuestId, GuestSeen, HostSeen, Mode, Moment,
    Reading, Request, Snapshot, Told, WallClock,
};
use memtide_vmm::qemu::{ConfiguredGuest, Fleet, FleetConfig, FleetError, MonitorError, PollWish, QemuSeen};
use tokio::runtime::Handle;
use tracing::warn;

use self::costs::Costs;
pub use self::pressure::trigger as pressure_trigger;
use crate::claims::Claims;
use crate::orders::Orders;

/// The longest that an observation waits for the guests' monitors.
const ASK_WITHIN: Duration = Duration::from_millis(400);
/// The longest that a look between two ticks waits for the guests' monitors.
const LOOK_WITHIN: Duration = Duration::from_millis(100);
/// The longest that an action waits for a monitor.
const ACT_WITHIN: Duration = Duration::from_millis(1000);
/// Why the host cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The host's own memory.
    #[error("cannot read the host's memory")]
    Host(#[from] HostError),
}

/// The real host.
pub struct LiveWorld {
    root: Root,
    sensor: HostSensor,
    memory: Bytes,
    fleet: Fleet,
    costs: Costs,
    history: History,
    orders: Orders,
    woken: Receiver<Wake>,
    config: Config,
    claims: Claims,
    seen_at: (Moment, WallClock),
    last_host: HostSeen,
    unmatched: Vec<String>,
}

impl LiveWorld {
    /// The host of this machine. Wakes of the backends and of `trigger` go to `wake`, and are received from `woken`.
    ///
    /// # Errors
    /// If `/proc` is not as expected.
    pub fn new(
        handle: Handle,
        settings: &Settings,
        wake: Sender<Wake>,
        woken: Receiver<Wake>,
        trigger: Option<Trigger>,
        (history, orders): (History, Orders),
    ) -> Result<Self, LiveError> {
        let root = Root::system();
        let configured = settings
            .guests
            .iter()
            .map(|guest| ConfiguredGuest { name: guest.name.clone(), qmp: guest.qmp.clone() })
            .collect();
        let on_event = wake.clone();
        let config = FleetConfig { root: root.proc(""), configured, may_refresh: true };
        let fleet = Fleet::start(handle, config, move |_| pressure::nudge(&on_event))
            .discover_only(settings.discover.clone());
        if let Some(trigger) = trigger {
            pressure::watch(trigger, wake);
        }
        let memory = Meminfo::read(&root)?.total;
        let unseen = HostSeen {
            capacity: memory,
            other: Bytes::ZERO,
            swap: Reading::absent(Absence::NotYet),
            pressure: Reading::absent(Absence::NotYet),
        };
        let world = Self {
            sensor: HostSensor::open(&root, settings.config.budget)?,
            memory,
            costs: Costs::open(&root)?,
            root,
            fleet,
            history,
            orders,
            woken,
            config: settings.config.clone(),
            claims: Claims::of_this_user(),
            seen_at: (Moment::default(), WallClock(0)),
            last_host: unseen,
            unmatched: Vec::new(),
        };
        world.say_budget();
        Ok(world)
    }

    /// Takes over what a new configuration changes about observing.
    fn reload(&mut self, config: &Config) {
        self.sensor.set_budget(config.budget);
        self.config = config.clone();
        self.say_budget();
    }

    /// Warns if the budget exceeds the host's memory, which then counts instead.
    fn say_budget(&self) {
        if let Budget::Size(budget) = self.config.budget
            && budget > self.memory
        {
            warn!("`budget` is {budget}, but this host has only {}: memtide uses that", self.memory);
        }
    }

    fn is_managing(&self) -> bool {
        self.config.mode == Mode::Manage
    }

    /// Fences the guests that another memtide manages, and gives up those that are not to be managed here.
    fn claim(&mut self, qemus: &mut [QemuSeen], now: Moment) {
        let is_ours = |qemu: &QemuSeen| {
            self.config.mode == Mode::Manage
                && qemu.can_be_set
                && self.config.class_of(qemu.id.name()).1.manage
        };
        self.claims.keep_only(|id| {
            // They come ordered by identity.
            qemus.binary_search_by(|qemu| qemu.id.cmp(id)).is_ok_and(|at| is_ours(&qemus[at]))
        });
        for qemu in qemus.iter_mut().filter(|qemu| is_ours(qemu)) {
            if let Err(pid) = self.claims.claim(&qemu.id, qemu.pid, now) {
                qemu.told.fence = Some(Fence::Another { pid });
            }
        }
    }

    /// Makes a request. An error comes with its whole text.
    fn request(&self, action: &Action) -> Result<Applied, (Absence, String)> {
        let said = |why: Absence| (why.clone(), why.to_string());
        let Some(guest) = action.guest() else { return Err(said(Absence::Unsupported)) };
        let result = match action.request {
            Request::SetTarget(target) => self.fleet.set_target(guest, target, ACT_WITHIN),
            Request::PollStats(every) => self.fleet.set_polling(guest, every, ACT_WITHIN),
            Request::Reclaim(_) => return Err(said(Absence::Unsupported)),
        };
        result.map(|()| Applied::Accepted).map_err(|error| (absence(&error), error.to_string()))
    }

    /// Looks for the cgroup that plays the host; the guests' processes decide which.
    fn find_small_host(&mut self, guests: &[QemuSeen]) {
        let pids: Vec<u32> = guests.iter().map(|guest| guest.pid).collect();
        let found = Cgroup::small_host(&self.root, &pids, self.memory);
        if let Err(error) = found.and_then(|cgroup| self.sensor.set_small_host(cgroup)) {
            warn!("cannot read the guests' memory cgroup: {error}");
        }
    }

    /// Warns about configured guests without a process, each time that these change.
    fn say_unmatched(&mut self) {
        let unmatched: Vec<String> = self
            .fleet
            .unmatched()
            .map(|guest| format!("[[guest]] {}: {}: {}", guest.name, guest.qmp.display(), guest.why))
            .collect();
        if unmatched != self.unmatched {
            unmatched.iter().for_each(|line| warn!("{line}"));
            self.unmatched = unmatched;
        }
    }
}

impl World for LiveWorld {
    fn observe(&mut self, asking: &mut Asking) -> Snapshot {
        let (manages, claims) = (self.is_managing(), &self.claims);
        let wish = |id: &GuestId| {
            // Its manager keeps the monitor open, and would have to close it for this daemon.
            let ask = asking.ask(id).filter(|_| !claims.is_anothers(id))?;
            Some(PollWish { refresh_stats: manages && ask == Ask::OutOfTurn, keep_open: manages })
        };
        let mut qemus = self.fleet.observe(ASK_WITHIN, wish);
        qemus.sort_by(|a, b| a.id.cmp(&b.id));
        qemus.dedup_by(|a, b| a.id == b.id);
        let now = host_clock();
        let wall = wall_clock();
        self.seen_at = (now, wall);
        self.claim(&mut qemus, now);
        self.say_unmatched();
        if !self.costs.are_of(&qemus) {
            self.find_small_host(&qemus);
            let alive = |id: &GuestId| qemus.iter().any(|guest| guest.id == *id);
            self.costs.keep_only(alive);
            self.history.keep_only(alive);
        }
        let ksm = self.costs.ksm();
        let guests: Vec<GuestSeen> = qemus
            .into_iter()
            .map(|qemu| {
                let cost = self.costs.of(&qemu, ksm, asking.weigh(&qemu.id), now);
                guest(qemu, cost)
            })
            .collect();
        let all = Bytes::sum(guests.iter().filter_map(|guest| guest.cost.footprint.latest().copied()));
        // The small host is an ancestor of every guest's cgroup: all guests lie in it.
        match self.sensor.observe(GuestCost { all, in_small_host: all }) {
            Ok(host) => self.last_host = host,
            Err(error) => warn!("cannot read the host's memory, using the last reading: {error}"),
        }
        // Last, so an order given before `now` is in this snapshot.
        let orders = self.orders.take();
        Snapshot { taken_at: now, wall, host: self.last_host.clone(), guests, orders }
    }

    fn apply(&mut self, action: &Action) -> Result<Applied, ApplyError> {
        let (applied, answer) = match self.request(action) {
            Ok(applied @ Applied::Accepted) => (Ok(applied), Answer::Accepted),
            Ok(applied @ Applied::Yielded(bytes)) => (Ok(applied), Answer::Yielded(bytes)),
            Err((why, text)) => (Err(ApplyError { why }), Answer::Failed(text)),
        };
        let (at, wall) = self.seen_at;
        self.history.add(action, at, wall, &answer);
        applied
    }

    fn look(&mut self, due: &[GuestId]) -> Vec<(GuestId, Told)> {
        let claims = &self.claims;
        let is_due = |id: &GuestId| due.binary_search(id).is_ok() && !claims.is_anothers(id);
        let wish = PollWish { refresh_stats: false, keep_open: true };
        self.fleet.ask(ASK_WITHIN, LOOK_WITHIN, |id| is_due(id).then_some(wish));
        let seen = due.iter().filter(|id| is_due(id)).filter_map(|id| self.fleet.seen(id));
        seen.map(|qemu| (qemu.id, qemu.told)).collect()
    }

    fn wait(&mut self, at_most: Duration) -> Wake {
        let mut wake = match self.woken.recv_timeout(at_most) {
            Ok(wake) => wake,
            Err(RecvTimeoutError::Timeout) => return Wake::Timeout,
            Err(RecvTimeoutError::Disconnected) => return Wake::Stop,
        };
        // Several events at once are one.
        while wake == Wake::Event {
            match self.woken.try_recv() {
                Ok(next) => wake = next,
                Err(_) => break,
            }
        }
        if let Wake::Reload(config) = &wake {
            self.reload(config);
        }
        wake
    }
}

/// One guest: what its VMM told, and what it costs.
fn guest(qemu: QemuSeen, cost: Cost) -> GuestSeen {
    GuestSeen {
        id: qemu.id,
        pid: qemu.pid,
        backend: qemu.backend,
        can_be_set: qemu.can_be_set,
        cost,
        told: qemu.told,
    }
}

/// Why a change was not made.
fn absence(error: &FleetError) -> Absence {
    match error {
        FleetError::Unknown { .. } => Absence::Gone,
        FleetError::LeftAlone { why, .. } => why.clone(),
        FleetError::NoAnswer { .. } => Absence::Timeout,
        FleetError::Monitor(MonitorError::Qmp { source, .. }) => source.absence(),
        FleetError::Monitor(MonitorError::NoBalloon { why, .. }) => why.clone(),
        FleetError::Monitor(error @ MonitorError::Target { .. }) => Absence::Refused(error.to_string()),
    }
}

fn wall_clock() -> WallClock {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallClock(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
