//! Keeping a rate.
//!
//! Rule: after each piece of work, wait until the moment at which that much was due. Who falls behind catches up at full
//! speed, but no more than [`MAX_LAG`] of work: a guest that stood still for seconds does not come back with a burst.

use std::time::{Duration, Instant};

/// Work that may be caught up.
pub const MAX_LAG: Duration = Duration::from_millis(250);

/// Keeps the rate of one job.
#[derive(Debug)]
pub struct Pacer {
    per_second: Option<u64>,
    begun: Instant,
    done: u64,
}

impl Pacer {
    /// `per_second` bytes a second; as fast as possible where it is `None` or zero.
    #[must_use]
    pub fn new(per_second: Option<u64>) -> Self {
        Self { per_second: per_second.filter(|&rate| rate > 0), begun: Instant::now(), done: 0 }
    }

    /// Counts `bytes` of work and waits until they are due.
    pub fn after(&mut self, bytes: u64) {
        let wait = self.wait_at(bytes, Instant::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    fn wait_at(&mut self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.per_second else { return Duration::ZERO };
        self.done = self.done.saturating_add(bytes);
        let nanos = u128::from(self.done) * 1_000_000_000 / u128::from(rate);
        let due = self.begun + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 2));
        let lag = now.saturating_duration_since(due);
        if lag > MAX_LAG {
            self.begun += lag - MAX_LAG;
        }
        due.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_due_at_its_rate() {
        let mut pacer = Pacer::new(Some(1000));
        let begun = pacer.begun;
        assert_eq!(pacer.wait_at(500, begun), Duration::from_millis(500));
        assert_eq!(pacer.wait_at(500, begun + Duration::from_millis(900)), Duration::from_millis(100));
    }

    #[test]
    fn a_long_stall_is_not_caught_up_at_once() {
        let mut pacer = Pacer::new(Some(1000));
        let begun = pacer.begun;
        let late = begun + Duration::from_secs(10);
        assert_eq!(pacer.wait_at(1000, late), Duration::ZERO);
        // 250 ms of lag are left: the next 500 ms of work are due in 250 ms.
        assert_eq!(pacer.wait_at(500, late), MAX_LAG);
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        assert_eq!(Pacer::new(None).wait_at(u64::MAX, Instant::now()), Duration::ZERO);
        assert_eq!(Pacer::new(Some(0)).wait_at(u64::MAX, Instant::now()), Duration::ZERO);
    }
}
