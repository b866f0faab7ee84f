//! A block of anonymous memory, in a process of its own.
//!
//! The control process starts this program again as `memtide-load block SEED MIB RATE`. The child offers itself to the
//! guest's OOM killer first (`oom_score_adj` 1000), fills the block, and then waits for the word `verify` on its standard
//! input. It answers on its standard output with one [`Answer`] a line. It ends, and its memory with it, at the end of
//! its input or when it is killed.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::MIB;
use crate::pace::Pacer;
use crate::pattern::{self, PAGE, Tally, WORDS};
use crate::wire::Answer;

/// The first argument of the child.
pub const ARGUMENT: &str = "block";
/// What the child is asked to do with its block.
pub const VERIFY: &str = "verify";
/// How often a job reports its progress.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Pages written between two looks at the clock.
const PAGES_AT_ONCE: u64 = 64;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The pattern's seed.
    pub seed: u64,
    /// Size in MiB.
    pub mib: u64,
    /// Rate in MiB/s; zero is as fast as possible.
    pub mib_per_s: u64,
}

impl Shape {
    /// The child's arguments.
    #[must_use]
    pub fn arguments(self) -> [String; 5] {
        [
            "agent".to_owned(),
            ARGUMENT.to_owned(),
            self.seed.to_string(),
            self.mib.to_string(),
            self.mib_per_s.to_string(),
        ]
    }

    /// Reads the child's arguments after [`ARGUMENT`].
    #[must_use]
    pub fn parse(arguments: &[String]) -> Option<Self> {
        let [seed, mib, mib_per_s] = arguments else { return None };
        Some(Self { seed: seed.parse().ok()?, mib: mib.parse().ok()?, mib_per_s: mib_per_s.parse().ok()? })
    }
}

/// Says when another second has passed.
#[derive(Debug)]
pub struct Ticker(Instant);

impl Ticker {
    /// The first second begins now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Whether [`PROGRESS_EVERY`] has passed since the last time.
    pub fn due(&mut self) -> bool {
        let due = self.0.elapsed() >= PROGRESS_EVERY;
        if due {
            self.0 = Instant::now();
        }
        due
    }
}

/// The child's life: fills the block and verifies it as often as it is asked to.
///
/// # Errors
/// Where the control process cannot be reached any more.
pub fn serve(shape: Shape, orders: impl BufRead, mut out: impl Write) -> io::Result<()> {
    let words = match fill(shape, &mut out)? {
        Ok(words) => words,
        Err(why) => return say(&mut out, &Answer::Error(why)),
    };
    say(&mut out, &Answer::Done(json!({ "bytes": 8 * words.len() as u64 })))?;
    for order in orders.lines() {
        if order? == VERIFY {
            let tally = verify(shape.seed, &words, &mut out)?;
            say(&mut out, &Answer::Done(json!(tally)))?;
        }
    }
    Ok(())
}

/// Allocates and fills; the inner error says why there is no such memory.
fn fill(shape: Shape, out: &mut impl Write) -> io::Result<Result<Vec<u64>, String>> {
    let mut words = Vec::new();
    let bytes = shape.mib.checked_mul(MIB).and_then(|bytes| usize::try_from(bytes).ok());
    let reserved = bytes.and_then(|bytes| words.try_reserve_exact(bytes / 8).ok());
    let (Some(bytes), Some(())) = (bytes, reserved) else {
        return Ok(Err(format!("the kernel refused {} MiB of anonymous memory", shape.mib)));
    };
    let mut pacer = Pacer::new(shape.mib_per_s.checked_mul(MIB));
    let mut ticker = Ticker::start();
    let pages = (bytes / PAGE) as u64;
    let mut page = 0;
    while page < pages {
        let end = pages.min(page + PAGES_AT_ONCE);
        // Within the reserved capacity: nothing is allocated, pages are touched one after the other.
        (page..end).for_each(|page| words.extend(pattern::words(shape.seed, page)));
        pacer.after((end - page) * PAGE as u64);
        page = end;
        if ticker.due() {
            say(out, &Answer::Progress { bytes: page * PAGE as u64 })?;
        }
    }
    Ok(Ok(words))
}

fn verify(seed: u64, words: &[u64], out: &mut impl Write) -> io::Result<Tally> {
    let mut tally = Tally::default();
    let mut ticker = Ticker::start();
    for (page, found) in (0..).zip(words.chunks_exact(WORDS)) {
        tally.check(seed, page, found.iter().copied());
        if page % PAGES_AT_ONCE == 0 && ticker.due() {
            say(out, &Answer::Progress { bytes: tally.bytes })?;
        }
    }
    Ok(tally)
}

fn say(out: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(shape: Shape, orders: &str) -> Vec<Answer> {
        let mut out = Vec::new();
        serve(shape, orders.as_bytes(), &mut out).unwrap();
        out.split(|&b| b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    #[test]
    fn a_block_is_filled_and_verified() {
        let shape = Shape { seed: 3, mib: 2, mib_per_s: 0 };
        let answers = answers(shape, "verify\nnonsense\nverify\n");
        assert_eq!(answers.len(), 3);
        assert_eq!(answers[0], Answer::Done(json!({ "bytes": 2 << 20 })));
        let tally = Tally {
            bytes: 2 << 20,
            checksum: pattern::checksum(3, 0, 512),
            mismatches: 0,
            described: Vec::new(),
        };
        assert_eq!(answers[2], Answer::Done(json!(tally)));
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        for mib in [u64::MAX, 1 << 40] {
            let answers = answers(Shape { seed: 3, mib, mib_per_s: 0 }, "verify\n");
            assert!(matches!(answers.as_slice(), [Answer::Error(_)]), "{answers:?}");
        }
    }

    #[test]
    fn arguments_read_back() {
        let shape = Shape { seed: 3, mib: 2, mib_per_s: 1 };
        assert_eq!(Shape::parse(&shape.arguments()[2..]), Some(shape));
        assert_eq!(Shape::parse(&["1".to_owned()]), None);
    }
}
