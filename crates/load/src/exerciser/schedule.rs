//! How much must be touched by when.
//!
//! **Rule.** The rate is a function of the time since the start. The amount due at a time is the integral of the rate, exact
//! in byte-nanoseconds: rounding loses nothing, however long the run. A thread pays its debt at once, up to [`MAX_DEBT`] of
//! its rate. Debt beyond that (the thread stood still, or the machine is too slow) is dropped and counted as missed.

use std::time::Duration;

use memtide_model::Bytes;

/// The most work that is caught up after a pause.
pub const MAX_DEBT: Duration = Duration::from_secs(1);

/// The speed of touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// As fast as the machine can.
    Unpaced,
    /// This many bytes a second.
    PerSecond(Bytes),
}

/// A line of a schedule from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The duration of the step.
    pub lasts: Duration,
    /// The rate.
    pub rate: Bytes,
    /// The size of the memory.
    pub size: Bytes,
}

/// How the rate changes over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// It does not change.
    Constant,
    /// The rate for `busy`, nothing for `idle`, and so on. At the start, `offset` has already passed.
    Square {
        /// The time at the full rate.
        busy: Duration,
        /// The time at rest.
        idle: Duration,
        /// The part of the first period that has passed.
        offset: Duration,
    },
    /// Rises evenly from nothing to the rate within `over`, then stays there.
    Ramp {
        /// The duration of the rise.
        over: Duration,
    },
    /// The steps in order, then again from the first.
    Steps(Vec<Step>),
}

/// A rate over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The highest rate.
    pub rate: Rate,
    /// How the rate changes.
    pub shape: Shape,
}

impl Schedule {
    /// The rate at `at`: zero if nothing is due.
    #[must_use]
    pub fn rate_at(&self, at: Duration) -> Rate {
        match (&self.shape, self.rate) {
            (Shape::Steps(steps), _) => {
                Rate::PerSecond(step_at(steps, at).map_or(Bytes::ZERO, |(step, _)| step.rate))
            }
            (Shape::Square { busy, idle, offset }, rate) => {
                if phase(at, *busy, *idle, *offset) < busy.as_nanos() {
                    rate
                } else {
                    Rate::PerSecond(Bytes::ZERO)
                }
            }
            (Shape::Ramp { over }, Rate::PerSecond(rate)) if at < *over => {
                let now = u128::from(rate.get()) * at.as_nanos() / over.as_nanos().max(1);
                Rate::PerSecond(Bytes::new(u64::try_from(now).unwrap_or(u64::MAX)))
            }
            (_, rate) => rate,
        }
    }

    /// The size that the schedule requests at `at`, if any.
    #[must_use]
    pub fn size_at(&self, at: Duration) -> Option<Bytes> {
        match &self.shape {
            Shape::Steps(steps) => step_at(steps, at).map(|(step, _)| step.size),
            _ => None,
        }
    }

    /// The highest rate; zero if nothing is paced.
    #[must_use]
    pub fn highest(&self) -> Bytes {
        match (&self.shape, self.rate) {
            (Shape::Steps(steps), _) => steps.iter().map(|step| step.rate).max().unwrap_or_default(),
            (_, Rate::PerSecond(rate)) => rate,
            (_, Rate::Unpaced) => Bytes::ZERO,
        }
    }

    /// The next time after `at` when the rate follows a new rule; `None`: never.
    #[must_use]
    pub fn next_change(&self, at: Duration) -> Option<Duration> {
        let left = match &self.shape {
            Shape::Constant => return None,
            Shape::Square { busy, idle, offset } => {
                let (busy, period) = (busy.as_nanos(), busy.as_nanos() + idle.as_nanos());
                let phase = phase(at, Duration::from_nanos_u128(busy), *idle, *offset);
                if phase < busy { busy - phase } else { period - phase }
            }
            Shape::Ramp { over } => over.checked_sub(at).filter(|left| !left.is_zero())?.as_nanos(),
            Shape::Steps(steps) => step_at(steps, at)?.1.as_nanos(),
        };
        Some(at + Duration::from_nanos_u128(left))
    }

    /// The byte-nanoseconds that become due from `from` to `to`; zero while the rate is unpaced.
    #[must_use]
    pub fn due(&self, from: Duration, to: Duration) -> u128 {
        let (mut due, mut from) = (0_u128, from);
        while from < to {
            let until = self.next_change(from).map_or(to, |change| change.min(to));
            due += self.due_within_a_rule(from, until);
            from = until;
        }
        due
    }

