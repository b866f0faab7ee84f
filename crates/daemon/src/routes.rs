//! The local API: JSON over HTTP on a Unix socket, and Prometheus metrics.
//!
//! | path | what |
//! |---|---|
//! | `GET /v1/status` | the ledger and all guests: [`Status`] |
//! | `GET /v1/guests/NAME` | one guest with its last changes: [`GuestDetail`] |
//! | `GET /v1/ksm` | the kernel's merging of equal pages: [`KsmStatus`] |
//! | `GET /v1/events` | each decision and each change, as server-sent events |
//! | `POST /v1/reclaims` | takes memory from a guest: from its cgroup, page cache through its agent, or free memory by its balloon: [`ReclaimRequest`], answered by [`ReclaimAnswer`] |
//! | `POST /v1/holds` | leaves guests alone, or manages them again: [`HoldRequest`], answered by [`HoldAnswer`] |
//! | `GET /metrics` | the same numbers for Prometheus |
//!
//! docs/api.md describes it for programs.
//!
//! A client only reads what the engine published, and never delays a decision. The next decision hears an order.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes as Body;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Extension, Path, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use memtide_api::history::History;
use memtide_engine::{Board, host_clock};
use memtide_model::{Hold, Keeps, Moment, Order, Ordered, Reason};
use serde_json::json;
use tracing::{info, warn};

use crate::bounded::{Bounded, Lease};
use crate::events::Events;
use crate::metrics;
use crate::orders::{Heard, Orders};
use memtide_api::history::Tried;
use memtide_api::view::{
    GuestDetail, GuestStatus, HoldAnswer, HoldRequest, KsmStatus, ReclaimAnswer, ReclaimFrom, ReclaimRequest,
    Status, Wanted,
};

/// The longest time that the answer to an order waits for the decision that hears the order.
const DECIDES_WITHIN: Duration = Duration::from_secs(3);
/// The number of connections served at a time; others wait.
const MOST_CONNECTIONS: usize = 256;
/// A connection is closed after this time, so nobody can keep all of them.
const LONGEST_CONNECTION: Duration = Duration::from_secs(10);
/// No order is longer than this.
const LONGEST_BODY: usize = 16 << 10;
/// The sources of the handlers.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The last state of the engine.
    pub board: Board,
    /// The last changes of the guests.
    pub history: History,
    /// The queue of orders.
    pub orders: Orders,
    /// The rights that the daemon has given up.
    pub confined: Arc<[String]>,
    events: Events,
}

impl Sources {
    /// Sources of the engine that writes on `board`.
    #[must_use]
    pub fn new(board: Board, history: History, orders: Orders, confined: Vec<String>) -> Self {
        Self { events: Events::of(&board), board, history, orders, confined: confined.into() }
    }

    fn status(&self) -> Status {
        Status { confined: self.confined.to_vec(), ..Status::new(&self.board.latest()) }
    }
}

/// Answers at `listener` on its own thread, as long as the process lives. The thread first calls `confine`, and adds the
/// result to the rights given up in `sources`.
///
/// # Errors
/// If no thread can be started.
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
                    let service = router(sources).into_make_service_with_connect_info::<Lease>();
                    axum::serve(listener, service).await
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

/// The routes, as clients see them.
const ROUTES: [&str; 7] = [
    "GET /v1/status",
    "GET /v1/guests/NAME",
    "GET /v1/ksm",
    "GET /v1/events",
    "POST /v1/holds",
    "POST /v1/reclaims",
    "GET /metrics",
];

/// The routes.
pub fn router(sources: Sources) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/guests/{name}", get(guest))
        .route("/v1/events", get(events))
        .route("/v1/ksm", get(ksm))
        .route("/v1/holds", post(holds).layer(DefaultBodyLimit::max(LONGEST_BODY)))
        .route("/v1/reclaims", post(reclaims).layer(DefaultBodyLimit::max(LONGEST_BODY)))
        .route("/metrics", get(prometheus))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(sources)
}

