//! A bar whose cells are divided among parts.

use memtide_model::Bytes;

/// How many of `cells` cells each part gets: the ends of the parts are rounded, so the cells always add up, and a part that is not zero
/// gets a cell where others have some to spare.
pub(super) fn cells<const N: usize>(parts: [Bytes; N], whole: Bytes, cells: u64) -> [u64; N] {
    let mut ends = [0; N];
    let mut sum = Bytes::ZERO;
    for (end, part) in ends.iter_mut().zip(parts) {
        sum = sum.saturating_add(part).min(whole);
        // Rounded to the nearest cell.
        *end = sum.mul_div(cells.saturating_mul(2), whole.get().max(1)).get().div_ceil(2).min(cells);
    }
    let mut before = 0;
    let mut got = ends.map(|end| {
        let own = end - before;
        before = end;
        own
    });
    for nth in 0..N {
        let largest = got.iter().copied().max().unwrap_or(0);
        if got[nth] == 0 && !parts[nth].is_zero() && largest > 2 {
            got[nth] = 1;
            if let Some(other) = got.iter_mut().find(|other| **other == largest) {
                *other -= 1;
            }
        }
    }
    got
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cells_add_up_and_small_parts_are_seen() {
        let mib = Bytes::from_mib;
        assert_eq!(cells([mib(512), mib(256), mib(256)], mib(1024), 8), [4, 2, 2]);
        assert_eq!(cells([mib(1000), mib(4), mib(20)], mib(1024), 10), [8, 1, 1]);
        assert_eq!(cells([mib(0), mib(1024)], mib(1024), 10), [0, 10]);
        assert_eq!(cells([mib(5000), mib(5000)], mib(1024), 10), [9, 1], "more than the whole");
        assert_eq!(cells([mib(0), mib(0)], mib(0), 10), [0, 0]);
        assert_eq!(cells([Bytes::MAX, Bytes::MAX], Bytes::MAX, 10).iter().sum::<u64>(), 10);
    }
}
