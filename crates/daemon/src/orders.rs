//! The operator's orders, on their way to the next decision.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memtide_engine::Wake;
use memtide_model::Order;

/// The most orders that may wait for a decision: one for each guest of a large host.
const MOST: usize = 10_000;
/// Requests are heard one after the other, with this pause: nobody can fill the log or the journal with requests.
const APART: Duration = Duration::from_millis(100);

/// A handle to the waiting orders; its clones share them.
#[derive(Clone, Debug)]
pub struct Orders {
    waiting: Arc<Mutex<Vec<Order>>>,
    wake: Sender<Wake>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Orders {
    /// No orders yet; each wakes the engine through `wake`.
    #[must_use]
    pub fn new(wake: Sender<Wake>) -> Self {
        Self { waiting: Arc::default(), wake, turn: Arc::default() }
    }

    /// Waits until it is this request's turn. A client that has hung up by then, for example after waiting too long, has
    /// ordered nothing.
    pub async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        tokio::time::sleep(APART).await;
        turn
    }

    /// Gives orders. Returns `false` if too many wait already; then none of these is taken.
    #[must_use]
    pub fn give(&self, orders: Vec<Order>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len().saturating_add(orders.len()) > MOST {
            return false;
        }
        waiting.extend(orders);
        // An engine that is gone makes no decisions; a client that waits for the decision notices this.
        let _gone = self.wake.send(Wake::Event);
        true
    }

    /// Takes all waiting orders.
    #[must_use]
    pub fn take(&self) -> Vec<Order> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
