//! QEMU's guests: which processes are guests, which of them the configuration names, and which are left alone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memtide_host::RamBlock;
use memtide_model::{Absence, Backend as Vmm, Bytes, Capabilities, GuestId};
use tokio::sync::watch;

use super::command_line::RamKind;
use super::control::{AgentPort, Knocks, QemuControl};
use super::discovery::{Accel, Changes, Discovery, DiscoveryError, Owner, QemuProcess};
use super::knock;
use super::monitor::{DEFAULT_MEMORY, Monitor, MonitorConfig, Use};
use super::socket;
use crate::backend::{Backend, Control, DiscoverError, Found, Process};

/// QEMU processes without an owner, and those that libvirt owns. memtide sees and counts the latter, but never connects to them.
const QEMU: Vmm = Vmm::new("QEMU");
const QEMU_OF_LIBVIRT: Vmm = Vmm::new("QEMU of libvirt");
/// What QEMU may grow by beyond its code buffer: five times the measured growth between a guest's prompt and the end of a memory load.
pub const LEAST_GROWTH: Bytes = Bytes::from_mib(16);
/// TCG's code buffer without `tb-size`.
const DEFAULT_CODE_BUFFER: Bytes = Bytes::from_mib(1024);

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
    knocks: watch::Sender<Knocks>,
}

struct Configured {
    guest: ConfiguredGuest,
    /// The guest's process.
    pid: Option<u32>,
    why: Absence,
}

struct Guest {
    process: QemuProcess,
    /// The monitor that the configuration gives to memtide alone.
    held: Option<PathBuf>,
    /// The network namespace of its listeners, if the monitor may be kept open: see [`knock`].
    namespace: Option<PathBuf>,
}

impl Qemu {
    /// The guests in the tree `root`, usually `/proc`, with those that the configuration names.
    #[must_use]
    pub fn new(root: &Path, configured: impl IntoIterator<Item = ConfiguredGuest>) -> Self {
        let configured = configured.into_iter();
        Self {
            discovery: Discovery::new(root),
            configured: configured
                .map(|guest| Configured { guest, pid: None, why: Absence::NotYet })
                .collect(),
            guests: BTreeMap::new(),
            knocks: watch::Sender::new(None),
        }
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
            // If the monitor is held, or the namespace is unknown, memtide would not hear a knock.
            let hears = held.is_none() && !process.bound.is_empty() && self.discovery.proc_fs().is_live();
            let namespace = || self.discovery.proc_fs().link(&process.pid.to_string(), "ns/net");
            let namespace = if hears { namespace() } else { None };
            there.insert(id, Guest { process: process.clone(), held, namespace });
        }
        self.guests = there;
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

    /// Tells the controls at which paths clients wait, in all network namespaces of guests whose monitors may be kept open.
    fn listen_for_knocks(&self) {
        let mut namespaces = BTreeMap::new();
        for guest in self.guests.values() {
            if let Some(namespace) = &guest.namespace {
                namespaces.entry(namespace).or_insert(guest.process.pid);
            }
        }
        let lists = namespaces.into_values().map(|pid| knock::waiting(self.discovery.proc_fs(), pid));
        let waiting = lists.collect::<Option<Vec<_>>>();
        let waiting: Knocks = waiting.map(|lists| lists.into_iter().flatten().collect());
        let concerns = |waiting: &BTreeSet<PathBuf>| {
            self.guests.values().any(|guest| guest.process.bound.iter().any(|path| waiting.contains(path)))
        };
        let has_changed = self.knocks.borrow().is_some() != waiting.is_some();
        // Most lists concern nobody: they wake no task.
        if has_changed || waiting.as_ref().is_some_and(concerns) {
            self.knocks.send_replace(waiting);
        }
    }

    fn scan(&mut self, ended: bool) -> Result<bool, DiscoveryError> {
        let changes = if ended { self.discovery.scan()? } else { self.discovery.scan_for_new()? };
        let matched = self.match_configured();
        Ok(matched || changes != Changes::default())
    }
}

