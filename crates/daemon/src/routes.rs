//! The local API: JSON over HTTP on a Unix socket, and Prometheus metrics.
//!
//! | path | what |
//! |---|---|
//! | `GET /v1/status` | the ledger and all guests: [`Status`] |
//! | `GET /v1/guests/NAME` | one guest with its last changes: [`GuestDetail`] |
//! | `GET /v1/guests/NAME/explanation` | why it has its memory, in words: [`Explanation`](memtide_api::explain::Explanation) |
//! | `GET /v1/history` | the host's last ten minutes: [`LastMinutes`](memtide_api::recent::LastMinutes) |
//! | `GET /v1/ksm` | the kernel's merging of equal pages: [`KsmStatus`] |
//! | `GET /v1/events` | each decision and each change, as server-sent events |
//! | `POST /v1/reclaims` | reclaims what a guest can spare, and waits until the host has it: [`ReclaimRequest`], answered by [`ReclaimAnswer`](memtide_api::reclaim::ReclaimAnswer) |
//! | `POST /v1/cgroup-reclaims` | reclaims memory from a guest's cgroup: [`CgroupReclaimRequest`], answered by [`CgroupReclaimAnswer`](memtide_api::view::CgroupReclaimAnswer) |
//! | `POST /v1/holds` | leaves guests alone, or manages them again: [`HoldRequest`], answered by [`HoldAnswer`](memtide_api::view::HoldAnswer) |
//! | `GET /metrics` | these numbers for Prometheus: the list of memtide-metrics |
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
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use memtide_api::explain::explain;
use memtide_api::reclaim::ReclaimRequest;
use memtide_api::view::{CgroupReclaimRequest, GuestDetail, HoldRequest, KsmStatus, Status};
use memtide_model::Moment;
use serde::Serialize;
use serde_json::json;
use tracing::{info, warn};

use crate::bounded::{Bounded, Client};
use crate::operator::{self, Refusal};
use crate::reclaim;
use crate::sources::Sources;

/// The number of connections served at a time; others wait.
const MOST_CONNECTIONS: usize = 256;
/// A connection is closed after this time, so nobody can keep all of them.
const LONGEST_CONNECTION: Duration = Duration::from_secs(10);
/// No order is longer than this.
const LONGEST_BODY: usize = 16 << 10;
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
                    let service = router(sources).into_make_service_with_connect_info::<Client>();
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
const ROUTES: [&str; 10] = [
    "GET /v1/status",
    "GET /v1/guests/NAME",
    "GET /v1/guests/NAME/explanation",
    "GET /v1/history",
    "GET /v1/ksm",
    "GET /v1/events",
    "POST /v1/holds",
    "POST /v1/reclaims",
    "POST /v1/cgroup-reclaims",
    "GET /metrics",
];

/// The routes.
pub fn router(sources: Sources) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/guests/{name}", get(guest))
        .route("/v1/guests/{name}/explanation", get(explanation))
        .route("/v1/history", get(history))
        .route("/v1/events", get(events))
        .route("/v1/ksm", get(ksm))
        .route("/v1/holds", post(holds).layer(DefaultBodyLimit::max(LONGEST_BODY)))
        .route("/v1/reclaims", post(reclaims).layer(DefaultBodyLimit::max(LONGEST_BODY)))
        .route("/v1/cgroup-reclaims", post(cgroup_reclaims).layer(DefaultBodyLimit::max(LONGEST_BODY)))
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

async fn events(State(sources): State<Sources>, ConnectInfo(client): ConnectInfo<Client>) -> Response {
    let stream = sources.events.stream(&sources.board.latest(), Arc::clone(&sources.confined), client);
    stream.unwrap_or_else(|| {
        refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many clients listen to events: close one, and try again",
        )
    })
}

async fn guest(State(sources): State<Sources>, name: Result<Path<String>, PathRejection>) -> Response {
    match detail(&sources, name) {
        Ok(detail) => Json(detail).into_response(),
        Err(mistake) => mistake,
    }
}

async fn explanation(State(sources): State<Sources>, name: Result<Path<String>, PathRejection>) -> Response {
    match detail(&sources, name) {
        Ok(detail) => Json(explain(&detail)).into_response(),
        Err(mistake) => mistake,
    }
}

/// The guest of this name, or the answer that there is none.
#[expect(clippy::result_large_err, reason = "the answer is returned at once")]
fn detail(sources: &Sources, name: Result<Path<String>, PathRejection>) -> Result<GuestDetail, Response> {
    let Ok(Path(name)) = name else {
        return Err(refused(
            StatusCode::BAD_REQUEST,
            "the name is not UTF-8, with %XX escapes where a URL needs them",
        ));
    };
    let latest = sources.board.latest();
    match GuestDetail::find(&latest, &sources.history, &name) {
        Some(detail) => Ok(detail.with_offers(&latest)),
        None => Err(no_such_guest(&sources.status())),
    }
}

async fn history(State(sources): State<Sources>, since: RawQuery) -> Response {
    let RawQuery(query) = since;
    let since = match query.as_deref().map(|query| query.strip_prefix("since=").map(str::parse)) {
        None => None,
        Some(Some(Ok(millis))) => Some(Moment::from_millis(millis)),
        Some(_) => {
            let why = "`since` is a moment in milliseconds, such as `decided_at` of the status: /v1/history?since=5000";
            return refused(StatusCode::BAD_REQUEST, why);
        }
    };
    Json(sources.recent.after(since)).into_response()
}

/// The order in a request's body, or the answer to a mistake in it.
#[expect(clippy::result_large_err, reason = "the answer is returned at once")]
fn order<T>(body: Result<Body, BytesRejection>, read: fn(&[u8]) -> Result<T, String>) -> Result<T, Response> {
    match body {
        Ok(body) => read(&body).map_err(|why| refused(StatusCode::BAD_REQUEST, &why)),
        Err(rejection) => {
            Err(refused(rejection.status(), "the body is longer than any order, or ended early"))
        }
    }
}

