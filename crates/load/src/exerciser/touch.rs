//! Makes the touches, one after another.
//!
//! **Rule.** A read touch loads a word of the unit. A write touch stores the word that it loaded, so the content stays (the
//! page becomes dirty, and is no longer shared). With checking, a touch compares the whole page with its expected content,
//! and a write gives the page its next sequence. Through the page cache, a touch reads the unit with a system call; one call
//! serves several adjacent touches. Each write is a call of its own.
//!
//! Threads take turns with the pages: thread `t` of `n` owns the pages t, t + n, t + 2n, …

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use memtide_model::Share;

use super::content::{Content, PAGE, Tally, WORDS, read_words};
use super::walk::{Pattern, Spread, Walk, hot_units, probability};

/// The most bytes that one system call reads.
const READ_AT_ONCE: usize = 16 * PAGE;

/// The target of the touches.
#[derive(Clone, Copy, Debug)]
pub enum Backing<'a> {
    /// Mapped words.
    Mapped(&'a [AtomicU64]),
    /// A file, through the page cache.
    Cached(&'a File),
}

/// The pages and units that belong to a thread.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    thread: u64,
    threads: u64,
    /// log₂ of the number of units in a page.
    shift: u32,
    /// The bytes of a unit.
    stride: u64,
}

impl Layout {
    /// The pages of thread `thread` of `threads`, in units of `stride` bytes: a power of two from 8 to 4096.
    ///
    /// # Panics
    /// If `stride` is not such a power of two.
    #[must_use]
    pub fn new(thread: u64, threads: u64, stride: u64) -> Self {
        assert!(stride.is_power_of_two() && (8..=PAGE as u64).contains(&stride), "{stride}");
        Self { thread, threads, shift: (PAGE as u64 / stride).ilog2(), stride }
    }

    /// The number of pages that belong to this thread, out of `pages`.
    #[must_use]
    pub const fn own(&self, pages: u64) -> u64 {
        (pages + self.threads - 1 - self.thread) / self.threads
    }

    /// This thread's page number `own`.
    #[must_use]
    pub const fn page(&self, own: u64) -> u64 {
        own * self.threads + self.thread
    }

    /// The number of units in `pages` pages.
    #[must_use]
    pub const fn units(&self, pages: u64) -> u64 {
        pages << self.shift
    }

    /// The bytes of a unit.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        self.stride
    }

    /// The number of adjacent units, starting with `unit`.
    const fn adjacent(&self, unit: u64) -> u64 {
        let per_page = 1 << self.shift;
        if self.threads == 1 { u64::MAX } else { per_page - unit % per_page }
    }

    /// The first byte of a unit.
    #[inline]
    const fn offset(&self, unit: u64) -> u64 {
        let within = unit & ((1 << self.shift) - 1);
        self.page(unit >> self.shift) * PAGE as u64 + within * self.stride
    }

    /// Touches `run` units, starting with `first`.
    fn touch_run(&self, words: &[AtomicU64], first: u64, run: u64, spread: &mut Spread) -> u64 {
        let steps = |from: u64, step: u64, count: u64| {
            let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
            words[place(from)..].iter().step_by(place(step)).take(place(count))
        };
        if self.shift == 0 {
            return touch_each(steps(self.offset(first) / 8, self.threads * WORDS as u64, run), spread);
        }
        let per_page = 1 << self.shift;
        let (mut unit, mut left, mut written) = (first, run, 0);
        while left > 0 {
            let count = left.min(per_page - unit % per_page);
            written += touch_each(steps(self.offset(unit) / 8, self.stride / 8, count), spread);
            unit += count;
            left -= count;
        }
        written
    }

    #[inline]
    fn word(&self, unit: u64) -> usize {
        usize::try_from(self.offset(unit) / 8).unwrap_or(usize::MAX)
    }
}

/// A thread's pages, and what it knows of them.
#[derive(Debug)]
pub struct Toucher<'a> {
    backing: Backing<'a>,
    layout: Layout,
    content: Content,
    walk: Walk,
    spread: Spread,
    /// The number of writes to each own page, modulo 256; `None` without checking.
    sequences: Option<Vec<u8>>,
    filled: u64,
    tally: Tally,
    /// The mapped file. It is filled by writing to it: a write can fail, while a store would end the process.
    fill_through: Option<&'a File>,
}

