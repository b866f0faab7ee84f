//! The processes of this host, for backends that find their guests among them.
//!
//! A scan lists /proc and reads only new processes. A known guest costs one small file, and any other known process costs nothing. But
//! such a process can still become a guest (a script that prepares a network and then executes the VMM). So it is read again while
//! it is young, and in turn afterwards. If the kernel has not assigned a new process number, the previous list is used again.
//!
//! For callers that scan again and again, a scan can be limited to [`READS_WITHIN`]. The next scan then begins with the processes left over.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_host::ProcFs;

/// The number of scans in which a new process is always read.
const YOUNG: u8 = 5;
/// Afterwards, a process that is not a guest is read once in this many scans.
const TURNS: u32 = 8;
/// Scans for new processes make the process list again once in this many scans, even if no process is new.
const LISTS: u32 = 4;

/// The longest that a limited scan reads processes. A thousand guests take about a second.
const READS_WITHIN: Duration = Duration::from_secs(2);

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

/// How closely a scan looks at the guests that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// At all of them.
    All,
    /// At a part of them in turn: the ends of processes are noticed elsewhere.
    ForNew,
}

/// The processes of one tree like /proc, as one backend has read them.
#[derive(Debug)]
pub(crate) struct Processes {
    proc_fs: ProcFs,
    boot: Option<String>,
    /// Processes that are not guests, with the number of scans that have read them.
    others: HashMap<u32, u8>,
    /// The process number that the kernel assigned last, and the process list of that moment.
    listed: Option<(u32, Vec<u32>)>,
    turn: u32,
    /// The process that the next scan begins with, and when the present one began.
    first: u32,
    begun: Instant,
    is_limited: bool,
}

impl Processes {
    /// The processes of the tree `root`, usually `/proc`.
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            proc_fs: ProcFs::new(root),
            boot: None,
            others: HashMap::new(),
            listed: None,
            turn: 0,
            first: 0,
            begun: Instant::now(),
            is_limited: false,
        }
    }

    pub(crate) const fn proc_fs(&self) -> &ProcFs {
        &self.proc_fs
    }

    /// The boot id of the host.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn boot(&mut self) -> Result<String, DiscoveryError> {
        if let Some(boot) = &self.boot {
            return Ok(boot.clone());
        }
        let boot = self
            .proc_fs
            .boot_id()
            .map_err(|source| DiscoveryError { path: self.proc_fs.boot_id_path(), source })?;
        Ok(self.boot.insert(boot).clone())
    }

    /// The boot id, as far as it was read; empty before.
    pub(crate) fn known_boot(&self) -> &str {
        self.boot.as_deref().unwrap_or_default()
    }

    /// The present processes, ascending, complete enough to find new ones.
    ///
    /// # Errors
    /// If the tree cannot be listed.
    pub(crate) fn list(&mut self, scan: Scan) -> Result<Vec<u32>, DiscoveryError> {
        if scan == Scan::All || self.turn.is_multiple_of(LISTS) {
            self.listed = None;
        }
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
        self.others.retain(|pid, _| pids.binary_search(pid).is_ok());
        self.turn = self.turn.wrapping_add(1);
        Ok(pids)
    }

    /// Limits all further scans.
    pub(crate) const fn limit_scans(&mut self) {
        self.is_limited = true;
    }

    /// The listed processes in the order in which this scan reads them.
    pub(crate) fn in_order(&mut self, mut pids: Vec<u32>) -> Vec<u32> {
        self.begun = Instant::now();
        let first = std::mem::take(&mut self.first);
        let at = pids.partition_point(|pid| *pid < first);
        pids.rotate_left(at);
        pids
    }

    /// Whether this scan has time to read a process. Otherwise, the next one begins with it.
    pub(crate) fn has_time_for(&mut self, pid: u32) -> bool {
        let has_time = !self.is_limited || self.begun.elapsed() < READS_WITHIN;
        if !has_time {
            self.first = pid;
        }
        has_time
    }

    /// Whether the guest `pid`, which started at `start`, is still among the listed processes.
    pub(crate) fn has_still(&self, pids: &[u32], pid: u32, start: u64, scan: Scan) -> bool {
        let is_looked_at = scan == Scan::All || self.is_in_turn(pid);
        let lives = || self.proc_fs.stat(pid).is_some_and(|stat| !stat.dead && stat.start == start);
        pids.binary_search(&pid).is_ok() && (!is_looked_at || lives())
    }

    /// Whether this scan should read a process that is not a known guest.
    pub(crate) fn is_due(&mut self, pid: u32) -> bool {
        let looks = self.others.entry(pid).or_default();
        if *looks < YOUNG {
            *looks += 1;
            return true;
        }
        self.is_in_turn(pid)
    }

    /// A process turned out to be a guest.
    pub(crate) fn is_a_guest(&mut self, pid: u32) {
        self.others.remove(&pid);
    }

    const fn is_in_turn(&self, pid: u32) -> bool {
        pid % TURNS == self.turn % TURNS
    }

    /// Whether the process sees the same file systems as this process, as far as that can be read.
    pub(crate) fn has_our_mounts(&self, pid: u32) -> bool {
        let mounts = |pid: &str| self.proc_fs.link(pid, "ns/mnt");
        let (ours, its) = (mounts("self"), mounts(&pid.to_string()));
        ours.is_none() || its.is_none() || ours == its
    }

    /// Converts a path of the process into a path that works in this process.
    pub(crate) fn reachable(&self, pid: u32, path: &Path) -> PathBuf {
        let same_root = self.proc_fs.link(&pid.to_string(), "root").is_none_or(|root| root == Path::new("/"));
        let at_home = self.has_our_mounts(pid) && same_root;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_scan_has_no_time_for_comes_first_in_the_next() {
        let mut processes = Processes::new(Path::new("/nowhere"));
        assert_eq!(processes.in_order(vec![1, 2, 3, 4]), [1, 2, 3, 4]);
        assert!(processes.has_time_for(1));
        processes.begun = Instant::now().checked_sub(READS_WITHIN).unwrap();
        assert!(processes.has_time_for(3), "it is not limited");
        processes.limit_scans();
        assert!(!processes.has_time_for(3));
        assert_eq!(processes.in_order(vec![1, 2, 3, 4]), [3, 4, 1, 2]);
        assert_eq!(processes.in_order(vec![1, 2]), [1, 2]);
    }
}
