//! QEMU's guests: which processes are guests, which of them the configuration names, and which are left alone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memtide_host::RamBlock;
use memtide_model::{Absence, Backend as Vmm, Bytes, Capabilities, Fence, GuestId, Users};
use tokio::sync::watch;

use super::backlogs::{self, Backlogs, Listeners};
use super::control::{AgentPort, Knocks, QemuControl, Shared};
use super::discovery::{Accel, Changes, Discovery, DiscoveryError, QemuProcess};
use super::facts;
use super::listed::OfMonitors;
use super::machine::DEFAULT_MEMORY;
use super::monitor::{Monitor, MonitorConfig, Use};
use super::proxmox;
use super::ram::{self, MemoryBlock};
use super::socket::Peer;
use crate::back_off::BackOff;
use crate::backend::{Backend, Control, DiscoverError, Found, Process};
use crate::libvirt::{ConfiguredDaemon, Daemons};

/// QEMU processes without an owner, and those that libvirt owns, which are reached over its daemons.
const QEMU: Vmm = Vmm::new("QEMU");
const QEMU_OF_LIBVIRT: Vmm = Vmm::new("QEMU of libvirt");
/// What QEMU may grow by beyond its code buffer: five times the measured growth between a guest's prompt and the end of a memory load.
pub const LEAST_GROWTH: Bytes = Bytes::from_mib(16);
/// TCG's code buffer without `tb-size`.
const DEFAULT_CODE_BUFFER: Bytes = Bytes::from_mib(1024);
/// The largest that TCG makes, whatever the command line names (`MAX_CODE_GEN_BUFFER_SIZE`).
const LARGEST_CODE_BUFFER: Bytes = Bytes::from_mib(2048);

/// The first and the longest wait after a connection to a configured monitor that shows no guest. Each connection takes a place in the
/// listener's queue.
const ASKS_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A guest from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredGuest {
    /// The guest's name. It replaces QEMU's name.
    pub name: String,
    /// A QMP socket for memtide alone, kept open.
    pub qmp: PathBuf,
}

/// All QEMU guests of this host.
pub struct Qemu {
    discovery: Discovery,
    configured: Vec<Configured>,
    guests: BTreeMap<GuestId, Guest>,
    /// Others may be guests since the last scan.
    admits_anew: bool,
    knocks: watch::Sender<Knocks>,
    backlogs: Option<Box<dyn Backlogs>>,
    daemons: Daemons,
}

struct Configured {
    guest: ConfiguredGuest,
    /// The guest's process.
    pid: Option<u32>,
    why: Absence,
    asks_again: BackOff,
}

struct Guest {
    process: QemuProcess,
    /// The monitor that the configuration gives to memtide alone.
    held: Option<PathBuf>,
    /// The paths at which the process bound the monitors that memtide uses.
    bound: Vec<PathBuf>,
    /// Its listeners there, if somebody asks the kernel about them.
    listeners: Listeners,
    /// The network namespace of its listeners, if the kernel's list tells who waits at them: see [`super::control`].
    namespace: Option<PathBuf>,
    /// What its owner's configuration says.
    configured: proxmox::Configured,
    /// The same for its control.
    owned: Arc<Mutex<Option<Fence>>>,
}

impl Qemu {
    /// The guests in the tree `root`, usually `/proc`, with those that the configuration names.
    #[must_use]
    pub fn new(root: &Path, configured: impl IntoIterator<Item = ConfiguredGuest>) -> Self {
        let configured = configured.into_iter();
        Self {
            discovery: Discovery::new(root),
            configured: configured
                .map(|guest| {
                    let asks_again = BackOff::new(ASKS_AGAIN.0, ASKS_AGAIN.1);
                    Configured { guest, pid: None, why: Absence::NotYet, asks_again }
                })
                .collect(),
            guests: BTreeMap::new(),
            admits_anew: false,
            knocks: watch::Sender::new(None),
            backlogs: None,
            daemons: Daemons::default(),
        }
    }

    /// Asks here who waits at monitors.
    #[must_use]
    pub fn asking(mut self, backlogs: impl Backlogs + 'static) -> Self {
        self.backlogs = Some(Box::new(backlogs));
        self
    }

    /// Reaches guests of libvirt over these daemons, too, or as these allow.
    #[must_use]
    pub fn with_libvirt(mut self, daemons: Vec<ConfiguredDaemon>) -> Self {
        self.daemons = Daemons::new(daemons);
        self
    }

