//! All QEMU guests of this host, for the engine's thread.
//!
//! The fleet looks for processes, gives each guest its own task, and asks all guests at once. No call waits beyond its deadline. A
//! guest that does not answer shows its last readings with their growing age, and is not asked again before its task is done. The
//! next call takes a late task's result.
//!
//! The end of a guest and the events of held monitors call `wake`, so that the engine looks early. A later call finds new guests,
//! because it looks for processes, too (at most every two seconds).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use memtide_model::{Absence, Backend, Bytes, GuestId, Request, Span, Told, name_matches};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::actor::{Actor, Changed, Job, PollResult, Wake, WakeReason};
use super::discovery::{Changes, Discovery, Owner, ProcessFacts, QemuProcess};
use super::exit::ExitWatch;
use super::knock;
use super::monitor::{DEFAULT_MEMORY, Monitor, MonitorConfig, MonitorError, PollWish, Use};
use super::proc_fs::ProcFs;
use super::round::{self, Round};
use super::socket;

/// The time between two looks for new processes, and between two looks for clients that wait for a monitor. A little less than two
/// seconds, for callers that come once a second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1_900);
/// How long memtide leaves a monitor alone after it closed the connection for a waiting client.
const YIELDS_FOR: Duration = Duration::from_secs(1);

/// QEMU processes without an owner, and those that libvirt owns. memtide sees and counts the latter, but never connects to them.
const QEMU: Backend = Backend::new("QEMU");
const QEMU_OF_LIBVIRT: Backend = Backend::new("QEMU of libvirt");

/// The configuration of a fleet.
#[derive(Clone, Debug)]
pub struct FleetConfig {
    /// The tree in which processes are looked for, usually `/proc`.
    pub root: PathBuf,
    /// Guests whose monitors belong to memtide.
    pub configured: Vec<ConfiguredGuest>,
    /// Whether memtide may make QEMU ask guests for statistics out of turn; never in observe mode.
    pub may_refresh: bool,
}

/// A guest from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredGuest {
    /// The guest's name. It replaces QEMU's name.
    pub name: String,
    /// A QMP socket for memtide alone, held open.
    pub qmp: PathBuf,
}

/// A configured guest without a running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// The guest's name.
    pub name: String,
    /// Its socket.
    pub qmp: PathBuf,
    /// Why no process was found for it.
    pub why: Absence,
}

/// The fleet's view of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuSeen {
    /// The guest's identity.
    pub id: GuestId,
    /// The guest's process.
    pub pid: u32,
    /// The VMM and its owner.
    pub backend: Backend,
    /// Whether memtide can set its size: not if libvirt owns it.
    pub can_be_set: bool,
    /// The facts from its command line.
    pub facts: Arc<ProcessFacts>,
    /// The monitor's answers.
    pub told: Told,
}

/// Why a change was not made, or may not have been made.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// No such guest.
    #[error("no guest {guest}")]
    Unknown {
        /// The guest.
        guest: GuestId,
    },
    /// memtide leaves the guest's monitor alone.
    #[error("guest {guest} cannot be changed: {why}")]
    LeftAlone {
        /// The guest.
        guest: GuestId,
        /// The reason.
        why: Absence,
    },
    /// The guest's task was not done before the deadline. The task does not begin the change after it.
    #[error("guest {guest} did not answer within the deadline")]
    NoAnswer {
        /// The guest.
        guest: GuestId,
    },
    /// The monitor failed or refused.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
}

/// All QEMU guests of this host. The methods block, so they must not be called on the runtime's own thread.
pub struct Fleet {
    handle: Handle,
    discovery: Discovery,
    configured: Vec<Configured>,
    may_refresh: bool,
    /// Name patterns of the guests that the fleet shows.
    admitted: Vec<String>,
    wake: Wake,
    guests: BTreeMap<GuestId, Guest>,
    results: mpsc::Receiver<PollResult>,
    results_sender: mpsc::Sender<PollResult>,
    scanned_at: Option<Instant>,
    /// The paths at which clients wait for monitors; `None` if they cannot be found out.
    knocked: Option<BTreeSet<PathBuf>>,
    knocked_at: Option<Instant>,
    /// A process has ended: the next call looks for processes, however early it comes.
    rescan: Arc<AtomicBool>,
}

