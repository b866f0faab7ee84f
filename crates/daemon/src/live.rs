//! The real host and its QEMU guests as a [`World`].
//!
//! Each observation queries all guests at once and waits at most `ASK_WITHIN`. Then it reads the cost of their processes and
//! the host's memory. A guest that does not answer gives an old or absent reading, and never delays the others. The mappings
//! of a process (the bound of a VMM's cost beyond guest RAM) are slow to read. They are read at discovery, then less and
//! less often while the amount of mapped memory changes, and at least every `MAPPINGS_EVERY`; with many guests, one guest
//! every two seconds.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memtide_api::history::History;
use memtide_config::Settings;
use memtide_engine::{ApplyError, Ask, Asking, Wake, World, host_clock};
use memtide_host::{
    Cgroup, GuestCost, HostError, HostSensor, KsmPages, KsmReader, Mappings, Meminfo, ProcessReader,
    RamBlock, Root, Scratch, SharedRam, Trigger,
};
use memtide_model::{
    Absence, Action, Backend, Budget, Bytes, Change, Config, Fence, GuestId, GuestSeen, HostSeen, Mode,
    Moment, Reading, Snapshot, Span, Told, WallClock,
};
use memtide_vmm::qemu::{
    Accel, ConfiguredGuest, Fleet, FleetConfig, FleetError, MonitorError, PollWish, QemuSeen, RamKind,
};
use tokio::runtime::Handle;
use tracing::{debug, warn};

use crate::claims::Claims;
use crate::orders::Orders;

/// The longest time that an observation waits for the guests' monitors.
const ASK_WITHIN: Duration = Duration::from_millis(400);
/// The longest time that a look between two ticks waits for the guests' monitors.
const LOOK_WITHIN: Duration = Duration::from_millis(100);
/// The longest time that an action waits for a monitor.
const ACT_WITHIN: Duration = Duration::from_millis(1000);
/// The time between two readings of a process's mappings. A VMM that just starts maps more and more: the first readings come
/// sooner, each after twice the time, if the mapped memory has changed by more than [`REMAPPED`].
const MAPPINGS_EVERY: Span = Span::from_secs(30);
const FIRST_MAPPINGS_AFTER: Span = Span::from_millis(250);
const REMAPPED: Bytes = Bytes::from_mib(1);
/// The engine is woken if the host's tasks stall for this long within [`Trigger::WINDOW`].
const STALL: Duration = Duration::from_millis(100);
/// The assumed cost of a VMM beyond guest RAM and TCG's code buffer, if its mappings cannot be read.
const UNREAD_OVERHEAD: Bytes = Bytes::from_mib(256);
/// TCG's code buffer without a `tb-size`.
const DEFAULT_CODE_BUFFER: Bytes = Bytes::from_mib(1024);

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
    ksm: KsmReader,
    fleet: Fleet,
    processes: BTreeMap<GuestId, Process>,
    history: History,
    orders: Orders,
    woken: Receiver<Wake>,
    config: Config,
    claims: Claims,
    seen_at: (Moment, WallClock),
    scratch: Scratch,
    last_host: HostSeen,
    unmatched: Vec<String>,
}

/// The state of one guest's process.
#[derive(Debug)]
struct Process {
    reader: ProcessReader,
    ram: Vec<RamBlock>,
    overhead: Bytes,
    overhead_bound: Bytes,
    /// Its last known cost, and the time of that reading.
    weighed: Option<(Bytes, Moment)>,
    /// Its mapped memory at that time.
    mapped: Bytes,
    /// Its mapped memory when its mappings were read; `None` until its cost is read after that.
    mapped_before: Option<Bytes>,
    read_at: Moment,
    read_again_after: Span,
}

