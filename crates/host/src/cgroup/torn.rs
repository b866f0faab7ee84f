//! Leftovers of torn huge pages in a cgroup.
//!
//! **Problem.** A balloon frees pages of 4 KiB. If it frees a part of a huge page, the remainder stays allocated until the kernel splits the
//! huge page under pressure. The process no longer maps the lost pages, so no footprint counts them, but the host does not
//! have them either.
//!
//! **Rule.** The LRU lists count whole folios. The mapped counters count only mapped pages:
//!
//! ```text
//! torn = inactive_anon + active_anon + unevictable − mapped anonymous memory − shmem
//! ```
//!
//! Locked page cache (`mlock` of files) is on the unevictable list and makes this value too high.

use std::fs;

use memtide_model::Bytes;

use super::{Cgroup, CgroupVersion};
use crate::source::parse_once;
use crate::text::{only, value};
use crate::{HostError, ParseError};

const V1: [&str; 5] =
    ["total_inactive_anon", "total_active_anon", "total_unevictable", "total_rss", "total_shmem"];
const V2: [&str; 5] = ["inactive_anon", "active_anon", "unevictable", "anon", "shmem"];

impl Cgroup {
    /// Whether `pid` is the only process in it and in all cgroups below it.
    ///
    /// # Errors
    /// If their processes cannot be read.
    pub fn is_only_of(&self, pid: u32) -> Result<bool, HostError> {
        let mut waiting = vec![self.dir.clone()];
        let mut is_there = false;
        while let Some(dir) = waiting.pop() {
            let pids = match parse_once(dir.join("cgroup.procs"), numbers) {
                // The processes of a threaded cgroup are those of the cgroup above it.
                Err(error) if error.is_unsupported() => Vec::new(),
                pids => pids?,
            };
            if pids.iter().any(|other| *other != u64::from(pid)) {
                return Ok(false);
            }
            is_there |= !pids.is_empty();
            let below = fs::read_dir(&dir).map_err(|source| HostError::read(&dir, source))?;
            waiting.extend(below.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
        Ok(is_there)
    }

    /// The rests of torn huge pages in it and in its descendants.
    ///
    /// # Errors
    /// If `memory.stat` cannot be read or is malformed.
    pub fn torn(&self) -> Result<Bytes, HostError> {
        let fields = match self.version {
            CgroupVersion::V1 => V1,
            CgroupVersion::V2 => V2,
        };
        parse_once(self.dir().join("memory.stat"), |text| torn(fields, text))
    }
}

fn numbers(text: &str) -> Result<Vec<u64>, ParseError> {
    text.lines().map(|line| only("cgroup.procs", line)).collect()
}

fn torn(fields: [&'static str; 5], text: &str) -> Result<Bytes, ParseError> {
    let [inactive, active, unevictable, mapped, shmem] = fields;
    let read = |field| value(field, text).map(Bytes::new);
    let listed = Bytes::sum([read(inactive)?, read(active)?, read(unevictable)?]);
    Ok(listed.saturating_sub(read(mapped)?).saturating_sub(read(shmem)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroup(version: CgroupVersion, stat: &str, procs: &str) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("memory.stat"), stat).unwrap();
        fs::write(dir.path().join("cgroup.procs"), procs).unwrap();
        let cgroup = Cgroup { version, dir: dir.path().to_owned(), top: dir.path().to_owned() };
        (dir, cgroup)
    }

    #[test]
    fn pages_on_the_lists_that_nobody_maps_are_torn() {
        // A guest gave back 200 of 400 MiB in huge pages; 5 MiB are shared memory.
        let mib = |n: u64| n << 20;
        let v2 = format!(
            "anon {}\nfile 7\nshmem {}\ninactive_anon {}\nactive_anon {}\nunevictable 0\n",
            mib(200),
            mib(5),
            mib(390),
            mib(15)
        );
        let (_dir, cgroup) = cgroup(CgroupVersion::V2, &v2, "7\n");
        assert_eq!(cgroup.torn().unwrap(), Bytes::from_mib(200));
        let v1 = "total_rss 100\ntotal_shmem 1\ntotal_inactive_anon 60\ntotal_active_anon 41\ntotal_unevictable 0\n";
        let (_dir, cgroup) = self::cgroup(CgroupVersion::V1, v1, "7\n");
        assert_eq!(cgroup.torn().unwrap(), Bytes::ZERO);
    }

    #[test]
    fn a_cgroup_with_two_processes_belongs_to_neither() {
        for (procs, only) in [("7\n", true), ("8\n", false), ("7\n8\n", false), ("", false)] {
            let (_dir, cgroup) = cgroup(CgroupVersion::V2, "", procs);
            assert_eq!(cgroup.is_only_of(7).unwrap(), only, "{procs:?}");
        }
        for (below, only) in [("", true), ("7\n", true), ("8\n", false)] {
            let (dir, cgroup) = cgroup(CgroupVersion::V2, "", "7\n");
            fs::create_dir(dir.path().join("vcpu0")).unwrap();
            fs::write(dir.path().join("vcpu0/cgroup.procs"), below).unwrap();
            assert_eq!(cgroup.is_only_of(7).unwrap(), only, "below: {below:?}");
        }
    }
}
