//! The server: a bounded number of connections on the loopback interface.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::files::{self, PageFile, Way};
use crate::forward::{self, Body, whole};
use crate::gate::{Gate, Refusal};
use crate::routes;
use crate::token::Token;

/// Connections at a time. A page has up to six.
const MOST_CONNECTIONS: usize = 64;
/// A connection is closed if the head of a request takes longer than this, or if none comes.
const LONGEST_HEAD: Duration = Duration::from_secs(10);
/// The body of an order must have come after this time.
const LONGEST_BODY: Duration = Duration::from_secs(5);
/// No order is longer. The daemon takes no longer one either.
const LARGEST_BODY: usize = 16 << 10;

/// What the page may do: run its own scripts and styles, ask the server that it came from, and nothing else. Texts never become markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 7] = [
    (HeaderName::from_static("content-security-policy"), POLICY),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (CACHE_CONTROL, "no-store"),
];

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The port cannot be bound.
    #[error("cannot listen at {address}: another program may use this port; name another one with --port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// There is no secret without it.
    #[error("the kernel gives no random bytes")]
    Token(#[source] io::Error),
    /// The system refuses timers or sockets.
    #[error("the system refuses timers or sockets")]
    System(#[source] io::Error),
}

/// The page of a daemon, at an address of the loopback interface.
pub struct Web {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
    socket: PathBuf,
}

/// What a connection needs.
struct Shared {
    gate: Gate,
    files: Vec<PageFile>,
    socket: PathBuf,
}

impl Web {
    /// Binds `port` of the loopback interface for the page of the daemon at `socket`. With port 0 the kernel chooses one.
    ///
    /// # Errors
    /// If the port cannot be bound.
    pub fn open(port: u16, socket: &Path) -> Result<Self, WebError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let failed = |source| WebError::Bind { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let token = Token::random().map_err(WebError::Token)?;
        Ok(Self { listener, address, token, socket: socket.to_owned() })
    }

    /// The address to open in a browser. The token stands behind `#`, so browsers send it to nobody: the page reads it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/#{}", self.address, self.token.reveal())
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    /// If the system refuses timers or sockets.
    pub fn serve(self) -> Result<(), WebError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(WebError::System)?.block_on(self.answer_all())
    }

    async fn answer_all(self) -> Result<(), WebError> {
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(WebError::System)?;
        let gate = Gate::new(self.address, self.token);
        let shared = Arc::new(Shared { gate, files: files::of(Way::Web), socket: self.socket });
        let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&free).acquire_owned().await else { return Ok(()) };
            let Ok((stream, _)) = listener.accept().await else {
                // No descriptor is free: some connection will end.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let _slot = slot;
                let answers = service_fn(|request| {
                    let shared = Arc::clone(&shared);
                    async move { Ok::<_, hyper::Error>(shared.answer(request).await) }
                });
                let mut server = hyper::server::conn::http1::Builder::new();
                server.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD).max_buf_size(LARGEST_BODY);
                // A client that breaks off is no event.
                let _ended = server.serve_connection(TokioIo::new(stream), answers).await;
            });
        }
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let mut answer = match self.try_answer(request).await {
            Ok(answer) => answer,
            Err((status, why)) => {
                let mut answer = Response::new(whole(json!({ "error": why }).to_string()));
                *answer.status_mut() = status;
                answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                // A client that is refused keeps no connection, and its body is not read.
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                answer
            }
        };
        for (name, value) in HEADERS {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    async fn try_answer(&self, request: Request<Incoming>) -> Result<Response<Body>, (StatusCode, String)> {
        let (head, body) = request.into_parts();
        let refused = |refusal: Refusal| {
            let status =
                if refusal == Refusal::Token { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
            (status, refusal.to_string())
        };
        self.gate.admits(&head.headers).map_err(refused)?;
        if head.method == Method::GET
            && let Some(file) = self.file(head.uri.path())
        {
            let mut answer = Response::new(whole(file.text.clone()));
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
            return Ok(answer);
        }
        self.gate.trusts(&head.headers).map_err(refused)?;
        if !routes::are_open(&head.method, head.uri.path()) {
            return Err((StatusCode::NOT_FOUND, "the page has no such path".to_owned()));
        }
        let body = whole_body(body).await?;
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let answer = forward::ask(&self.socket, head.method, path, body).await;
        answer.map_err(|error| (StatusCode::BAD_GATEWAY, error.to_string()))
    }

    fn file(&self, path: &str) -> Option<&PageFile> {
        let name = if path == "/" { "index.html" } else { path.strip_prefix('/')? };
        self.files.iter().find(|file| file.name == name)
    }
}

/// The body of an order.
async fn whole_body(body: Incoming) -> Result<Bytes, (StatusCode, String)> {
    let body = tokio::time::timeout(LONGEST_BODY, Limited::new(body, LARGEST_BODY).collect()).await;
    match body {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        _ => Err((
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is longer than any order, or ended early".to_owned(),
        )),
    }
}
