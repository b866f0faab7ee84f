//! Lines from an untrusted stream: bounded in memory, and safe to cancel at any time.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest accepted line, in bytes. QMP's answers to memtide's questions have some ten KiB; about disks, two KiB for each
/// layer of each disk.
pub(super) const LONGEST_LINE: usize = 256 << 10;
/// The most memory for the buffers and answers of all monitors together, in bytes, beyond each one's free allowance. With this bound, many long
/// answers cost as little as a few.
const MOST_TOGETHER: usize = 2 << 20;
/// The number of bytes in one read.
const CHUNK: usize = 8 << 10;
/// The size of the buffer that is kept between lines, in bytes. A long line must not cost memory forever.
const KEPT: usize = 16 << 10;

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("the stream ended")]
    Ended,
    #[error("a line is longer than {LONGEST_LINE} bytes, or all long lines together than {MOST_TOGETHER}")]
    TooLong,
    #[error("reading failed")]
    Io(#[source] io::Error),
}

/// Splits a stream into lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    /// Buffer bytes before this index belong to lines already returned.
    start: usize,
    /// Buffer bytes before this index contain no end of the line that begins at `start`.
    searched: usize,
    charge: Charge,
}

/// The memory that several buffers and answers hold together, beyond each one's free allowance.
#[derive(Debug)]
struct Together(AtomicUsize);

/// The memory of all monitors.
static OF_ALL: Together = Together(AtomicUsize::new(0));

/// The part that one buffer, or the answers of one exchange, hold.
#[derive(Debug)]
pub(super) struct Charge {
    of: &'static Together,
    bytes: usize,
}

impl Charge {
    /// An empty charge on the memory of all monitors.
    pub(super) const fn of_all() -> Self {
        Self { of: &OF_ALL, bytes: 0 }
    }

    /// Charges this capacity, minus the free allowance. Returns whether all charges together stay within the bound.
    pub(super) fn set(&mut self, capacity: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, capacity.saturating_sub(KEPT + CHUNK));
        if self.bytes <= before {
            self.of.0.fetch_sub(before - self.bytes, Ordering::Relaxed);
            return true;
        }
        let more = self.bytes - before;
        self.of.0.fetch_add(more, Ordering::Relaxed) + more <= MOST_TOGETHER
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        Self::together(source, &OF_ALL)
    }

    fn together(source: R, of: &'static Together) -> Self {
        Self { source, buffer: Vec::new(), start: 0, searched: 0, charge: Charge { of, bytes: 0 } }
    }

    /// Frees the buffer if it is empty.
    pub(super) fn free_buffer(&mut self) {
        if self.start == self.buffer.len() {
            self.buffer = Vec::new();
            (self.start, self.searched) = (0, 0);
            self.charge.set(0);
        }
    }

    /// The stream, for writing.
    pub(super) const fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    /// The next line without its end. Cancel-safe: no read data is lost.
    pub(super) async fn next(&mut self) -> Result<&[u8], LineError> {
        loop {
            if let Some(length) = self.buffer[self.searched..].iter().position(|&b| b == b'\n') {
                let line = self.start..self.searched + length;
                self.start = line.end + 1;
                self.searched = self.start;
                return Ok(&self.buffer[line]);
            }
            if !self.make_room() || self.buffer.len() > LONGEST_LINE {
                return Err(LineError::TooLong);
            }
            let mut chunk = (&mut self.source).take(CHUNK as u64);
            match chunk.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(LineError::Ended),
                Ok(_) => {}
                Err(source) => return Err(LineError::Io(source)),
            }
        }
    }

    /// Whether a line has begun and not ended.
    pub(super) fn is_within_a_line(&self) -> bool {
        self.start < self.buffer.len()
    }

    /// Makes room for a chunk. Returns whether all buffers together stay within the bound.
    fn make_room(&mut self) -> bool {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.searched = self.buffer.len();
        if self.buffer.len() < KEPT {
            self.buffer.shrink_to(KEPT);
        }
        self.buffer.reserve(CHUNK);
        self.charge.set(self.buffer.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test(flavor = "current_thread")]
    async fn lines_come_whole_however_they_were_cut() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        let mut lines = Lines::new(theirs);
        ours.write_all(b"one\r\ntw").await.unwrap();
        assert_eq!(lines.next().await.unwrap(), b"one\r");
        {
            let waiting = lines.next();
            tokio::pin!(waiting);
            assert!(
                std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_pending()))
                    .await
            );
        }
        assert!(lines.is_within_a_line());
        ours.write_all(b"o\n\nrest").await.unwrap();
        assert_eq!(lines.next().await.unwrap(), b"two");
        assert_eq!(lines.next().await.unwrap(), b"");
        drop(ours);
        assert!(matches!(lines.next().await, Err(LineError::Ended)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_endless_line_costs_bounded_memory() {
        static THESE: Together = Together(AtomicUsize::new(0));
        let mut lines = Lines::together(tokio::io::repeat(b'x'), &THESE);
        assert!(matches!(lines.next().await, Err(LineError::TooLong)));
        assert!(lines.buffer.capacity() <= 4 * LONGEST_LINE);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn many_endless_lines_cost_no_more_than_a_few() {
        // Each stops in the middle of a line that may still go on.
        static THESE: Together = Together(AtomicUsize::new(0));
        let line = || tokio::io::repeat(b'x').take(200 << 10);
        let mut all: Vec<_> = (0..100).map(|_| Lines::together(line(), &THESE)).collect();
        let mut refused = 0;
        for lines in &mut all {
            refused += usize::from(matches!(lines.next().await, Err(LineError::TooLong)));
        }
        let held: usize = all.iter().map(|lines| lines.buffer.capacity()).sum();
        // A refused buffer may have doubled before.
        let promised = MOST_TOGETHER + all.len() * 2 * (KEPT + CHUNK);
        assert!(held <= promised && refused > 0, "{held} bytes held, {refused} refused");
        drop(all);
        assert_eq!(THESE.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_buffer_given_back_claims_nothing() {
        static THESE: Together = Together(AtomicUsize::new(0));
        let mut text = vec![b'x'; LONGEST_LINE - 1];
        text.push(b'\n');
        let mut lines = Lines::together(text.as_slice(), &THESE);
        assert!(lines.next().await.is_ok());
        assert!(THESE.0.load(Ordering::Relaxed) > 0);
        lines.free_buffer();
        assert_eq!(THESE.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_long_line_is_not_paid_for_ever() {
        let mut text = vec![b'x'; LONGEST_LINE - 1];
        text.extend_from_slice(b"\nshort\n");
        static THESE: Together = Together(AtomicUsize::new(0));
        let mut lines = Lines::together(text.as_slice(), &THESE);
        assert_eq!(lines.next().await.unwrap().len(), LONGEST_LINE - 1);
        assert_eq!(lines.next().await.unwrap(), b"short");
        assert!(matches!(lines.next().await, Err(LineError::Ended)));
        assert!(lines.buffer.capacity() <= KEPT + CHUNK);
    }
}
