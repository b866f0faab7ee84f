//! Requests to the daemon's socket.

use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::http::request::Builder;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use memtide_model::printable;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::view::{GuestDetail, Held, HoldRequest, Status};

/// A daemon that does not answer within this time counts as absent.
const DEADLINE: Duration = Duration::from_secs(5);
/// No daemon sends a longer answer: ten thousand guests take about ten MiB.
const LARGEST: usize = 64 << 20;

/// A client of a daemon's API.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    deadline: Duration,
}

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

/// An answer of type `T`, as the daemon wrote it.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    json: Vec<u8>,
    read: PhantomData<T>,
}

impl<T: DeserializeOwned> Answer<T> {
    const fn new(json: Vec<u8>) -> Self {
        Self { json, read: PhantomData }
    }

    /// The JSON as the daemon wrote it, including fields that only another version knows.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// Its value.
    ///
    /// # Errors
    /// If the daemon has another version.
    pub fn read(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.json).map_err(ClientError::OtherVersion)
    }
}

impl Client {
    /// The API at `socket`.
    #[must_use]
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), deadline: DEADLINE }
    }

    /// The same API with a deadline other than 5 s.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The ledger and all guests.
    ///
    /// # Errors
    /// If no daemon of this version answers.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.status_answer()?.read()
    }

    /// The same, as the daemon writes it.
    ///
    /// # Errors
    /// If no daemon answers.
    pub fn status_answer(&self) -> Result<Answer<Status>, ClientError> {
        self.get("/v1/status")?.ok_or(ClientError::NoStatus)
    }

    /// The guest with the name `name` in the status; `None` if there is none.
    ///
    /// # Errors
    /// If no daemon of this version answers.
    pub fn guest(&self, name: &str) -> Result<Option<GuestDetail>, ClientError> {
        self.guest_answer(name)?.map(|answer| answer.read()).transpose()
    }

    /// The same, as the daemon writes it.
    ///
    /// # Errors
    /// If no daemon answers.
    pub fn guest_answer(&self, name: &str) -> Result<Option<Answer<GuestDetail>>, ClientError> {
        self.get(&format!("/v1/guests/{}", escape(name)))
    }

    /// Gives an order; `None` if there is no such guest.
    ///
    /// # Errors
    /// If no daemon of this version answers, or if it refuses the order.
    pub fn hold(&self, request: &HoldRequest) -> Result<Option<Held>, ClientError> {
        let json = serde_json::to_vec(request).map_err(ClientError::OtherVersion)?;
        let post = Request::post("/v1/holds").header("content-type", "application/json");
        self.answer(post, json)?.map(|answer: Answer<Held>| answer.read()).transpose()
    }

    /// The daemon's answer to `GET path`; `None` if the path does not exist.
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<Answer<T>>, ClientError> {
        self.answer(Request::get(path), Vec::new())
    }

    fn answer<T: DeserializeOwned>(
        &self,
        request: Builder,
        body: Vec<u8>,
    ) -> Result<Option<Answer<T>>, ClientError> {
        let request = request.header("host", "memtide").body(Full::new(Bytes::from(body)));
        let request = request.map_err(connection)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(connection)?.block_on(async {
            let answer = tokio::time::timeout(self.deadline, self.exchange(request)).await;
            answer.map_err(|_| self.silent())?
        })
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Option<Answer<T>>, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(error))?;
        let (mut sender, wire) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(connection)?;
        // An error of the connection is also an error of the request.
        tokio::spawn(wire);
        let response = sender.send_request(request).await.map_err(connection)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(ClientError::Connection)?.to_bytes();
        match status {
            StatusCode::OK => Ok(Some(Answer::new(body.to_vec()))),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(ClientError::Refused { socket: self.socket.clone(), status, why: why(&body) }),
        }
    }

    fn silent(&self) -> ClientError {
        ClientError::Silent { socket: self.socket.clone(), waited: self.deadline }
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        let socket = self.socket.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Forbidden { socket, source },
            // The daemon's queue of connections is full.
            io::ErrorKind::WouldBlock => self.silent(),
            _ if std::fs::metadata(&socket).is_ok_and(|there| !there.file_type().is_socket()) => {
                ClientError::NoSocket(socket)
            }
            _ => ClientError::Nobody(socket),
        }
    }
}

fn connection(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
    ClientError::Connection(error.into())
}

/// The error that an answer names.
fn why(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    serde_json::from_slice(body)
        .map_or_else(|_| String::new(), |Refusal { error }| format!(": {}", printable(&error)))
}

/// A path segment of a URL.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'@' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_of_a_path() {
        assert_eq!(escape("web-1@42"), "web-1@42");
        assert_eq!(escape("a/b ?#ö"), "a%2Fb%20%3F%23%C3%B6");
    }
}