    fn due_within_a_rule(&self, from: Duration, to: Duration) -> u128 {
        let nanos = (to - from).as_nanos();
        match (&self.shape, self.rate) {
            (Shape::Ramp { over }, Rate::PerSecond(rate)) if from < *over => {
                // The mean of the rates at both ends: each is rate × time / over.
                let both = from.as_nanos() + to.as_nanos();
                u128::from(rate.get()) * nanos * both / (2 * over.as_nanos().max(1))
            }
            _ => match self.rate_at(from) {
                Rate::PerSecond(rate) => u128::from(rate.get()) * nanos,
                Rate::Unpaced => 0,
            },
        }
    }
}

/// The nanoseconds since the period began.
fn phase(at: Duration, busy: Duration, idle: Duration, offset: Duration) -> u128 {
    (at + offset).as_nanos() % (busy + idle).as_nanos().max(1)
}

/// The step at `at`, and its remaining time.
fn step_at(steps: &[Step], at: Duration) -> Option<(Step, Duration)> {
    let period: Duration = steps.iter().map(|step| step.lasts).sum();
    let mut left = Duration::from_nanos_u128(at.as_nanos() % period.as_nanos().max(1));
    for step in steps {
        if left < step.lasts {
            return Some((*step, step.lasts - left));
        }
        left -= step.lasts;
    }
    None
}

/// The debt of one of several threads.
#[derive(Clone, Copy, Debug)]
pub struct Debt {
    threads: u64,
    /// The price of a unit, in byte-nanoseconds of all threads together: each thread pays its part of them.
    unit: u128,
    owed: u128,
    missed: u128,
}

const SECOND: u128 = 1_000_000_000;

impl Debt {
    /// The debt of thread `thread` of `threads`, with units of `unit` bytes. Units become due for the threads in turn. At any
    /// time, the threads together have touched all whole units that are due, not one less per thread.
    #[must_use]
    pub fn new(unit: u64, thread: u64, threads: u64) -> Self {
        let one = u128::from(unit) * SECOND;
        Self { threads, unit: one * u128::from(threads), owed: one * u128::from(thread), missed: 0 }
    }

    /// Adds `due` byte-nanoseconds of all threads together. `highest` is the highest rate of the schedule. Existing debt
    /// stays, even if the rate has dropped.
    pub fn add(&mut self, due: u128, highest: Bytes) {
        let most = (u128::from(highest.get()) * MAX_DEBT.as_nanos()).max(2 * self.unit).max(self.owed);
        self.owed += due;
        let dropped = self.owed.saturating_sub(most);
        self.missed += dropped;
        self.owed -= dropped;
    }

    /// The whole units that this thread owes.
    #[must_use]
    pub fn units(&self) -> u64 {
        u64::try_from(self.owed / self.unit).unwrap_or(u64::MAX)
    }

