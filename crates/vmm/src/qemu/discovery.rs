//! Finds the QEMU processes of this host without configuration.
//!
//! A scan lists /proc and reads only new processes. A known QEMU costs one small file, and any other known process costs nothing. But
//! such a process can still become a QEMU (a script that prepares a network and then executes QEMU). So it is read again while
//! it is young, and in turn afterwards. If the kernel has not assigned a new process number, the previous list is used again.
//!
//! Three kinds of processes look like guests but are not: a QEMU without a machine (libvirt asks about its abilities), the
//! process that `-daemonize` leaves behind, and the copy of a QEMU that is about to execute a helper.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use memtide_host::{ProcFs, Stat};
use memtide_model::{Bytes, GuestId};

use super::command_line::{CommandLine, RamBackend};

/// The number of scans in which a new process is always read.
const YOUNG: u8 = 5;
/// Afterwards, a process that is not a QEMU is read once in this many scans.
const TURNS: u32 = 8;
/// Scans for new processes make the process list again once in this many scans, even if no process is new.
const LISTS: u32 = 4;

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
    /// Whether it was started to receive a migration.
    pub incoming: bool,
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

/// Why the processes of this host could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub struct DiscoveryError {
    /// The file or directory.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// The QEMU processes of this host, kept up to date by [`Discovery::scan`].