impl LiveWorld {
    /// The host of this machine. Wakes of the backends and of `trigger` go to `wake`, and come from `woken`.
    ///
    /// # Errors
    /// If `/proc` does not have the expected form.
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
        let fleet =
            Fleet::start(handle, config, move |_| nudge(&on_event)).discover_only(settings.discover.clone());
        if let Some(trigger) = trigger {
            watch_pressure(trigger, wake);
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
            ksm: KsmReader::open(&root)?,
            root,
            fleet,
            processes: BTreeMap::new(),
            history,
            orders,
            woken,
            config: settings.config.clone(),
            claims: Claims::of_this_user(),
            seen_at: (Moment::default(), WallClock(0)),
            scratch: Scratch::default(),
            last_host: unseen,
            unmatched: Vec::new(),
        };
        world.say_budget();
        Ok(world)
    }

    /// Applies the changes of a new configuration that concern observing.
    fn reload(&mut self, config: &Config) {
        self.sensor.set_budget(config.budget);
        self.config = config.clone();
        self.say_budget();
    }

    /// Warns if the budget is above the host's memory, which is used instead.
    fn say_budget(&self) {
        if let Budget::Size(budget) = self.config.budget
            && budget > self.memory
        {
            warn!(
                "`budget` is {budget}, but this host has only {}: memtide uses that",
                self.memory
            );
        }
    }

    fn is_managing(&self) -> bool {
        self.config.mode == Mode::Manage
    }

    /// Fences the guests that another memtide manages, and gives up the claims of guests that this daemon must not manage.
    fn claim(&mut self, qemus: &mut [QemuSeen], now: Moment) {
        let is_ours = |qemu: &QemuSeen| {
            self.config.mode == Mode::Manage
                && qemu.backend == Backend::Qemu
                && self.config.class_of(qemu.id.name()).1.manage
        };
        self.claims.keep_only(|id| {
            // The guests are ordered by identity.
            qemus.binary_search_by(|qemu| qemu.id.cmp(id)).is_ok_and(|at| is_ours(&qemus[at]))
        });
        for qemu in qemus.iter_mut().filter(|qemu| is_ours(qemu)) {
            if let Err(pid) = self.claims.claim(&qemu.id, qemu.pid, now) {
                qemu.told.fence = Some(Fence::Another { pid });
            }
        }
    }

    /// The observation of a guest; its cost is read now if it `weighs`.
    fn guest(&mut self, qemu: QemuSeen, ksm: KsmPages, weighs: bool, now: Moment) -> GuestSeen {
        let mut scratch = std::mem::take(&mut self.scratch);
        let seldom = MAPPINGS_EVERY.max(Span::from_secs(2 * self.processes.len() as u64));
        let (footprint, overhead, overhead_bound) = match process(&self.root, &mut self.processes, &qemu, now)
        {
            Ok(process) => {
                let footprint = match process.weighed {
                    Some((value, at)) if !weighs => Reading::Fresh { value, age: now.since(at) },
                    _ => process.weigh(ksm, now, &mut scratch),
                };
                if process.mappings_are_due(seldom, now) {
                    process.read_mappings(&self.root, &qemu, seldom, now);
                }
                (footprint, process.overhead, process.overhead_bound)
            }
            Err(error) => {
                let bound = unread_overhead(&qemu);
                (Reading::absent(error.absence()), bound, bound)
            }
        };
        self.scratch = scratch;
        GuestSeen {
            id: qemu.id,
            pid: qemu.pid,
            backend: qemu.backend,
            full: qemu.told.full,
            footprint,
            overhead,
            overhead_bound,
            balloon: qemu.told.balloon,
            hotplug: qemu.told.hotplug,
            stats: qemu.told.stats,
            polling: qemu.told.polling,
            reset: qemu.told.reset,
            fence: qemu.told.fence,
        }
    }

    /// Looks for the cgroup that plays the host, based on the guests' processes.
    fn find_small_host(&mut self, guests: &[QemuSeen]) {
        let pids: Vec<u32> = guests.iter().map(|guest| guest.pid).collect();
        let found = Cgroup::small_host(&self.root, &pids, self.memory);
        if let Err(error) = found.and_then(|cgroup| self.sensor.set_small_host(cgroup)) {
            warn!("cannot read the guests' memory cgroup: {error}");
        }
    }

    /// Warns about configured guests without a process, if the set has changed.
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

    fn is_new_set(&self, guests: &[QemuSeen]) -> bool {
        guests.len() != self.processes.len()
            || guests.iter().any(|guest| !self.processes.contains_key(&guest.id))
    }
}

