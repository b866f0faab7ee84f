//! A round of polls: whoever asked is woken once, when all have answered, and not for each of them. So is the thread that asks: it
//! looks for answers when all have had time for theirs.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How long after the questions of a round their answers are looked for.
const ANSWERS_WITHIN: Duration = Duration::from_millis(2);

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

/// Answers are not looked for before it is over.
#[derive(Clone, Debug)]
pub(super) struct Patience(watch::Receiver<()>);

/// The patience of one round, and what ends it once the answers may be there.
pub(super) fn patience() -> (impl Future<Output = ()> + Send, Patience) {
    let (end, patience) = watch::channel(());
    let waiting = async move {
        tokio::time::sleep(ANSWERS_WITHIN).await;
        drop(end);
    };
    (waiting, Patience(patience))
}

impl Patience {
    /// Waits for its end.
    pub(super) async fn over(mut self) {
        // Nothing is ever sent: it fails when the other end is gone.
        let _gone = self.0.changed().await;
    }
}
