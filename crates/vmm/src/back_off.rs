//! When to try again after failures: each wait is twice as long as the last one, until an attempt works.

use std::time::{Duration, Instant};

use memtide_model::Absence;

/// The longest wait if another client holds the monitor. That client may leave at any moment, and a knock disturbs nobody.
const LONGEST_OF_TAKEN: Duration = Duration::from_secs(5);

/// The waits after failures: each is twice as long as the one before.
#[derive(Debug)]
pub(crate) struct BackOff {
    first: Duration,
    longest: Duration,
    next: Duration,
    present: Option<(Instant, Absence)>,
}

impl BackOff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first, present: None }
    }

    /// Notes a failure: a wait begins.
    pub(crate) fn failed(&mut self, why: Absence) {
        let longest = match why {
            Absence::ControlTaken => self.longest.min(LONGEST_OF_TAKEN),
            _ => self.longest,
        };
        self.present = Some((Instant::now() + self.next.min(longest), why));
        self.next = (self.next * 2).min(longest);
    }

    /// Notes a success: the next wait is the first one again.
    pub(crate) fn worked(&mut self) {
        self.next = self.first;
        self.present = None;
    }

    /// The end of the last wait.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.present.as_ref().map(|(until, _)| *until)
    }

    /// Whether no wait is under way.
    pub(crate) fn is_over(&self) -> bool {
        self.until().is_none_or(|until| until <= Instant::now())
    }

    /// The reason of the present wait.
    pub(crate) fn why(&self) -> Option<Absence> {
        self.present.as_ref().filter(|(until, _)| *until > Instant::now()).map(|(_, why)| why.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_that_was_taken_is_tried_again_sooner_than_one_that_fails() {
        let after = |why: Absence| {
            let mut back_off = BackOff::new(Duration::from_millis(250), Duration::from_secs(30));
            (0..10).for_each(|_| back_off.failed(why.clone()));
            back_off.until().unwrap().duration_since(Instant::now()).as_secs_f64().round()
        };
        assert_eq!((after(Absence::ControlTaken), after(Absence::Timeout)), (5.0, 30.0));
    }
}
