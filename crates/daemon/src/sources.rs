//! What the API's handlers read, and where their orders go.

use std::sync::Arc;

use memtide_api::history::History;
use memtide_api::recent::Recent;
use memtide_api::view::Status;
use memtide_engine::{Board, Published, host_clock};
use memtide_metrics::{Scrape, Tally};

use crate::events::Events;
use crate::orders::Orders;

/// The sources of the handlers.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The last state of the engine.
    pub board: Board,
    /// The last changes of the guests.
    pub history: History,
    /// The last minutes of the host.
    pub recent: Recent,
    /// The queue of orders.
    pub orders: Orders,
    /// The rights that the daemon has given up.
    pub confined: Arc<[String]>,
    pub(crate) events: Events,
    tally: Tally,
}

impl Sources {
    /// Sources of the engine that writes on `board`.
    #[must_use]
    pub fn new(board: Board, history: History, orders: Orders, confined: Vec<String>) -> Self {
        // It hears of a decision before the clients do.
        let recent = Recent::of(&board);
        let (events, tally) = (Events::of(&board, &recent), Tally::of(&board));
        Self { events, tally, recent, board, history, orders, confined: confined.into() }
    }

    /// The metrics as text.
    pub(crate) fn metrics(&self) -> String {
        let published = self.board.latest();
        let (status, sums) = (self.status_of(&published), self.tally.sums());
        memtide_metrics::encode(&Scrape { status: &status, last: published.last.as_ref(), sums: &sums })
    }

    pub(crate) fn status(&self) -> Status {
        self.status_of(&self.board.latest())
    }

    fn status_of(&self, published: &Published) -> Status {
        let status = Status::new(published);
        let age = status.decided_at.map(|at| host_clock().since(at));
        let mut status = Status { age, confined: self.confined.to_vec(), ..status };
        if status.is_late_by().is_some() {
            status.sentence = status.in_a_sentence();
        }
        status
    }
}