async fn status(State(sources): State<Sources>) -> Json<Status> {
    Json(sources.status())
}

async fn ksm(State(sources): State<Sources>) -> Json<KsmStatus> {
    Json(KsmStatus::new(sources.status(), &sources.history))
}

async fn events(State(sources): State<Sources>, lease: Option<Extension<ConnectInfo<Lease>>>) -> Response {
    let lease = lease.map(|Extension(ConnectInfo(lease))| lease);
    let stream = sources.events.stream(&sources.board.latest(), Arc::clone(&sources.confined), lease);
    stream.unwrap_or_else(|| {
        refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many clients listen to events: close one, and try again",
        )
    })
}

async fn guest(State(sources): State<Sources>, name: Result<Path<String>, PathRejection>) -> Response {
    let Ok(Path(name)) = name else {
        return refused(
            StatusCode::BAD_REQUEST,
            "the name is not UTF-8, with %XX escapes where a URL needs them",
        );
    };
    match GuestDetail::find(&sources.board.latest(), &sources.history, &name) {
        Some(detail) => Json(detail).into_response(),
        None => no_such_guest(&sources.status()),
    }
}

/// Passes an order on, and answers when a decision has heard it.
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
    let ordered = match request.hold {
        Wanted::Hold => Ordered::Leave(Hold { keeps: Keeps::Size, until }),
        Wanted::Release => Ordered::Leave(Hold { keeps: Keeps::Limit, until }),
        Wanted::Resume => Ordered::Manage,
    };
    let orders = about.iter().map(|guest| Order { guest: guest.report.id.clone(), ordered }).collect();
    let Some(heard) = sources.orders.give(orders) else { return too_many_orders() };
    drop(turn);
    info!("the operator's order: {}", in_words(&request, &about));
    let decided = decided(&sources, heard).await.is_some();
    let Status { mode, warnings, counters, mut guests, .. } = sources.status();
    guests.retain(|guest| wanted(&guest.name));
    let written = counters.ticks_not_journalled == status.counters.ticks_not_journalled;
    Json(HoldAnswer { mode, decided, written, warnings, guests }).into_response()
}

/// Orders a reclaim, and answers when a decision has heard it.
async fn reclaims(State(sources): State<Sources>, body: Result<Body, BytesRejection>) -> Response {
    let request = match body.map(|body| ReclaimRequest::read(&body)) {
        Ok(Ok(request)) => request,
        Ok(Err(why)) => return refused(StatusCode::BAD_REQUEST, &why),
        Err(rejection) => {
            return refused(rejection.status(), "the body is longer than any order, or ended early");
        }
    };
    let turn = sources.orders.turn().await;
    let status = sources.status();
    let Some(guest) = status.guests.iter().find(|guest| guest.name == request.guest) else {
        return no_such_guest(&status);
    };
    let id = guest.report.id.clone();
    let bytes = request.bytes;
    // What is asked for begins like this: it may be less than was ordered.
    let (ordered, asked) = match request.from {
        ReclaimFrom::Cgroup => (Ordered::Reclaim(bytes), "reclaim "),
        ReclaimFrom::Agent => (Ordered::Trim(bytes), "trim "),
        ReclaimFrom::Balloon => (Ordered::Fetch(bytes), "target "),
    };
    let order = Order { guest: id.clone(), ordered };
    let Some(heard) = sources.orders.give(vec![order]) else { return too_many_orders() };
    drop(turn);
    info!("the operator's order: reclaim {bytes} ({}, {})", guest.name, request.from);
    let decided = decided(&sources, heard).await;
    let why = Reason::Ordered.to_string();
    let is_it =
        |tried: &Tried| Some(tried.at) == decided && tried.change.starts_with(asked) && tried.reason == why;
    let tried = sources.history.of(&id).into_iter().rev().find(is_it);
    let Status { mode, guests, .. } = sources.status();
    match guests.into_iter().find(|guest| guest.report.id == id) {
        Some(guest) => Json(ReclaimAnswer { mode, tried, guest }).into_response(),
        None => no_such_guest(&status),
    }
}

