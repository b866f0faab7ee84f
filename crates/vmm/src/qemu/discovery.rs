//! Finds the QEMU processes of this host without configuration.
//!
//! [`recognise`](super::recognise) says which processes are QEMUs. Three kinds of them look like guests but are not: a QEMU without a machine (libvirt asks about its abilities), the
//! process that `-daemonize` leaves behind, and the copy of a QEMU that is about to execute a helper.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use memtide_host::{DeviceFile, ProcFs, Stat};
use memtide_model::{Absence, Bytes, GuestId, Users, Withheld};

use super::arguments::{Arguments, LONGEST_FILE, Source};
use super::command_line::CommandLine;
use super::equipment::Equipment;
use super::launcher::Launcher;
use super::ram::{self, MemoryBlock};
use super::recognise::Strangers;
use super::{listed, places, socket};
pub use crate::processes::DiscoveryError;
use crate::processes::{Processes, Scan};

/// The service manager, which listens for its services: a socket of its is no monitor yet.
const INIT: u32 = 1;

/// A QEMU process that runs a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuProcess {
    /// The guest's identity.
    pub id: GuestId,
    /// The process.
    pub pid: u32,
    /// Its real user, as the kernel says. (A program with the set-user-ID bit has the rights of its owner, and the real user of its caller.)
    pub user: Option<u32>,
    /// Its user is not admitted: no more is known than the start of its command line tells.
    pub is_outside: bool,
    /// The program that started it, and what that keeps for itself.
    pub launcher: Launcher,
    /// The identity that its command line names (`-uuid`).
    pub uuid: Option<String>,
    /// The facts from its command line.
    pub facts: ProcessFacts,
    /// Why memory that the guest gives is not the host's, as far as its options tell.
    pub withheld: Option<Withheld>,
    /// Its devices and the kind of its memory.
    pub equipment: Equipment,
    /// The files with memory of devices other than RAM.
    pub device_files: Vec<DeviceFile>,
    /// The NUMA node of the host that all of its memory is bound to.
    pub node: Option<u32>,
    /// The places of its QMP sockets, but for those that its owner keeps, as paths that work in this process, in the order in which they are tried. A place may be a guess: only the
    /// kernel knows who listens there.
    pub monitors: Vec<PathBuf>,
    /// Where the first of them is named.
    pub monitor_source: Source,
    /// The places of those that its owner keeps. memtide does not use them.
    pub kept_monitors: Vec<PathBuf>,
    /// QMP sockets at which QEMU writes an answer over several lines, as given. memtide does not read such answers.
    pub pretty_monitors: Vec<PathBuf>,
    /// The paths at which QEMU bound them. The kernel lists their listeners under these names.
    pub bound: Vec<PathBuf>,
    /// The socket of the port for the guest's agent, as a path that works in this process.
    pub agent: Option<PathBuf>,
}

/// The place that names the first of the monitors that were bound at these paths.
fn monitor_source(line: &CommandLine, bound: &[PathBuf]) -> Source {
    match bound.first().is_some_and(|path| line.monitors_in_file.contains(path)) {
        true => Source::ConfigFile,
        false => Source::CommandLine,
    }
}

/// The facts from a QEMU's start that affect its cost on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// The accelerator that executes the guest's instructions.
    pub accel: Accel,
    /// The limit of TCG's code buffer, if given.
    pub tb_size: Option<Bytes>,
    /// The pieces of RAM.
    pub ram: Vec<MemoryBlock>,
    /// Memory of other devices (ivshmem, NVDIMM, virtio-pmem), which is no RAM.
    pub device_memory: Vec<MemoryBlock>,
    /// The RAM that the guest starts with; `None` if nobody tells.
    pub memory: Option<Bytes>,
    /// The place that tells it.
    pub memory_source: Source,
    /// Further settings are in files that memtide could not read (`-readconfig`).
    pub reads_files: bool,
    /// Whether it was started to receive a migration.
    pub incoming: bool,
}

