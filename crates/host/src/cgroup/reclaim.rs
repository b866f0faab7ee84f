//! `memory.reclaim`: makes the kernel take memory back from a guest's cgroup.
//!
//! **Problem.** Guest RAM is anonymous memory, which the kernel can only swap. But the cgroup of a guest also holds page cache of its disks
//! and the leftovers of torn huge pages. The kernel gives these back if it is asked.
//!
//! **Rule.** The host never swaps: the kernel is told `swappiness=0`, which Linux understands since 6.9. An older kernel is asked only if
//! the cgroup cannot swap. The cgroup must belong to the guest's process alone. The yield is the fall of the cgroup's charge. Less than was
//! asked for is no failure: nothing more could be had.

use std::io::{self, Write as _};
use std::path::PathBuf;

use memtide_model::{Bytes, Limit};
use rustix::io::Errno;

use super::held::Held;
use super::{Cgroup, CgroupVersion, limit_or_max};
use crate::source::parse_once;
use crate::text::only;
use crate::{HostError, Meminfo, Root, start_time};

/// The file that takes requests.
const FILE: &str = "memory.reclaim";
/// The file that tells the cgroup's charge.
const CHARGE: &str = "memory.current";

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
    Checked::of(root, pid, start)?.reclaim(root, bytes)
}

/// Whether this process may write to `memory.reclaim`, tried on its own cgroup without writing.
///
/// # Errors
/// The reason why it may not.
pub fn can_reclaim(root: &Root) -> Result<(), ReclaimError> {
    let pid = std::process::id();
    let cgroup = Cgroup::of(root, pid)?
        .filter(|cgroup| cgroup.version == CgroupVersion::V2)
        .ok_or(ReclaimError::NoCgroup)?;
    // The root has no such file.
    if cgroup.dir == cgroup.top {
        return Ok(());
    }
    let checked = Checked { pid, held: Held::open(&cgroup.dir)?, cgroup };
    checked.held.open_to_write(FILE).map(drop).map_err(|error| checked.refusal(error))
}

/// A cgroup from which may be reclaimed: it belongs to one guest's process alone. It stays open, so no other cgroup takes its place between
/// the check and the reclaim.
#[derive(Debug)]
struct Checked {
    pid: u32,
    cgroup: Cgroup,
    held: Held,
}

impl Checked {
    fn of(root: &Root, pid: u32, start: u64) -> Result<Self, ReclaimError> {
        let cgroup = Cgroup::of(root, pid)?
            .filter(|cgroup| cgroup.version == CgroupVersion::V2)
            .ok_or(ReclaimError::NoCgroup)?;
        if cgroup.dir == cgroup.top {
            return Err(ReclaimError::RootCgroup);
        }
        let held = Held::open(&cgroup.dir)?;
        let is_alone = held.is_only_of(pid)?;
        // Comes last: a process that is the same now was the same in the cgroup.
        if start_time(root, pid)? != start {
            return Err(HostError::Gone { pid }.into());
        }
        if is_alone { Ok(Self { pid, cgroup, held }) } else { Err(ReclaimError::Shared(cgroup.dir)) }
    }

    fn reclaim(&self, root: &Root, bytes: Bytes) -> Result<Bytes, ReclaimError> {
        let before = self.charge()?;
        let put = |text: &str| self.held.open_to_write(FILE)?.write_all(text.as_bytes());
        self.ask(bytes, put, || self.may_swap(root))?;
        Ok(before.saturating_sub(self.charge()?))
    }

    /// Asks the kernel, which takes a request from `put`.
    fn ask(
        &self,
        bytes: Bytes,
        put: impl Fn(&str) -> io::Result<()>,
        may_swap: impl FnOnce() -> Result<bool, HostError>,
    ) -> Result<(), ReclaimError> {
        let done = match put(&format!("{} swappiness=0", bytes.get())) {
            Err(error) if is(&error, Errno::INVAL) => {
                if may_swap()? {
                    return Err(ReclaimError::WouldSwap);
                }
                put(&bytes.get().to_string())
            }
            done => done,
        };
        match done {
            // The kernel found less than it was asked for.
            Err(error) if is(&error, Errno::AGAIN) => Ok(()),
            done => done.map_err(|error| self.refusal(error)),
        }
    }

    fn charge(&self) -> Result<Bytes, ReclaimError> {
        match self.held.read(CHARGE, |text| only(CHARGE, text)) {
            Ok(bytes) => Ok(Bytes::new(bytes)),
            // A cgroup without the controller.
            Err(error) if error.is_unsupported() => Err(ReclaimError::NoCgroup),
            Err(error) => Err(error.into()),
        }
    }