/// The order as typed, for the log.
fn in_words(request: &HoldRequest, about: &[&GuestStatus]) -> String {
    let whom = match about {
        [guest] => guest.name.clone(),
        all => format!("all {} guests", all.len()),
    };
    let time = request.for_span.map_or(String::new(), |span| format!(" for {span}"));
    format!("{} {whom}{time}", request.hold)
}

/// Waits for the decision that heard an order, until its actions are done. Returns the moment of its snapshot; `None` if it does not come
/// within [`DECIDES_WITHIN`].
async fn decided(sources: &Sources, heard: Heard) -> Option<Moment> {
    let mut ticks = sources.events.subscribe();
    let by = tokio::time::Instant::now() + DECIDES_WITHIN;
    let at = tokio::time::timeout_at(by, heard).await.ok()?.ok()?;
    loop {
        let latest = sources.board.latest();
        if latest.last.as_ref().is_some_and(|last| last.seen.taken_at >= at) {
            return Some(at);
        }
        tokio::time::timeout_at(by, ticks.recv()).await.ok()?.ok();
    }
}

fn too_many_orders() -> Response {
    refused(StatusCode::SERVICE_UNAVAILABLE, "too many orders wait for a decision: try again")
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
    let body = json!({ "error": format!("{method} is not allowed for this path"), "paths": ROUTES });
    (StatusCode::METHOD_NOT_ALLOWED, Json(body)).into_response()
}

/// An answer with only an error.
fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// What the router answers: the status, the headers and the body.
    async fn answer(request: &str, body: &str) -> (u16, String, String) {
        let (wake, _woken) = std::sync::mpsc::channel();
        let board = Board::new(memtide_model::Config::default());
        let sources = Sources::new(board, History::default(), Orders::new(wake), Vec::new());
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
            ("DELETE /v1/status", "", 405, "DELETE is not allowed for this path"),
            ("GET /v1/holds", "", 405, "GET is not allowed for this path"),
            ("GET /v1/guests/web1", "", 404, "no such guest"),
            ("GET /v1/guests/%ff", "", 400, "not UTF-8"),
            ("POST /v1/holds", "", 400, "{\"guest\": \"web1\", \"hold\": \"hold\", \"for\": 60000}"),
            ("POST /v1/holds", "{\"hold\": \"up\"}", 400, "expected one of `hold`, `release`, `resume`"),
            ("POST /v1/holds", "{\"hold\": \"hold\", \"force\": 1}", 400, "unknown field `force`"),
            ("POST /v1/holds", "{\"hold\": \"hold\", \"for\": 5}", 400, "from a second to 100 years"),
            ("POST /v1/holds", "{\"guest\": \"web1\", \"hold\": \"hold\"}", 404, "no such guest"),
            ("GET /v1/reclaims", "", 405, "GET is not allowed for this path"),
            ("POST /v1/reclaims", "", 400, "{\"guest\": \"web1\", \"bytes\": 67108864}"),
            ("POST /v1/reclaims", "{\"guest\": \"web1\"}", 400, "missing field `bytes`"),
            ("POST /v1/reclaims", "{\"bytes\": 4096}", 400, "missing field `guest`"),
            ("POST /v1/reclaims", "{\"guest\": \"web1\", \"bytes\": 0}", 400, "more than zero"),
            ("POST /v1/reclaims", "{\"guest\": \"web1\", \"bytes\": 1073741825}", 400, "at most 1 GiB"),
            ("POST /v1/reclaims", "{\"guest\": \"web1\", \"bytes\": 4096}", 404, "no such guest"),
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
        // A stream of events does not end.
        for route in ROUTES.into_iter().filter(|route| !route.ends_with("/events")) {
            let (status, _, body) = answer(route, "").await;
            assert!(status != 405 && !body.contains("no such path"), "{route}: {status} {body}");
        }
    }
}
