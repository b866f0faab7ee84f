//! `GET /v1/events`: each decision and each change, as server-sent events.
//!
//! **Rule.** A client gets every tick while it reads as fast as the daemon decides. If it is slower, it misses ticks, and is told how many.
//! A client that stops reading for [`IDLE`] loses its connection, so it keeps neither a slot nor memory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use memtide_api::history::GuestChange;
use memtide_api::recent::Recent;
use memtide_api::view::Status;
use memtide_engine::{Board, Published};
use memtide_model::Moment;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::bounded;
use crate::places::{Place, Places};

/// The most clients that listen at a time.
const MOST: usize = 32;
/// Ticks that wait for a client. With 1,000 guests, one takes some MiB.
const WAITING: usize = 4;
/// A client that reads nothing for this long loses its connection. Ticks are at most 2 s apart.
const IDLE: Duration = Duration::from_secs(30);

/// Passes the engine's ticks on to clients.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    ticks: broadcast::Sender<Arc<Published>>,
    recent: Recent,
    places: Places,
}

/// A client that listens.
struct Client {
    ticks: broadcast::Receiver<Arc<Published>>,
    recent: Recent,
    /// The tick of the last event, and its moment.
    last: u64,
    told_until: Option<Moment>,
    waiting: VecDeque<Event>,
    confined: Arc<[String]>,
    lease: bounded::Lease,
    _place: Place,
}

impl Events {
    pub(crate) fn of(board: &Board, recent: &Recent) -> Self {
        let (ticks, _) = broadcast::channel(WAITING);
        let passes_on = ticks.clone();
        board.on_publish(move |published| {
            // Without clients there is nobody to tell.
            let _nobody = passes_on.send(Arc::clone(published));
        });
        Self { ticks, recent: recent.clone(), places: Places::new(MOST) }
    }

    /// The ticks from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<Published>> {
        self.ticks.subscribe()
    }

    /// The stream for one client, which begins with the `latest` tick; `None` if too many listen already.
    pub(crate) fn stream(
        &self,
        latest: &Published,
        confined: Arc<[String]>,
        client: bounded::Client,
    ) -> Option<Response> {
        let place = self.places.take(client.user)?;
        let ticks = self.subscribe();
        let lease = client.lease;
        let mut client = Client {
            ticks,
            recent: self.recent.clone(),
            last: 0,
            told_until: None,
            waiting: VecDeque::new(),
            confined,
            lease,
            _place: place,
        };
        client.tell(latest);
        let events = stream::unfold(client, |mut client| async move {
            let event = client.next().await?;
            Some((Ok::<_, Infallible>(event), client))
        });
        Some(Sse::new(events).into_response())
    }
}

impl Client {
    /// The next event; `None` once the engine has ended.
    async fn next(&mut self) -> Option<Event> {
        self.lease.extend(IDLE);
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            match self.ticks.recv().await {
                Ok(published) => self.tell(&published),
                Err(RecvError::Lagged(missed)) => self.waiting.extend(event("missed", &missed)),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Adds the events of a tick, unless the client knows it.
    fn tell(&mut self, published: &Published) {
        if published.counters.ticks <= self.last {
            return;
        }
        self.last = published.counters.ticks;
        let status = Status { confined: self.confined.to_vec(), ..Status::new(published) };
        self.waiting.extend(event("tick", &status));
        self.waiting.extend(GuestChange::of(published).iter().filter_map(|change| event("change", change)));
        let Some(now) = status.decided_at else { return };
        // What happened before a client came is in `GET /v1/history`.
        if let Some(until) = self.told_until.replace(now) {
            let happened = self.recent.events_between(until, now);
            self.waiting.extend(happened.iter().filter_map(|happened| event("log", happened)));
        }
    }
}

/// An event with its data as JSON in one line; `None` never happens for the API's types.
fn event(name: &str, data: &impl Serialize) -> Option<Event> {
    Event::default().event(name).json_data(data).ok()
}