impl World for LiveWorld {
    fn observe(&mut self, asking: &mut Asking) -> Snapshot {
        let (manages, claims) = (self.is_managing(), &self.claims);
        let wish = |id: &GuestId| {
            // The daemon that manages the guest keeps its monitor open, and would have to close it for us.
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
        if self.is_new_set(&qemus) {
            self.find_small_host(&qemus);
            let alive = |id: &GuestId| qemus.iter().any(|guest| guest.id == *id);
            self.processes.retain(|id, _| alive(id));
            self.history.keep_only(alive);
        }
        let ksm = self.ksm.read(&mut self.scratch).unwrap_or_else(|error| {
            debug!("cannot read KSM: {error}");
            KsmPages::default()
        });
        let guests: Vec<GuestSeen> = qemus
            .into_iter()
            .map(|qemu| {
                let weighs = asking.weigh(&qemu.id);
                self.guest(qemu, ksm, weighs, now)
            })
            .collect();
        let all = Bytes::sum(guests.iter().filter_map(|guest| guest.footprint.latest().copied()));
        // The small host is an ancestor of every guest's cgroup, so all guests are in it.
        match self.sensor.observe(GuestCost { all, in_small_host: all }) {
            Ok(host) => self.last_host = host,
            Err(error) => warn!("cannot read the host's memory, using the last reading: {error}"),
        }
        // This comes last: an order that was given before `now` is in this snapshot.
        let orders = self.orders.take();
        Snapshot { taken_at: now, wall, host: self.last_host.clone(), guests, orders }
    }

    fn apply(&mut self, action: &Action) -> Result<(), ApplyError> {
        let result = match action.change {
            Change::SetTarget(target) => self.fleet.set_target(&action.guest, target, ACT_WITHIN),
            Change::PollStats(every) => self.fleet.set_polling(&action.guest, every, ACT_WITHIN),
        };
        let (at, wall) = self.seen_at;
        let failed = result.as_ref().err().map(ToString::to_string);
        self.history.add(action, at, wall, failed);
        result.map_err(|error| ApplyError { guest: action.guest.clone(), why: absence(&error) })
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
        // Several events at once count as one.
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

/// The process of a guest.
fn process<'p>(
    root: &Root,
    processes: &'p mut BTreeMap<GuestId, Process>,
    qemu: &QemuSeen,
    now: Moment,
) -> Result<&'p mut Process, HostError> {
    match processes.entry(qemu.id.clone()) {
        Entry::Occupied(process) => Ok(process.into_mut()),
        Entry::Vacant(place) => Ok(place.insert(Process::open(root, qemu, now)?)),
    }
}

impl Process {
    fn open(root: &Root, qemu: &QemuSeen, now: Moment) -> Result<Self, HostError> {
        let mut reader = ProcessReader::open(root, qemu.pid)?;
        let shared = SharedRam::find(root, qemu.pid, &shared_files(qemu))?;
        if !shared.is_empty() {
            reader.set_shared_ram(shared);
        }
        let unread = unread_overhead(qemu);
        let mut process = Self {
            reader,
            ram: ram_blocks(qemu),
            overhead: unread,
            overhead_bound: unread,
            weighed: None,
            mapped: Bytes::ZERO,
            mapped_before: None,
            read_at: now,
            read_again_after: Span::ZERO,
        };
        process.read_mappings(root, qemu, MAPPINGS_EVERY, now);
        Ok(process)
    }

    /// Reads its cost.
    fn weigh(&mut self, ksm: KsmPages, now: Moment, scratch: &mut Scratch) -> Reading<Bytes> {
        match self.reader.footprint(ksm, scratch) {
            Ok(footprint) => {
                self.mapped = footprint.statm.mapped;
                self.mapped_before.get_or_insert(self.mapped);
                self.weighed = Some((footprint.total(), now));
                Reading::now(footprint.total())
            }
            Err(error) => {
                self.weighed = None;
                Reading::absent(error.absence())
            }
        }
    }

    /// Whether its mappings must be read again.
    fn mappings_are_due(&self, seldom: Span, now: Moment) -> bool {
        let age = now.since(self.read_at);
        let has_changed = self.mapped_before.is_some_and(|before| before.abs_diff(self.mapped) > REMAPPED);
        (has_changed && age >= self.read_again_after) || age >= seldom
    }

    /// Notes that its mappings are read now.
    fn note_mappings(&mut self, seldom: Span, now: Moment) {
        self.read_at = now;
        self.mapped_before = self.weighed.map(|_| self.mapped);
        self.read_again_after = self.read_again_after.doubled().clamp(FIRST_MAPPINGS_AFTER, seldom);
    }