    /// Takes over the processes of the last scan.
    fn follow_processes(&mut self) {
        let mut there = BTreeMap::new();
        for process in self.discovery.processes() {
            let ours = self.configured.iter().find(|configured| configured.pid == Some(process.pid));
            let id = match ours {
                Some(ours) => self.discovery.identity_as(&ours.guest.name, process),
                None => process.id.clone(),
            };
            let held = ours.map(|ours| ours.guest.qmp.clone());
            let is_used = |path: &&PathBuf| held.as_ref().is_none_or(|held| held == *path);
            let bound: Vec<PathBuf> = process.bound.iter().filter(is_used).cloned().collect();
            let is_listed = !bound.is_empty() && self.discovery.proc_fs().is_live();
            let namespace = || self.discovery.proc_fs().link(&process.pid.to_string(), "ns/net");
            let namespace = if is_listed { namespace() } else { None };
            let before = self.guests.remove(&id);
            let (listeners, configured, owned) =
                before.map(|before| (before.listeners, before.configured, before.owned)).unwrap_or_default();
            let process = process.clone();
            there.insert(id, Guest { process, held, bound, listeners, namespace, configured, owned });
        }
        self.guests = there;
    }

    /// Finds the process of each configured guest that has none: the one that listens at its monitor. Returns whether any guest got or lost a
    /// process.
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
            if !configured.asks_again.is_over() {
                continue;
            }
            let why = match self.discovery.owner_of(&configured.guest.qmp) {
                Ok(pid) if taken.insert(pid) => {
                    configured.pid = Some(pid);
                    configured.asks_again.worked();
                    continue;
                }
                // Another configured guest has the same process.
                Ok(_) => Absence::ControlTaken,
                Err(why) => why,
            };
            // A connection that failed took no place in a queue.
            if matches!(why, Absence::ControlTaken | Absence::Unsupported) {
                configured.asks_again.failed(why.clone());
            }
            configured.why = why;
        }
        self.configured.iter().map(|configured| configured.pid).ne(before)
    }

    /// Reads again what owners of guests say about them.
    fn follow_owners(&mut self) {
        for Guest { process, configured, owned, .. } in self.guests.values_mut() {
            configured.follow(process);
            *owned.lock().unwrap_or_else(PoisonError::into_inner) = configured.fence;
        }
    }

    /// Tells the controls which sockets the kernel lists at the paths of their monitors, in all network namespaces of guests.
    fn listen_for_knocks(&mut self) {
        let (mut namespaces, mut paths) = (BTreeMap::new(), BTreeSet::new());
        for guest in self.guests.values() {
            if let Some(namespace) = &guest.namespace {
                namespaces.entry(namespace).or_insert(guest.process.pid);
                paths.extend(guest.bound.iter().map(PathBuf::as_path));
            }
        }
        let mut seen = OfMonitors::default();
        let proc_fs = self.discovery.proc_fs();
        let is_read = namespaces.into_values().all(|pid| seen.add(proc_fs, pid, &paths).is_ok());
        if let Some(backlogs) = self.backlogs.as_mut().filter(|_| is_read) {
            let listed = |guest: &&mut Guest| guest.namespace.is_some();
            for Guest { process, bound, listeners, .. } in self.guests.values_mut().filter(listed) {
                listeners.follow(proc_fs, process.pid, bound, &seen);
            }
            let listed = self.guests.values().filter(|guest| guest.namespace.is_some());
            let listeners = listed.map(|guest| (guest.process.pid, &guest.listeners));
            backlogs::count(backlogs.as_mut(), listeners, &mut seen);
        }
        let seen: Knocks = is_read.then_some(seen);
        self.knocks.send_if_modified(|before| {
            let someone_waits = seen.as_ref().is_some_and(OfMonitors::someone_waits);
            // Most lists concern nobody: they wake no task.
            let wakes = before.is_some() != seen.is_some() || someone_waits;
            *before = seen;
            wakes
        });
    }

    fn scan(&mut self, ended: bool) -> Result<bool, DiscoveryError> {
        let changes = if ended { self.discovery.scan()? } else { self.discovery.scan_for_new()? };
        let matched = self.match_configured();
        let admits_anew = std::mem::take(&mut self.admits_anew);
        Ok(matched || admits_anew || changes != Changes::default())
    }
}

impl Backend for Qemu {
    fn open(&mut self, manages: bool) -> Option<String> {
        // Who only observes keeps no monitor open: nobody needs to knock.
        self.backlogs.as_mut().filter(|_| manages).map(|backlogs| backlogs.open())
    }

