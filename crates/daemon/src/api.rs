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
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
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
    /// Something else than a socket is there.
    #[error("{0}: this is no socket, and stays as it is: set another `socket`")]
    NoSocket(PathBuf),
    /// The directory of the socket cannot be made.
    #[error("{path}: cannot be created")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The kernel keeps no longer names of sockets.
    #[error("{0}: a socket's path has at most {MAX_PATH} bytes: set a shorter `socket`")]
    TooLong(PathBuf),
    /// The socket cannot be bound.
    #[error("{path}: cannot be bound")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// `sun_path` of unix(7), less the byte that ends it.
const MAX_PATH: usize = 107;

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
    if path.as_os_str().len() > MAX_PATH {
        return Err(ApiError::TooLong(path.to_owned()));
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir)
            .map_err(|source| ApiError::Directory { path: dir.to_owned(), source })?;
    }
    let failed = |source| ApiError::Bind { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => return Err(ApiError::NoSocket(path.to_owned())),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            Ok(_) => return Err(ApiError::Taken(path.to_owned())),
            Err(error) => return Err(failed(error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    Ok(listener)
}

/// The identity of the socket at `path`, so that at the end no other daemon's is removed.
///
/// # Errors
/// Where there is none.
pub fn identity(path: &FilePath) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(path: &FilePath) -> Result<UnixListener, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        bind(path)
    }

    #[test]
    fn nothing_but_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("precious");
        std::fs::write(&file, "precious").unwrap();
        assert!(matches!(bound(&file), Err(ApiError::NoSocket(_))));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

        let long = dir.path().join("x".repeat(100));
        assert!(matches!(bound(&long), Err(ApiError::TooLong(_))));

        let socket = dir.path().join("deep/memtide.sock");
        let listener = bound(&socket).unwrap();
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(bound(&socket), Err(ApiError::Taken(_))));
        drop(listener);
        bound(&socket).unwrap();
        assert!(socket.exists());
    }
}
