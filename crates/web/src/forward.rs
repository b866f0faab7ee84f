//! Asks the daemon what the page asked, and passes the answer on as it comes.

use std::io;
use std::path::Path;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// A body that comes in pieces.
pub type Body = BoxBody<Bytes, hyper::Error>;

/// A body that is there.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// Why the daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// Nobody listens at the socket.
    #[error("no daemon answers at {0}: start it, and this page goes on by itself")]
    Nobody(String),
    /// This user may not use the socket.
    #[error("the user of `memtide web` may not use {0}: add the user to the socket's group")]
    Forbidden(String),
    /// The connection failed.
    #[error("the connection to the daemon failed")]
    Connection(#[from] hyper::Error),
    /// The path of the request is no path.
    #[error("the request has no valid path")]
    Path(#[from] hyper::http::Error),
}

/// The daemon's answer at `socket`. Of the request, only the method, the path with its query and the body are passed on; of the answer, the
/// status, the type and the body. When the page closes its connection, so does this.
///
/// # Errors
/// Why there is no answer.
pub async fn ask(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Response<Body>, ForwardError> {
    let named = || socket.display().to_string();
    let stream = UnixStream::connect(socket).await.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => ForwardError::Forbidden(named()),
        _ => ForwardError::Nobody(named()),
    })?;
    let (mut sender, wire) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Its errors are errors of the request, too.
    tokio::spawn(wire);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "memtide")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let mut answer = Response::new(body.boxed());
    *answer.status_mut() = head.status;
    let kind = head.headers.get(CONTENT_TYPE).cloned();
    let kind = kind.unwrap_or(HeaderValue::from_static("application/octet-stream"));
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(answer)
}
