//! What the operator asks for, on its way to the next decision.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memtide_engine::Wake;
use memtide_model::Order;

/// Orders that no decision has heard yet are no more than these: an order for each guest of a large host.
const MOST: usize = 10_000;
/// Requests are heard one after the other, each after so long: somebody who asks without end fills neither log nor journal.
const APART: Duration = Duration::from_millis(100);

/// A handle to the orders that wait; its clones share them.
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

    /// Waits until a request is heard. Whoever has hung up by then, as a client that waited for too long, has ordered nothing.
    pub async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        tokio::time::sleep(APART).await;
        turn
    }

    /// Gives orders. `false`: too many wait already, and none of these was taken.
    #[must_use]
    pub fn give(&self, orders: Vec<Order>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len().saturating_add(orders.len()) > MOST {
            return false;
        }
        waiting.extend(orders);
        // An engine that is gone decides nothing any more; whoever waits for the decision notices.
        let _gone = self.wake.send(Wake::Event);
        true
    }

    /// Takes all that wait.
    #[must_use]
    pub fn take(&self) -> Vec<Order> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
