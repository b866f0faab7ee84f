//! The operator's orders on their way to the next decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memtide_engine::Wake;
use memtide_model::{GuestId, Moment, Order};
use tokio::sync::oneshot;

use crate::places::{Place, Places};

/// The most orders that wait for a decision: one for each guest of a large host.
const MOST: usize = 10_000;
/// The delay before each request. Requests of a user are handled one after the other, so a client that asks endlessly fills neither log nor journal,
/// and keeps nobody else waiting.
const APART: Duration = Duration::from_millis(100);

/// The most guests at which clients have their turn. Each keeps a connection for minutes.
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

/// The turn of a user's requests.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// A handle to the waiting orders. Its clones share them.
#[derive(Clone, Debug)]
pub struct Orders {
    waiting: Arc<Mutex<Vec<Given>>>,
    wake: Sender<Wake>,
    turns: Arc<Mutex<BTreeMap<u32, Turn>>>,
    busy: Arc<Mutex<BTreeSet<GuestId>>>,
    places: Places,
}

/// No other client has its turn at this guest as long as this lives.
#[derive(Debug)]
pub(crate) struct TurnAt {
    busy: Arc<Mutex<BTreeSet<GuestId>>>,
    guest: GuestId,
    _place: Place,
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
        Self {
            waiting: Arc::default(),
            wake,
            turns: Arc::default(),
            busy: Arc::default(),
            places: Places::new(MOST_TURNS),
        }
    }

    /// Waits for the turn of a request of `user`. A client that has hung up by then, for example because it waited too long, has ordered nothing.
    pub async fn turn(&self, user: u32) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody waits for them.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(user).or_default())
        };
        let turn = turn.lock_owned().await;
        tokio::time::sleep(APART).await;
        turn
    }

    /// The turn of a `user` at a guest, for orders that belong together; `None` if another client has it.
    ///
    /// # Errors
    /// If the user, or all users together, have too many already.
    pub(crate) fn turn_at(&self, user: u32, guest: &GuestId) -> Result<Option<TurnAt>, TooMany> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.contains(guest) {
            return Ok(None);
        }
        let place = self.places.take(user).ok_or(TooMany)?;
        busy.insert(guest.clone());
        Ok(Some(TurnAt { busy: Arc::clone(&self.busy), guest: guest.clone(), _place: place }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::Ordered;

    #[test]
    fn no_more_than_ten_thousand_orders_wait() {
        let (wake, _woken) = std::sync::mpsc::channel();
        let orders = Orders::new(wake);
        let many = |count: usize| {
            let order = Order { guest: GuestId::new("web", 1, "boot"), ordered: Ordered::Manage };
            orders.give(vec![order; count]).is_some()
        };
        assert!(many(MOST) && !many(1));
        assert_eq!(orders.take(Moment::default()).len(), MOST);
        assert!(many(1), "a decision has heard the others");
    }

    #[tokio::test(start_paused = true)]
    async fn one_users_flood_keeps_nobody_elses_orders_out() {
        let (wake, _woken) = std::sync::mpsc::channel();
        let orders = Orders::new(wake);
        let begun = tokio::time::Instant::now();
        let flood: Vec<_> = (0..150)
            .map(|_| {
                let orders = orders.clone();
                tokio::spawn(async move { drop(orders.turn(1000).await) })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(orders.turn(0).await);
        assert_eq!(begun.elapsed(), APART, "as if there were no others");
        for request in flood {
            request.await.unwrap();
        }
        assert_eq!(begun.elapsed(), APART * 150, "one after the other");
        drop(orders.turn(7).await);
        assert_eq!(orders.turns.lock().unwrap().keys().copied().collect::<Vec<_>>(), [7]);
    }
}
