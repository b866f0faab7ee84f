//! The content of the pages: a function of the seed, the page's index and the number of writes to the page.
//!
//! **Terms.** A page is 512 words of 64 bits in little-endian order. `base(seed, page)` is a well-mixed number. Word `i` is
//! `base ^ (i × STEP)`, so a wrong word shows the place it came from. The *sequence* is the number of writes to a page since
//! it was filled.
//!
//! **Rule.**
//! - Word 0 carries the sequence: `base ^ mix(sequence)` once the page was written. A page of zeros carries none.
//! - In a compressible page, only the first `1 / ratio` of the words are filled; the others are zero.
//! - A page of a heap consists of objects of eight words: a tag that is the same in all objects of the page, then text, then zeros. A byte
//!   of text has one of 64 values. The words of text in a page are spread evenly over its objects. LZO and LZ4 find the tags and the
//!   zeros; zstd also makes use of the text's few values.
//! - For identical pages, the base depends only on the seed and the index. For all others, it depends on the instance, too.
//!   The seed and the index decide which pages are identical.
//!
//! **Properties.** The same seed and instance give the same content on every machine. No two pages are equal, except pages of
//! zeros. Pages that are not marked compressible cannot be compressed. Filling and checking cost a few instructions per word,
//! so a guest under software emulation can keep up with hundreds of MiB/s.

use std::sync::atomic::{AtomicU64, Ordering};

use memtide_model::Share;
use serde::{Deserialize, Serialize};

/// The size of a content page in bytes.
pub const PAGE: usize = 4096;
/// Words in a page.
pub const WORDS: usize = PAGE / 8;
/// The number of differences that a tally describes one by one; further ones are only counted.
pub const MAX_DESCRIBED: usize = 16;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// A whole, in basis points.
const WHOLE: u64 = 10_000;
/// Words of an object of a heap, and objects of a page.
const OBJECT: usize = 8;
const OBJECTS: usize = WORDS / OBJECT;
/// The bits of a word of text: each byte has one of 64 values.
const TEXT: u64 = 0x3f3f_3f3f_3f3f_3f3f;
/// The bits of a tag: an address of a program.
const TAG: u64 = 0x0000_7fff_ffff_fff8;

/// The finaliser of splitmix64: each bit of the result depends on each bit of the argument.
#[must_use]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const fn base(seed: u64, page: u64) -> u64 {
    mix(mix(seed.wrapping_add(STEP)).wrapping_add(page.wrapping_mul(STEP)))
}

/// What pages look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The first words are random, the others zero. Without a word that is filled, the page is zero, however often it is written.
    Random {
        /// The number of words that are filled.
        filled: usize,
    },
    /// Objects of a program.
    Heap {
        /// The words of text in a page, at most seven of eight.
        text: usize,
    },
}

impl Form {
    /// Pages that cannot be compressed.
    pub const RANDOM: Self = Self::Random { filled: WORDS };
    /// Pages of zeros.
    pub const ZERO: Self = Self::Random { filled: 0 };

    /// A heap that LZO-RLE compresses to `1000 / thousandths` of its size, and zstd to less. `None` for a ratio that no such heap has.
    #[must_use]
    pub fn heap(thousandths: usize) -> Option<Self> {
        // What is not text takes about this much of a packed page: each object has a repetition. Measured with zram.
        const COMMANDS: usize = 420;
        (1_250..=6_000).contains(&thousandths).then(|| {
            let packed = PAGE * 1_000 / thousandths;
            Self::Heap { text: packed.saturating_sub(COMMANDS) / 8 }
        })
    }

    /// The words of text in object `object`.
    const fn text_in(text: usize, object: usize) -> usize {
        (object + 1) * text / OBJECTS - object * text / OBJECTS
    }

    /// The words of a page with this base, before its first write.
    fn words(self, base: u64) -> impl ExactSizeIterator<Item = u64> + Clone {
        let mut step = 0_u64;
        (0..WORDS).map(move |i| {
            let word = base ^ step;
            step = step.wrapping_add(STEP);
            match self {
                Self::Random { filled } if i < filled => word,
                Self::Random { .. } => 0,
                Self::Heap { text } => match i % OBJECT {
                    0 => base & TAG,
                    within if within <= Self::text_in(text, i / OBJECT) => word & TEXT,
                    _ => 0,
                },
            }
        })
    }
}

/// The content of all pages of one exerciser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// What the pages look like.
    pub form: Form,
    /// The seed of the content.
    pub seed: u64,
    /// Chooses the content of pages that are not identical to pages of other exercisers with this seed.
    pub instance: u64,
    /// The share of pages that are the same in all exercisers with this seed.
    pub identical: Share,
}

