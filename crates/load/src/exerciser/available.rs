//! The memory that is available, checked before any is taken.
//!
//! **Rule.** A run cannot get more than the kernel's available memory plus free swap, and no more than the memory cgroups (v1
//! or v2) of this process and their parents leave. A file needs room only in its page cache, which the kernel can reclaim.

use std::fs;
use std::path::{Path, PathBuf};

use memtide_model::Bytes;

use super::machine::number_after;

/// The lowest of these bounds, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// The available memory.
    pub bytes: Bytes,
    /// The part of the system that sets this bound.
    pub set_by: String,
}

/// The memory available to this process. `root` is the root directory.
#[must_use]
pub fn available(root: &Path) -> Option<Available> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = |name: &str| number_after(&meminfo, name);
    let available = kib("MemAvailable:")?.saturating_add(kib("SwapFree:").unwrap_or(0));
    let machine = Available {
        bytes: Bytes::from_kib(available),
        set_by: "this machine (available memory and free swap)".to_owned(),
    };
    cgroups(root).into_iter().chain([machine]).min_by_key(|available| available.bytes)
}

/// The memory that each memory cgroup with a limit leaves, from this process's cgroup upwards.
fn cgroups(root: &Path) -> Vec<Available> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut all = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (top, limit, usage) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        let top = root.join(top);
        let mut at = top.join(path.trim_start_matches('/'));
        while at.starts_with(&top) {
            all.extend(left(&at, limit, usage));
            if !at.pop() {
                break;
            }
        }
    }
    all
}

fn left(cgroup: &Path, limit: &str, usage: &str) -> Option<Available> {
    let number = |name: &str| fs::read_to_string(cgroup.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, usage) = (number(limit)?, number(usage)?.saturating_sub(file_cache(cgroup)));
    // cgroup v1 writes "no limit" as a number near 2⁶³.
    let limited = limit < 1 << 60;
    let set_by = format!("the memory cgroup {}", PathBuf::from(cgroup).display());
    limited.then(|| Available { bytes: Bytes::new(limit.saturating_sub(usage)), set_by })
}

/// The reclaimable page cache charged to a cgroup and its children. cgroup v1 has different names for the sum.
fn file_cache(cgroup: &Path) -> u64 {
    let stat = fs::read_to_string(cgroup.join("memory.stat")).unwrap_or_default();
    let value = |name: &str| number_after(&stat, name);
    let of = |total: &str, own: &str| value(total).or_else(|| value(own)).unwrap_or(0);
    of("total_active_file ", "active_file ").saturating_add(of("total_inactive_file ", "inactive_file "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: &str = "MemTotal: 4096 kB\nMemAvailable: 2048 kB\nSwapFree: 512 kB\n";

    #[test]
    fn without_a_limit_it_is_what_the_machine_has() {
        let root = tree(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "5\n"),
        ]);
        assert_eq!(available(root.path()).unwrap().bytes, Bytes::from_kib(2560));
        assert_eq!(available(Path::new("/nonexistent")), None);
    }

    #[test]
    fn a_limit_of_a_cgroup_above_counts() {
        let root = tree(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1048576\n"),
            ("sys/fs/cgroup/a/memory.current", "148576\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 48576\nactive_file 60000\ninactive_file 40000\n"),
        ]);
        let available = available(root.path()).unwrap();
        assert_eq!(available.bytes, Bytes::new(1_000_000));
        assert!(available.set_by.ends_with("sys/fs/cgroup/a"), "{}", available.set_by);
    }

    #[test]
    fn a_limit_of_cgroup_v1_counts_and_its_absence_does_not() {
        let files = |limit| {
            [
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/vm\n0::/\n"),
                ("sys/fs/cgroup/memory/vm/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/vm/memory.usage_in_bytes", "0\n"),
            ]
        };
        assert_eq!(available(tree(&files("4096\n")).path()).unwrap().bytes, Bytes::new(4096));
        let none = available(tree(&files("9223372036854771712\n")).path()).unwrap();
        assert_eq!(none.bytes, Bytes::from_kib(2560));
    }
}