    /// The time at `rate` until the next unit is due; `None`: forever.
    #[must_use]
    pub fn next_in(&self, rate: Bytes) -> Option<Duration> {
        let left = self.unit - self.owed % self.unit;
        let nanos = left.div_ceil(Some(u128::from(rate.get())).filter(|rate| *rate > 0)?);
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// The debt as time at `rate`, without a unit that has just become due.
    #[must_use]
    pub fn lasts(&self, rate: Bytes) -> Duration {
        let nanos = self.owed.saturating_sub(self.unit) / u128::from(rate.get()).max(1);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Pays for touched units.
    pub fn pay(&mut self, units: u64) {
        self.owed = self.owed.saturating_sub(u128::from(units) * self.unit);
    }

    /// Cancels the debt: it is neither paid nor missed.
    pub const fn forgive(&mut self) {
        self.owed = 0;
    }

    /// Counts the debt as missed, at the end.
    pub fn give_up(&mut self) {
        self.missed += self.owed / self.unit * self.unit;
        self.owed %= self.unit;
    }

    /// The bytes that this thread should have touched but did not.
    #[must_use]
    pub fn missed(&self) -> u64 {
        u64::try_from(self.missed / (SECOND * u128::from(self.threads))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: Bytes = Bytes::from_mib(1024);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn schedule(shape: Shape) -> Schedule {
        Schedule { rate: Rate::PerSecond(GIB), shape }
    }

    /// The bytes due within the first `seconds`, summed over ticks of a length that divides nothing evenly.
    fn bytes_due(schedule: &Schedule, seconds: u64) -> u128 {
        let (mut at, mut due) = (Duration::ZERO, 0);
        while at < secs(seconds) {
            let next = (at + Duration::from_nanos(1_000_003)).min(secs(seconds));
            due += schedule.due(at, next);
            at = next;
        }
        due / SECOND
    }

    #[test]
    fn a_constant_rate_is_due_to_the_byte() {
        assert_eq!(bytes_due(&schedule(Shape::Constant), 7), 7 << 30);
    }

    #[test]
    fn a_square_is_due_in_its_busy_parts() {
        // Busy from 0 to 2 (3 of 5 have passed), idle to 12, busy to 17, idle to 27.
        let square = schedule(Shape::Square { busy: secs(5), idle: secs(10), offset: secs(3) });
        for (seconds, busy) in [(2, 2), (12, 2), (14, 4), (17, 7), (27, 7), (28, 8)] {
            assert_eq!(bytes_due(&square, seconds), busy << 30, "after {seconds} s");
        }
        assert_eq!(square.next_change(secs(1)), Some(secs(2)));
        assert_eq!(square.rate_at(secs(3)), Rate::PerSecond(Bytes::ZERO));
    }

    #[test]
    fn a_ramp_is_due_as_a_triangle() {
        let ramp = schedule(Shape::Ramp { over: secs(10) });
        // 10 s at half the rate on average, then at the full rate. Ticks round down, by at most a byte each.
        assert!((5_u128 << 30).abs_diff(bytes_due(&ramp, 10)) < 10_000);
        assert!((8_u128 << 30).abs_diff(bytes_due(&ramp, 13)) < 10_000);
        assert_eq!(ramp.rate_at(secs(5)), Rate::PerSecond(Bytes::from_mib(512)));
    }

    #[test]
    fn steps_follow_each_other_and_begin_again() {
        let step = |seconds, mib| Step {
            lasts: secs(seconds),
            rate: Bytes::from_mib(mib),
            size: Bytes::from_mib(mib),
        };
        let steps = schedule(Shape::Steps(vec![step(1, 100), step(2, 0), step(1, 50)]));
        for (seconds, mib) in [(1, 100), (3, 100), (4, 150), (8, 300)] {
            assert_eq!(bytes_due(&steps, seconds), mib << 20, "after {seconds} s");
        }
        assert_eq!(steps.size_at(secs(3)), Some(Bytes::from_mib(50)));
    }

    #[test]
    fn a_debt_is_paid_in_units_and_to_the_byte() {
        let mut debts = [0, 1, 2].map(|thread| Debt::new(4096, thread, 3));
        let mut paid = 0;
        for tick in 0..1000_u64 {
            for debt in &mut debts {
                debt.add(u128::from(GIB.get()) * 1_000_000, GIB);
                paid += debt.units();
                debt.pay(debt.units());
                assert_eq!(debt.units(), 0, "tick {tick}");
            }
        }
        assert_eq!(paid, (1 << 30) / 4096);
    }

    #[test]
    fn what_is_too_much_to_catch_up_is_missed() {
        let mut debt = Debt::new(4096, 0, 1);
        debt.add(u128::from(GIB.get()) * 10 * SECOND, GIB);
        assert_eq!(debt.units(), (1 << 30) / 4096);
        assert_eq!(debt.missed(), 9 << 30);
        // The debt does not shrink with the rate.
        let mut debt = Debt::new(4096, 0, 1);
        debt.add(u128::from(GIB.get()) * SECOND / 1000, GIB);
        debt.add(0, Bytes::ZERO);
        assert_eq!((debt.units(), debt.missed()), (GIB.get() / 1000 / 4096, 0));
        // A rate of less than one unit a second still makes units due.
        let slow = Bytes::new(100);
        let mut debt = Debt::new(4096, 0, 1);
        (0..41).for_each(|_| debt.add(100 * SECOND, slow));
        assert_eq!((debt.units(), debt.missed()), (1, 0));
    }

    #[test]
    fn the_next_unit_is_known() {
        let debt = Debt::new(4096, 0, 1);
        assert_eq!(debt.next_in(Bytes::new(4096)), Some(secs(1)));
        assert_eq!(debt.next_in(Bytes::ZERO), None);
    }
}
