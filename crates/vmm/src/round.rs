//! A round of polls. The caller is woken once, when all guests have answered, and not for each answer. In the same way, the asking
//! thread looks for answers only after all guests have had time to answer.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// The time from the questions of a round to the look for the answers.
const ANSWERS_WITHIN: Duration = Duration::from_millis(2);

/// The number of completed polls of a round.
#[derive(Debug, Default)]
pub(crate) struct Round {
    done: Mutex<Done>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Done {
    count: usize,
    /// The number of awaited polls; `None` if nobody waits.
    awaited: Option<usize>,
}

impl Round {
    /// Notes one more completed poll, after its result was sent.
    pub(crate) fn one_is_done(&self) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.count += 1;
        if done.awaited.is_some_and(|awaited| done.count >= awaited) {
            self.changed.notify_one();
        }
    }

    /// Waits until `awaited` polls are done, at most until `by`.
    pub(crate) fn wait_for(&self, awaited: usize, by: Instant) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.awaited = Some(awaited);
        let left = by.saturating_duration_since(Instant::now());
        // Late or not: the existing results are used.
        let _late = self.changed.wait_timeout_while(done, left, |done| done.count < awaited);
    }
}

/// Answers are not looked for before the patience is over.
#[derive(Clone, Debug)]
pub struct Patience(watch::Receiver<()>);

/// The patience of one round, and the future that ends it when the answers may have come.
pub(crate) fn patience() -> (impl Future<Output = ()> + Send, Patience) {
    let (end, patience) = watch::channel(());
    let waiting = async move {
        tokio::time::sleep(ANSWERS_WITHIN).await;
        drop(end);
    };
    (waiting, Patience(patience))
}

impl Patience {
    /// Waits for the end of the patience.
    pub(crate) async fn over(mut self) {
        // Nothing is ever sent: this fails when the other end is dropped.
        let _gone = self.0.changed().await;
    }
}