impl Content {
    /// Pages that depend only on the seed and cannot be compressed.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let identical = Share::percent(100).expect("100 % is a share");
        Self { form: Form::RANDOM, seed, instance: 0, identical }
    }

    /// The words of page `page` after `sequence` writes.
    pub fn words(&self, page: u64, sequence: u64) -> impl ExactSizeIterator<Item = u64> + Clone {
        let mut stamp = self.stamp(sequence);
        self.form.words(self.base(page)).map(move |word| word ^ std::mem::take(&mut stamp))
    }

    /// Word 0 of a page after write number `sequence`.
    #[must_use]
    pub fn first_word(&self, page: u64, sequence: u64) -> u64 {
        let base = self.base(page);
        let first = match self.form {
            Form::Random { filled: 0 } => 0,
            Form::Random { .. } => base,
            Form::Heap { .. } => base & TAG,
        };
        first ^ self.stamp(sequence)
    }

    fn stamp(&self, sequence: u64) -> u64 {
        if self.form == Form::ZERO || sequence == 0 { 0 } else { mix(sequence.wrapping_mul(STEP)) }
    }

    fn base(&self, page: u64) -> u64 {
        let identical = u64::from(self.identical.basis_points());
        if identical == WHOLE || mix(base(self.seed, page)) % WHOLE < identical {
            base(self.seed, page)
        } else {
            base(self.seed ^ mix(self.instance.wrapping_add(1)), page)
        }
    }

    /// Fills page `page` with its content before its first write.
    pub fn fill(&self, page: u64, words: &[AtomicU64]) {
        let base = self.base(page);
        let Form::Random { filled } = self.form else {
            let content = self.form.words(base);
            words.iter().zip(content).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
            return;
        };
        let (filled, zero) = words.split_at(filled.min(words.len()));
        let mut step = 0_u64;
        for place in filled {
            place.store(base ^ step, Ordering::Relaxed);
            step = step.wrapping_add(STEP);
        }
        for place in zero {
            place.store(0, Ordering::Relaxed);
        }
    }

    /// Fills whole pages, starting with page `first`; leaves a partial page at the end alone.
    pub fn fill_bytes(&self, first: u64, bytes: &mut [u8]) {
        for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(PAGE)) {
            let (chunks, _) = bytes.as_chunks_mut::<8>();
            for (chunk, word) in chunks.iter_mut().zip(self.words(page, 0)) {
                *chunk = word.to_le_bytes();
            }
        }
    }

    /// The checksum of `pages` intact pages that were never written, starting with page `first`.
    #[must_use]
    pub fn checksum(&self, first: u64, pages: u64) -> u64 {
        (first..first.saturating_add(pages))
            .fold(0, |all, page| all.wrapping_add(page_sum(page, self.words(page, 0))))
    }
}

/// One page's part in a checksum. It depends on the order of the words and on the page's index, not on the order in which
/// pages are read.
fn page_sum(page: u64, words: impl Iterator<Item = u64>) -> u64 {
    let sum = words.fold(0_u64, |sum, word| sum.rotate_left(1).wrapping_add(word));
    mix(sum ^ page.wrapping_mul(STEP))
}

/// The words of a page after the first one, compared with what they must be.
struct Seen {
    /// The sum of all words.
    sum: u64,
    /// The bits that differ.
    difference: u64,
}

/// Compares the words after the first one with any content.
fn compare(expected: impl Iterator<Item = u64>, first: u64, found: impl Iterator<Item = u64>) -> Seen {
    let seen = Seen { sum: first, difference: 0 };
    found.zip(expected).fold(seen, |seen, (found, expected)| Seen {
        sum: seen.sum.rotate_left(1).wrapping_add(found),
        difference: seen.difference | (found ^ expected),
    })
}

/// The same for [`Form::Random`], in two plain loops.
fn compare_random(base: u64, filled: usize, first: u64, mut found: impl Iterator<Item = u64>) -> Seen {
    let mut seen = Seen { sum: first, difference: 0 };
    let mut step = STEP;
    for found in found.by_ref().take(filled.saturating_sub(1)) {
        seen.difference |= found ^ base ^ step;
        seen.sum = seen.sum.rotate_left(1).wrapping_add(found);
        step = step.wrapping_add(STEP);
    }
    for found in found {
        seen.difference |= found;
        seen.sum = seen.sum.rotate_left(1).wrapping_add(found);
    }
    seen
}

/// The words in `bytes`.
pub fn read_words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + Clone {
    let (chunks, _) = bytes.as_chunks::<8>();
    chunks.iter().map(|chunk| u64::from_le_bytes(*chunk))
}

