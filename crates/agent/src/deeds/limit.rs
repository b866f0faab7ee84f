//! `cache_limit`: unmapped page cache at or below a share of all memory, as min_unmapped_ratio keeps it.
//!
//! **Rule.** Once a second, a quarter of the excess is trimmed. If the working set refaults after that, the limit is too low for the guest: it
//! waits for a minute, then twice as long each time, at most an hour.

use memtide_model::{Bytes, Share};

use super::is_hot;
use crate::wire::Report;

/// The time between two steps, in milliseconds.
const EVERY_MS: u64 = 1_000;
/// The first pause after refaults, and the longest, in milliseconds.
const PAUSE_MS: [u64; 2] = [60_000, 3_600_000];
/// A smaller excess is left alone.
const LEAST: Bytes = Bytes::from_mib(4);

/// A limit in force.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimit {
    share: Share,
    /// The next step, in milliseconds of the monotonic clock.
    next_ms: u64,
    pause_ms: u64,
    /// The bytes of the last step, and the refaults of the working set before it.
    last: Option<(Bytes, Bytes)>,
}

impl CacheLimit {
    /// A limit of this share of all memory.
    #[must_use]
    pub const fn new(share: Share) -> Self {
        Self { share, next_ms: 0, pause_ms: PAUSE_MS[0], last: None }
    }

    /// The moment of its next step, in milliseconds of the monotonic clock.
    #[must_use]
    pub const fn next_ms(&self) -> u64 {
        self.next_ms
    }

    /// The time from the last report to the next step, in milliseconds, if it waits because of refaults.
    #[must_use]
    pub const fn pause_ms(&self, report: &Report) -> Option<u64> {
        let waits = self.next_ms.saturating_sub(report.made_ms);
        if waits > EVERY_MS { Some(waits) } else { None }
    }

    /// The bytes to trim now.
    pub fn due(&mut self, report: &Report) -> Option<Bytes> {
        let now = report.made_ms;
        if now < self.next_ms {
            return None;
        }
        self.next_ms = now.saturating_add(EVERY_MS);
        let refaults = report.counters.activations_file;
        if let Some((bytes, before)) = self.last.take() {
            if is_hot(refaults.saturating_sub(before), bytes) {
                self.next_ms = now.saturating_add(self.pause_ms);
                self.pause_ms = self.pause_ms.saturating_mul(2).min(PAUSE_MS[1]);
                return None;
            }
            self.pause_ms = PAUSE_MS[0];
        }
        let excess = report.memory.unmapped_cache.saturating_sub(self.share.of(report.memory.total));
        if excess < LEAST {
            return None;
        }
        let step = excess.mul_div(1, 4).max(LEAST);
        self.last = Some((step, refaults));
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::{AgentCounters, AgentMemory};

    fn report(made_ms: u64, cache: u64, refaults: u64) -> Report {
        let mib = Bytes::from_mib;
        let memory = AgentMemory { total: mib(1000), unmapped_cache: mib(cache), ..AgentMemory::default() };
        let counters = AgentCounters { activations_file: mib(refaults), ..AgentCounters::default() };
        Report { made_ms, memory, counters, ..Report::default() }
    }

    #[test]
    fn a_quarter_of_the_excess_each_second() {
        let mut limit = CacheLimit::new(Share::percent(40).unwrap());
        assert_eq!(limit.due(&report(1_000, 600, 0)), Some(Bytes::from_mib(50)));
        assert_eq!(limit.due(&report(1_500, 550, 0)), None);
        assert_eq!(limit.due(&report(2_000, 550, 0)), Some(Bytes::from_kib(38_400)));
        assert_eq!(limit.due(&report(3_000, 403, 0)), None, "less than 4 MiB is left alone");
    }

    #[test]
    fn refaults_make_it_wait_twice_as_long_each_time() {
        let mut limit = CacheLimit::new(Share::percent(40).unwrap());
        let mut refaults = 0;
        let mut steps = Vec::new();
        for second in 1..400 {
            if limit.due(&report(second * 1000, 600, refaults)).is_some() {
                steps.push(second);
                refaults += 10;
            }
        }
        assert_eq!(steps, [1, 62, 183]);
    }
}
