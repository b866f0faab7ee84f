//! A round of polls: whoever asked is woken once, when all have answered, and not for each of them.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// How many of a round's polls are done.
#[derive(Debug, Default)]
pub(super) struct Round {
    done: Mutex<Done>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Done {
    count: usize,
    /// So many are waited for; `None` while nobody waits.
    awaited: Option<usize>,
}

impl Round {
    /// One more is done, after its result was sent.
    pub(super) fn one_is_done(&self) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.count += 1;
        if done.awaited.is_some_and(|awaited| done.count >= awaited) {
            self.changed.notify_one();
        }
    }

    /// Waits until `awaited` are done, at most until `by`.
    pub(super) fn wait_for(&self, awaited: usize, by: Instant) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.awaited = Some(awaited);
        let left = by.saturating_duration_since(Instant::now());
        // Late or not: what has come is taken.
        let _late = self.changed.wait_timeout_while(done, left, |done| done.count < awaited);
    }
}
