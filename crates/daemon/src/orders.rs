//! The operator's orders on their way to the next decision.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memtide_engine::Wake;
use memtide_model::{GuestId, Moment, Order};
use tokio::sync::oneshot;

/// The most orders that wait for a decision: one for each guest of a large host.
const MOST: usize = 10_000;
/// The delay before each request. Requests are handled one after the other, so a client that asks endlessly fills neither log nor journal.
const APART: Duration = Duration::from_millis(100);

/// The most guests at which a client has its turn. Each keeps a connection for minutes.
const MOST_TURNS: usize = 32;

/// Too many orders wait already.
#[derive(Debug)]
pub(crate) struct TooMany;

/// Orders that were given together.
#[derive(Debug)]
struct Given {
    orders: Vec<Order>,
    heard: oneshot::Sender<Moment>,
}

/// Tells when the orders were heard: the moment of the snapshot that has them.
pub type Heard = oneshot::Receiver<Moment>;

/// A handle to the waiting orders. Its clones share them.
#[derive(Clone, Debug)]
pub struct Orders {
    waiting: Arc<Mutex<Vec<Given>>>,
    wake: Sender<Wake>,
    turn: Arc<tokio::sync::Mutex<()>>,
    busy: Arc<Mutex<BTreeSet<GuestId>>>,
}

/// No other client has its turn at this guest as long as this lives.
#[derive(Debug)]
pub(crate) struct TurnAt {
    busy: Arc<Mutex<BTreeSet<GuestId>>>,
    guest: GuestId,
}

impl Drop for TurnAt {
    fn drop(&mut self) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.guest);
    }
}

impl Orders {
    /// No orders yet. Each order wakes the engine through `wake`.
    #[must_use]
    pub fn new(wake: Sender<Wake>) -> Self {
        Self { waiting: Arc::default(), wake, turn: Arc::default(), busy: Arc::default() }
    }

    /// Waits for the request's turn. A client that has hung up by then, for example because it waited too long, has ordered nothing.
    pub async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        tokio::time::sleep(APART).await;
        turn
    }

    /// The turn at a guest, for orders that belong together; `None` if another client has it.
    ///
    /// # Errors
    /// If as many guests as [`MOST_TURNS`] have one already.
    pub(crate) fn turn_at(&self, guest: &GuestId) -> Result<Option<TurnAt>, TooMany> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.len() >= MOST_TURNS && !busy.contains(guest) {
            return Err(TooMany);
        }
        let is_free = busy.insert(guest.clone());
        Ok(is_free.then(|| TurnAt { busy: Arc::clone(&self.busy), guest: guest.clone() }))
    }

    /// Gives orders. `None`: too many are waiting, and none of these was accepted.
    #[must_use]
    pub fn give(&self, orders: Vec<Order>) -> Option<Heard> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let so_far: usize = waiting.iter().map(|given| given.orders.len()).sum();
        if so_far.saturating_add(orders.len()) > MOST {
            return None;
        }
        let (heard, hears) = oneshot::channel();
        waiting.push(Given { orders, heard });
        // If the engine has ended, it decides nothing. A client that waits for the decision notices.
        let _gone = self.wake.send(Wake::Event);
        Some(hears)
    }

    /// Takes all waiting orders for the snapshot that was taken at `at`.
    #[must_use]
    pub fn take(&self, at: Moment) -> Vec<Order> {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let taken = waiting.into_iter().flat_map(|given| {
            // Its giver may have stopped waiting.
            let _gone = given.heard.send(at);
            given.orders
        });
        taken.collect()
    }

    /// Whether no order waits.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
