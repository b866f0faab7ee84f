//! The content of every page: a function of a seed and the page's index.
//!
//! A page is 512 words of 64 bits in little-endian order. `base(seed, page)` is a well-mixed number; the word `i` is
//! `base ^ (i × STEP)`. Every page differs from every other one and none can be merged, and a word that is wrong names
//! its place. Filling and checking cost a few instructions a word, so that a guest under software emulation can keep up
//! with a rate of hundreds of MiB/s.

use serde::{Deserialize, Serialize};

/// The size of a page of the pattern in bytes.
pub const PAGE: usize = 4096;
/// Words in a page.
pub const WORDS: usize = PAGE / 8;
/// Differences that a tally describes one by one; the others are only counted.
pub const MAX_DESCRIBED: usize = 16;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of splitmix64: each bit of the result depends on each bit of the argument.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const fn base(seed: u64, page: u64) -> u64 {
    mix(mix(seed.wrapping_add(STEP)).wrapping_add(page.wrapping_mul(STEP)))
}

/// The words of the page `page` under `seed`.
pub fn words(seed: u64, page: u64) -> impl ExactSizeIterator<Item = u64> {
    let base = base(seed, page);
    let mut step = 0_u64;
    [(); WORDS].into_iter().map(move |()| {
        let word = base ^ step;
        step = step.wrapping_add(STEP);
        word
    })
}

/// Fills whole pages from the page `first` on; a rest that is no whole page is left alone.
pub fn fill(seed: u64, first: u64, bytes: &mut [u8]) {
    for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(PAGE)) {
        let (chunks, _) = bytes.as_chunks_mut::<8>();
        for (chunk, word) in chunks.iter_mut().zip(words(seed, page)) {
            *chunk = word.to_le_bytes();
        }
    }
}

/// A word that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Its place, in bytes from page 0 of the pattern.
    pub offset: u64,
    /// What the pattern says.
    pub expected: u64,
    /// What is there.
    pub found: u64,
}

/// What checking has found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Bytes that were read and compared, right or wrong.
    pub bytes: u64,
    /// Depends on each word that was read and on their order; [`checksum`] predicts it.
    pub checksum: u64,
    /// Words that differed.
    pub mismatches: u64,
    /// The first differences, at most [`MAX_DESCRIBED`].
    pub described: Vec<Mismatch>,
}

impl Tally {
    /// Compares one page with the pattern.
    pub fn check(&mut self, seed: u64, page: u64, found: impl ExactSizeIterator<Item = u64> + Clone) {
        let mut difference = 0;
        let mut sum = self.checksum;
        for (found, expected) in found.clone().zip(words(seed, page)) {
            difference |= found ^ expected;
            sum = sum.rotate_left(1).wrapping_add(found);
        }
        self.checksum = sum;
        self.bytes += 8 * found.len() as u64;
        if difference != 0 {
            self.describe(seed, page, found);
        }
    }

    /// Compares whole pages from the page `first` on; a rest that is no whole page is not read.
    pub fn check_bytes(&mut self, seed: u64, first: u64, bytes: &[u8]) {
        for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
            let (chunks, _) = bytes.as_chunks::<8>();
            self.check(seed, page, chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)));
        }
    }

    fn describe(&mut self, seed: u64, page: u64, found: impl Iterator<Item = u64>) {
        let first = page.wrapping_mul(PAGE as u64);
        for (at, (found, expected)) in (0_u64..).zip(found.zip(words(seed, page))) {
            if found == expected {
                continue;
            }
            self.mismatches += 1;
            if self.described.len() < MAX_DESCRIBED {
                self.described.push(Mismatch { offset: first.wrapping_add(8 * at), expected, found });
            }
        }
    }
}

/// The checksum of `pages` intact pages from the page `first` on.
#[must_use]
pub fn checksum(seed: u64, first: u64, pages: u64) -> u64 {
    (first..first.saturating_add(pages))
        .flat_map(|page| words(seed, page))
        .fold(0, |sum: u64, word| sum.rotate_left(1).wrapping_add(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_is_found_and_its_checksum_is_predicted() {
        let mut bytes = vec![0; 3 * PAGE];
        fill(7, 10, &mut bytes);
        let mut tally = Tally::default();
        tally.check_bytes(7, 10, &bytes);
        assert_eq!((tally.bytes, tally.mismatches), (3 * PAGE as u64, 0));
        assert_eq!(tally.checksum, checksum(7, 10, 3));
    }

    #[test]
    fn a_flipped_bit_is_found_at_its_place() {
        let mut bytes = vec![0; 2 * PAGE];
        fill(7, 0, &mut bytes);
        bytes[PAGE + 17] ^= 4;
        let mut tally = Tally::default();
        tally.check_bytes(7, 0, &bytes);
        assert_eq!(tally.mismatches, 1);
        assert_eq!(tally.described[0].offset, PAGE as u64 + 16);
        assert_eq!(tally.described[0].found ^ tally.described[0].expected, 4 << 8);
        assert_ne!(tally.checksum, checksum(7, 0, 2));
    }

    #[test]
    fn exchanged_pages_are_found_and_only_some_differences_are_described() {
        let mut bytes = vec![0; 2 * PAGE];
        fill(7, 0, &mut bytes);
        let (first, second) = bytes.split_at_mut(PAGE);
        first.swap_with_slice(second);
        let mut tally = Tally::default();
        tally.check_bytes(7, 0, &bytes);
        assert_eq!(tally.mismatches, 2 * WORDS as u64);
        assert_eq!(tally.described.len(), MAX_DESCRIBED);
    }

    #[test]
    fn pages_and_seeds_do_not_repeat() {
        let mut bases: Vec<u64> =
            (0..64).flat_map(|seed| (0..1024).map(move |page| base(seed, page))).collect();
        bases.sort_unstable();
        bases.dedup();
        assert_eq!(bases.len(), 64 * 1024);
    }
}
