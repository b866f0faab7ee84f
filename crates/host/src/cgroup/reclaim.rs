//! `memory.reclaim`: makes the kernel take memory back from a guest's cgroup.
//!
//! **Problem.** Guest RAM is anonymous memory, which the kernel can only swap. But the cgroup of a guest also holds page cache of its disks
//! and the rests of torn huge pages. The kernel gives these back if it is asked.
//!
//! **Rule.** The host never swaps: the kernel is told `swappiness=0`, which Linux understands since 6.9. An older kernel is asked only if
//! the cgroup cannot swap. The cgroup must belong to the guest's process alone. The yield is the fall of the cgroup's charge. Less than was
//! asked for is no failure: nothing more could be had.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;

use memtide_model::{Bytes, Limit};
use rustix::io::Errno;

use super::{Cgroup, CgroupVersion, limit_or_max};
use crate::source::parse_once;
use crate::text::only;
use crate::{HostError, Meminfo, Root, start_time};

/// Why memory was not reclaimed.
#[derive(Debug, thiserror::Error)]
pub enum ReclaimError {
    /// The process has no cgroup with the memory controller of v2.
    #[error("the guest is in no cgroup v2 with the memory controller")]
    NoCgroup,
    /// The process is in the root cgroup, which has no limits and no `memory.reclaim` of its own.
    #[error("the guest is in the root cgroup")]
    RootCgroup,
    /// Other processes are in the cgroup.
    #[error("the guest's cgroup {} also holds other processes, in it or below it", .0.display())]
    Shared(PathBuf),
    /// The kernel has no `memory.reclaim` (before 5.19).
    #[error("this kernel has no memory.reclaim")]
    OldKernel,
    /// The kernel cannot reclaim without swapping (before 6.9), and the cgroup may swap.
    #[error("this kernel cannot reclaim without swapping; memory.swap.max = 0 of the cgroup would help")]
    WouldSwap,
    /// The process or its cgroup could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The kernel refused.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// `memory.reclaim`.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Makes the kernel reclaim up to `bytes` from the cgroup of the process `pid` that started at `start` (clock ticks after boot). Returns the
/// fall of the cgroup's charge. Takes as long as the kernel does: up to seconds for each GiB.
///
/// # Errors
/// The reason why nothing was reclaimed.
pub fn reclaim(root: &Root, pid: u32, start: u64, bytes: Bytes) -> Result<Bytes, ReclaimError> {
    if start_time(root, pid)? != start {
        return Err(HostError::Gone { pid }.into());
    }
    let cgroup = Cgroup::of(root, pid)?
        .filter(|cgroup| cgroup.version == CgroupVersion::V2)
        .ok_or(ReclaimError::NoCgroup)?;
    if cgroup.dir == cgroup.top {
        return Err(ReclaimError::RootCgroup);
    }
    if !cgroup.is_only_of(pid)? {
        return Err(ReclaimError::Shared(cgroup.dir));
    }
    let before = charge(&cgroup)?;
    cgroup.write_reclaim(root, bytes)?;
    Ok(before.saturating_sub(charge(&cgroup)?))
}

/// Whether this process may write to `memory.reclaim`, tried on its own cgroup without writing.
///
/// # Errors
/// The reason why it may not.
pub fn can_reclaim(root: &Root) -> Result<(), ReclaimError> {
    let cgroup = Cgroup::of(root, std::process::id())?
        .filter(|cgroup| cgroup.version == CgroupVersion::V2)
        .ok_or(ReclaimError::NoCgroup)?;
    // The root has no such file.
    if cgroup.dir == cgroup.top {
        return Ok(());
    }
    cgroup.judge(cgroup.open().map(drop))
}

fn charge(cgroup: &Cgroup) -> Result<Bytes, HostError> {
    parse_once(cgroup.dir.join("memory.current"), |text| only("memory.current", text)).map(Bytes::new)
}

impl Cgroup {
    fn write_reclaim(&self, root: &Root, bytes: Bytes) -> Result<(), ReclaimError> {
        match self.put(&format!("{} swappiness=0", bytes.get())) {
            Err(error) if is(&error, Errno::INVAL) => {}
            done => return self.judge(done),
        }
        if self.may_swap(root)? {
            return Err(ReclaimError::WouldSwap);
        }
        self.judge(self.put(&bytes.get().to_string()))
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.dir.join("memory.reclaim"))
    }

