//! The age of the balloon statistics.
//!
//! QEMU reports the time of the driver's last answer, in whole seconds of the host's wall clock. With this time alone, every statistic
//! would seem up to a second older than it is, and a step of the clock would make it seem younger or older. So three things bound the
//! age from above: QEMU's second; memtide's own monotonic clock, because numbers that differ from the previous read are newer than
//! that read; and the polling interval if memtide set it, because QEMU waits at least this long after an answer before it asks again.
//! Between two reads an age only grows.

use std::time::{Duration, Instant};

use memtide_model::{GuestStats, Span};

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Monotonic.
    pub(crate) instant: Instant,
    /// Since 1970, by the host's clock.
    pub(crate) wall: Duration,
}

impl Now {
    pub(crate) fn read() -> Self {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), wall }
    }
}

/// The newest statistics and their greatest possible age.
#[derive(Debug, Default)]
pub(crate) struct StatsClock {
    newest: Option<Newest>,
}

#[derive(Debug)]
struct Newest {
    stats: GuestStats,
    last_update: u64,
    /// The upper bound of the age at the moment `at`.
    age: Duration,
    at: Instant,
    read_at: Instant,
    /// QEMU does not ask again before this moment.
    not_before: Option<Instant>,
}

/// The news of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The driver has answered since the previous read.
    pub(crate) advanced: bool,
    /// A counter went back: the guest has booted since the previous read.
    pub(crate) backwards: bool,
}

impl StatsClock {
    /// Notes statistics that were read `now`, and that the driver sent in the second `last_update`. `every` is the interval at which QEMU
    /// asks for them, if it is known.
    pub(crate) fn note(
        &mut self,
        stats: GuestStats,
        last_update: u64,
        every: Option<Duration>,
        now: Now,
    ) -> Progress {
        let mut progress = Progress { advanced: true, backwards: false };
        let mut since = None;
        if let Some(newest) = &mut self.newest {
            let previous = std::mem::replace(&mut newest.read_at, now.instant);
            if newest.stats == stats && newest.last_update == last_update {
                return Progress { advanced: false, backwards: false };
            }
            // An answer before that moment means that somebody else asked out of turn.
            let not_before = newest.not_before.filter(|&at| at <= now.instant);
            let no_earlier = not_before.map_or(previous, |at| at.max(previous));
            since = Some(now.instant.saturating_duration_since(no_earlier));
            progress.backwards = went_back(newest.stats.minor_faults, stats.minor_faults)
                || went_back(newest.stats.major_faults, stats.major_faults);
        }
        let age = [by_wall(last_update, now), since].into_iter().flatten().min().unwrap_or_default();
        let not_before = every.and_then(|every| now.instant.checked_sub(age)?.checked_add(every));
        self.newest =
            Some(Newest { stats, last_update, age, at: now.instant, read_at: now.instant, not_before });
        progress
    }

    /// Notes that QEMU is made to ask out of turn.
    pub(crate) const fn asks_at_once(&mut self) {
        if let Some(newest) = &mut self.newest {
            newest.not_before = None;
        }
    }

    /// Notes that the driver has not answered since the guest's boot. Returns whether it had answered before.
    pub(crate) fn note_never(&mut self) -> bool {
        self.newest.take().is_some()
    }

    /// The moment of the last read with new statistics.
    pub(crate) fn advanced_at(&self) -> Option<Instant> {
        self.newest.as_ref().map(|newest| newest.at)
    }

    /// Whether the driver answers, and does not tell what its kernel scans.
    pub(crate) fn lacks_scans(&self) -> bool {
        self.newest.as_ref().is_some_and(|newest| newest.stats.async_scans.is_none())
    }

    /// The newest statistics, if any, with the upper bound of their age.
    pub(crate) fn newest(&self, now: Now) -> Option<(GuestStats, Span)> {
        let newest = self.newest.as_ref()?;
        let since = now.instant.saturating_duration_since(newest.at);
        Some((newest.stats, newest.age.saturating_add(since).into()))
    }
}