    fn read_mappings(&mut self, root: &Root, qemu: &QemuSeen, seldom: Span, now: Moment) {
        self.note_mappings(seldom, now);
        match Mappings::read(root, qemu.pid, &self.ram) {
            Ok(mappings) => {
                self.overhead = mappings.other_resident;
                self.overhead_bound = mappings.other_bound;
                self.reader.set_program(mappings.program_resident);
            }
            Err(error) => debug!(guest = %qemu.id, "cannot read the mappings: {error}"),
        }
    }
}

/// The guest's RAM, as on QEMU's command line.
fn ram_blocks(qemu: &QemuSeen) -> Vec<RamBlock> {
    if qemu.facts.ram.is_empty() {
        return vec![RamBlock::Size(qemu.facts.memory.unwrap_or(qemu.told.full))];
    }
    let blocks = qemu.facts.ram.iter().filter_map(|backend| match &backend.kind {
        RamKind::File(path) => Some(RamBlock::File(path.clone())),
        RamKind::Memfd => Some(RamBlock::File("/memfd:memory-backend-memfd".into())),
        RamKind::Anonymous => backend.size.map(RamBlock::Size),
    });
    blocks.collect()
}

/// The files whose blocks count as the guest's cost.
fn shared_files(qemu: &QemuSeen) -> Vec<PathBuf> {
    let files = qemu.facts.ram.iter().filter_map(|backend| match &backend.kind {
        RamKind::File(path) if backend.shared => Some(path.clone()),
        _ => None,
    });
    files.collect()
}

fn unread_overhead(qemu: &QemuSeen) -> Bytes {
    let code = match qemu.facts.accel {
        Accel::Tcg => qemu.facts.tb_size.unwrap_or(DEFAULT_CODE_BUFFER),
        _ => Bytes::ZERO,
    };
    UNREAD_OVERHEAD.saturating_add(code)
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

/// A trigger that fires if the host's tasks stall for memory. Opening it may need more rights than the daemon keeps. Without
/// a trigger, the engine sees the pressure at its next tick.
#[must_use]
pub fn pressure_trigger() -> Option<Trigger> {
    let path = Root::system().proc("pressure/memory");
    Trigger::open(&path, STALL, Trigger::WINDOW)
        .inspect_err(|error| debug!("no pressure trigger: {error}"))
        .ok()
}

/// Wakes the engine when the trigger fires, on its own thread.
fn watch_pressure(trigger: Trigger, wake: Sender<Wake>) {
    let watch = move || {
        loop {
            match trigger.wait(Duration::from_secs(1)) {
                Ok(true) => nudge(&wake),
                Ok(false) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    warn!("the pressure trigger ended: {error}");
                    return;
                }
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("pressure".to_owned()).spawn(watch) {
        warn!("no thread for the pressure trigger: {error}");
    }
}
/// Wakes the engine. An engine that is gone needs no message.
fn nudge(wake: &Sender<Wake>) {
    let _gone = wake.send(Wake::Event);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_anew_where_they_changed_and_now_and_then() {
        let at = |secs: u64| Moment::from_millis(secs * 1_000);
        let mut process = Process {
            reader: ProcessReader::open(&Root::system(), std::process::id()).unwrap(),
            ram: Vec::new(),
            overhead: Bytes::ZERO,
            overhead_bound: Bytes::ZERO,
            weighed: None,
            mapped: Bytes::ZERO,
            mapped_before: None,
            read_at: at(0),
            read_again_after: Span::from_secs(4),
        };
        let seldom = Span::from_secs(30);
        let mut due = |mib: u64, secs: u64| {
            process.mapped = Bytes::from_mib(mib);
            process.weighed = Some((Bytes::ZERO, at(secs)));
            process.mapped_before.get_or_insert(process.mapped);
            let due = process.mappings_are_due(seldom, at(secs));
            if due {
                process.note_mappings(seldom, at(secs));
            }
            due
        };
        assert!(!due(100, 1), "it was just read");
        assert!(!due(100, 29) && !due(101, 29), "nothing to speak of has changed");
        assert!(due(102, 29));
        assert!(!due(200, 36) && due(200, 37), "eight seconds after the last time");
        assert!(!due(200, 66) && due(200, 67), "nothing has changed for long");
    }
}
