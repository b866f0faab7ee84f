//! Torn huge pages of the whole host.
//!
//! **Problem.** A balloon frees pages of 4 KiB. If it frees a part of a huge page, the kernel keeps the whole huge page until it splits it.
//! The lost pages are in no process's resident memory, and the host does not have them either.
//!
//! **Rule.** The kernel's LRU lists hold whole huge pages. `AnonPages` counts only pages that a process maps. So the difference is torn:
//!
//! ```text
//! torn = Active(anon) + Inactive(anon) + Unevictable − SwapCached − AnonPages − Shmem
//! ```
//!
//! Locked page cache (`mlock` of files) is on the unevictable list and makes this value too high. Since Linux 6.12, the kernel counts the
//! huge pages that are mapped in part (`nr_anon_partially_mapped`): torn memory is less than all of them together.

use memtide_model::{Absence, Bytes, Reading};

use crate::text::only;
use crate::{Meminfo, Root, Scratch, Source};

/// The counters of huge pages that are mapped in part, one for each size.
#[derive(Debug)]
pub(crate) struct PartlyMapped(Vec<(Bytes, Source)>);

impl PartlyMapped {
    /// Opens the counters. None on a kernel before 6.12.
    pub(crate) fn open(root: &Root) -> Self {
        let directory = root.sys("kernel/mm/transparent_hugepage");
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        let counters = entries.filter_map(|entry| {
            let name = entry.file_name();
            let size = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let counter = Source::open(entry.path().join("stats/nr_anon_partially_mapped")).ok()?;
            Some((Bytes::from_kib(size), counter))
        });
        Self(counters.collect())
    }

    /// `torn`, but no more than the counters allow. They are read only if there is anything to bound.
    pub(crate) fn bound(&self, torn: Bytes, scratch: &mut Scratch) -> Bytes {
        if torn.is_zero() || self.0.is_empty() {
            return torn;
        }
        let mut most = Bytes::ZERO;
        for (size, counter) in &self.0 {
            match counter.parse_line(scratch, |text| only("nr_anon_partially_mapped", text)) {
                Ok(count) => most = most.saturating_add(size.mul_div(count, 1)),
                // What cannot be read bounds nothing.
                Err(_) => return torn,
            }
        }
        torn.min(most)
    }
}

/// The torn huge pages of a host with this `meminfo`.
pub(crate) fn of_host(meminfo: &Meminfo) -> Reading<Bytes> {
    meminfo.torn().map_or_else(|| Reading::absent(Absence::Unsupported), Reading::now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_pages_that_nobody_maps_are_torn() {
        let mib = Bytes::from_mib;
        let meminfo =
            Meminfo { listed: Some(mib(900)), anon: mib(500), shmem: mib(100), ..Meminfo::default() };
        assert_eq!(of_host(&meminfo), Reading::now(mib(300)));
        assert_eq!(of_host(&Meminfo { anon: mib(950), ..meminfo }), Reading::now(Bytes::ZERO));
        assert_eq!(of_host(&Meminfo { listed: None, ..meminfo }), Reading::unsupported());
    }

    #[test]
    fn torn_memory_is_less_than_all_huge_pages_that_are_mapped_in_part() {
        let (dir, mib) = (tempfile::tempdir().unwrap(), Bytes::from_mib);
        let (root, mut scratch) = (Root::at(dir.path()), Scratch::default());
        assert_eq!(PartlyMapped::open(&root).bound(mib(300), &mut scratch), mib(300), "no counters");
        for (size, count) in [("2048", "100\n"), ("64", "160\n")] {
            let stats = root.sys(format!("kernel/mm/transparent_hugepage/hugepages-{size}kB/stats"));
            std::fs::create_dir_all(&stats).unwrap();
            std::fs::write(stats.join("nr_anon_partially_mapped"), count).unwrap();
        }
        let counters = PartlyMapped::open(&root);
        // 100 × 2 MiB + 160 × 64 KiB.
        assert_eq!(counters.bound(mib(300), &mut scratch), mib(210));
        assert_eq!(counters.bound(mib(50), &mut scratch), mib(50));
        let broken = root.sys("kernel/mm/transparent_hugepage/hugepages-64kB/stats/nr_anon_partially_mapped");
        std::fs::write(broken, "many\n").unwrap();
        assert_eq!(PartlyMapped::open(&root).bound(mib(300), &mut scratch), mib(300));
    }
}