    /// The meaning of an error of `memory.reclaim`. A cgroup that is removed, as after the end of its guest, has no files.
    fn refusal(&self, error: io::Error) -> ReclaimError {
        let is_missing = is(&error, Errno::NOENT);
        if is(&error, Errno::NODEV) || (is_missing && self.held.read("cgroup.procs", |_| Ok(())).is_err()) {
            HostError::Gone { pid: self.pid }.into()
        } else if !is_missing {
            ReclaimError::Write { path: self.held.path_of(FILE), source: error }
        } else if self.held.read(CHARGE, |_| Ok(())).is_err() {
            ReclaimError::NoCgroup
        } else {
            ReclaimError::OldKernel
        }
    }

    /// Whether its memory can go to swap.
    fn may_swap(&self, root: &Root) -> Result<bool, HostError> {
        if Meminfo::read(root)?.swap_total.is_zero() {
            return Ok(false);
        }
        for cgroup in self.cgroup.lineage() {
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

    fn put(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn put_cgroup(dir: &Path, path: &str, procs: &str) {
        for (file, text) in [(CHARGE, "1000\n"), (FILE, ""), ("cgroup.procs", procs)] {
            put(dir, &format!("sys/fs/cgroup{path}/{file}"), text);
        }
    }

    /// A host with the process 7 in the cgroup `/vms/vm`, which holds `procs`.
    fn host(procs: &str) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "proc/7/cgroup", "0::/vms/vm\n");
        put(dir.path(), "proc/7/stat", &format!("7 (qemu) S{}\n", " 3".repeat(40)));
        put(dir.path(), "proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        put_cgroup(dir.path(), "/vms/vm", procs);
        let root = Root::at(dir.path());
        (dir, root)
    }

    fn written(dir: &Path) -> String {
        fs::read_to_string(dir.join("sys/fs/cgroup/vms/vm/memory.reclaim")).unwrap()
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
        fs::remove_file(dir.path().join("sys/fs/cgroup/vms/vm/memory.reclaim")).unwrap();
        assert!(matches!(reclaim(&root, 7, 3, Bytes::new(4096)), Err(ReclaimError::OldKernel)));
    }

    #[test]
    fn a_cgroup_that_takes_the_name_of_the_checked_one_loses_nothing() {
        let (dir, root) = host("7\n");
        let checked = Checked::of(&root, 7, 3).unwrap();
        let vms = dir.path().join("sys/fs/cgroup/vms");
        fs::rename(vms.join("vm"), vms.join("old")).unwrap();
        put_cgroup(dir.path(), "/vms/vm", "8\n");
        checked.reclaim(&root, Bytes::new(4096)).unwrap();
        assert_eq!(written(dir.path()), "");
        assert_eq!(fs::read_to_string(vms.join("old").join(FILE)).unwrap(), "4096 swappiness=0");
    }

    #[test]
    fn the_cgroup_of_a_guest_that_has_ended_is_gone() {
        let (dir, root) = host("7\n");
        let checked = Checked::of(&root, 7, 3).unwrap();
        for file in [FILE, "cgroup.procs"] {
            fs::remove_file(dir.path().join("sys/fs/cgroup/vms/vm").join(file)).unwrap();
        }
        let gone = checked.reclaim(&root, Bytes::new(4096));
        assert!(matches!(gone, Err(ReclaimError::Host(HostError::Gone { pid: 7 }))), "{gone:?}");
        let gone = checked.refusal(Errno::NODEV.into());
        assert!(matches!(gone, ReclaimError::Host(HostError::Gone { pid: 7 })), "{gone:?}");
    }

    /// The kernel's answers to requests one after the other, and the requests that it got.
    fn ask(answers: &[Result<(), Errno>], may_swap: bool) -> (Result<(), ReclaimError>, Vec<String>) {
        let (_dir, root) = host("7\n");
        let checked = Checked::of(&root, 7, 3).unwrap();
        let asked = std::cell::RefCell::new(Vec::new());
        let kernel = |text: &str| {
            let mut asked = asked.borrow_mut();
            asked.push(text.to_owned());
            answers[asked.len() - 1].map_err(io::Error::from)
        };
        let done = checked.ask(Bytes::new(4096), kernel, || Ok(may_swap));
        (done, asked.into_inner())
    }

    #[test]
    fn less_than_was_asked_for_is_no_failure() {
        for may_swap in [false, true] {
            let (done, asked) = ask(&[Err(Errno::AGAIN)], may_swap);
            assert!(done.is_ok(), "{done:?}");
            assert_eq!(asked, ["4096 swappiness=0"]);
        }
        let (done, asked) = ask(&[Err(Errno::INVAL), Err(Errno::AGAIN)], false);
        assert!(done.is_ok(), "{done:?}");
        assert_eq!(asked, ["4096 swappiness=0", "4096"]);
    }

    #[test]
    fn a_kernel_that_knows_no_swappiness_is_asked_only_if_nothing_can_swap() {
        let (done, asked) = ask(&[Err(Errno::INVAL), Ok(())], false);
        assert!(done.is_ok(), "{done:?}");
        assert_eq!(asked, ["4096 swappiness=0", "4096"]);
        let (done, asked) = ask(&[Err(Errno::INVAL)], true);
        assert!(matches!(done, Err(ReclaimError::WouldSwap)), "{done:?}");
        assert_eq!(asked, ["4096 swappiness=0"]);
    }

    #[test]
    fn other_answers_of_the_kernel_are_told_with_the_file() {
        for answers in [&[Err(Errno::ACCESS)][..], &[Err(Errno::INVAL), Err(Errno::INVAL)]] {
            let (done, asked) = ask(answers, false);
            assert_eq!(asked.len(), answers.len());
            let Err(ReclaimError::Write { path, .. }) = &done else { panic!("{done:?}") };
            assert!(path.ends_with("sys/fs/cgroup/vms/vm/memory.reclaim"), "{}", path.display());
        }
    }

    #[test]
    fn a_cgroup_may_swap_unless_the_host_or_a_cgroup_around_it_forbids_it() {
        let (dir, root) = host("7\n");
        let checked = Checked::of(&root, 7, 3).unwrap();
        let may_swap = |swap: u64| {
            let fields = "MemTotal MemFree MemAvailable Buffers Cached Shmem AnonPages Dirty SwapFree";
            let zeros = fields.split(' ').map(|field| format!("{field}: 0 kB\n"));
            let meminfo = zeros.chain([format!("SwapTotal: {swap} kB\n")]).collect::<String>();
            put(dir.path(), "proc/meminfo", &meminfo);
            checked.may_swap(&root).unwrap()
        };
        assert!(!may_swap(0));
        assert!(may_swap(100));
        for (cgroup, limit, expected) in
            [("vms/vm", "max", true), ("vms/vm", "4096", true), ("vms", "0", false), ("vms", "max", true)]
        {
            put(dir.path(), &format!("sys/fs/cgroup/{cgroup}/memory.swap.max"), &format!("{limit}\n"));
            assert_eq!(may_swap(100), expected, "{cgroup}: {limit}");
        }
        put(dir.path(), "sys/fs/cgroup/vms/vm/memory.swap.max", "0\n");
        assert!(!may_swap(100));
    }

    #[test]
    fn a_host_without_the_controller_of_v2_has_no_cgroup_to_reclaim_from() {
        // v1 alone, and v1 beside a v2 without controllers.
        for cgroups in ["4:memory:/vms/vm\n", "4:memory:/vms/vm\n0::/vms/vm\n"] {
            let (dir, root) = host("7\n");
            put(dir.path(), "proc/7/cgroup", cgroups);
            let mounts = "35 31 0:32 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n\
                          41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
            put(dir.path(), "proc/self/mountinfo", mounts);
            put(dir.path(), &format!("proc/{}/cgroup", std::process::id()), cgroups);
            let refused = reclaim(&root, 7, 3, Bytes::new(4096));
            assert!(matches!(refused, Err(ReclaimError::NoCgroup)), "{cgroups}: {refused:?}");
            let refused = can_reclaim(&root);
            assert!(matches!(refused, Err(ReclaimError::NoCgroup)), "{cgroups}: {refused:?}");
            assert_eq!(written(dir.path()), "");
        }
        // v2 whose controller is switched off.
        let (dir, root) = host("7\n");
        for file in [CHARGE, FILE] {
            fs::remove_file(dir.path().join("sys/fs/cgroup/vms/vm").join(file)).unwrap();
        }
        let refused = reclaim(&root, 7, 3, Bytes::new(4096));
        assert!(matches!(refused, Err(ReclaimError::NoCgroup)), "{refused:?}");
    }

    #[test]
    fn a_process_tries_its_own_cgroup_without_writing() {
        let (dir, root) = host("7\n");
        put(dir.path(), &format!("proc/{}/cgroup", std::process::id()), "0::/vms/vm\n");
        can_reclaim(&root).unwrap();
        assert_eq!(written(dir.path()), "");
        fs::remove_file(dir.path().join("sys/fs/cgroup/vms/vm").join(FILE)).unwrap();
        let refused = can_reclaim(&root);
        assert!(matches!(refused, Err(ReclaimError::OldKernel)), "{refused:?}");
        put(dir.path(), &format!("proc/{}/cgroup", std::process::id()), "0::/\n");
        can_reclaim(&root).unwrap();
    }
}