struct Configured {
    guest: ConfiguredGuest,
    /// The guest's process.
    pid: Option<u32>,
    why: Absence,
}

struct Guest {
    pid: u32,
    backend: Backend,
    can_be_set: bool,
    facts: Arc<ProcessFacts>,
    /// The channel to the guest's task; none if memtide leaves its monitor alone.
    jobs: Option<UnboundedSender<Job>>,
    task: Option<AbortHandle>,
    latest: Told,
    latest_at: Instant,
    /// A poll was sent and has not returned. It should return before this moment.
    asked_until: Option<Instant>,
    /// The names of the monitor's listeners.
    bound: Vec<PathBuf>,
    /// The network namespace of these listeners, if the monitor may be kept open: see [`knock`].
    namespace: Option<PathBuf>,
    /// Whether the monitor is kept open.
    kept: bool,
    /// When the monitor was closed for a waiting client.
    yielded_at: Option<Instant>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Fleet {
    /// A fleet whose tasks run on `handle`. `wake` is called on the runtime's thread and must not block.
    #[must_use]
    pub fn start(
        handle: Handle,
        config: FleetConfig,
        wake: impl Fn(WakeReason) + Send + Sync + 'static,
    ) -> Self {
        let rescan = Arc::new(AtomicBool::new(false));
        let noticed = Arc::clone(&rescan);
        let (results_sender, results) = mpsc::channel();
        let configured = config.configured.into_iter();
        Self {
            handle,
            discovery: Discovery::new(&config.root),
            configured: configured
                .map(|guest| Configured { guest, pid: None, why: Absence::NotYet })
                .collect(),
            may_refresh: config.may_refresh,
            admitted: vec!["*".to_owned()],
            wake: Arc::new(move |reason| {
                if matches!(reason, WakeReason::Vanished { .. }) {
                    noticed.store(true, Ordering::Relaxed);
                }
                wake(reason);
            }),
            guests: BTreeMap::new(),
            results,
            results_sender,
            scanned_at: None,
            knocked: None,
            knocked_at: None,
            rescan,
        }
    }

    /// Shows only guests whose names match one of these patterns, and configured guests.
    #[must_use]
    pub fn discover_only(self, patterns: Vec<String>) -> Self {
        Self { admitted: patterns, ..self }
    }

    /// Looks for guests, asks all of them at once, each with its `wish`, and waits at most `deadline`. Guests that should not be asked
    /// (`None`) show their last readings with their age. The guests are ordered by identity.
    pub fn observe(
        &mut self,
        deadline: Duration,
        wish: impl FnMut(&GuestId) -> Option<PollWish>,
    ) -> Vec<QemuSeen> {
        self.look_for_processes();
        self.listen_for_knocks();
        self.ask(deadline, deadline, wish);
        let now = Instant::now();
        self.guests.iter().map(|(id, guest)| guest.seen(id, now)).collect()
    }

    /// Asks known guests at once, each with its `wish` and within `deadline`, and waits for `at_most`. The next call takes answers
    /// that come later.
    pub fn ask(
        &mut self,
        deadline: Duration,
        at_most: Duration,
        mut wish: impl FnMut(&GuestId) -> Option<PollWish>,
    ) {
        let begun = Instant::now();
        self.take_results();
        let (waiting, patience) = round::patience();
        let round = Arc::new(Round::default());
        let mut given = Vec::new();
        for (id, guest) in &mut self.guests {
            if guest.asked_until.is_some() || guest.jobs.is_none() {
                continue;
            }
            let asks = guest.asks(wish(id), self.knocked.as_mut());
            let Some(PollWish { refresh_stats, keep_open }) = asks else { continue };
            let Some(jobs) = guest.jobs.clone().filter(|jobs| !jobs.is_closed()) else { continue };
            // A little less, so that a guest without an answer can still report that in time.
            let deadline = deadline.saturating_sub(begun.elapsed()) * 9 / 10;
            let job = Job::Poll {
                wish: PollWish { refresh_stats: refresh_stats && self.may_refresh, keep_open },
                deadline,
                patience: patience.clone(),
                round: Arc::clone(&round),
            };
            given.push((jobs, job));
            guest.asked_until = Some(Instant::now() + deadline);
        }
        let awaited = given.len();
        if awaited == 0 {
            return;
        }
        // On the runtime's own thread. From this thread, each job would wake the runtime.
        self.handle.spawn(async move {
            for (jobs, job) in given {
                // A task that has just ended has no answer.
                let _ended = jobs.send(job);
            }
            waiting.await;
        });
        round.wait_for(awaited, begun + at_most);
        self.take_results();
    }

    /// The last view of one guest, with the age of its readings.
    #[must_use]
    pub fn seen(&self, id: &GuestId) -> Option<QemuSeen> {
        self.guests.get(id).map(|guest| guest.seen(id, Instant::now()))
    }

    /// Changes many guests at once, and waits at most `deadline`. The results come in the order of the changes.
    pub fn apply(&self, changes: &[(GuestId, Request)], deadline: Duration) -> Vec<Result<(), FleetError>> {
        let by = Instant::now() + deadline;
        let (reply, replies) = mpsc::channel();
        let mut results: Vec<Result<(), FleetError>> = Vec::with_capacity(changes.len());
        let mut awaited = 0;
        for (number, (id, change)) in changes.iter().enumerate() {
            let sent =
                self.send_change(id, Job::Change { change: *change, number, by, reply: reply.clone() });
            awaited += usize::from(sent.is_ok());
            // Valid until the task reports something else.
            results.push(sent.and_then(|()| Err(FleetError::NoAnswer { guest: id.clone() })));
        }
        drop(reply);
        while awaited > 0 {
            let left = by.saturating_duration_since(Instant::now());
            let Ok(Changed { number, result }) = replies.recv_timeout(left) else { break };
            awaited -= 1;
            if let Some(slot) = results.get_mut(number) {
                *slot = result.map_err(FleetError::from);
            }
        }
        results
    }

    /// Writes a guest's target: the total memory that it should keep, a multiple of 4 KiB.
    ///
    /// # Errors
    /// If the guest is unknown, left alone or silent, or if its monitor refuses.
    pub fn set_target(&self, id: &GuestId, target: Bytes, deadline: Duration) -> Result<(), FleetError> {
        self.apply_one(id, Request::SetTarget(target), deadline)
    }

    /// Makes QEMU poll a guest's balloon statistics at this interval, rounded up to whole seconds.
    ///
    /// # Errors
    /// See [`Fleet::set_target`].
    pub fn set_polling(&self, id: &GuestId, every: Span, deadline: Duration) -> Result<(), FleetError> {
        self.apply_one(id, Request::PollStats(every), deadline)
    }

    /// Configured guests without a running process.
    pub fn unmatched(&self) -> impl Iterator<Item = Unmatched> + '_ {
        self.configured.iter().filter(|configured| configured.pid.is_none()).map(|configured| Unmatched {
            name: configured.guest.name.clone(),
            qmp: configured.guest.qmp.clone(),
            why: configured.why.clone(),
        })
    }

