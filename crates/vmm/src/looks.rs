//! Looks for guests on a thread of its own.
//!
//! **Problem.** A look reads processes of strangers. It can take long, and no decision may wait for it.
//!
//! **Rule.** One look is under way at a time. The thread owns the backends: it looks, and makes the controls of guests that are new. When the thread ends, the backends
//! remove their files. The engine waits for that for a second at most: a look may hang.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::{Absence, GuestId, Outsider, Outsiders};

use crate::actor::{Wake, WakeReason};
use crate::admitted::{Admitted, Place};
use crate::backend::{Backend, Control, Found};

/// An order to look.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The process of a guest has ended.
    pub(crate) ended: bool,
    /// The guests whose backends could not make a control.
    pub(crate) without_control: Vec<GuestId>,
    /// The guests to show from now on, if that has changed.
    pub(crate) admitted: Option<Admitted>,
}

/// The longest wait for the end of the thread.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// The control of a guest, or why its backend leaves it alone.
pub(crate) type Made = (GuestId, Result<Box<dyn Control>, Absence>);

/// The result of a look.
#[derive(Default)]
pub(crate) struct Looked {
    /// All guests that are to be shown, each once, and those of other users; `None` if nothing has changed since the last look.
    pub(crate) guests: Option<(Vec<Arc<Found>>, Outsiders)>,
    /// The controls of new guests and of those that had none, or why there is still none.
    pub(crate) controls: Vec<Made>,
    /// Everything that is wrong with the backends' configuration, one line each.
    pub(crate) warnings: Vec<String>,
}

/// The thread. It ends when this is dropped.
pub(crate) struct Looks {
    orders: Option<Sender<Order>>,
    looked: Receiver<Looked>,
    /// When the look that is under way was ordered.
    under_way: Option<Instant>,
}

impl Looks {
    /// Starts the thread. Only guests that are `admitted`, and configured ones, are shown. Calls `wake` when a look has found
    /// something new.
    pub(crate) fn start(backends: Vec<Box<dyn Backend>>, admitted: Admitted, wake: Wake) -> Self {
        let (orders, given) = channel();
        let (results, looked) = channel();
        let kind = |mut backend: Box<dyn Backend>| {
            backend.admit(admitted.users.as_ref());
            Kind { backend, found: Vec::new() }
        };
        let kinds = backends.into_iter().map(kind).collect();
        let looker = Looker { kinds, admitted, shown: BTreeSet::new(), wake };
        let started =
            thread::Builder::new().name("discover".to_owned()).spawn(move || looker.follow(&given, &results));
        if let Err(error) = &started {
            tracing::error!("memtide cannot look for guests: {error}");
        }
        Self { orders: started.is_ok().then_some(orders), looked, under_way: None }
    }

    /// Orders a look. There must be none under way.
    pub(crate) fn order(&mut self, order: Order) {
        assert!(self.under_way.is_none(), "one look at a time");
        let ordered = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        self.under_way = ordered.then(Instant::now);
    }