    fn discover(&mut self, ended: bool) -> Result<Option<Vec<Found>>, DiscoverError> {
        let scanned = self.scan(ended);
        if matches!(scanned, Ok(true)) {
            self.follow_processes();
        }
        self.listen_for_knocks();
        if self.discovery.proc_fs().is_live() {
            self.follow_owners();
        }
        match scanned {
            Ok(true) => Ok(Some(self.guests.iter().map(|(id, guest)| found(id, guest)).collect())),
            Ok(false) => Ok(None),
            Err(error) => Err(DiscoverError { vmm: QEMU, source: Box::new(error) }),
        }
    }

    fn admit(&mut self, users: Option<&Users>) {
        self.discovery.admit(users.cloned());
        self.admits_anew = true;
    }

    fn control(&mut self, id: &GuestId) -> Result<Box<dyn Control>, Absence> {
        let Guest { process, held, bound, namespace, owned, .. } =
            self.guests.get(id).ok_or(Absence::Gone)?;
        if process.launcher.is_libvirt() {
            return Ok(self.daemons.control(process));
        }
        if held.is_none() && process.monitors.is_empty() {
            return Err(process.launcher.why_no_monitor());
        }
        let is_live = self.discovery.proc_fs().is_live();
        let of_path = if held.is_some() { Peer::IsNamed(process.pid) } else { Peer::Names(process.pid) };
        let monitor = Monitor::new(MonitorConfig {
            guest: id.clone(),
            peer: is_live.then_some(of_path),
            use_as: if held.is_some() { Use::Dedicated } else { Use::Brief },
            paths: held.clone().map_or_else(|| process.monitors.clone(), |path| vec![path]),
            memory: process.facts.memory,
        });
        let shared = Shared {
            pid: process.pid,
            bound: if namespace.is_some() { bound.clone() } else { Vec::new() },
            is_dedicated: held.is_some(),
            owned: Arc::clone(owned),
            knocks: self.knocks.subscribe(),
        };
        let port = process
            .agent
            .clone()
            .map(|path| AgentPort { path, peer: is_live.then_some(Peer::Names(process.pid)) });
        Ok(Box::new(QemuControl::new(monitor, shared, port)))
    }

    /// Configured guests without a process.
    fn warnings(&self) -> Vec<String> {
        let missing = self.configured.iter().filter(|configured| configured.pid.is_none());
        missing
            .map(|Configured { guest, why, .. }| {
                format!("[[guest]] {}: {}: {why}", guest.name, guest.qmp.display())
            })
            .collect()
    }
}

fn found(id: &GuestId, Guest { process, held, .. }: &Guest) -> Found {
    let of_libvirt = process.launcher.is_libvirt();
    let full = process.facts.memory.unwrap_or(DEFAULT_MEMORY);
    Found {
        id: id.clone(),
        vmm: if of_libvirt { QEMU_OF_LIBVIRT } else { QEMU },
        capabilities: Capabilities::BALLOON,
        full,
        withheld: process.withheld.clone(),
        process: Process {
            pid: process.pid,
            user: process.user,
            ram: ram_blocks(process, full),
            devices: process.device_files.clone(),
            virtio_mem: ram::virtio_mem(&process.facts.ram),
            is_of_unknown_size: process.facts.is_of_unknown_size(),
            private_file: private_file(process),
            node: process.node,
            shared: shared_files(process),
            least_growth: LEAST_GROWTH,
            code_buffer: match process.facts.accel {
                Accel::Tcg => {
                    process.facts.tb_size.map_or(DEFAULT_CODE_BUFFER, |size| size.min(LARGEST_CODE_BUFFER))
                }
                Accel::Kvm | Accel::Other => Bytes::ZERO,
            },
        },
        facts: facts::of(process, held.as_ref()),
        is_configured: held.is_some(),
    }
}

/// The guest's RAM as QEMU was told to make it; `full` is its size. Empty if nobody knows.
#[must_use]
pub fn ram_blocks(process: &QemuProcess, full: Bytes) -> Vec<RamBlock> {
    if process.facts.is_of_unknown_size() {
        return Vec::new();
    }
    ram::mapped(&process.facts.ram, full)
}

/// The file or directory of RAM that is mapped privately.
fn private_file(process: &QemuProcess) -> Option<PathBuf> {
    process.facts.ram.iter().filter(|block| !block.shared).find_map(MemoryBlock::path).cloned()
}

/// The files whose blocks are the guest's cost.
fn shared_files(process: &QemuProcess) -> Vec<PathBuf> {
    let shared = process.facts.ram.iter().filter(|block| block.shared);
    shared.filter_map(MemoryBlock::path).cloned().collect()
}