/// The age by the host's clock; `None` if the time is in the future.
fn by_wall(last_update: u64, now: Now) -> Option<Duration> {
    now.wall.checked_sub(Duration::from_secs(last_update))
}

fn went_back(before: Option<u64>, after: Option<u64>) -> bool {
    matches!((before, after), (Some(before), Some(after)) if after < before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, millis: u64) -> Now {
        Now {
            instant: start + Duration::from_millis(millis),
            wall: Duration::from_millis(1_000_000 + millis),
        }
    }

    fn stats(minor_faults: u64) -> GuestStats {
        GuestStats { minor_faults: Some(minor_faults), ..GuestStats::default() }
    }

    fn age(clock: &StatsClock, now: Now) -> u64 {
        clock.newest(now).map_or(u64::MAX, |(_, age)| age.as_millis())
    }

    #[test]
    fn the_age_is_the_lower_of_both_bounds_and_grows() {
        let (start, mut clock) = (Instant::now(), StatsClock::default());
        // Sent within second 999, read at 1000.5: at most 1.5 s old.
        clock.note(stats(1), 999, None, at(start, 500));
        assert_eq!(age(&clock, at(start, 500)), 1500);
        // Unchanged 200 ms later: not newer.
        assert!(!clock.note(stats(1), 999, None, at(start, 700)).advanced);
        assert_eq!(age(&clock, at(start, 700)), 1700);
        // Changed 100 ms later: newer than the last read, whatever the second says.
        assert!(clock.note(stats(2), 1000, None, at(start, 800)).advanced);
        assert_eq!(age(&clock, at(start, 800)), 100);
        // Changed some time later: the second gives the better bound.
        clock.note(stats(3), 1004, None, at(start, 4900));
        assert_eq!(age(&clock, at(start, 4900)), 900);
    }

    #[test]
    fn a_step_of_the_clock_does_not_make_old_numbers_new() {
        let (start, mut clock) = (Instant::now(), StatsClock::default());
        clock.note(stats(1), 5000, None, at(start, 0));
        assert_eq!(age(&clock, at(start, 0)), 0);
        clock.note(stats(1), 5000, None, at(start, 4000));
        assert_eq!(age(&clock, at(start, 4000)), 4000);
        clock.note(stats(2), 5003, None, at(start, 5000));
        assert_eq!(age(&clock, at(start, 5000)), 1000);
    }

    #[test]
    fn what_qemu_asks_for_in_turn_is_no_older_than_its_turn() {
        let (start, mut clock) = (Instant::now(), StatsClock::default());
        let every = Some(Duration::from_secs(1));
        clock.note(stats(1), 1000, every, at(start, 0));
        // Asked again at 1.0 at the earliest, read at 1.4.
        clock.note(stats(2), 1001, every, at(start, 1400));
        assert_eq!(age(&clock, at(start, 1400)), 400);
        // At 2.0, but not visible yet at 2.1.
        assert!(!clock.note(stats(2), 1001, every, at(start, 2100)).advanced);
        clock.note(stats(3), 1002, every, at(start, 2300));
        assert_eq!(age(&clock, at(start, 2300)), 200);
        // Out of turn by memtide, after the read at 2.3; and by somebody else.
        clock.asks_at_once();
        clock.note(stats(4), 1002, every, at(start, 2700));
        assert_eq!(age(&clock, at(start, 2700)), 400);
        clock.note(stats(5), 1003, every, at(start, 3000));
        assert_eq!(age(&clock, at(start, 3000)), 0);
        clock.note(stats(6), 1003, every, at(start, 3400));
        assert_eq!(age(&clock, at(start, 3400)), 400);
    }

    #[test]
    fn counters_that_go_back_tell_a_boot() {
        let (start, mut clock) = (Instant::now(), StatsClock::default());
        clock.note(stats(100), 999, None, at(start, 0));
        assert!(clock.note(stats(5), 1000, None, at(start, 500)).backwards);
        assert!(!clock.note(stats(6), 1001, None, at(start, 1500)).backwards);
        assert!(clock.note_never());
        assert!(!clock.note_never());
    }
}