    fn put(&self, text: &str) -> io::Result<()> {
        self.open()?.write_all(text.as_bytes())
    }

    /// `EAGAIN` says that the kernel found less than was asked for.
    fn judge(&self, done: io::Result<()>) -> Result<(), ReclaimError> {
        match done {
            Err(error) if is(&error, Errno::NOENT) => Err(ReclaimError::OldKernel),
            Err(error) if !is(&error, Errno::AGAIN) => {
                Err(ReclaimError::Write { path: self.dir.join("memory.reclaim"), source: error })
            }
            _ => Ok(()),
        }
    }

    /// Whether its memory can go to swap.
    fn may_swap(&self, root: &Root) -> Result<bool, HostError> {
        if Meminfo::read(root)?.swap_total.is_zero() {
            return Ok(false);
        }
        for cgroup in self.lineage() {
            let limit = parse_once(cgroup.dir.join("memory.swap.max"), limit_or_max);
            if limit.is_ok_and(|limit| limit == Limit::At(Bytes::ZERO)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// A host with the process 7 in the cgroup `/vm`, which holds `procs`.
    fn host(procs: &str) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/7/cgroup", "0::/vm\n");
        put("proc/7/stat", &format!("7 (qemu) S{}\n", " 3".repeat(40)));
        put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        for (file, text) in [("memory.current", "1000\n"), ("memory.reclaim", ""), ("cgroup.procs", procs)] {
            put(&format!("sys/fs/cgroup/vm/{file}"), text);
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    fn written(dir: &Path) -> String {
        fs::read_to_string(dir.join("sys/fs/cgroup/vm/memory.reclaim")).unwrap()
    }

    #[test]
    fn the_kernel_is_asked_not_to_swap() {
        let (dir, root) = host("7\n");
        assert_eq!(reclaim(&root, 7, 3, Bytes::new(4096)).unwrap(), Bytes::ZERO);
        assert_eq!(written(dir.path()), "4096 swappiness=0");
    }

    #[test]
    fn nothing_is_taken_from_others() {
        for procs in ["7\n8\n", "8\n", ""] {
            let (dir, root) = host(procs);
            assert!(
                matches!(reclaim(&root, 7, 3, Bytes::new(4096)), Err(ReclaimError::Shared(_))),
                "{procs}"
            );
            assert_eq!(written(dir.path()), "");
        }
        let (dir, root) = host("7\n");
        let gone = reclaim(&root, 7, 4, Bytes::new(4096));
        assert!(
            matches!(gone, Err(ReclaimError::Host(HostError::Gone { pid: 7 }))),
            "another process: {gone:?}"
        );
        fs::write(dir.path().join("proc/7/cgroup"), "0::/\n").unwrap();
        fs::write(dir.path().join("sys/fs/cgroup/memory.current"), "1\n").unwrap();
        assert!(matches!(reclaim(&root, 7, 3, Bytes::new(4096)), Err(ReclaimError::RootCgroup)));
        assert_eq!(written(dir.path()), "");
    }

    #[test]
    fn a_kernel_without_the_file_is_told() {
        let (dir, root) = host("7\n");
        fs::remove_file(dir.path().join("sys/fs/cgroup/vm/memory.reclaim")).unwrap();
        assert!(matches!(reclaim(&root, 7, 3, Bytes::new(4096)), Err(ReclaimError::OldKernel)));
    }
}