#[derive(Debug)]
pub struct Discovery {
    proc_fs: ProcFs,
    boot: Option<String>,
    known: BTreeMap<u32, Known>,
    /// Processes that are not guests, with the number of scans that have read them.
    others: HashMap<u32, u8>,
    /// The process number that the kernel assigned last, and the process list of that moment.
    listed: Option<(u32, Vec<u32>)>,
    turn: u32,
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
            proc_fs: ProcFs::new(root),
            boot: None,
            known: BTreeMap::new(),
            others: HashMap::new(),
            listed: None,
            turn: 0,
        }
    }

    /// The guests of the last scan, by process.
    pub fn processes(&self) -> impl Iterator<Item = &QemuProcess> {
        self.known.values().map(|known| &known.process)
    }

    /// The identity of `process` under another name.
    pub(super) fn identity_as(&self, name: &str, process: &QemuProcess) -> GuestId {
        GuestId::new(name, process.id.start(), self.boot.as_deref().unwrap_or_default())
    }

    /// The tree that discovery reads.
    pub(super) const fn proc_fs(&self) -> &ProcFs {
        &self.proc_fs
    }

    /// Looks for new processes, and at a part of the known ones. For callers that learn about the ends of processes elsewhere.
    ///
    /// # Errors
    /// See [`Discovery::scan`].
    pub fn scan_for_new(&mut self) -> Result<Changes, DiscoveryError> {
        if self.turn.is_multiple_of(LISTS) {
            self.listed = None;
        }
        let turn = self.turn;
        self.scan_with(move |pid| pid % TURNS == turn % TURNS)
    }

    /// Looks at all present processes.
    ///
    /// # Errors
    /// If the tree cannot be listed, or if the host's boot id cannot be read. The known guests stay as they are.
    pub fn scan(&mut self) -> Result<Changes, DiscoveryError> {
        self.listed = None;
        self.scan_with(|_| true)
    }

    fn scan_with(&mut self, looks_at: impl Fn(u32) -> bool) -> Result<Changes, DiscoveryError> {
        let boot = self.boot()?;
        let pids = self.pids()?;
        let before: HashSet<GuestId> = self.processes().map(|process| process.id.clone()).collect();
        self.forget_the_gone(&pids, looks_at);
        self.turn = self.turn.wrapping_add(1);
        for pid in pids {
            if !self.known.contains_key(&pid) && self.is_due(pid) && self.looks_like_qemu(pid) {
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
        let boot = self.boot()?;
        if !self.known.contains_key(&pid) {
            self.read(pid, &boot);
        }
        Ok(self.known.get(&pid).map(|known| &known.process))
    }

    /// The present processes, complete enough to find new ones.
    fn pids(&mut self) -> Result<Vec<u32>, DiscoveryError> {
        let last_pid = self.proc_fs.last_pid();
        let listed = self.listed.take().filter(|(pid, _)| Some(*pid) == last_pid);
        let pids = match listed {
            Some((_, pids)) => pids,
            None => self
                .proc_fs
                .pids()
                .map_err(|source| DiscoveryError { path: self.proc_fs.root().to_owned(), source })?,
        };
        self.listed = last_pid.map(|pid| (pid, pids.clone()));
        Ok(pids)
    }

    fn boot(&mut self) -> Result<String, DiscoveryError> {
        if let Some(boot) = &self.boot {
            return Ok(boot.clone());
        }
        let boot = self
            .proc_fs
            .boot_id()
            .map_err(|source| DiscoveryError { path: self.proc_fs.boot_id_path(), source })?;
        Ok(self.boot.insert(boot).clone())
    }

    fn forget_the_gone(&mut self, pids: &[u32], looks_at: impl Fn(u32) -> bool) {
        let proc_fs = &self.proc_fs;
        self.known.retain(|&pid, known| {
            let lives = || {
                let stat = proc_fs.stat(pid);
                stat.is_some_and(|stat| !stat.dead && stat.start == known.process.id.start())
            };
            pids.binary_search(&pid).is_ok() && (!looks_at(pid) || lives())
        });
        self.others.retain(|pid, _| pids.binary_search(pid).is_ok());
    }

    /// Whether this scan should read a process that is not a known guest.
    fn is_due(&mut self, pid: u32) -> bool {
        let looks = self.others.entry(pid).or_default();
        if *looks < YOUNG {
            *looks += 1;
            return true;
        }
        pid % TURNS == self.turn % TURNS
    }

    fn looks_like_qemu(&self, pid: u32) -> bool {
        let named =
            |name: String| name.starts_with("qemu-system-") || name.starts_with("qemu-kvm") || name == "kvm";
        self.proc_fs.comm(pid).is_some_and(named) || self.proc_fs.exe_name(pid).is_some_and(named)
    }

    /// Reads a process, and keeps it if it runs a guest.
    fn read(&mut self, pid: u32, boot: &str) {
        let Some(stat) = self.proc_fs.stat(pid).filter(|stat| !stat.dead) else { return };
        let Some(cmdline) = self.proc_fs.cmdline(pid) else { return };
        let line = CommandLine::parse(&cmdline);
        let hash = hash_of(&cmdline);
        if line.no_machine || self.is_a_copy(pid, &stat, hash, line.daemonize) {
            return;
        }
        let id = self.identity(pid, &stat, &line, boot);
        let process = QemuProcess {
            id,
            pid,
            owner: if line.of_libvirt { Owner::Libvirt } else { Owner::Nobody },
            monitors: line.monitors.iter().map(|path| self.reachable(pid, path)).collect(),
            bound: line.monitors.clone(),
            agent: line.agent.as_ref().map(|path| self.reachable(pid, path)),
            facts: self.facts(pid, line),
        };
        self.others.remove(&pid);
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
            [first, ..] => match self.proc_fs.holds_kvm(pid) {
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
            incoming: line.incoming,
        }
    }

    /// Converts a path of the process into a path that works in this process.
    fn reachable(&self, pid: u32, path: &Path) -> PathBuf {
        let mounts = |pid: &str| self.proc_fs.link(pid, "ns/mnt");
        let (ours, its) = (mounts("self"), mounts(&pid.to_string()));
        let same_mounts = ours.is_none() || its.is_none() || ours == its;
        let same_root = self.proc_fs.link(&pid.to_string(), "root").is_none_or(|root| root == Path::new("/"));
        let at_home = same_mounts && same_root;
        match (path.strip_prefix("/"), at_home) {
            (Ok(_), true) => path.to_owned(),
            (Ok(below_root), false) => self.proc_fs.file(pid, "root").join(below_root),
            (Err(_), true) => match self.proc_fs.link(&pid.to_string(), "cwd") {
                Some(cwd) => cwd.join(path),
                None => self.proc_fs.file(pid, "cwd").join(path),
            },
            (Err(_), false) => self.proc_fs.file(pid, "cwd").join(path),
        }
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
