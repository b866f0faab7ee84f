//! The local API: JSON over HTTP on a Unix socket, and Prometheus metrics.
//!
//! | path | what |
//! |---|---|
//! | `GET /v1/status` | the ledger and all guests: [`Status`] |
//! | `GET /v1/guests/NAME` | one guest with its last changes: [`GuestDetail`] |
//! | `GET /metrics` | the same numbers for Prometheus |
//!
//! It only reads: whatever a client does, it reads what the engine published and delays no decision.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path as FilePath, PathBuf};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use memtide_engine::Board;
use serde_json::json;
use tokio::net::UnixListener;

use crate::history::History;
use crate::metrics;
use crate::view::{GuestDetail, Status};

/// Why the API cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Somebody answers on the socket.
    #[error("{0}: another memtide answers here: stop it, or set another `socket`")]
    Taken(PathBuf),
    /// The directory of the socket cannot be made.
    #[error("{path}: cannot be created")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The socket cannot be bound.
    #[error("{path}: cannot be bound")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What the handlers read.
#[derive(Clone, Debug)]
pub struct Sources {
    /// What the engine did last.
    pub board: Board,
    /// The last changes of the guests.
    pub history: History,
}

/// Binds the socket at `path` with mode 0660. A socket that nobody answers on any more is replaced.
///
/// # Errors
/// Where somebody answers there, or the file system says no.
pub fn bind(path: &FilePath) -> Result<UnixListener, ApiError> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir)
            .map_err(|source| ApiError::Directory { path: dir.to_owned(), source })?;
    }
    if UnixStream::connect(path).is_ok() {
        return Err(ApiError::Taken(path.to_owned()));
    }
    let failed = |source| ApiError::Bind { path: path.to_owned(), source };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    Ok(listener)
}

/// The routes.
pub fn router(sources: Sources) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/guests/{name}", get(guest))
        .route("/metrics", get(prometheus))
        .fallback(unknown)
        .with_state(sources)
}

async fn status(State(sources): State<Sources>) -> Json<Status> {
    Json(Status::new(&sources.board.latest()))
}

async fn guest(State(sources): State<Sources>, Path(name): Path<String>) -> Response {
    match GuestDetail::find(&sources.board.latest(), &sources.history, &name) {
        Some(detail) => Json(detail).into_response(),
        None => {
            let published = sources.board.latest();
            let names: Vec<String> =
                Status::new(&published).guests.into_iter().map(|guest| guest.name).collect();
            let body = json!({ "error": "no such guest", "guests": names });
            (StatusCode::NOT_FOUND, Json(body)).into_response()
        }
    }
}

async fn prometheus(State(sources): State<Sources>) -> Response {
    let text = metrics::encode(&Status::new(&sources.board.latest()));
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
        .into_response()
}

async fn unknown() -> (StatusCode, Json<serde_json::Value>) {
    let known = ["/v1/status", "/v1/guests/NAME", "/metrics"];
    (StatusCode::NOT_FOUND, Json(json!({ "error": "no such path", "paths": known })))
}
