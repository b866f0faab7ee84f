//! `/proc/buddyinfo`: free memory in blocks that free page reporting returns.

use memtide_model::{Bytes, PageSize};

/// The numbers of free blocks of each order, of each zone.
pub(crate) fn zones(buddyinfo: &str) -> impl Iterator<Item = impl Iterator<Item = &str>> {
    let zones = buddyinfo.lines().filter_map(|line| line.split_once("zone"));
    // The first word is the zone's name.
    zones.map(|(_, zone)| zone.split_ascii_whitespace().skip(1))
}

/// Free memory in blocks of at least this size.
#[must_use]
pub fn free_in_blocks(buddyinfo: &str, page: PageSize, least: Bytes) -> Bytes {
    Bytes::sum(zones(buddyinfo).map(|counts| {
        Bytes::sum(counts.enumerate().map(|(order, count)| {
            let block = u32::try_from(order)
                .ok()
                .and_then(|order| page.bytes().get().checked_shl(order))
                .unwrap_or(0);
            let count: u64 = count.parse().unwrap_or(0);
            if block >= least.get() { Bytes::new(block.saturating_mul(count)) } else { Bytes::ZERO }
        }))
    }))
}

#[cfg(test)]
mod tests {
    use memtide_model::PAGE_4K;

    use super::*;

    #[test]
    fn blocks_of_2_mib_and_4_mib_count() {
        let text = "\
Node 0, zone      DMA      1      0      0      1      2      1      1      0      1      1      3\x20
Node 0, zone    DMA32   1245    800    222     40     11      3      2      1      0     17    205\x20
";
        // (1 + 17) × 2 MiB + (3 + 205) × 4 MiB.
        assert_eq!(free_in_blocks(text, PAGE_4K, Bytes::from_mib(2)), Bytes::from_mib(36 + 832));
        assert_eq!(free_in_blocks(text, PAGE_4K, Bytes::from_mib(4)), Bytes::from_mib(832));
    }

    #[test]
    fn anything_else_counts_nothing() {
        for text in ["", "Node 0, zone", "zone x y z", "\u{0}\n"] {
            assert_eq!(free_in_blocks(text, PAGE_4K, Bytes::ZERO), Bytes::ZERO);
        }
    }
}