/// A word that differs from its expected value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Its offset in bytes from page 0 of the content.
    pub offset: u64,
    /// The expected word.
    pub expected: u64,
    /// The word found.
    pub found: u64,
    /// The number of earlier writes to the page.
    pub sequence: u64,
}

/// The findings of checks so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Bytes read and compared, right or wrong.
    pub bytes: u64,
    /// Depends on each word read and its place; [`Content::checksum`] predicts it.
    pub checksum: u64,
    /// Wrong words, counted each time they were found.
    pub mismatches: u64,
    /// The first wrong places, at most [`MAX_DESCRIBED`].
    pub described: Vec<Mismatch>,
}

impl Tally {
    /// Compares one page with its expected content after `sequence` writes.
    pub fn check(
        &mut self,
        content: &Content,
        page: u64,
        sequence: u64,
        found: impl ExactSizeIterator<Item = u64> + Clone,
    ) {
        let mut words = found.clone();
        let first = words.next().unwrap_or_default();
        let seen = match content.form {
            Form::Random { filled } => compare_random(content.base(page), filled, first, words),
            form @ Form::Heap { .. } => compare(form.words(content.base(page)).skip(1), first, words),
        };
        let Seen { sum, difference } = seen;
        let difference = difference | (first ^ content.first_word(page, sequence));
        self.checksum = self.checksum.wrapping_add(mix(sum ^ page.wrapping_mul(STEP)));
        self.bytes += 8 * found.len() as u64;
        if difference != 0 {
            self.describe(content, page, sequence, found);
        }
    }

