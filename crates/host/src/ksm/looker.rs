//! Looks at processes on a thread of its own.
//!
//! **Problem.** Reading a process waits until nobody changes its mappings, and a host can have thousands of processes. No decision may wait
//! for that.
//!
//! **Rule.** One look is under way at a time, and at most one more waits. Each decision gets what the last complete look has found; until the
//! first one is complete, there is nothing. A look that hangs delays only the next look. Without a look of the last minute, a decision waits
//! a moment for one: without it, the decision knows nothing of KSM.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// The moment of the order.
    pub(super) at: Moment,
    pub(super) looked: Looked,
    pub(super) searched: Searched,
}

/// What the last complete look has found, and its announcement.
#[derive(Debug, Default)]
struct Newest {
    found: Mutex<Option<Arc<Found>>>,
    is_new: Condvar,
    /// An order waits for the thread.
    has_order: AtomicBool,
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

    /// Asks for a look. Returns whether there will be one: none if another one waits already, or if the thread has ended.
    pub(super) fn order(&self, order: impl FnOnce() -> Order) -> bool {
        !self.newest.has_order.swap(true, Ordering::AcqRel) && self.orders.try_send(order()).is_ok()
    }

    /// What the last complete look has found, if it was ordered at this moment or later.
    pub(super) fn found_since(&self, since: Moment) -> Option<Arc<Found>> {
        let found = self.newest.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone().filter(|found| found.at >= since)
    }

    /// The same, once there is something, but after this time at the latest.
    pub(super) fn found_within(&self, at_most: Duration, since: Moment) -> Option<Arc<Found>> {
        let is_missing = |found: &mut Option<Arc<Found>>| found.as_ref().is_none_or(|found| found.at < since);
        let found = self.newest.found.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.newest.is_new.wait_timeout_while(found, at_most, is_missing);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone().filter(|found| found.at >= since)
    }
}

fn look(mut processes: Processes, orders: &Receiver<Order>, newest: &Newest) {
    let mut searched = Searched::default();
    for Order { guests, all, searches, passes, at } in orders {
        newest.has_order.store(false, Ordering::Release);
        // Without a list of the processes, what was found before counts, until it is too old.
        let Ok(looked) = processes.look(&guests, all, passes, at) else { continue };
        if searches {
            searched = processes.search();
        }
        let found = Arc::new(Found { at, looked, searched: searched.clone() });
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
        let at = Moment::from_millis(7);
        assert!(looker.found_since(at).is_none());
        assert!(looker.found_within(Duration::from_millis(1), at).is_none());
        let order = || Order { guests: Vec::new(), all: true, searches: true, passes: 0, at };
        assert!(looker.order(order));
        let found = looker.found_within(Duration::from_secs(60), at).unwrap();
        assert!(looker.found_since(Moment::from_millis(8)).is_none(), "it is older");
        assert_eq!((found.looked.processes.len(), found.searched.ksmd), (0, None));
    }
}
