//! One request to the daemon's socket.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::http::request::Builder;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use memtide_doctor::printable;
use tokio::net::UnixStream;

/// A daemon that does not answer within this is as good as none.
const DEADLINE: Duration = Duration::from_secs(5);
/// More than this is no answer of a daemon: ten thousand guests take about ten MiB.
const LARGEST: usize = 64 << 20;

/// No daemon answers on the socket.
#[derive(Debug, thiserror::Error)]
pub enum NoDaemon {
    /// Nobody is there.
    #[error("{0}: no daemon answers here: start one with `memtide run`, or name its socket with --socket")]
    Nobody(PathBuf),
    /// Somebody took the connection, and that was all.
    #[error(
        "{0}: no daemon answers here: one listens, and said nothing for {s} s: it is stopped or hangs: end it, and start \
         another with `memtide run`; an order that it has not heard is void",
        s = DEADLINE.as_secs()
    )]
    Silent(PathBuf),
}

/// The daemon's answer to `GET path`: the body, or `None` where there is no such thing.
pub fn get(socket: &Path, path: &str) -> Result<Option<Vec<u8>>> {
    answer(socket, Request::get(path), Vec::new())
}

/// The daemon's answer to `POST path` with a body of JSON.
pub fn post(socket: &Path, path: &str, json: Vec<u8>) -> Result<Option<Vec<u8>>> {
    answer(socket, Request::post(path).header("content-type", "application/json"), json)
}

fn answer(socket: &Path, request: Builder, body: Vec<u8>) -> Result<Option<Vec<u8>>> {
    let request = request.header("host", "memtide").body(Full::new(Bytes::from(body)))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(DEADLINE, exchange(socket, request))
            .await
            .map_err(|_| NoDaemon::Silent(socket.to_owned()))?
    })
}

async fn exchange(socket: &Path, request: Request<Full<Bytes>>) -> Result<Option<Vec<u8>>> {
    let stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let asked = "not yours to ask: be root, or a member of the socket's group";
            return Err(error).with_context(|| format!("{}: {asked}", socket.display()));
        }
        // The queue of those who wait for it is full.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            return Err(NoDaemon::Silent(socket.to_owned()).into());
        }
        Err(_) if std::fs::metadata(socket).is_ok_and(|there| !there.file_type().is_socket()) => {
            bail!("{}: this is no socket: name that of the daemon with --socket", socket.display())
        }
        Err(_) => return Err(NoDaemon::Nobody(socket.to_owned()).into()),
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // An error of the connection is an error of the request, too.
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body =
        Limited::new(response.into_body(), LARGEST).collect().await.map_err(anyhow::Error::from_boxed)?;
    match status {
        StatusCode::OK => Ok(Some(body.to_bytes().to_vec())),
        StatusCode::NOT_FOUND => Ok(None),
        other => bail!("{}: the daemon answered {other}{}", socket.display(), why(&body.to_bytes())),
    }
}

/// What an answer says is wrong.
fn why(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Refusal {
        error: String,
    }
    serde_json::from_slice(body)
        .map_or_else(|_| String::new(), |Refusal { error }| format!(": {}", printable(&error)))
}
