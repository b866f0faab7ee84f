//! A static partition: each guest gets a fixed part of the host's memory, written once.
//!
//! **Problem.** An operator without a manager runs more guests on a host than fit at full size. Together the guests must never need more
//! memory than the host has.
//!
//! **Rule.** The memory for guests is the host's memory less the overheads. It is divided by shares. A guest gets its minimum if its part would be
//! smaller, and its full size if its part would be larger; the others divide the rest again. If the minima alone exceed it, each
//! guest still gets its minimum. A guest with no shares gets its minimum. Sizes are whole pages of 4 KiB.
//!
//! **When.** At the start, and when a guest comes or goes. Nothing else changes a size.
//!
//! **Constants.** [`SAMPLE_EVERY`] is our own choice, because no program decides here.

use memtide_model::{Bytes, PAGE_4K, Span};

/// How often to sample the set of guests.
pub const SAMPLE_EVERY: Span = Span::from_secs(1);

/// A guest, as seen by an operator who divides memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The least memory that it can work with.
    pub min: Bytes,
    /// Its full size, the size at boot.
    pub full: Bytes,
    /// Its weight.
    pub shares: u32,
}

impl Guest {
    fn bounded(&self, size: Bytes) -> Bytes {
        size.max(self.min).min(self.full)
    }
}

/// The sizes, in the order of the guests. `for_guests` is the host's memory less the overheads.
#[must_use]
pub fn divide(for_guests: Bytes, guests: &[Guest]) -> Vec<Bytes> {
    let mut sizes: Vec<Bytes> = guests.iter().map(|guest| guest.bounded(Bytes::ZERO)).collect();
    let mut open: Vec<usize> = (0..guests.len()).filter(|&i| guests[i].shares > 0).collect();
    let settled = (0..guests.len()).filter(|&i| guests[i].shares == 0).map(|i| sizes[i]);
    let mut pool = for_guests.saturating_sub(Bytes::sum(settled));
    while !open.is_empty() {
        let weights: u64 = open.iter().map(|&i| u64::from(guests[i].shares)).sum();
        let part = |i: usize| pool.mul_div(u64::from(guests[i].shares), weights);
        let (mut below, mut above) = (0_u128, 0_u128);
        for &i in &open {
            sizes[i] = guests[i].bounded(part(i));
            below += u128::from(sizes[i].saturating_sub(part(i)).get());
            above += u128::from(part(i).saturating_sub(sizes[i]).get());
        }
        // The larger of the two decides which bound is final: settling the other guests first could be wrong.
        let holds = |i: usize| match below.cmp(&above) {
            std::cmp::Ordering::Greater => sizes[i] > part(i),
            std::cmp::Ordering::Less => sizes[i] < part(i),
            std::cmp::Ordering::Equal => true,
        };
        let (settled, rest): (Vec<usize>, Vec<usize>) = open.iter().partition(|&&i| holds(i));
        pool = pool.saturating_sub(Bytes::sum(settled.iter().map(|&i| sizes[i])));
        open = rest;
    }
    guests.iter().zip(sizes).map(|(guest, size)| guest.bounded(size.round_down(PAGE_4K))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn guest(min: u64, full: u64, shares: u32) -> Guest {
        Guest { min: mib(min), full: mib(full), shares }
    }

    #[test]
    fn shares_divide_the_room() {
        // 1000 as 1:3.
        let guests = [guest(100, 1000, 1000), guest(100, 1000, 3000)];
        assert_eq!(divide(mib(1000), &guests), [mib(250), mib(750)]);
    }

    #[test]
    fn a_bound_leaves_the_rest_to_the_others() {
        // 1200 / 3 = 400, but the first guest takes at most 200: (1200 − 200) / 2 = 500.
        let guests = [guest(0, 200, 1), guest(0, 1000, 1), guest(0, 1000, 1)];
        assert_eq!(divide(mib(1200), &guests), [mib(200), mib(500), mib(500)]);
        // 900 / 3 = 300, but the first guest needs 500: (900 − 500) / 2 = 200.
        let guests = [guest(500, 1000, 1), guest(0, 1000, 1), guest(0, 1000, 1)];
        assert_eq!(divide(mib(900), &guests), [mib(500), mib(200), mib(200)]);
    }

    #[test]
    fn the_bound_that_moves_more_settles_first() {
        // 900 / 3 = 300: 300 below the minimum of the first, 100 above the full size of the second. The first settles: (900 − 600) / 2 =
        // 150, which is within the bounds of the second.
        let guests = [guest(600, 1000, 1), guest(0, 200, 1), guest(0, 1000, 1)];
        assert_eq!(divide(mib(900), &guests), [mib(600), mib(150), mib(150)]);
    }

    #[test]
    fn with_too_little_room_each_gets_its_minimum() {
        let guests = [guest(300, 1000, 1), guest(300, 1000, 5)];
        assert_eq!(divide(mib(400), &guests), [mib(300), mib(300)]);
    }

    #[test]
    fn with_ample_room_each_gets_its_full_size() {
        // 3000 / 2 exceeds both.
        let guests = [guest(300, 1000, 1), guest(300, 500, 1)];
        assert_eq!(divide(mib(3000), &guests), [mib(1000), mib(500)]);
    }

    #[test]
    fn a_guest_without_shares_gets_its_minimum_and_sizes_are_whole_pages() {
        // 1000 − 100 = 900 MiB; 900 / 7 = 128 MiB + 4 MiB · 1024 / 7 = 585 KiB, rounded down to 584.
        let mut guests = vec![guest(100, 1000, 0)];
        guests.extend([guest(0, 1000, 1); 7]);
        let sizes = divide(mib(1000), &guests);
        assert_eq!((sizes[0], sizes[1]), (mib(100), Bytes::from_kib(128 * 1024 + 584)));
        assert_eq!(divide(mib(1000), &[]), []);
    }
}
