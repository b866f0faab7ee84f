//! A listener whose connections no client can occupy forever, and no user alone.
//!
//! A connection ends at the deadline of its [`Lease`]. A request that lasts, such as a stream of events, extends the lease while its client
//! reads. A user with too many connections gets no more of them.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::places::{Place, Places};

/// What a user with too many connections is told.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 52\r\n\
    Connection: close\r\n\r\n{\"error\":\"too many connections of this user: wait\"}\n";

/// A listener whose connections are bounded in number and time.
#[derive(Debug)]
pub(crate) struct Bounded {
    listener: tokio::net::UnixListener,
    free: Arc<Semaphore>,
    of_users: Places,
    longest: Duration,
}

/// Who sent a request, and how long their connection lasts.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// The user of the process that connected.
    pub(crate) user: u32,
    /// Their connection.
    pub(crate) lease: Lease,
}

/// A connection of such a listener.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: tokio::net::UnixStream,
    ends: Pin<Box<tokio::time::Sleep>>,
    lease: Lease,
    place: Place,
    _slot: OwnedSemaphorePermit,
}

/// The deadline of a connection; its clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Lease(Arc<Mutex<Instant>>);

impl Lease {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self(Arc::new(Mutex::new(deadline)))
    }

    /// The connection may last for `time` from now on.
    pub(crate) fn extend(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + time;
    }

    fn deadline(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, Bounded>> for Client {
    fn connect_info(stream: axum::serve::IncomingStream<'_, Bounded>) -> Self {
        let connection = stream.io();
        Self { user: connection.place.user(), lease: connection.lease.clone() }
    }
}

impl Bounded {
    /// At most `most` connections at a time, a quarter of them for one user, each for at most `longest` unless its lease is extended.
    pub(crate) fn new(listener: tokio::net::UnixListener, most: usize, longest: Duration) -> Self {
        Self { listener, free: Arc::new(Semaphore::new(most)), of_users: Places::new(most), longest }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = tokio::net::unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let free = Arc::clone(&self.free);
        let slot = free.acquire_owned().await.expect("nobody closes the semaphore");
        let (stream, peer, place) = loop {
            // If the kernel refuses, this waits and tries again.
            let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
            let Ok(credentials) = stream.peer_cred() else { continue };
            match self.of_users.take(credentials.uid()) {
                Some(place) => break (stream, peer, place),
                // A client that cannot read it learns nothing else either.
                None => _ = stream.try_write(TOO_MANY),
            }
        };
        let deadline = Instant::now() + self.longest;
        let ends = Box::pin(tokio::time::sleep_until(deadline));
        let lease = Lease::until(deadline);
        (Connection { stream, ends, lease, place, _slot: slot }, peer)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl Connection {
    fn is_in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.ends.as_mut().poll(cx).is_ready() {
            let deadline = self.lease.deadline();
            if deadline <= Instant::now() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.ends.as_mut().reset(deadline);
        }
        Ok(())
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
        let longest = Duration::from_millis(50);
        let listener = Bounded { of_users: Places::new(8), ..Bounded::new(listener, 1, longest) };
        tokio::spawn(async { axum::serve(listener, Router::new()).await });
        let mut idle = tokio::net::UnixStream::connect(&path).await.unwrap();
        let mut asks = tokio::net::UnixStream::connect(&path).await.unwrap();
        asks.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        asks.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.0 404"), "{answer}");
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0, "closed");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_user_with_many_connections_gets_no_more_and_leaves_room_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memtide.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let listener = Bounded::new(listener, 8, Duration::from_secs(60));
        let of_users = listener.of_users.clone();
        tokio::spawn(async { axum::serve(listener, Router::new()).await });
        let idle: Vec<_> =
            futures_util::future::join_all((0..2).map(|_| tokio::net::UnixStream::connect(&path))).await;
        let mut third = tokio::net::UnixStream::connect(&path).await.unwrap();
        let mut answer = String::new();
        third.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 ") && body.contains("of this user"), "{answer}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
        assert_eq!(of_users.taken(), 2, "six are left for others");
        drop(idle);
        tokio::time::timeout(Duration::from_secs(60), async {
            while of_users.taken() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the places are free again");
    }
}