impl<'a> Toucher<'a> {
    /// A toucher with no page filled.
    #[must_use]
    pub fn new(
        backing: Backing<'a>,
        layout: Layout,
        content: Content,
        (pattern, writes): (Pattern, Share),
        verify: bool,
    ) -> Self {
        let walk = Walk::new(pattern, content.seed.wrapping_add(layout.thread));
        let sequences = verify.then(Vec::new);
        Self {
            backing,
            layout,
            content,
            walk,
            spread: Spread::new(writes),
            sequences,
            filled: 0,
            tally: Tally::default(),
            fill_through: None,
        }
    }

    /// Fills the pages through `file`, which is mapped.
    #[must_use]
    pub const fn filling_through(mut self, file: Option<&'a File>) -> Self {
        self.fill_through = file;
        self
    }

    /// The layout.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether the touches go through the page cache.
    #[must_use]
    pub const fn is_cached(&self) -> bool {
        matches!(self.backing, Backing::Cached(_))
    }

    /// The own pages that can be touched.
    #[must_use]
    pub const fn filled(&self) -> u64 {
        self.filled
    }

    /// The findings of checks so far.
    pub const fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    /// The walk, for changes.
    pub const fn walk(&mut self) -> &mut Walk {
        &mut self.walk
    }

    /// Changes the share of the touches that write.
    pub fn set_writes(&mut self, writes: Share) {
        self.spread.set(writes);
    }