    fn apply_one(&self, id: &GuestId, change: Request, deadline: Duration) -> Result<(), FleetError> {
        self.apply(&[(id.clone(), change)], deadline)
            .pop()
            .unwrap_or_else(|| Err(FleetError::NoAnswer { guest: id.clone() }))
    }

    fn send_change(&self, id: &GuestId, job: Job) -> Result<(), FleetError> {
        let guest = self.guests.get(id).ok_or_else(|| FleetError::Unknown { guest: id.clone() })?;
        let Some(jobs) = &guest.jobs else {
            let why = guest.latest.balloon.why_not().cloned().unwrap_or(Absence::NoControl);
            return Err(FleetError::LeftAlone { guest: id.clone(), why });
        };
        jobs.send(job).map_err(|_| FleetError::NoAnswer { guest: id.clone() })
    }

    /// Takes the results that tasks have sent.
    fn take_results(&mut self) {
        while let Ok(PollResult { guest, polled, at }) = self.results.try_recv() {
            if let Some(guest) = self.guests.get_mut(&guest) {
                guest.latest = polled;
                guest.latest_at = at;
                guest.asked_until = None;
            }
        }
    }

    /// Notes the paths at which clients wait, in all network namespaces of guests whose monitors may be kept open.
    fn listen_for_knocks(&mut self) {
        if !is_due(self.knocked_at, BETWEEN_LOOKS) {
            return;
        }
        self.knocked_at = Some(Instant::now());
        let mut namespaces = BTreeMap::new();
        for guest in self.guests.values() {
            if let Some(namespace) = &guest.namespace {
                namespaces.entry(namespace).or_insert(guest.pid);
            }
        }
        let lists = namespaces.into_values().map(|pid| knock::waiting(self.discovery.proc_fs(), pid));
        self.knocked = lists.collect::<Option<Vec<_>>>().map(|lists| lists.into_iter().flatten().collect());
    }

