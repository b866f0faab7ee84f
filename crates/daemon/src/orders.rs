//! The operator's orders on their way to the next decision.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memtide_engine::Wake;
use memtide_model::Order;

/// The most orders that wait for a decision: one for each guest of a large host.
const MOST: usize = 10_000;
/// The delay before each request. Requests are handled one after the other, so a client that asks endlessly fills neither log nor journal.
const APART: Duration = Duration::from_millis(100);

/// A handle to the waiting orders. Its clones share them.
#[derive(Clone, Debug)]
pub struct Orders {
    waiting: Arc<Mutex<Vec<Order>>>,
    wake: Sender<Wake>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Orders {
    /// No orders yet. Each order wakes the engine through `wake`.
    #[must_use]
    pub fn new(wake: Sender<Wake>) -> Self {
        Self { waiting: Arc::default(), wake, turn: Arc::default() }
    }

    /// Waits for the request's turn. A client that has hung up by then, for example because it waited too long, has ordered nothing.
    pub async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        tokio::time::sleep(APART).await;
        turn
    }

    /// Gives orders. `false`: too many are waiting, and none of these was accepted.
    #[must_use]
    pub fn give(&self, orders: Vec<Order>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len().saturating_add(orders.len()) > MOST {
            return false;
        }
        waiting.extend(orders);
        // If the engine has ended, it decides nothing. A client that waits for the decision notices.
        let _gone = self.wake.send(Wake::Event);
        true
    }

    /// Takes all waiting orders.
    #[must_use]
    pub fn take(&self) -> Vec<Order> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