    /// Fills `pages` more own pages. With `there`, they already have the expected content.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn grow(&mut self, pages: u64, there: bool) -> io::Result<()> {
        for own in self.filled..self.filled + pages {
            if !there {
                self.fill(self.layout.page(own))?;
            }
            if let Some(sequences) = &mut self.sequences {
                sequences.push(0);
            }
            self.filled += 1;
        }
        Ok(())
    }

    fn fill(&self, page: u64) -> io::Result<()> {
        match (self.backing, self.fill_through) {
            (Backing::Mapped(words), None) => {
                let from = usize::try_from(page).map_err(io::Error::other)? * WORDS;
                self.content.fill(page, &words[from..from + WORDS]);
                Ok(())
            }
            (Backing::Cached(file), _) | (Backing::Mapped(_), Some(file)) => {
                let mut bytes = [0; PAGE];
                self.content.fill_bytes(page, &mut bytes);
                file.write_all_at(&bytes, page * PAGE as u64)
            }
        }
    }

    /// Keeps no more than `pages` own pages.
    pub fn shrink(&mut self, pages: u64) {
        self.filled = self.filled.min(pages);
        if let Some(sequences) = &mut self.sequences {
            sequences.truncate(usize::try_from(pages).unwrap_or(usize::MAX));
            sequences.shrink_to_fit();
        }
    }

    /// Compares each own page with its expected content.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn check_all(&mut self) -> io::Result<Tally> {
        let before = std::mem::take(&mut self.tally);
        let checked = (0..self.filled).try_for_each(|own| self.check(own));
        let found = std::mem::replace(&mut self.tally, before);
        self.tally.note(&found);
        checked.map(|()| found)
    }

    fn sequence(&self, own: u64) -> u64 {
        let index = usize::try_from(own).unwrap_or(usize::MAX);
        self.sequences.as_ref().and_then(|all| all.get(index)).copied().map_or(0, u64::from)
    }

    fn check(&mut self, own: u64) -> io::Result<()> {
        let (page, sequence) = (self.layout.page(own), self.sequence(own));
        match self.backing {
            Backing::Mapped(words) => {
                let from = usize::try_from(page).map_err(io::Error::other)? * WORDS;
                let found = words[from..from + WORDS].iter().map(|word| word.load(Ordering::Relaxed));
                self.tally.check(&self.content, page, sequence, found);
            }
            Backing::Cached(file) => {
                let mut bytes = [0; PAGE];
                file.read_exact_at(&mut bytes, page * PAGE as u64)?;
                self.tally.check(&self.content, page, sequence, read_words(&bytes));
            }
        }
        Ok(())
    }

    /// Touches `count` units. Returns the number of writes. At least one page must be filled.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn touch(&mut self, count: u64) -> io::Result<u64> {
        let units = self.layout.units(self.filled);
        let mut walk = self.walk.clone();
        let written = match walk.pattern() {
            Pattern::Sequential => self.touch_runs(count, units, &mut walk),
            Pattern::Random => self.touch_in(count, || walk.random(units)),
            Pattern::Hot { part, touches, .. } => {
                let (hot, touches) = (hot_units(part, units), probability(touches));
                if hot < units {
                    self.touch_in(count, || walk.hot(units, hot, touches))
                } else {
                    self.touch_in(count, || walk.random(units))
                }
            }
        };
        self.walk = walk;
        written
    }

    /// Touches adjacent units to the last one, then again from the first.
    fn touch_runs(&mut self, count: u64, units: u64, walk: &mut Walk) -> io::Result<u64> {
        let (mut left, mut written) = (count, 0);
        while left > 0 {
            let rounds = walk.rounds();
            let (first, run) = walk.run(units, left);
            if walk.rounds() != rounds {
                self.spread.turn();
            }
            written += match self.backing {
                Backing::Mapped(words) if self.sequences.is_none() => {
                    self.layout.touch_run(words, first, run, &mut self.spread)
                }
                Backing::Cached(file) => self.touch_cached(file, first, run)?,
                Backing::Mapped(_) => {
                    let mut units = first..;
                    self.touch_in(run, || units.next().unwrap_or(first))?
                }
            };
            left -= run;
        }
        Ok(written)
    }

    fn touch_in(&mut self, count: u64, mut next: impl FnMut() -> u64) -> io::Result<u64> {
        match self.backing {
            _ if self.sequences.is_some() => self.touch_checked(count, next),
            Backing::Mapped(words) => {
                let layout = self.layout;
                let places = (0..count).map(|_| &words[layout.word(next())]);
                Ok(touch_each(places, &mut self.spread))
            }
            Backing::Cached(file) => {
                let mut unit = [0; PAGE];
                let unit = &mut unit[..usize::try_from(self.layout.stride).map_err(io::Error::other)?];
                let mut written = 0;
                for _ in 0..count {
                    let offset = self.layout.offset(next());
                    file.read_exact_at(unit, offset)?;
                    if self.spread.writes() {
                        file.write_all_at(unit, offset)?;
                        written += 1;
                    }
                }
                Ok(written)
            }
        }
    }

    /// Touches adjacent units of a file.
    fn touch_cached(&mut self, file: &File, first: u64, run: u64) -> io::Result<u64> {
        let mut buffer = [0; READ_AT_ONCE];
        let stride = usize::try_from(self.layout.stride).map_err(io::Error::other)?;
        let (mut unit, mut left, mut written) = (first, run, 0);
        while left > 0 {
            let count = left.min(self.layout.adjacent(unit)).min((READ_AT_ONCE / stride) as u64);
            let bytes = &mut buffer[..usize::try_from(count).map_err(io::Error::other)? * stride];
            file.read_exact_at(bytes, self.layout.offset(unit))?;
            for (unit, bytes) in (unit..).zip(bytes.chunks_exact(stride)) {
                if self.sequences.is_some() {
                    let (page, sequence) = (self.layout.page(unit), self.sequence(unit));
                    self.tally.check(&self.content, page, sequence, read_words(bytes));
                }
                if self.spread.writes() {
                    written += 1;
                    match self.sequences {
                        Some(_) => self.write_next(unit)?,
                        None => file.write_all_at(bytes, self.layout.offset(unit))?,
                    }
                }
            }
            unit += count;
            left -= count;
        }
        Ok(written)
    }

    fn touch_checked(&mut self, count: u64, mut next: impl FnMut() -> u64) -> io::Result<u64> {
        let mut written = 0;
        for _ in 0..count {
            let own = next() >> self.layout.shift;
            self.check(own)?;
            if self.spread.writes() {
                self.write_next(own)?;
                written += 1;
            }
        }
        Ok(written)
    }

    /// Gives a page its next sequence.
    fn write_next(&mut self, own: u64) -> io::Result<()> {
        let page = self.layout.page(own);
        let index = usize::try_from(own).map_err(io::Error::other)?;
        let Some(sequence) = self.sequences.as_mut().and_then(|all| all.get_mut(index)) else {
            return Ok(());
        };
        *sequence = sequence.wrapping_add(1);
        let word = self.content.first_word(page, u64::from(*sequence));
        match self.backing {
            Backing::Mapped(words) => {
                let at = usize::try_from(page).map_err(io::Error::other)? * WORDS;
                words[at].store(word, Ordering::Relaxed);
                Ok(())
            }
            Backing::Cached(file) => file.write_all_at(&word.to_le_bytes(), page * PAGE as u64),
        }
    }
}