    fn look_for_processes(&mut self) {
        if !self.rescan.load(Ordering::Relaxed) && !is_due(self.scanned_at, BETWEEN_LOOKS) {
            return;
        }
        self.scanned_at = Some(Instant::now());
        let told = self.rescan.swap(false, Ordering::Relaxed);
        match if told { self.discovery.scan() } else { self.discovery.scan_for_new() } {
            Ok(changes) => {
                let matched = self.match_configured();
                if matched || changes != Changes::default() {
                    self.follow_processes();
                }
            }
            Err(error) => {
                tracing::warn!(error = %error, cause = %error.source, "cannot look for guests");
            }
        }
    }

    /// Begins to watch new guests, and forgets the ended ones.
    fn follow_processes(&mut self) {
        let mut there: BTreeMap<GuestId, (QemuProcess, Option<PathBuf>)> = BTreeMap::new();
        for process in self.discovery.processes() {
            let ours = self.configured.iter().find(|configured| configured.pid == Some(process.pid));
            let id = match ours {
                Some(ours) => self.discovery.identity_as(&ours.guest.name, process),
                None => process.id.clone(),
            };
            if ours.is_some() || self.admitted.iter().any(|pattern| name_matches(pattern, id.name())) {
                there.insert(id, (process.clone(), ours.map(|ours| ours.guest.qmp.clone())));
            }
        }
        self.guests.retain(|id, _| there.contains_key(id));
        for (id, (process, held)) in there {
            if !self.guests.contains_key(&id) {
                let guest = self.begin(&id, process, held);
                self.guests.insert(id, guest);
            }
        }
    }

    /// Finds the process of each configured guest that has none: the process with this monitor on its command line, or else the
    /// process that listens there. Returns whether any guest got or lost a process.
    fn match_configured(&mut self) -> bool {
        if self.configured.is_empty() {
            return false;
        }
        let before: Vec<_> = self.configured.iter().map(|configured| configured.pid).collect();
        let alive: HashSet<u32> = self.discovery.processes().map(|process| process.pid).collect();
        for configured in &mut self.configured {
            configured.pid = configured.pid.filter(|pid| alive.contains(pid));
        }
        let mut taken: HashSet<u32> =
            self.configured.iter().filter_map(|configured| configured.pid).collect();
        for configured in self.configured.iter_mut().filter(|configured| configured.pid.is_none()) {
            match process_of(&mut self.discovery, &configured.guest.qmp) {
                Ok(pid) if taken.insert(pid) => configured.pid = Some(pid),
                // Another configured guest has the same process.
                Ok(_) => configured.why = Absence::ControlTaken,
                Err(why) => configured.why = why,
            }
        }
        self.configured.iter().map(|configured| configured.pid).ne(before)
    }

    /// Begins to watch a guest.
    fn begin(&self, id: &GuestId, process: QemuProcess, held: Option<PathBuf>) -> Guest {
        let full = process.facts.memory.unwrap_or(DEFAULT_MEMORY);
        let of_libvirt = process.owner == Owner::Libvirt;
        let left_alone = match (of_libvirt, &held) {
            (true, _) => Some(Absence::OwnedBy("libvirt".to_owned())),
            (false, None) if process.monitors.is_empty() => Some(Absence::NoControl),
            (false, _) => None,
        };
        let mut guest = Guest {
            pid: process.pid,
            backend: if of_libvirt { QEMU_OF_LIBVIRT } else { QEMU },
            can_be_set: !of_libvirt,
            facts: Arc::new(process.facts.clone()),
            jobs: None,
            task: None,
            latest: Told::nothing(full, left_alone.clone().unwrap_or(Absence::NotYet)),
            latest_at: Instant::now(),
            asked_until: None,
            bound: process.bound.clone(),
            // If the monitor is held, or the namespace is unknown, memtide would not hear a knock.
            namespace: (held.is_none() && !process.bound.is_empty() && self.discovery.proc_fs().is_live())
                .then(|| self.discovery.proc_fs().link(&process.pid.to_string(), "ns/net"))
                .flatten(),
            kept: false,
            yielded_at: None,
        };
        // A guest that is left alone needs a task only to notice its end. The next scan notices it, too.
        if left_alone.is_none() {
            self.begin_task(&mut guest, id, process, held);
        }
        guest
    }

