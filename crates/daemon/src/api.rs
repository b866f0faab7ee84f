//! The local API: JSON over HTTP on a Unix socket, and Prometheus metrics.
//!
//! | path | what |
//! |---|---|
//! | `GET /v1/status` | the ledger and all guests: [`Status`] |
//! | `GET /v1/guests/NAME` | one guest with its last changes: [`GuestDetail`] |
//! | `POST /v1/holds` | leaves guests alone, or manages them again: [`HoldRequest`], answered by [`Held`] |
//! | `GET /metrics` | the same numbers for Prometheus |
//!
//! Programs are told of it in docs/api.md.
//!
//! Whatever a client does, it reads what the engine published and delays no decision; an order is heard by the next one.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path as FilePath, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes as Body;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use memtide_engine::{Board, host_clock};
use memtide_model::{Hold, Keeps, Moment, Order};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};

use crate::history::History;
use crate::metrics;
use crate::orders::Orders;
use crate::view::{GuestDetail, GuestStatus, Held, HoldRequest, Status, Wanted};

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
    #[error("{path}: cannot be created{}", elsewhere(source))]
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
    #[error("{path}: cannot be bound{}", elsewhere(source))]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What a user may do who may not make the socket.
fn elsewhere(why: &io::Error) -> String {
    if !matches!(why.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) {
        return String::new();
    }
    let user = rustix::process::geteuid().as_raw();
    format!(
        " by user {user} (be root, or name a configuration with `--config FILE` that sets `socket` to where this user may write, \
         as in socket = \"/run/user/{user}/memtide.sock\")"
    )
}

/// `sun_path` of unix(7), less the byte that ends it.
pub(crate) const MAX_PATH: usize = 107;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long the answer to an order waits for the decision that heard of it.
const DECIDES_WITHIN: Duration = Duration::from_secs(3);
/// How long a daemon that was just killed may still seem to answer.
const DIES_WITHIN: Duration = Duration::from_secs(1);
/// So many connections are served at a time; others wait.
const MOST_CONNECTIONS: usize = 256;
/// A connection is closed after so long, whatever it does: nobody can keep all of them.
const LONGEST_CONNECTION: Duration = Duration::from_secs(10);
/// A longer body is no order.
const LONGEST_BODY: usize = 16 << 10;
/// How often it looks.
const LOOKS_EVERY: Duration = Duration::from_millis(20);
/// How often a daemon looks whether its socket is still where it was bound.
const LOOKS_FOR_NAME: Duration = Duration::from_secs(5);

/// What the handlers read.
#[derive(Clone, Debug)]
pub struct Sources {
    /// What the engine did last.
    pub board: Board,
    /// The last changes of the guests.
    pub history: History,
    /// Where orders go.
    pub orders: Orders,
    /// What the daemon has given up.
    pub confined: Arc<[String]>,
}

impl Sources {
    fn status(&self) -> Status {
        Status { confined: self.confined.to_vec(), ..Status::new(&self.board.latest()) }
    }
}

/// Where the API answers.
#[derive(Debug)]
pub struct Endpoint {
    /// The socket.
    pub listener: UnixListener,
    /// Its name.
    pub name: Name,
    /// Whether another memtide answers where this one should.
    pub is_beside: bool,
}

impl Endpoint {
    /// Binds the socket at `path`, or, where another memtide answers there, one of our own beside it: `memtide-PID.sock`.
    ///
    /// # Errors
    /// Where the file system says no, or something else than a socket is there.
    pub fn open(path: &FilePath) -> Result<Self, ApiError> {
        let own = beside(path);
        let until = Instant::now() + DIES_WITHIN;
        let mut bound = bind(path);
        while matches!(bound, Err(ApiError::Taken(_))) && Instant::now() < until {
            thread::sleep(LOOKS_EVERY);
            bound = bind(path);
        }
        let (listener, path, is_beside) = match bound {
            Err(taken @ ApiError::Taken(_)) => (bind(&own).map_err(|_| taken)?, own.as_path(), true),
            bound => (bound?, path, false),
        };
        let name = Name::of(path).map_err(|source| ApiError::Bind { path: path.to_owned(), source })?;
        Ok(Self { listener, name, is_beside })
    }
}

/// `NAME-PID.EXTENSION`.
fn beside(path: &FilePath) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", std::process::id()));
    let mut own = path.with_file_name(name);
    if let Some(extension) = path.extension() {
        own.set_extension(extension);
    }
    own
}

