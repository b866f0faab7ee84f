//! Lines from a stream that nobody vouches for: bounded in memory, and safe to stop waiting for at any time.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest line that is taken, in bytes. QMP's longest answers to our questions have some ten KiB.
pub(super) const LONGEST_LINE: usize = 1 << 20;
/// How much is read at a time, in bytes.
const CHUNK: usize = 8 << 10;
/// What is kept of the buffer between lines, in bytes: a long line must not cost memory for ever.
const KEPT: usize = 16 << 10;

/// Why there is no further line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("the stream ended")]
    Ended,
    #[error("a line is longer than {LONGEST_LINE} bytes")]
    TooLong,
    #[error("reading failed")]
    Io(#[source] io::Error),
}

/// Splits a stream into lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    /// The buffer's bytes before this belong to lines already given.
    start: usize,
    /// The buffer's bytes before this hold no end of the line that begins at `start`.
    searched: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, buffer: Vec::new(), start: 0, searched: 0 }
    }

    /// The next line without its end. May be dropped while it waits: nothing read is lost.
    pub(super) async fn next(&mut self) -> Result<&[u8], LineError> {
        loop {
            if let Some(length) = self.buffer[self.searched..].iter().position(|&b| b == b'\n') {
                let line = self.start..self.searched + length;
                self.start = line.end + 1;
                self.searched = self.start;
                return Ok(&self.buffer[line]);
            }
            self.make_room();
            if self.buffer.len() > LONGEST_LINE {
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

    fn make_room(&mut self) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.searched = self.buffer.len();
        if self.buffer.len() < KEPT {
            self.buffer.shrink_to(KEPT);
        }
        self.buffer.reserve(CHUNK);
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
        let mut lines = Lines::new(tokio::io::repeat(b'x'));
        assert!(matches!(lines.next().await, Err(LineError::TooLong)));
        assert!(lines.buffer.capacity() <= 4 * LONGEST_LINE);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_long_line_is_not_paid_for_ever() {
        let mut text = vec![b'x'; LONGEST_LINE - 1];
        text.extend_from_slice(b"\nshort\n");
        let mut lines = Lines::new(text.as_slice());
        assert_eq!(lines.next().await.unwrap().len(), LONGEST_LINE - 1);
        assert_eq!(lines.next().await.unwrap(), b"short");
        assert!(matches!(lines.next().await, Err(LineError::Ended)));
        assert!(lines.buffer.capacity() <= KEPT + CHUNK);
    }
}
