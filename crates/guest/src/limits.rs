//! The limits of reclaim: the watermarks, and the bytes that it may free in a step.

use memtide_model::MIB;

/// The memory that khugepaged keeps free in each zone, and the size above which a guest has a third zone.
const ZONE_KEEPS: u64 = 22 * MIB;
const ONE_ZONE_MORE: u64 = 3 << 30;
/// The watermarks in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    pub(crate) min: u64,
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl Marks {
    /// The watermarks of a guest of `memory` bytes with transparent huge pages. khugepaged asks for 11 blocks of 2 MiB in each zone, but
    /// for at most a twentieth of the memory (`set_recommended_min_free_kbytes`). There are two zones up to about 3 GiB, and three above.
    /// The marks are a quarter of min apart, or a thousandth of the memory if that is more.
    ///
    /// Measured: guests of 1 GiB under pressure had 57 to 75 MiB free, and calm guests reported 69 MiB less available than free.
    pub(crate) fn new(memory: u64) -> Self {
        let zones = if memory > ONE_ZONE_MORE { 3 } else { 2 };
        let min = (ZONE_KEEPS * zones).min(memory / 20);
        let step = (min / 4).max(memory / 1_000);
        Self { min, low: min + step, high: min + 2 * step }
    }
}

/// The kind of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Kswapd,
    Direct,
}

/// The bytes that reclaim may still free in this step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    pub(crate) kswapd: u64,
    pub(crate) direct: u64,
    pub(crate) swap: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_those_of_huge_pages() {
        let marks = Marks::new(1024 * MIB);
        assert_eq!((marks.min / MIB, marks.low / MIB, marks.high / MIB), (44, 55, 66));
        assert_eq!(Marks::new(4096 * MIB).min / MIB, 66);
        assert_eq!(Marks::new(256 * MIB).min / MIB, 12);
    }
}
