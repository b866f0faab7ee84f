//! Finds the QEMU processes of this host without configuration.
//!
//! A scan lists /proc and reads only what is new: a process known to be QEMU costs one small file, a process known to
//! be something else costs nothing, except that it may yet become QEMU (a script that prepares a network and then
//! executes it): such processes are looked at again while they are young, and in turn afterwards. While the kernel has given no
//! number to a new process, the list of before does.
//!
//! Three things look like guests and are none: a QEMU without a machine (libvirt asks what it can do), the process
//! that `-daemonize` leaves behind, and the copy of a QEMU that is about to execute a helper.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use memtide_model::{Bytes, GuestId};

use super::command_line::{CommandLine, RamBackend};
use super::proc_fs::{ProcFs, Stat};

/// A process is looked at in each of its first so many scans.
const YOUNG: u8 = 5;
/// An older process that is no QEMU is looked at in one scan out of so many.
const TURNS: u32 = 8;
/// The list of processes is made anew in one scan for new ones out of so many, even where none is new.
const LISTS: u32 = 4;

/// A QEMU process that runs a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuProcess {
    /// Who it is.
    pub id: GuestId,
    /// The process.
    pub pid: u32,
    /// Who started it.
    pub owner: Owner,
    /// What it was started with.
    pub facts: ProcessFacts,
    /// Its QMP sockets by paths that work from here, in the order of the command line.
    pub monitors: Vec<PathBuf>,
    /// The same as they were given: the names under which the kernel lists their listeners.
    pub bound: Vec<PathBuf>,
}

/// Who started a QEMU, and so who may speak with its monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody in particular: its monitors may be used.
    Nobody,
    /// libvirt: never connected to.
    Libvirt,
}

/// What a QEMU was started with, as far as its cost on the host depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// What executes the guest's instructions.
    pub accel: Accel,
    /// The limit of TCG's code buffer, where given.
    pub tb_size: Option<Bytes>,
    /// Memory backends. Empty: QEMU's own anonymous private memory.
    pub ram: Vec<RamBackend>,
    /// Memory at start, where given.
    pub memory: Option<Bytes>,
    /// Whether it was started to receive a migration.
    pub incoming: bool,
}

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The kernel's KVM.
    Kvm,
    /// QEMU's own translator, with a code buffer in the process.
    Tcg,
    /// Something else (Xen, a test accelerator).
    Other,
}

/// What a scan found new and missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Guests that were not there before.
    pub appeared: Vec<GuestId>,
    /// Guests whose process is gone.
    pub vanished: Vec<GuestId>,
}

/// Why the processes of this host could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub struct DiscoveryError {
    /// The file or directory.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// The QEMU processes of this host, kept up to date by [`Discovery::scan`].
#[derive(Debug)]
pub struct Discovery {
    proc_fs: ProcFs,
    boot: Option<String>,
    known: BTreeMap<u32, Known>,
    /// Processes that are no guests, and in how many scans they were looked at.
    others: HashMap<u32, u8>,
    /// The number that the kernel had given last, and the processes that were listed then.
    listed: Option<(u32, Vec<u32>)>,
    turn: u32,
}

#[derive(Debug)]
struct Known {
    process: QemuProcess,
    parent: u32,
    /// A hash of the command line, to tell copies of a process.
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

    /// The guests as of the last scan, by process.
    pub fn processes(&self) -> impl Iterator<Item = &QemuProcess> {
        self.known.values().map(|known| &known.process)
    }

    /// The identity of `process` under another name.
    pub(super) fn identity_as(&self, name: &str, process: &QemuProcess) -> GuestId {
        GuestId::new(name, process.id.start(), self.boot.as_deref().unwrap_or_default())
    }

    /// The tree that it looks in.
    pub(super) const fn proc_fs(&self) -> &ProcFs {
        &self.proc_fs
    }

    /// Looks for processes that are new, and at a part of those that are known: for a caller who is told of their ends.
    ///
    /// # Errors
    /// As [`Discovery::scan`].
    pub fn scan_for_new(&mut self) -> Result<Changes, DiscoveryError> {
        if self.turn.is_multiple_of(LISTS) {
            self.listed = None;
        }
        let turn = self.turn;
        self.scan_with(move |pid| pid % TURNS == turn % TURNS)
    }

    /// Looks at the processes there are now.
    ///
    /// # Errors
    /// Where the tree cannot be listed, or the host's boot id cannot be read. The guests known stay as they are.
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

    /// Takes the process `pid` for a guest, whatever its program is called: a monitor of ours is its.
    ///
    /// # Errors
    /// Where the host's boot id cannot be read.
    pub fn adopt(&mut self, pid: u32) -> Result<Option<&QemuProcess>, DiscoveryError> {
        let boot = self.boot()?;
        if !self.known.contains_key(&pid) {
            self.read(pid, &boot);
        }
        Ok(self.known.get(&pid).map(|known| &known.process))
    }

    /// The processes there are, as far as new ones are concerned.
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

    /// Whether a process that is no guest so far is to be looked at in this scan.
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

    /// Reads a process and keeps it where it runs a guest.
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
            facts: self.facts(pid, line),
        };
        self.others.remove(&pid);
        self.known.insert(pid, Known { process, parent: stat.parent, cmdline: hash });
    }

    /// Whether this is one of two processes with the same command line that runs no guest: the child, a copy about to
    /// execute a helper; but of `-daemonize` it is the parent, which waits for the child to be ready.
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
            // Two of one name started within one clock tick.
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
            // QEMU takes the first one that works: see which one it was.
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

    /// A path of the process as a path that works from here.
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
