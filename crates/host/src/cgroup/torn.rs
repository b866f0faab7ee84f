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

use memtide_model::Bytes;

use super::held::Held;
use super::{Cgroup, CgroupVersion};
use crate::source::parse_once;
use crate::text::optional;
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
        Held::open(&self.dir)?.is_only_of(pid)
    }

    /// The leftovers of torn huge pages in it and in its descendants.
    ///
    /// # Errors
    /// If `memory.stat` cannot be read or is malformed.
    pub fn torn(&self) -> Result<Bytes, HostError> {
        parse_once(self.dir().join("memory.stat"), |text| {
            in_stat(self.version, text)?.ok_or(ParseError::Missing("inactive_anon"))
        })
    }
}

/// The leftovers in a `memory.stat`; `None` if it has not all lines.
pub(super) fn in_stat(version: CgroupVersion, text: &str) -> Result<Option<Bytes>, ParseError> {
    let [inactive, active, unevictable, mapped, shmem] = match version {
        CgroupVersion::V1 => V1,
        CgroupVersion::V2 => V2,
    };
    let read = |field| Ok(optional(field, text)?.map(Bytes::new));
    let lists = [read(inactive)?, read(active)?, read(unevictable)?, read(mapped)?, read(shmem)?];
    let [Some(inactive), Some(active), Some(unevictable), Some(mapped), Some(shmem)] = lists else {
        return Ok(None);
    };
    let listed = Bytes::sum([inactive, active, unevictable]);
    Ok(Some(listed.saturating_sub(mapped).saturating_sub(shmem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroup(version: CgroupVersion, stat: &str) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.stat"), stat).unwrap();
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
        let (_dir, cgroup) = cgroup(CgroupVersion::V2, &v2);
        assert_eq!(cgroup.torn().unwrap(), Bytes::from_mib(200));
        let v1 = "total_rss 100\ntotal_shmem 1\ntotal_inactive_anon 60\ntotal_active_anon 41\ntotal_unevictable 0\n";
        let (_dir, cgroup) = self::cgroup(CgroupVersion::V1, v1);
        assert_eq!(cgroup.torn().unwrap(), Bytes::ZERO);
    }
}
