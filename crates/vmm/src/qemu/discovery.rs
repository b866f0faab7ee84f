//! Finds the QEMU processes of this host without configuration.
//!
//! Three kinds of processes look like guests but are not: a QEMU without a machine (libvirt asks about its abilities), the
//! process that `-daemonize` leaves behind, and the copy of a QEMU that is about to execute a helper.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use memtide_host::{ProcFs, Stat};
use memtide_model::{Bytes, GuestId, Withheld};

use super::command_line::{CommandLine, RamBackend};
use super::equipment::Equipment;
pub use crate::processes::DiscoveryError;
use crate::processes::{Processes, Scan};

/// A QEMU process that runs a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuProcess {
    /// The guest's identity.
    pub id: GuestId,
    /// The process.
    pub pid: u32,
    /// The owner.
    pub owner: Owner,
    /// The facts from its command line.
    pub facts: ProcessFacts,
    /// Why memory that the guest gives is not the host's, as far as the command line tells.
    pub withheld: Option<Withheld>,
    /// The NUMA node of the host that all of its memory is bound to.
    pub node: Option<u32>,
    /// Its QMP sockets, in the order of the command line, as paths that work in this process.
    pub monitors: Vec<PathBuf>,
    /// The same paths as given on the command line. The kernel lists their listeners under these names.
    pub bound: Vec<PathBuf>,
    /// The socket of the port for the guest's agent, as a path that works in this process.
    pub agent: Option<PathBuf>,
}

/// The owner of a QEMU, who decides whether memtide may use its monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No known owner: memtide may use its monitors.
    Nobody,
    /// libvirt: memtide never connects to it.
    Libvirt,
}

/// The facts from a QEMU's start that affect its cost on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// The accelerator that executes the guest's instructions.
    pub accel: Accel,
    /// The limit of TCG's code buffer, if given.
    pub tb_size: Option<Bytes>,
    /// Memory backends. Empty: QEMU's own private anonymous memory.
    pub ram: Vec<RamBackend>,
    /// Memory at start, if given.
    pub memory: Option<Bytes>,
    /// Further settings are in files that memtide does not read (`-readconfig`).
    pub reads_files: bool,
    /// Whether it was started to receive a migration.
    pub incoming: bool,
}

impl ProcessFacts {
    /// Whether the size of the guest may be in a file that memtide does not read.
    #[must_use]
    pub fn is_of_unknown_size(&self) -> bool {
        self.memory.is_none() && self.reads_files
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
        Self { processes: Processes::new(root), known: BTreeMap::new() }
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
        for pid in pids {
            if !self.known.contains_key(&pid) && self.processes.is_due(pid) && self.looks_like_qemu(pid) {
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
        if !self.known.contains_key(&pid) {
            self.read(pid, &boot);
        }
        Ok(self.known.get(&pid).map(|known| &known.process))
    }

    /// NixOS wraps programs: the wrapped one is called `.NAME-wrapped`.
    fn looks_like_qemu(&self, pid: u32) -> bool {
        let named = |name: String| {
            let name = name.trim_start_matches('.');
            name.starts_with("qemu-system-") || name.starts_with("qemu-kvm") || name == "kvm"
        };
        self.proc_fs().comm(pid).is_some_and(named) || self.proc_fs().exe_name(pid).is_some_and(named)
    }

    /// Debian's old name for QEMU, which any program may have.
    fn is_called_kvm(&self, pid: u32) -> bool {
        let is_qemu = |name: String| name.contains("qemu");
        self.proc_fs().comm(pid).is_some_and(|name| name == "kvm")
            && !self.proc_fs().exe_name(pid).is_some_and(is_qemu)
    }

    /// Reads a process, and keeps it if it runs a guest.
    fn read(&mut self, pid: u32, boot: &str) {
        let Some(stat) = self.proc_fs().stat(pid).filter(|stat| !stat.dead) else { return };
        let Some(cmdline) = self.proc_fs().cmdline(pid) else { return };
        let line = CommandLine::parse(&cmdline);
        let hash = hash_of(&cmdline);
        let is_no_guest = line.no_machine || line.of_xen || (line.says_nothing() && self.is_called_kvm(pid));
        if is_no_guest || self.is_a_copy(pid, &stat, hash, line.daemonize) {
            return;
        }
        let id = self.identity(pid, &stat, &line, boot);
        let equipment = Equipment::parse(&cmdline);
        let of_backends = Bytes::sum(line.ram.iter().filter_map(|backend| backend.size));
        let node = equipment.node().filter(|_| line.memory.is_some_and(|memory| of_backends >= memory));
        let process = QemuProcess {
            id,
            pid,
            owner: if line.of_libvirt { Owner::Libvirt } else { Owner::Nobody },
            monitors: line.monitors.iter().map(|path| self.processes.reachable(pid, path)).collect(),
            bound: line.monitors.clone(),
            agent: line.agent.as_ref().map(|path| self.processes.reachable(pid, path)),
            facts: self.facts(pid, line),
            withheld: equipment.withheld(),
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
            memory: line.memory,
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
