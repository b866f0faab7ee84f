//! Looks at processes on a thread of its own.
//!
//! **Problem.** Reading a process waits until nobody changes its mappings, and a host can have thousands of processes. No decision may wait for that.
//!
//! **Rule.** One look is under way at a time, and at most one more waits. Each decision gets what the last complete look has found; until the first one is
//! complete, there is nothing. A look that hangs delays only the next look. The first decision alone waits for its look, and not for long: it would know nothing.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use memtide_model::Moment;

use super::processes::{KsmGuest, Looked, Processes, Searched};
use crate::Root;

/// An order to look.
#[derive(Debug)]
pub(super) struct Order {
    /// The guests.
    pub(super) guests: Vec<KsmGuest>,
    /// Whether to look at all processes, or only at the guests'.
    pub(super) all: bool,
    /// Whether to look for those that set KSM, too.
    pub(super) searches: bool,
    /// The passes that are complete.
    pub(super) passes: u64,
    /// The moment of the order.
    pub(super) at: Moment,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) looked: Looked,
    pub(super) searched: Searched,
}

/// What the last complete look has found, and its announcement.
#[derive(Debug, Default)]
struct Newest {
    found: Mutex<Option<Arc<Found>>>,
    is_new: Condvar,
}

/// The thread. It ends when this is dropped, and nobody waits for it.
#[derive(Debug)]
pub(super) struct Looker {
    orders: SyncSender<Order>,
    newest: Arc<Newest>,
}

impl Looker {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn start(root: &Root) -> io::Result<Self> {
        let (orders, ordered) = sync_channel(1);
        let newest = Arc::<Newest>::default();
        let (processes, found) = (Processes::new(root), Arc::clone(&newest));
        thread::Builder::new().name("ksm".to_owned()).spawn(move || look(processes, &ordered, &found))?;
        Ok(Self { orders, newest })
    }

    /// Asks for a look. Returns whether there will be one: none if another one waits already.
    pub(super) fn order(&self, order: Order) -> bool {
        self.orders.try_send(order).is_ok()
    }

    /// What the last complete look has found.
    pub(super) fn found(&self) -> Option<Arc<Found>> {
        self.newest.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, once there is something, but after this time at the latest.
    pub(super) fn found_within(&self, at_most: Duration) -> Option<Arc<Found>> {
        let found = self.newest.found.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.newest.is_new.wait_timeout_while(found, at_most, |found| found.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

fn look(mut processes: Processes, orders: &Receiver<Order>, newest: &Newest) {
    let mut searched = Searched::default();
    for Order { guests, all, searches, passes, at } in orders {
        // Without a list of the processes, what was found before counts.
        let Ok(looked) = processes.look(&guests, all, passes, at) else { continue };
        if searches {
            searched = processes.search();
        }
        let found = Arc::new(Found { looked, searched: searched.clone() });
        *newest.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        newest.is_new.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_look_can_be_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        std::fs::create_dir_all(root.proc("")).unwrap();
        let looker = Looker::start(&root).unwrap();
        assert!(looker.found().is_none() && looker.found_within(Duration::from_millis(1)).is_none());
        let order = Order { guests: Vec::new(), all: true, searches: true, passes: 0, at: Moment::default() };
        assert!(looker.order(order));
        let found = looker.found_within(Duration::from_secs(60)).unwrap();
        assert_eq!((found.looked.processes.len(), found.searched.ksmd), (0, None));
    }
}
