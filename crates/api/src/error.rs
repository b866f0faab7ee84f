//! Why a daemon does not answer.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper::StatusCode;

/// Why the daemon did not answer, or gave another answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("{0}: no daemon answers here: start one with `memtide run`, or name its socket with --socket")]
    Nobody(PathBuf),
    /// A process took the connection, but did not answer.
    #[error(
        "{socket}: no daemon answers here: one listens, but has not answered for {s} s: it is stopped or hangs; end it, and start \
         another with `memtide run`; an order that it has not heard is lost",
        s = waited.as_secs()
    )]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// The time that the client waited.
        waited: Duration,
    },
    /// This user may not use the socket.
    #[error("cannot connect to {socket} (run as root, or join the socket's group)")]
    Forbidden {
        /// The socket.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The path is not a socket.
    #[error("{0}: not a socket: name the daemon's socket with --socket")]
    NoSocket(PathBuf),
    /// The daemon refused the request.
    #[error("{socket}: the daemon answered {status}{why}")]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// Its answer.
        status: StatusCode,
        /// The reason that it gave, after a colon; empty if it gave none.
        why: String,
    },
    /// The daemon does not know a path that every daemon knows.
    #[error("the daemon has no status: is it another version?")]
    NoStatus,
    /// The answer differs from this version's.
    #[error("the daemon is another version")]
    OtherVersion(#[source] serde_json::Error),
    /// The connection ended, or the answer was not HTTP.
    #[error("the connection to the daemon failed")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ClientError {
    /// Whether no daemon answers at the socket.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        matches!(self, Self::Nobody(_) | Self::Silent { .. })
    }
}
