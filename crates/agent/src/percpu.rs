//! `/proc/zoneinfo`: free memory on per-CPU lists.
//!
//! A CPU keeps pages that were freed on it for its next requests, since Linux 6.7 up to an eighth of a zone, divided by its CPUs. They are
//! neither in `MemFree` nor in blocks that free page reporting returns. The kernel takes them off the lists once a second, but not on a CPU
//! that idles: there they stay.

use memtide_model::{Bytes, PageSize, Pages};

/// Free memory on per-CPU lists.
#[must_use]
pub fn free_on_cpus(zoneinfo: &str, page: PageSize) -> Bytes {
    let counts =
        zoneinfo.lines().filter_map(|line| line.trim_start().strip_prefix("count:")?.trim().parse().ok());
    Pages::new(counts.fold(0, u64::saturating_add)).to_bytes(page)
}

#[cfg(test)]
mod tests {
    use memtide_model::PAGE_4K;

    use super::*;

    #[test]
    fn the_pages_of_all_cpus_and_zones_count() {
        let text = "\
Node 0, zone    DMA32
  pages free     55936
      nr_zone_active_file 107
  pagesets
    cpu: 0
              count: 11249
              high:  12279
              batch: 31
    cpu: 1
              count: 7
";
        assert_eq!(free_on_cpus(text, PAGE_4K), Bytes::from_kib(4 * 11256));
        assert_eq!(free_on_cpus("count: x\ncount:\n\u{0}", PAGE_4K), Bytes::ZERO);
    }
}