impl ProcessFacts {
    /// Whether nothing tells the size of the guest: it is in a file that memtide could not read, or it is the default of a machine that memtide
    /// does not know.
    #[must_use]
    pub const fn is_of_unknown_size(&self) -> bool {
        self.memory.is_none()
    }
}

/// The accelerator that executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The kernel's KVM.
    Kvm,
    /// QEMU's own translator, with a code buffer in the process.
    Tcg,
    /// Another accelerator (Xen, a test accelerator).
    Other,
}

/// The guests that appeared and vanished between two scans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New guests.
    pub appeared: Vec<GuestId>,
    /// Guests whose process has ended.
    pub vanished: Vec<GuestId>,
}

/// The QEMU processes of this host, kept up to date by [`Discovery::scan`].
#[derive(Debug)]
pub struct Discovery {
    processes: Processes,
    known: BTreeMap<u32, Known>,
    strangers: Strangers,
    /// The users whose guests are read; `None`: all.
    users: Option<Users>,
}

#[derive(Debug)]
struct Known {
    process: QemuProcess,
    parent: u32,
    /// A hash of the command line, to recognise copies of a process.
    cmdline: u64,
}

impl Discovery {
    /// Discovery in the tree `root`, usually `/proc`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            processes: Processes::new(root),
            known: BTreeMap::new(),
            strangers: Strangers::default(),
            users: None,
        }
    }

    /// Of guests of other users, nothing is read from now on but the start of their command lines.
    pub fn admit(&mut self, users: Option<Users>) {
        self.users = users;
        // Some of them may be admitted now.
        self.known.retain(|_, known| !known.process.is_outside);
        self.processes.limit_scans();
    }

    /// The guests of the last scan, by process.
    pub fn processes(&self) -> impl Iterator<Item = &QemuProcess> {
        self.known.values().map(|known| &known.process)
    }

    /// The identity of `process` under another name.
    pub(super) fn identity_as(&self, name: &str, process: &QemuProcess) -> GuestId {
        GuestId::new(name, process.id.start(), self.processes.known_boot())
    }

    /// The tree that discovery reads.
    pub(super) const fn proc_fs(&self) -> &ProcFs {
        self.processes.proc_fs()
    }

    /// Looks for new processes, and at a part of the known ones. For callers that learn about the ends of processes elsewhere.
    ///
    /// # Errors
    /// See [`Discovery::scan`].
    pub fn scan_for_new(&mut self) -> Result<Changes, DiscoveryError> {
        self.scan_with(Scan::ForNew)
    }

    /// Looks at all present processes.
    ///
    /// # Errors
    /// If the tree cannot be listed, or if the host's boot id cannot be read. The known guests stay as they are.
    pub fn scan(&mut self) -> Result<Changes, DiscoveryError> {
        self.scan_with(Scan::All)
    }

    fn scan_with(&mut self, scan: Scan) -> Result<Changes, DiscoveryError> {
        let boot = self.processes.boot()?;
        let pids = self.processes.list(scan)?;
        let before: HashSet<GuestId> = self.processes().map(|process| process.id.clone()).collect();
        let processes = &self.processes;
        self.known.retain(|&pid, known| processes.has_still(&pids, pid, known.process.id.start(), scan));
        self.strangers.retain(&pids);
        for pid in self.processes.in_order(pids) {
            if self.known.contains_key(&pid) {
                continue;
            }
            if !self.processes.has_time_for(pid) {
                break;
            }
            if self.processes.is_due(pid) && self.strangers.is_qemu(self.processes.proc_fs(), pid) {
                self.read(pid, &boot);
            }
        }
        let after: HashSet<GuestId> = self.processes().map(|process| process.id.clone()).collect();
        let sorted = |ids: std::collections::hash_set::Difference<'_, GuestId, _>| {
            let mut ids: Vec<GuestId> = ids.cloned().collect();
            ids.sort();
            ids
        };
        Ok(Changes {
            appeared: sorted(after.difference(&before)),
            vanished: sorted(before.difference(&after)),
        })
    }

    /// Treats the process `pid` as a guest, whatever its program is called, because one of memtide's own monitors belongs to it.
    ///
    /// # Errors
    /// If the host's boot id cannot be read.
    pub fn adopt(&mut self, pid: u32) -> Result<Option<&QemuProcess>, DiscoveryError> {
        let boot = self.processes.boot()?;
        let is_read = |known: &Known| !known.process.is_outside;
        if !self.known.get(&pid).is_some_and(is_read) {
            self.known.remove(&pid);
            let users = self.users.take();
            self.read(pid, &boot);
            self.users = users;
        }
        Ok(self.known.get(&pid).map(|known| &known.process))
    }

    /// The guest whose process listens at `path`, as the kernel tells. A command line with this path proves nothing, except in a captured tree,
    /// whose processes listen nowhere. Connects, and closes the connection at once.
    ///
    /// # Errors
    /// If nobody listens there, if the listener's queue is full, or if its process runs no guest.
    pub fn owner_of(&mut self, path: &Path) -> Result<u32, Absence> {
        if !self.proc_fs().is_live() {
            let outside = self.processes().filter(|process| process.is_outside);
            for pid in outside.map(|process| process.pid).collect::<Vec<_>>() {
                let _gone = self.adopt(pid);
            }
            let names_it = |process: &&QemuProcess| {
                process.monitors.iter().chain(&process.kept_monitors).any(|monitor| monitor == path)
            };
            if let Some(process) = self.processes().find(names_it) {
                return Ok(process.pid);
            }
        }
        let (listener, user) = socket::listener_of(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Absence::Forbidden,
            io::ErrorKind::WouldBlock => Absence::ControlTaken,
            _ => Absence::Disconnected,
        })?;
        let proc_fs = self.processes.proc_fs();
        let has_it = |other: &u32| listed::was_passed(proc_fs, *other, path, user);
        let pid = match self.known.contains_key(&listener) {
            true => listener,
            false => self.known.keys().copied().find(has_it).unwrap_or(listener),
        };
        if pid == INIT && !self.known.contains_key(&pid) {
            return Err(Absence::Unsupported);
        }
        let adopted = self.adopt(pid).ok().flatten();
        adopted.map(|process| process.pid).ok_or(Absence::Unsupported)
    }

    /// Reads a process, and keeps it if it runs a guest.
    fn read(&mut self, pid: u32, boot: &str) {
        let Some(stat) = self.proc_fs().stat(pid).filter(|stat| !stat.dead) else { return };
        let user = self.proc_fs().user(pid);
        let is_outside = self.users.as_ref().is_some_and(|users| !users.have(user));
        let cmdline = match is_outside {
            true => self.proc_fs().start_of_cmdline(pid).filter(|start| !start.is_empty()),
            false => self.proc_fs().cmdline(pid),
        };
        let Some(cmdline) = cmdline else { return };
        let file = |path: &Path| {
            if is_outside { None } else { self.proc_fs().regular_file(pid, path, LONGEST_FILE).ok() }
        };
        let arguments = Arguments::read(&cmdline, file);
        let line = CommandLine::of(&arguments);
        let equipment = Equipment::of(&arguments);
        let hash = hash_of(&cmdline);
        if line.no_machine || line.of_xen || self.is_a_copy(pid, &stat, hash, line.daemonize) {
            return;
        }
        let id = self.identity(pid, &stat, &line, boot);
        let launcher = line.launcher;
        let bound = if is_outside { Vec::new() } else { places::bound(self.proc_fs(), pid, &line) };
        let (kept, bound): (Vec<_>, Vec<_>) = bound.into_iter().partition(|path| launcher.keeps(path));
        let agent = line.agent.as_ref().filter(|_| !is_outside);
        let node = ram::node(&line.ram);
        let process = QemuProcess {
            id,
            pid,
            user,
            is_outside,
            launcher,
            uuid: line.uuid.clone(),
            monitors: places::of_all(&self.processes, pid, &bound),
            monitor_source: monitor_source(&line, &bound),
            bound,
            kept_monitors: places::of_all(&self.processes, pid, &kept),
            pretty_monitors: line.pretty_monitors.clone(),
            agent: agent.and_then(|path| places::likely(&self.processes, pid, path)),
            device_files: if is_outside { Vec::new() } else { self.device_files(pid, &line.device_memory) },
            facts: self.facts(pid, line),
            withheld: equipment.withheld(),
            equipment,
            node,
        };
        self.processes.is_a_guest(pid);
        self.known.insert(pid, Known { process, parent: stat.parent, cmdline: hash });
    }

    /// Whether this process is a copy that runs no guest: one of two processes with the same command line. Usually the copy is the
    /// child, which is about to execute a helper. With `-daemonize` it is the parent, which waits until the child is ready.
    fn is_a_copy(&mut self, pid: u32, stat: &Stat, cmdline: u64, daemonize: bool) -> bool {
        let of_parent = self.known.get(&stat.parent).is_some_and(|parent| parent.cmdline == cmdline);
        if !daemonize {
            return of_parent;
        }
        if of_parent {
            self.known.remove(&stat.parent);
        }
        self.known.values().any(|child| child.parent == pid && child.cmdline == cmdline)
    }

    fn identity(&self, pid: u32, stat: &Stat, line: &CommandLine, boot: &str) -> GuestId {
        let name = line.name.clone().or_else(|| line.uuid.clone()).unwrap_or_else(|| format!("qemu-{pid}"));
        let id = GuestId::new(&name, stat.start, boot);
        if self.processes().any(|other| other.id == id) {
            // Two guests with the same name started within one clock tick.
            return GuestId::new(&format!("{name}-{pid}"), stat.start, boot);
        }
        id
    }

    /// A file whose file system cannot be looked at counts as memory.
    fn device_files(&self, pid: u32, blocks: &[MemoryBlock]) -> Vec<DeviceFile> {
        let paths = blocks.iter().filter_map(MemoryBlock::path);
        let files = paths.map(|path| DeviceFile {
            is_on_disk: self.proc_fs().is_on_disk(pid, path) == Some(true),
            path: self.absolute(pid, path),
        });
        files.collect()
    }

    /// A path of the process as its mappings show it.
    fn absolute(&self, pid: u32, path: &Path) -> PathBuf {
        let cwd = || self.proc_fs().link(&pid.to_string(), "cwd");
        let from = if path.is_absolute() { None } else { cwd() };
        let from = from.unwrap_or_default();
        from.join(path.strip_prefix(".").unwrap_or(path))
    }

    fn facts(&self, pid: u32, line: CommandLine) -> ProcessFacts {
        let named = |name: &str| match name {
            "kvm" => Accel::Kvm,
            "tcg" => Accel::Tcg,
            _ => Accel::Other,
        };
        let accel = match line.accels.as_slice() {
            [] => Accel::Tcg,
            [first, rest @ ..] if rest.iter().all(|other| other == first) => named(first),
            // QEMU uses the first one that works. KVM's descriptors show which one.
            [first, ..] => match self.proc_fs().holds_kvm(pid) {
                Some(true) => Accel::Kvm,
                Some(false) if line.accels.iter().any(|name| name == "tcg") => Accel::Tcg,
                _ => named(first),
            },
        };
        ProcessFacts {
            accel,
            tb_size: line.tb_size,
            ram: line.ram,
            device_memory: line.device_memory,
            memory: line.memory,
            memory_source: line.memory_source,
            reads_files: line.reads_files,
            incoming: line.incoming,
        }
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