    /// Compares whole pages that were never written, starting with page `first`; does not read a partial page at the end.
    pub fn check_bytes(&mut self, content: &Content, first: u64, bytes: &[u8]) {
        for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
            self.check(content, page, 0, read_words(bytes));
        }
    }

    /// Adds the differences of another tally, but not the bytes that it read.
    pub fn note(&mut self, other: &Self) {
        self.mismatches += other.mismatches;
        for wrong in &other.described {
            self.describe_once(wrong.clone());
        }
    }

    /// Adds another tally.
    pub fn merge(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.checksum = self.checksum.wrapping_add(other.checksum);
        self.note(other);
    }

    fn describe(&mut self, content: &Content, page: u64, sequence: u64, found: impl Iterator<Item = u64>) {
        let first = page.wrapping_mul(PAGE as u64);
        for (at, (found, expected)) in (0_u64..).zip(found.zip(content.words(page, sequence))) {
            if found == expected {
                continue;
            }
            self.mismatches += 1;
            let offset = first.wrapping_add(8 * at);
            self.describe_once(Mismatch { offset, expected, found, sequence });
        }
    }

    /// A wrong word that is touched again is found again.
    fn describe_once(&mut self, wrong: Mismatch) {
        let known = self.described.iter().any(|known| known.offset == wrong.offset);
        if !known && self.described.len() < MAX_DESCRIBED {
            self.described.push(wrong);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(content: &Content, first: u64, pages: usize) -> Vec<u8> {
        let mut bytes = vec![0; pages * PAGE];
        content.fill_bytes(first, &mut bytes);
        bytes
    }

    #[test]
    fn what_was_filled_is_found_and_its_checksum_is_predicted() {
        let content = Content::of(7);
        let mut tally = Tally::default();
        tally.check_bytes(&content, 10, &filled(&content, 10, 3));
        assert_eq!((tally.bytes, tally.mismatches), (3 * PAGE as u64, 0));
        assert_eq!(tally.checksum, content.checksum(10, 3));
    }

    #[test]
    fn the_order_of_reading_does_not_matter_and_the_place_of_a_page_does() {
        let content = Content::of(7);
        let bytes = filled(&content, 0, 2);
        let mut backwards = Tally::default();
        backwards.check_bytes(&content, 1, &bytes[PAGE..]);
        backwards.check_bytes(&content, 0, &bytes[..PAGE]);
        assert_eq!(backwards.checksum, content.checksum(0, 2));
        let mut exchanged = Tally::default();
        exchanged.check_bytes(&content, 0, &bytes[PAGE..]);
        exchanged.check_bytes(&content, 1, &bytes[..PAGE]);
        assert_ne!(exchanged.checksum, content.checksum(0, 2));
        assert_eq!(exchanged.mismatches, 2 * WORDS as u64);
        assert_eq!(exchanged.described.len(), MAX_DESCRIBED);
    }

    #[test]
    fn a_flipped_bit_is_found_at_its_place() {
        let content = Content::of(7);
        let mut bytes = filled(&content, 0, 2);
        bytes[PAGE + 17] ^= 4;
        let mut tally = Tally::default();
        tally.check_bytes(&content, 0, &bytes);
        assert_eq!(tally.mismatches, 1);
        assert_eq!(tally.described[0].offset, PAGE as u64 + 16);
        assert_eq!(tally.described[0].found ^ tally.described[0].expected, 4 << 8);
        assert_ne!(tally.checksum, content.checksum(0, 2));
    }

    #[test]
    fn a_lost_write_is_found() {
        let content = Content::of(7);
        let mut tally = Tally::default();
        tally.check(&content, 3, 5, content.words(3, 4));
        assert_eq!(tally.mismatches, 1);
        assert_eq!((tally.described[0].offset, tally.described[0].sequence), (3 * PAGE as u64, 5));
    }

    #[test]
    fn the_same_seed_gives_the_same_content_everywhere() {
        // Recorded once: every other machine must compute the same.
        assert_eq!(Content::of(1).checksum(0, 256), 1_464_101_109_161_783_203);
        assert_eq!(Content::of(2).checksum(1 << 40, 3), 4_542_652_007_052_337_865);
    }

    #[test]
    fn a_share_of_the_pages_is_identical_in_all_instances() {
        let content =
            |instance| Content { instance, identical: Share::percent(80).unwrap(), ..Content::of(5) };
        let same =
            (0..10_000).filter(|page| content(1).words(*page, 0).eq(content(2).words(*page, 0))).count();
        assert!((7_900..8_100).contains(&same), "{same}");
    }

    #[test]
    fn pages_and_seeds_do_not_repeat() {
        let mut bases: Vec<u64> =
            (0..64).flat_map(|seed| (0..1024).map(move |page| base(seed, page))).collect();
        bases.sort_unstable();
        bases.dedup();
        assert_eq!(bases.len(), 64 * 1024);
    }

    #[test]
    fn pages_of_zeros_are_zero_however_often_they_are_written() {
        let zero = Content { form: Form::ZERO, ..Content::of(1) };
        assert!(zero.words(3, 9).all(|word| word == 0));
        assert_eq!(zero.first_word(3, 9), 0);
    }

    #[test]
    fn pages_compress_as_much_as_was_asked_for() {
        for (filled_words, ratio) in [(WORDS, 10), (205, 25), (51, 100)] {
            let form = Form::Random { filled: filled_words };
            let bytes = filled(&Content { form, ..Content::of(9) }, 0, 64);
            // Page by page, as zram does.
            let packed: usize = bytes.chunks_exact(PAGE).map(|page| lz4_flex::compress(page).len()).sum();
            let expected = bytes.len() * 10 / ratio;
            assert!(packed.abs_diff(expected) * 100 < expected * 8, "{packed} instead of {expected}");
        }
    }

    /// LZ4 stands in for LZO-RLE, whose libraries are under the GPL: both find repetitions, and nothing else. The lab measures a real zram.
    #[test]
    fn a_heap_compresses_as_much_as_was_asked_for() {
        for ratio in [2_000, 2_500, 3_000] {
            let form = Form::heap(ratio).unwrap();
            let content = Content { form, ..Content::of(9) };
            let bytes = filled(&content, 5, 64);
            let packed: usize = bytes.chunks_exact(PAGE).map(|page| lz4_flex::compress(page).len()).sum();
            let expected = bytes.len() * 1_000 / ratio;
            assert!(packed.abs_diff(expected) * 100 < expected * 10, "{packed} instead of {expected}");
        }
        assert_eq!((Form::heap(1_100), Form::heap(9_000)), (None, None));
    }

    #[test]
    fn every_wrong_byte_of_a_heap_is_found() {
        let content = Content { form: Form::heap(2_500).unwrap(), ..Content::of(7) };
        let bytes = filled(&content, 3, 1);
        let mut tally = Tally::default();
        tally.check_bytes(&content, 3, &bytes);
        assert_eq!((tally.mismatches, tally.checksum), (0, content.checksum(3, 1)));
        for place in 0..PAGE {
            let mut wrong = bytes.clone();
            wrong[place] ^= 0x80;
            let mut tally = Tally::default();
            tally.check_bytes(&content, 3, &wrong);
            assert_eq!((tally.mismatches, tally.described[0].offset), (1, (3 * PAGE + place / 8 * 8) as u64));
        }
        let mut lost = Tally::default();
        lost.check(&content, 3, 5, content.words(3, 4));
        assert_eq!(lost.mismatches, 1);
    }

    #[test]
    fn no_two_pages_of_a_heap_are_equal() {
        let content = Content { form: Form::heap(2_500).unwrap(), ..Content::of(7) };
        let mut pages: Vec<Vec<u64>> = (0..2_000).map(|page| content.words(page, 0).collect()).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 2_000);
    }
}
