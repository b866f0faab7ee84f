//! A listener whose connections nobody can use up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A listener whose connections are bounded in number and time.
#[derive(Debug)]
pub(crate) struct Bounded {
    listener: tokio::net::UnixListener,
    free: Arc<Semaphore>,
    longest: Duration,
}

/// One of its connections.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: tokio::net::UnixStream,
    ends: Pin<Box<tokio::time::Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Bounded {
    /// At most `most` connections at a time, each for at most `longest`.
    pub(crate) fn new(listener: tokio::net::UnixListener, most: usize, longest: Duration) -> Self {
        Self { listener, free: Arc::new(Semaphore::new(most)), longest }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = tokio::net::unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let free = Arc::clone(&self.free);
        let place = free.acquire_owned().await.expect("nobody closes the semaphore");
        // Waits and tries again if the kernel refuses.
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        let ends = Box::pin(tokio::time::sleep(self.longest));
        (Connection { stream, ends, _place: place }, peer)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl Connection {
    fn is_in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.ends.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_in_time(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.is_in_time(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(flavor = "current_thread")]
    async fn nobody_can_keep_all_connections() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memtide.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let listener = Bounded::new(listener, 1, Duration::from_millis(50));
        tokio::spawn(async { axum::serve(listener, Router::new()).await });
        let mut idle = tokio::net::UnixStream::connect(&path).await.unwrap();
        let mut asks = tokio::net::UnixStream::connect(&path).await.unwrap();
        asks.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        asks.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.0 404"), "{answer}");
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0, "closed");
    }
}