impl Backend for Qemu {
    fn discover(&mut self, ended: bool) -> Result<Option<Vec<Found>>, DiscoverError> {
        let scanned = self.scan(ended);
        if matches!(scanned, Ok(true)) {
            self.follow_processes();
        }
        self.listen_for_knocks();
        match scanned {
            Ok(true) => Ok(Some(self.guests.iter().map(|(id, guest)| found(id, guest)).collect())),
            Ok(false) => Ok(None),
            Err(error) => Err(DiscoverError { vmm: QEMU, source: Box::new(error) }),
        }
    }

    fn control(&mut self, id: &GuestId) -> Result<Box<dyn Control>, Absence> {
        let Guest { process, held, namespace } = self.guests.get(id).ok_or(Absence::Gone)?;
        match (process.owner, held) {
            (Owner::Libvirt, _) => return Err(Absence::OwnedBy("libvirt".to_owned())),
            (Owner::Nobody, None) if process.monitors.is_empty() => return Err(Absence::NoControl),
            (Owner::Nobody, _) => {}
        }
        let is_live = self.discovery.proc_fs().is_live();
        let monitor = Monitor::new(MonitorConfig {
            guest: id.clone(),
            // Any process can listen at a configured socket and hand it to QEMU.
            peer: (is_live && held.is_none()).then_some(process.pid),
            use_as: if held.is_some() { Use::Dedicated } else { Use::Brief },
            paths: held.clone().map_or_else(|| process.monitors.clone(), |path| vec![path]),
            memory: process.facts.memory,
        });
        let bound = if namespace.is_some() { process.bound.clone() } else { Vec::new() };
        let peer = is_live.then_some(process.pid);
        let port = process.agent.clone().map(|path| AgentPort { path, peer });
        Ok(Box::new(QemuControl::new(monitor, bound, self.knocks.subscribe(), port)))
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
    let of_libvirt = process.owner == Owner::Libvirt;
    let full = process.facts.memory.unwrap_or(DEFAULT_MEMORY);
    Found {
        id: id.clone(),
        vmm: if of_libvirt { QEMU_OF_LIBVIRT } else { QEMU },
        capabilities: Capabilities { can_be_set: !of_libvirt, ..Capabilities::BALLOON },
        full,
        withheld: process.withheld.clone(),
        process: Process {
            pid: process.pid,
            ram: ram_blocks(process, full),
            is_of_unknown_size: process.facts.is_of_unknown_size(),
            private_file: private_file(process),
            node: process.node,
            shared: shared_files(process),
            least_growth: LEAST_GROWTH,
            code_buffer: match process.facts.accel {
                Accel::Tcg => process.facts.tb_size.unwrap_or(DEFAULT_CODE_BUFFER),
                Accel::Kvm | Accel::Other => Bytes::ZERO,
            },
        },
        is_configured: held.is_some(),
    }
}

/// The guest's RAM as QEMU was told to make it; `full` is its size. Empty if nobody knows.
#[must_use]
pub fn ram_blocks(process: &QemuProcess, full: Bytes) -> Vec<RamBlock> {
    if process.facts.is_of_unknown_size() {
        return Vec::new();
    }
    if process.facts.ram.is_empty() {
        return vec![RamBlock::Size(full)];
    }
    let blocks = process.facts.ram.iter().map(|backend| match &backend.kind {
        RamKind::File(path) => RamBlock::File(path.clone()),
        RamKind::Memfd => RamBlock::File("/memfd:memory-backend-memfd".into()),
        RamKind::Anonymous => RamBlock::Size(backend.size.unwrap_or(full)),
    });
    blocks.collect()
}

/// The file or directory of RAM that is mapped privately.
fn private_file(process: &QemuProcess) -> Option<PathBuf> {
    process.facts.ram.iter().find_map(|backend| match &backend.kind {
        RamKind::File(path) if !backend.shared => Some(path.clone()),
        _ => None,
    })
}

/// The files whose blocks are the guest's cost.
fn shared_files(process: &QemuProcess) -> Vec<PathBuf> {
    let files = process.facts.ram.iter().filter_map(|backend| match &backend.kind {
        RamKind::File(path) if backend.shared => Some(path.clone()),
        _ => None,
    });
    files.collect()
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