/// Binds the socket at `path` with mode 0660, in a directory that is made with mode 0750 where it is missing. A socket that nobody answers on any more is replaced.
///
/// # Errors
/// Where somebody answers there, or the file system says no.
fn bind(path: &FilePath) -> Result<UnixListener, ApiError> {
    if path.as_os_str().len() > MAX_PATH {
        return Err(ApiError::TooLong(path.to_owned()));
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let made = DirBuilder::new().recursive(true).mode(0o750).create(dir);
        made.map_err(|source| ApiError::Directory { path: dir.to_owned(), source })?;
    }
    let failed = |source| ApiError::Bind { path: path.to_owned(), source };
    nothing_else_is_at(path)?;
    match fs::symlink_metadata(path) {
        Ok(_) => match knock(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            Ok(()) => return Err(ApiError::Taken(path.to_owned())),
            Err(error) => return Err(failed(error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    listen(path).map_err(failed)
}

/// Where the API is to answer there is a socket, or nothing that can be seen.
///
/// # Errors
/// Where something else is there.
pub fn nothing_else_is_at(path: &FilePath) -> Result<(), ApiError> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => Err(ApiError::NoSocket(path.to_owned())),
        _ => Ok(()),
    }
}

/// A socket that never was open to more than it is in the end: its mode is that of the descriptor, less the umask, when it is bound, and
/// nobody can connect before it listens.
fn listen(path: &FilePath) -> io::Result<UnixListener> {
    let socket = socket()?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// A Unix socket that waits for nobody.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The name of a bound socket, removed when this is dropped, unless another daemon's socket has it then.
#[derive(Debug)]
pub struct Name {
    path: PathBuf,
    identity: (u64, u64),
}

impl Name {
    /// The name `path` of the socket that was just bound there.
    ///
    /// # Errors
    /// Where there is none.
    pub fn of(path: &FilePath) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }

    /// Waits until the path names this socket no more, and says so: nobody can ask the daemon then.
    pub fn watch(&self) -> impl Future<Output = ()> + Send + 'static {
        let (path, ours) = (self.path.clone(), self.identity);
        async move {
            while identity(&path).is_ok_and(|there| there == ours) {
                tokio::time::sleep(LOOKS_FOR_NAME).await;
            }
            warn!(
                "{}: the socket was removed or replaced: nobody can ask this daemon any more, which manages on; end it and start \
                 another, which goes on from its journal",
                path.display()
            );
        }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &FilePath {
        &self.path
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let still_ours = identity(&self.path).is_ok_and(|there| there == self.identity);
        if still_ours && let Err(error) = fs::remove_file(&self.path) {
            warn!("{}: not removed: {error}", self.path.display());
        }
    }
}

fn identity(path: &FilePath) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

/// Answers at `listener` on a thread of its own, for as long as the process lives. `confine` is the first that it does; what comes of it is
/// added to what `sources` tell.
///
/// # Errors
/// Where there is no thread.
pub fn serve(
    listener: UnixListener,
    mut sources: Sources,
    confine: impl FnOnce() -> Vec<String> + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = move || {
        sources.confined = sources.confined.iter().cloned().chain(confine()).collect();
        info!("confined: {}", sources.confined.join("; "));
        runtime.block_on(async {
            let served = match tokio::net::UnixListener::from_std(listener) {
                Ok(listener) => {
                    let listener = Bounded::new(listener, MOST_CONNECTIONS, LONGEST_CONNECTION);
                    axum::serve(listener, router(sources)).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                warn!("the API ended: {error}");
            }
        });
    };
    thread::Builder::new().name("api".to_owned()).spawn(answer)?;
    Ok(())
}

/// Whether somebody listens on the socket at `path`, and be it one that is stopped.
pub fn is_answered(path: &FilePath) -> bool {
    knock(path).is_ok()
}

/// Connects to the socket at `path`, and waits for nobody: where the queue of those who wait is full, somebody listens.
fn knock(path: &FilePath) -> io::Result<()> {
    match rustix::net::connect(socket()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::AGAIN) => Ok(()),
        other => Ok(other?),
    }
}

/// A listener whose connections are bounded in number and time.
#[derive(Debug)]
struct Bounded {
    listener: tokio::net::UnixListener,
    free: Arc<Semaphore>,
    longest: Duration,
}

/// One of its connections.
#[derive(Debug)]
struct Connection {
    stream: tokio::net::UnixStream,
    ends: Pin<Box<tokio::time::Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Bounded {
    fn new(listener: tokio::net::UnixListener, most: usize, longest: Duration) -> Self {
        Self { listener, free: Arc::new(Semaphore::new(most)), longest }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = tokio::net::unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let free = Arc::clone(&self.free);
        let place = free.acquire_owned().await.expect("nobody closes the semaphore");
        // Waits and tries again where the kernel refuses.
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

/// The routes, as clients are told them.
const ROUTES: [&str; 4] = ["GET /v1/status", "GET /v1/guests/NAME", "POST /v1/holds", "GET /metrics"];

/// The routes.
pub fn router(sources: Sources) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/guests/{name}", get(guest))
        .route("/v1/holds", post(holds).layer(DefaultBodyLimit::max(LONGEST_BODY)))
        .route("/metrics", get(prometheus))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(sources)
}

async fn status(State(sources): State<Sources>) -> Json<Status> {
    Json(sources.status())
}

async fn guest(State(sources): State<Sources>, name: Result<Path<String>, PathRejection>) -> Response {
    let Ok(Path(name)) = name else {
        return refused(
            StatusCode::BAD_REQUEST,
            "the name is not UTF-8, written with %XX where a URL needs it",
        );
    };
    match GuestDetail::find(&sources.board.latest(), &sources.history, &name) {
        Some(detail) => Json(detail).into_response(),
        None => no_such_guest(&sources.status()),
    }
}

/// Passes an order on, and answers once a decision has heard of it.
async fn holds(State(sources): State<Sources>, body: Result<Body, BytesRejection>) -> Response {
    let request = match body.map(|body| HoldRequest::read(&body)) {
        Ok(Ok(request)) => request,
        Ok(Err(why)) => return refused(StatusCode::BAD_REQUEST, &why),
        Err(rejection) => {
            return refused(rejection.status(), "the body is longer than any order, or ended early");
        }
    };
    let turn = sources.orders.turn().await;
    let status = sources.status();
    let wanted = |name: &str| request.guest.as_ref().is_none_or(|guest| guest == name);
    let about: Vec<_> = status.guests.iter().filter(|guest| wanted(&guest.name)).collect();
    if about.is_empty() && request.guest.is_some() {
        return no_such_guest(&status);
    }
    let now = host_clock();
    let until = request.for_span.map(|span| now.after(span));
    let hold = match request.hold {
        Wanted::Hold => Some(Hold { keeps: Keeps::Size, until }),
        Wanted::Release => Some(Hold { keeps: Keeps::Limit, until }),
        Wanted::Resume => None,
    };
    let orders = about.iter().map(|guest| Order { guest: guest.report.id.clone(), hold }).collect();
    if !sources.orders.give(orders) {
        let why = "too many orders wait for a decision: try again";
        return refused(StatusCode::SERVICE_UNAVAILABLE, why);
    }
    drop(turn);
    info!("the operator's order: {}", in_words(&request, &about));
    let decided = decided_after(&sources.board, now).await;
    let Status { mode, warnings, counters, mut guests, .. } = sources.status();
    guests.retain(|guest| wanted(&guest.name));
    let written = counters.ticks_not_journalled == status.counters.ticks_not_journalled;
    Json(Held { mode, decided, written, warnings, guests }).into_response()
}

/// The order as it would be typed, for the log.
fn in_words(request: &HoldRequest, about: &[&GuestStatus]) -> String {
    let whom = match about {
        [guest] => guest.name.clone(),
        all => format!("all {} guests", all.len()),
    };
    let time = request.for_span.map_or(String::new(), |span| format!(" for {span}"));
    format!("{} {whom}{time}", request.hold)
}

/// Waits for a decision whose snapshot was taken after `moment`. `false`: there was none within [`DECIDES_WITHIN`].
async fn decided_after(board: &Board, moment: Moment) -> bool {
    let by = tokio::time::Instant::now() + DECIDES_WITHIN;
    loop {
        let latest = board.latest();
        if latest.last.as_ref().is_some_and(|last| last.seen.taken_at > moment) {
            return true;
        }
        if tokio::time::Instant::now() >= by {
            return false;
        }
        tokio::time::sleep(LOOKS_EVERY).await;
    }
}

fn no_such_guest(status: &Status) -> Response {
    let names: Vec<&str> = status.guests.iter().map(|guest| guest.name.as_str()).collect();
    let body = json!({ "error": "no such guest", "guests": names });
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

async fn prometheus(State(sources): State<Sources>) -> Response {
    let text = metrics::encode(&sources.status());
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
        .into_response()
}

async fn unknown() -> Response {
    let body = json!({ "error": "no such path", "paths": ROUTES });
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

async fn wrong_method(method: Method) -> Response {
    let body = json!({ "error": format!("{method} is not for this path"), "paths": ROUTES });
    (StatusCode::METHOD_NOT_ALLOWED, Json(body)).into_response()
}

/// An answer that only says what is wrong.
fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn a_daemon_that_is_stopped_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memtide.sock");
        // Bound, and nobody accepts.
        let _stopped = listen(&path).unwrap();
        let connect = || {
            let socket = socket().unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).map(|()| socket)
        };
        let mut queue = Vec::new();
        let full = loop {
            match connect() {
                Ok(socket) => queue.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(full, Errno::AGAIN);
        assert!(is_answered(&path));
        assert!(matches!(bind(&path), Err(ApiError::Taken(_))));
    }

    #[test]
    fn nothing_but_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("precious");
        std::fs::write(&file, "precious").unwrap();
        assert!(matches!(bind(&file), Err(ApiError::NoSocket(_))));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

        let long = dir.path().join("x".repeat(100));
        assert!(matches!(bind(&long), Err(ApiError::TooLong(_))));

        let socket = dir.path().join("deep/memtide.sock");
        let listener = bind(&socket).unwrap();
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(bind(&socket), Err(ApiError::Taken(_))));
        drop(listener);
        bind(&socket).unwrap();
        assert!(socket.exists());
    }

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

    /// What the router answers: the status, the headers and the body.
    async fn answer(request: &str, body: &str) -> (u16, String, String) {
        let (wake, _woken) = std::sync::mpsc::channel();
        let sources = Sources {
            board: Board::new(memtide_model::Config::default()),
            history: History::default(),
            orders: Orders::new(wake),
            confined: Arc::new([]),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memtide.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        tokio::spawn(async { axum::serve(listener, router(sources)).await });
        let mut asks = tokio::net::UnixStream::connect(&path).await.unwrap();
        let request = format!("{request} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        asks.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        asks.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_owned())
    }

    /// What the router answers to a wrong request, in its own words.
    async fn refusal(request: &str, body: &str) -> (u16, String) {
        let (status, head, body) = answer(request, body).await;
        assert!(head.contains("content-type: application/json"), "{request}: {head}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        (status, body["error"].as_str().unwrap().to_owned())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn every_mistake_is_answered_as_json() {
        for (request, body, status, words) in [
            ("GET /", "", 404, "no such path"),
            ("DELETE /v1/status", "", 405, "DELETE is not for this path"),
            ("GET /v1/holds", "", 405, "GET is not for this path"),
            ("GET /v1/guests/web1", "", 404, "no such guest"),
            ("GET /v1/guests/%ff", "", 400, "not UTF-8"),
            ("POST /v1/holds", "", 400, "{\"guest\": \"web1\", \"hold\": \"hold\", \"for\": 60000}"),
            ("POST /v1/holds", "{\"hold\": \"up\"}", 400, "expected one of `hold`, `release`, `resume`"),
            ("POST /v1/holds", "{\"hold\": \"hold\", \"force\": 1}", 400, "unknown field `force`"),
            ("POST /v1/holds", "{\"hold\": \"hold\", \"for\": 5}", 400, "from a second to 100 years"),
            ("POST /v1/holds", "{\"guest\": \"web1\", \"hold\": \"hold\"}", 404, "no such guest"),
        ] {
            let (given, said) = refusal(request, body).await;
            assert_eq!(given, status, "{request} {said}");
            assert!(said.contains(words), "{request}: {said}");
        }
        let (given, said) = refusal("POST /v1/holds", &" ".repeat(LONGEST_BODY + 1)).await;
        assert!(given == 413 && said.contains("longer than any order"), "{given} {said}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_routes_that_clients_are_told_are_there_and_in_the_document() {
        let document = include_str!("../../../docs/api.md");
        let told = document.lines().filter_map(|line| line.strip_prefix("## `")?.strip_suffix('`'));
        assert_eq!(told.collect::<Vec<_>>(), ROUTES);
        for route in ROUTES {
            let (status, _, body) = answer(route, "").await;
            assert!(status != 405 && !body.contains("no such path"), "{route}: {status} {body}");
        }
    }

    #[test]
    fn where_another_answers_a_second_one_answers_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("memtide.sock");
        let first = Endpoint::open(&socket).unwrap();
        assert!(!first.is_beside);
        let second = Endpoint::open(&socket).unwrap();
        let own = dir.path().join(format!("memtide-{}.sock", std::process::id()));
        assert!(second.is_beside && second.name.path() == own && own.exists());
        drop(second);
        assert!(socket.exists() && !own.exists());
    }
}