    fn begin_task(&self, guest: &mut Guest, id: &GuestId, process: QemuProcess, held: Option<PathBuf>) {
        let live = self.discovery.proc_fs().is_live();
        let config = MonitorConfig {
            guest: id.clone(),
            // Any process can listen at a configured socket and hand it to QEMU.
            peer: (live && held.is_none()).then_some(process.pid),
            use_as: if held.is_some() { Use::Held } else { Use::Brief },
            paths: held.map_or(process.monitors, |path| vec![path]),
            memory: process.facts.memory,
        };
        let (jobs_sender, jobs) = unbounded_channel();
        let _within_the_runtime = self.handle.enter();
        let exit = live
            .then(|| ExitWatch::new(&ProcFs::new(Path::new("/proc")), process.pid, process.id.start()).ok());
        let actor = Actor {
            guest: id.clone(),
            monitor: Monitor::new(config),
            jobs,
            results: self.results_sender.clone(),
            wake: Arc::clone(&self.wake),
            exit: exit.flatten(),
        };
        guest.task = Some(self.handle.spawn(actor.run()).abort_handle());
        guest.jobs = Some(jobs_sender);
    }
}

impl Guest {
    /// The questions for the guest, if the caller wants `wish` and clients wait at `knocked`; `None`: ask nothing. A monitor that was kept
    /// open is asked once more after a knock, to close it, and is then left to the other client for a while.
    fn asks(&mut self, wish: Option<PollWish>, knocked: Option<&mut BTreeSet<PathBuf>>) -> Option<PollWish> {
        let hears = knocked.is_some();
        // Each knock is heard once, because the list is older than the following events.
        let knocks = |at: &mut BTreeSet<PathBuf>| {
            let before = at.len();
            at.retain(|path| !self.bound.contains(path));
            at.len() < before
        };
        let yields = self.kept && knocked.is_none_or(knocks);
        let rests = self.yielded_at.is_some_and(|at| at.elapsed() < YIELDS_FOR);
        let wish = match wish {
            None if yields => PollWish::default(),
            Some(wish) if !rests => wish,
            _ => return None,
        };
        if yields {
            self.yielded_at = Some(Instant::now());
        }
        self.kept = wish.keep_open && !yields && hears && self.namespace.is_some();
        Some(PollWish { keep_open: self.kept, ..wish })
    }

    fn seen(&self, id: &GuestId, now: Instant) -> QemuSeen {
        let since = Span::from(now.saturating_duration_since(self.latest_at));
        QemuSeen {
            id: id.clone(),
            pid: self.pid,
            backend: self.backend.clone(),
            can_be_set: self.can_be_set,
            facts: Arc::clone(&self.facts),
            told: match self.asked_until.is_some_and(|until| until <= now) {
                true => self.latest.clone().aged(since, &Absence::Timeout),
                false => self.latest.clone().later(since),
            },
        }
    }
}

fn is_due(last: Option<Instant>, period: Duration) -> bool {
    last.is_none_or(|at| at.elapsed() >= period)
}

/// The process whose monitor is at `path`.
fn process_of(discovery: &mut Discovery, path: &Path) -> Result<u32, Absence> {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let wanted = file(path);
    let named = discovery.processes().find(|process| {
        let is_it = |monitor: &PathBuf| monitor == path || (wanted.is_some() && file(monitor) == wanted);
        process.monitors.iter().any(is_it)
    });
    if let Some(process) = named {
        return Ok(process.pid);
    }
    let listener = socket::listener_of(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Absence::Forbidden,
        _ => Absence::Disconnected,
    })?;
    let adopted = listener.and_then(|pid| discovery.adopt(pid).ok().flatten());
    adopted.map(|process| process.pid).ok_or(Absence::Unsupported)
}
