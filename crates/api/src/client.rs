//! Requests to the daemon's socket.

use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Builder;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use memtide_model::printable;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use crate::ClientError;
use crate::events::{Event, Parser};
use crate::recent::LastMinutes;
use crate::reclaim::{LONGEST, ReclaimAnswer, ReclaimRequest};
use crate::view::{
    CgroupReclaimAnswer, CgroupReclaimRequest, GuestDetail, HoldAnswer, HoldRequest, KsmStatus, Status,
};

/// A daemon that does not answer within this time counts as absent.
const DEADLINE: Duration = Duration::from_secs(5);
/// A daemon that sends no event for this long hangs: it decides at least every 2 s.
pub const QUIET: Duration = Duration::from_secs(30);
/// No daemon sends a longer answer: ten thousand guests take about ten MiB.
const LARGEST: usize = 64 << 20;

/// A client of a daemon's API.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    deadline: Duration,
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

    /// KSM.
    ///
    /// # Errors
    /// If no daemon of this version answers.
    pub fn ksm(&self) -> Result<Answer<KsmStatus>, ClientError> {
        self.get("/v1/ksm")?.ok_or(ClientError::NoStatus)
    }

    /// The metrics as Prometheus's text.
    ///
    /// # Errors
    /// If no daemon answers.
    pub fn metrics(&self) -> Result<Vec<u8>, ClientError> {
        let answer: Option<Answer<()>> = self.get("/metrics")?;
        answer.map(|answer| answer.json).ok_or(ClientError::NoStatus)
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

    /// The host's last ten minutes; `None` from a daemon that does not keep them.
    ///
    /// # Errors
    /// If no daemon of this version answers.
    pub fn history(&self) -> Result<Option<LastMinutes>, ClientError> {
        self.get("/v1/history")?.map(|answer: Answer<LastMinutes>| answer.read()).transpose()
    }

    /// Gives an order; `None` if there is no such guest.
    ///
    /// # Errors
    /// If no daemon of this version answers, or if it refuses the order.
    pub fn hold(&self, request: &HoldRequest) -> Result<Option<HoldAnswer>, ClientError> {
        self.post("/v1/holds", request)
    }

    /// Reclaims what a guest can spare, and waits until the host has it, up to [`LONGEST`]; `None` if there is no such guest.
    ///
    /// # Errors
    /// If no daemon of this version answers, or if it refuses the order.
    pub fn reclaim(&self, request: &ReclaimRequest) -> Result<Option<ReclaimAnswer>, ClientError> {
        // The daemon may order a hold after that.
        let patient = self.clone().with_deadline(LONGEST + 2 * self.deadline);
        patient.post("/v1/reclaims", request)
    }

    /// Orders a reclaim from a guest's cgroup; `None` if there is no such guest.
    ///
    /// # Errors
    /// If no daemon of this version answers, or if it refuses the order.
    pub fn reclaim_from_cgroup(
        &self,
        request: &CgroupReclaimRequest,
    ) -> Result<Option<CgroupReclaimAnswer>, ClientError> {
        self.post("/v1/cgroup-reclaims", request)
    }

    /// Calls `hear` with each event from now on, until it returns `false` or the daemon ends.
    ///
    /// # Errors
    /// If no daemon answers, or none of this version, or if it says nothing for [`QUIET`].
    pub fn events(&self, mut hear: impl FnMut(Event) -> bool) -> Result<(), ClientError> {
        let request = Request::get("/v1/events").header("host", "memtide");
        let request = request.body(Full::new(Bytes::new())).map_err(connection)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(connection)?.block_on(async {
            let opened = tokio::time::timeout(self.deadline, self.open(request)).await;
            let response = opened.map_err(|_| self.silent())??;
            let status = response.status();
            let mut body = response.into_body();
            if status != StatusCode::OK {
                let body = Limited::new(body, LARGEST).collect().await.map_err(ClientError::Connection)?;
                return Err(self.refused(status, &body.to_bytes()));
            }
            let mut parser = Parser::default();
            loop {
                let frame = tokio::time::timeout(QUIET, body.frame()).await;
                // A daemon that ends closes the connection in the middle of the stream.
                let Some(Ok(frame)) = frame.map_err(|_| self.silent())? else { return Ok(()) };
                let Ok(piece) = frame.into_data() else { continue };
                if !parser.take(&piece)?.into_iter().all(&mut hear) {
                    return Ok(());
                }
                if parser.pending() > LARGEST {
                    return Err(connection("an event is longer than any of a daemon"));
                }
            }
        })
    }

    /// The daemon's answer to `GET path`; `None` if the path does not exist.
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<Answer<T>>, ClientError> {
        self.answer(Request::get(path), Vec::new())
    }

    /// The daemon's answer to an order; `None` if there is no such guest.
    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        order: &impl Serialize,
    ) -> Result<Option<T>, ClientError> {
        let json = serde_json::to_vec(order).map_err(ClientError::OtherVersion)?;
        let post = Request::post(path).header("content-type", "application/json");
        self.answer(post, json)?.map(|answer: Answer<T>| answer.read()).transpose()
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
        let response = self.open(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(ClientError::Connection)?.to_bytes();
        match status {
            StatusCode::OK => Ok(Some(Answer::new(body.to_vec()))),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(self.refused(status, &body)),
        }
    }

    async fn open(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(error))?;
        let (mut sender, wire) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(connection)?;
        // An error of the connection is an error of the request, too.
        tokio::spawn(wire);
        sender.send_request(request).await.map_err(connection)
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        ClientError::Refused { socket: self.socket.clone(), status, why: why(body) }
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