    /// Whether a look is under way.
    pub(crate) const fn are_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// The result of the look that is under way, once it is there, but after `at_most`.
    pub(crate) fn result_within(&mut self, at_most: Duration) -> Option<Looked> {
        self.under_way?;
        match self.looked.recv_timeout(at_most) {
            Ok(looked) => {
                self.under_way = None;
                Some(looked)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.under_way = None;
                None
            }
        }
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.orders = None;
        let by = Instant::now() + ENDS_WITHIN;
        // Nobody wants the result of the last look. The thread closes the channel after it has dropped its backends.
        while self.looked.recv_timeout(by.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

/// A backend and the guests that it found last.
struct Kind {
    backend: Box<dyn Backend>,
    found: Vec<Found>,
}

struct Looker {
    kinds: Vec<Kind>,
    admitted: Admitted,
    /// The guests of the last look.
    shown: BTreeSet<GuestId>,
    wake: Wake,
}

impl Looker {
    fn follow(mut self, orders: &Receiver<Order>, results: &Sender<Looked>) {
        for order in orders {
            let looked = self.look(order);
            let is_new = looked.guests.is_some() || !looked.controls.is_empty();
            if results.send(looked).is_err() {
                return;
            }
            if is_new {
                (self.wake)(WakeReason::Looked);
            }
        }
    }

    fn look(&mut self, order: Order) -> Looked {
        let mut changed = order.admitted.is_some();
        if let Some(admitted) = order.admitted {
            self.admitted = admitted;
            self.kinds.iter_mut().for_each(|kind| kind.backend.admit(self.admitted.users.as_ref()));
        }
        for Kind { backend, found } in &mut self.kinds {
            match backend.discover(order.ended) {
                Ok(Some(now)) => (*found, changed) = (now, true),
                Ok(None) => {}
                Err(error) => tracing::warn!(cause = %error.source, "{error}"),
            }
        }
        let mut controls: Vec<_> =
            order.without_control.iter().filter_map(|id| Some((id.clone(), self.control(id)?))).collect();
        let guests = changed.then(|| self.show(&mut controls));
        let warnings = self.kinds.iter().flat_map(|kind| kind.backend.warnings()).collect();
        Looked { guests, controls, warnings }
    }

    /// Asks the backend of a guest for its control; `None` if it is no longer found.
    fn control(&mut self, id: &GuestId) -> Option<Result<Box<dyn Control>, Absence>> {
        let has_it = |kind: &&mut Kind| kind.found.iter().any(|found| found.id == *id);
        self.kinds.iter_mut().find(has_it).map(|kind| kind.backend.control(id))
    }

    /// All guests that are to be shown, and the outsiders. If two backends find the same guest, the first one has it. Makes the controls of those
    /// that are new.
    fn show(&mut self, controls: &mut Vec<Made>) -> (Vec<Arc<Found>>, Outsiders) {
        let mut shown = BTreeSet::new();
        let (mut guests, mut outside) = (Vec::new(), Vec::new());
        for Kind { backend, found } in &mut self.kinds {
            for found in found.iter() {
                match self.admitted.place_of(found) {
                    Place::Shown if shown.insert(found.id.clone()) => {
                        if !self.shown.contains(&found.id) {
                            controls.push((found.id.clone(), backend.control(&found.id)));
                        }
                        guests.push(Arc::new(found.clone()));
                    }
                    Place::Outside => {
                        let process = &found.process;
                        outside.push(Outsider::new(found.id.name(), process.pid, process.user));
                    }
                    Place::Shown | Place::Ignored => {}
                }
            }
        }
        self.shown = shown;
        (guests, self.admitted.list(outside))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::backend::DiscoverError;

    /// Says when it is dropped, and its looks wait for `held`.
    struct Slow {
        held: Arc<Mutex<()>>,
        is_dropped: Arc<AtomicBool>,
    }

    impl Backend for Slow {
        fn discover(&mut self, _ended: bool) -> Result<Option<Vec<Found>>, DiscoverError> {
            let _held = self.held.lock();
            Ok(None)
        }

        fn control(&mut self, _id: &GuestId) -> Result<Box<dyn Control>, Absence> {
            Err(Absence::Gone)
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            // Long enough that an end that does not wait is over before.
            thread::sleep(Duration::from_millis(20));
            self.is_dropped.store(true, Ordering::Release);
        }
    }

    #[test]
    fn an_end_waits_for_the_backends_and_not_for_a_look_that_hangs() {
        let (held, is_dropped) = (Arc::default(), Arc::<AtomicBool>::default());
        let start = || {
            let slow = Slow { held: Arc::clone(&held), is_dropped: Arc::clone(&is_dropped) };
            let mut looks = Looks::start(vec![Box::new(slow)], Admitted::default(), Arc::new(|_| {}));
            looks.order(Order::default());
            looks
        };
        drop(start());
        assert!(is_dropped.swap(false, Ordering::AcqRel));
        let hangs = held.lock().unwrap();
        drop(start());
        assert!(!is_dropped.load(Ordering::Acquire), "it returned before the look");
        drop(hangs);
    }
}