/// The answer to an order that was given or refused.
fn answer<T: Serialize>(sources: &Sources, given: Result<T, Refusal>) -> Response {
    match given {
        Ok(answer) => Json(answer).into_response(),
        Err(Refusal::NoSuchGuest) => no_such_guest(&sources.status()),
        Err(Refusal::TooMany) => refused(StatusCode::SERVICE_UNAVAILABLE, "too many orders wait: try again"),
        Err(Refusal::NotNow(why)) => refused(StatusCode::CONFLICT, &why),
    }
}

async fn holds(
    State(sources): State<Sources>,
    ConnectInfo(client): ConnectInfo<Client>,
    body: Result<Body, BytesRejection>,
) -> Response {
    match order(body, HoldRequest::read) {
        Ok(request) => answer(&sources, operator::hold(&sources, client.user, &request).await),
        Err(mistake) => mistake,
    }
}

async fn reclaims(
    State(sources): State<Sources>,
    ConnectInfo(client): ConnectInfo<Client>,
    body: Result<Body, BytesRejection>,
) -> Response {
    match order(body, ReclaimRequest::read) {
        Ok(request) => answer(&sources, reclaim::reclaim(&sources, client, &request).await),
        Err(mistake) => mistake,
    }
}

async fn cgroup_reclaims(
    State(sources): State<Sources>,
    ConnectInfo(client): ConnectInfo<Client>,
    body: Result<Body, BytesRejection>,
) -> Response {
    match order(body, CgroupReclaimRequest::read) {
        Ok(request) => answer(&sources, operator::reclaim_from_cgroup(&sources, client.user, &request).await),
        Err(mistake) => mistake,
    }
}

fn no_such_guest(status: &Status) -> Response {
    let names: Vec<&str> = status.guests.iter().map(|guest| guest.name.as_str()).collect();
    let body = json!({ "error": "no such guest", "guests": names });
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

async fn prometheus(State(sources): State<Sources>) -> Response {
    ([(header::CONTENT_TYPE, memtide_metrics::CONTENT_TYPE)], sources.metrics()).into_response()
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
    use memtide_api::history::History;
    use memtide_engine::Board;

    use super::*;
    use crate::orders::Orders;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// What the router answers: the status, the headers and the body.
    async fn answer(request: &str, body: &str) -> (u16, String, String) {
        let (wake, _woken) = std::sync::mpsc::channel();
        let board = Board::new(memtide_model::Config::default());
        let sources = Sources::new(board, History::default(), Orders::new(wake), Vec::new());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memtide.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let listener = Bounded::new(listener, MOST_CONNECTIONS, LONGEST_CONNECTION);
        let service = router(sources).into_make_service_with_connect_info::<Client>();
        tokio::spawn(async { axum::serve(listener, service).await });
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
            ("GET /v1/guests/web1/explanation", "", 404, "no such guest"),
            ("GET /v1/guests/%ff/explanation", "", 400, "not UTF-8"),
            ("GET /v1/history?since=yesterday", "", 400, "a moment in milliseconds"),
            ("GET /v1/history?until=5", "", 400, "a moment in milliseconds"),
            ("POST /v1/history", "", 405, "POST is not allowed for this path"),
            ("POST /v1/holds", "", 400, "{\"guest\": \"web1\", \"hold\": \"hold\", \"for\": 60000}"),
            ("POST /v1/holds", "{\"hold\": \"up\"}", 400, "expected one of `hold`, `release`, `resume`"),
            ("POST /v1/holds", "{\"hold\": \"hold\", \"force\": 1}", 400, "unknown field `force`"),
            ("POST /v1/holds", "{\"hold\": \"hold\", \"for\": 5}", 400, "from a second to 100 years"),
            ("POST /v1/holds", "{\"guest\": \"web1\", \"hold\": \"hold\"}", 404, "no such guest"),
            ("GET /v1/reclaims", "", 405, "GET is not allowed for this path"),
            ("POST /v1/reclaims", "", 400, "{\"guest\": \"web1\", \"by\": 67108864, \"dry_run\": true}"),
            ("POST /v1/reclaims", "{\"by\": 4096}", 400, "missing field `guest`"),
            ("POST /v1/reclaims", "{\"guest\": \"web1\", \"by\": 1, \"to\": 1}", 400, "exclude each other"),
            ("POST /v1/reclaims", "{\"guest\": \"web1\", \"hold\": 5}", 400, "from a second to 100 years"),
            (
                "POST /v1/reclaims",
                "{\"guest\": \"web1\", \"hold\": 5000, \"dry_run\": true}",
                400,
                "no meaning with `dry_run`",
            ),
            ("POST /v1/reclaims", "{\"guest\": \"web1\"}", 404, "no such guest"),
            ("POST /v1/cgroup-reclaims", "", 400, "{\"guest\": \"web1\", \"bytes\": 67108864}"),
            ("POST /v1/cgroup-reclaims", "{\"guest\": \"web1\"}", 400, "missing field `bytes`"),
            ("POST /v1/cgroup-reclaims", "{\"bytes\": 4096}", 400, "missing field `guest`"),
            ("POST /v1/cgroup-reclaims", "{\"guest\": \"web1\", \"bytes\": 0}", 400, "more than zero"),
            (
                "POST /v1/cgroup-reclaims",
                "{\"guest\": \"web1\", \"bytes\": 1073741825}",
                400,
                "at most 1 GiB",
            ),
            ("POST /v1/cgroup-reclaims", "{\"guest\": \"web1\", \"bytes\": 4096}", 404, "no such guest"),
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