/// The inner loop. Loads do not depend on each other, so the CPU can wait for several at once.
fn touch_each<'a>(places: impl Iterator<Item = &'a AtomicU64>, spread: &mut Spread) -> u64 {
    let mut seen = 0;
    let mut written = 0;
    match spread.always() {
        Some(false) => places.for_each(|word| seen ^= word.load(Ordering::Relaxed)),
        Some(true) => places.for_each(|word| {
            word.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            written += 1;
        }),
        None => {
            let mut own = *spread;
            places.for_each(|word| {
                let value = word.load(Ordering::Relaxed);
                if own.writes() {
                    word.store(value, Ordering::Relaxed);
                    written += 1;
                }
                seen ^= value;
            });
            *spread = own;
        }
    }
    std::hint::black_box(seen);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: u8) -> Share {
        Share::percent(percent).unwrap()
    }

    fn words(pages: usize) -> Vec<AtomicU64> {
        (0..pages * WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn toucher<'a>(backing: Backing<'a>, stride: u64, writes: Share, verify: bool) -> Toucher<'a> {
        let mut toucher = Toucher::new(
            backing,
            Layout::new(0, 1, stride),
            Content::of(3),
            (Pattern::Sequential, writes),
            verify,
        );
        toucher.grow(8, false).unwrap();
        toucher
    }

    #[test]
    fn threads_share_the_pages_without_overlap() {
        for pages in [0, 1, 7, 8, 9] {
            let mut all: Vec<u64> = (0..3)
                .map(|thread| Layout::new(thread, 3, 64))
                .flat_map(|layout| (0..layout.own(pages)).map(move |own| layout.page(own)))
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn units_of_a_page_follow_each_other() {
        let layout = Layout::new(1, 2, 1024);
        let places: Vec<u64> = (0..5).map(|unit| layout.offset(unit)).collect();
        assert_eq!(places, [4096, 5120, 6144, 7168, 3 * 4096]);
        assert_eq!(layout.units(2), 8);
    }

    #[test]
    fn touches_keep_the_content_and_count_writes() {
        for (stride, writes, expected) in [(4096, 0, 0), (4096, 100, 1000), (64, 30, 300)] {
            let words = words(8);
            let mut toucher = toucher(Backing::Mapped(&words), stride, percent(writes), false);
            // Accurate to one touch in each round.
            assert!(toucher.touch(1000).unwrap().abs_diff(expected) <= 1);
            let tally = toucher.check_all().unwrap();
            assert_eq!((tally.bytes, tally.mismatches), (8 * PAGE as u64, 0));
            assert_eq!(tally.checksum, Content::of(3).checksum(0, 8));
        }
    }

    #[test]
    fn each_write_is_checked_at_the_next_touch() {
        let words = words(8);
        let mut toucher = toucher(Backing::Mapped(&words), 4096, percent(50), true);
        toucher.touch(1000).unwrap();
        assert_eq!(toucher.tally().mismatches, 0);
        assert_eq!(toucher.check_all().unwrap().mismatches, 0);
        // Flip a bit in page 5, and set page 6 back to an earlier state.
        words[5 * WORDS + 100].fetch_xor(1, Ordering::Relaxed);
        words[6 * WORDS].store(Content::of(3).first_word(6, 0), Ordering::Relaxed);
        toucher.touch(8).unwrap();
        let tally = toucher.tally();
        assert_eq!(tally.mismatches, 2);
        assert_eq!(tally.described[0].offset, 5 * PAGE as u64 + 800);
        assert_eq!(tally.described[1].offset, 6 * PAGE as u64);
        assert!(tally.described[1].sequence > 0);
    }

    #[test]
    fn a_file_is_touched_through_the_page_cache() {
        let file = tempfile::tempfile().unwrap();
        for verify in [false, true] {
            let mut toucher = toucher(Backing::Cached(&file), 4096, percent(50), verify);
            assert_eq!(toucher.touch(100).unwrap(), 50);
            let tally = toucher.check_all().unwrap();
            assert_eq!((tally.bytes, tally.mismatches), (8 * PAGE as u64, 0));
        }
    }

    #[test]
    fn what_was_given_back_is_not_touched() {
        let words = words(8);
        let mut toucher = toucher(Backing::Mapped(&words), 4096, percent(100), true);
        toucher.shrink(3);
        toucher.touch(30).unwrap();
        assert_eq!(toucher.check_all().unwrap().bytes, 3 * PAGE as u64);
        assert_eq!(words[3 * WORDS].load(Ordering::Relaxed), Content::of(3).first_word(3, 0));
    }
}
