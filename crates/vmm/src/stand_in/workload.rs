//! What the guest behind a stand-in does: it uses memory, its balloon takes time, and QEMU asks it for statistics.
//!
//! Nothing runs between two commands: each one first brings the machine to the present. Used memory is a function of the
//! time, so that a guest that changes all the time costs no more than one that rests.
//!
//! **Rule.** The guest uses `base` and a swing that rises and falls evenly within `period`; while it [stalls](Work::stall), it
//! wants more than it keeps. Where it wants more than it keeps, its counters say so: allocations stall and memory is scanned
//! by those who wait. It does not deflate its balloon by itself, so that whoever should help it is measured and not the guest.
//! Statistics are polled as QEMU does it: every N seconds after the last answer, and at once when N was 0 before.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How long the driver takes to answer when QEMU asks for statistics.
const ANSWERS_AFTER: Duration = Duration::from_millis(1);
/// What a guest cannot use of what it keeps, in bytes.
const LOWEST_FREE: u64 = 4 << 20;
/// In a millisecond of want: allocations that stall.
const STALLS_A_MILLISECOND: u64 = 1;
/// In a millisecond of want: pages scanned by those who wait.
const SCANS_A_MILLISECOND: u64 = 32;

/// How a guest uses its memory. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// What it always uses.
    pub base: u64,
    /// By how much its use rises and falls again; 0: it rests.
    pub swing: u64,
    /// Milliseconds from one low to the next.
    pub period: u64,
    /// Milliseconds by which it is ahead of others.
    pub phase: u64,
    /// Page cache that it fills where there is memory for it.
    pub cache: u64,
    /// Bytes a second by which its balloon moves.
    pub balloon_rate: u64,
}

/// What a stand-in in a process of its own tells whoever started it, one datagram each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// Its monitor can be connected to.
    Ready,
    /// It stalled, and its target was raised so many microseconds later for the first time.
    Raised {
        /// Microseconds from the beginning of the stall to the command.
        after_us: u64,
    },
    /// The target was raised to all that it wanted.
    Enough {
        /// Microseconds from the beginning of the stall to the command.
        after_us: u64,
    },
    /// The order to stall cannot be followed: it keeps all of its memory already.
    IsFull,
    /// What it was asked so far.
    Counted {
        /// Commands.
        commands: u64,
        /// Connections.
        connections: u64,
    },
}

/// Where news go.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    socket: Arc<UnixDatagram>,
    name: String,
}

impl Reporter {
    pub(super) fn to(path: &Path, name: &str) -> std::io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self { socket: Arc::new(socket), name: name.to_owned() })
    }

    pub(super) fn tell(&self, news: &News) {
        // Whoever does not listen any more misses nothing.
        let _ = self.socket.send(json!({"guest": self.name, "news": news}).to_string().as_bytes());
    }
}

/// A guest at work.
#[derive(Clone, Debug)]
pub struct Work {
    load: Workload,
    began: Instant,
    seen_at: Instant,
    /// When QEMU takes the next statistics; `None`: it does not poll.
    next_stats: Option<Instant>,
    hushed: bool,
    stall: Option<Stall>,
    alloc_stalls: u64,
    direct_scans: u64,
    reporter: Option<Reporter>,
}

#[derive(Clone, Copy, Debug)]
struct Stall {
    at: Instant,
    /// What it wants to keep.
    wants: u64,
    /// What it was asked to keep when it began.
    target: u64,
    raised: bool,
    has_enough: bool,
}

impl Work {
    /// A guest that begins now.
    #[must_use]
    pub fn new(load: Workload) -> Self {
        let now = Instant::now();
        Self {
            load,
            began: now,
            seen_at: now,
            next_stats: None,
            hushed: false,
            stall: None,
            alloc_stalls: 0,
            direct_scans: 0,
            reporter: None,
        }
    }

    pub(super) fn reporting_to(self, reporter: Option<Reporter>) -> Self {
        Self { reporter, ..self }
    }

    /// From `now` on it wants `more` than it keeps.
    pub fn stall(&mut self, actual: u64, target: u64, more: u64, now: Instant) {
        let wants = actual.saturating_add(more);
        self.stall = Some(Stall { at: now, wants, target, raised: false, has_enough: false });
    }

    /// It wants no more than before it stalled.
    pub fn calm(&mut self) {
        self.stall = None;
    }

    /// Its driver sends no statistics from now on.
    pub(super) fn hush(&mut self) {
        self.hushed = true;
    }

    /// It was asked to keep `target`.
    pub(super) fn asked(&mut self, target: u64, now: Instant) {
        let (Some(stall), Some(reporter)) = (&mut self.stall, &self.reporter) else { return };
        let after_us = u64::try_from(now.saturating_duration_since(stall.at).as_micros()).unwrap_or(u64::MAX);
        if !stall.raised && target > stall.target {
            stall.raised = true;
            reporter.tell(&News::Raised { after_us });
        }
        if !stall.has_enough && target >= stall.wants {
            stall.has_enough = true;
            reporter.tell(&News::Enough { after_us });
        }
    }

    /// QEMU polls every `seconds` from now on, and `before` until now.
    pub(super) fn polled(&mut self, before: u64, seconds: u64, now: Instant) {
        self.next_stats = match (before, seconds) {
            (_, 0) => None,
            (0, _) => Some(now + ANSWERS_AFTER),
            _ => Some(now + Duration::from_secs(seconds)),
        };
    }

    /// The next moment up to `now` at which the driver answers QEMU, which asks every `seconds`.
    pub(super) fn next_answer(&mut self, seconds: u64, now: Instant) -> Option<Instant> {
        let due = self.next_stats.filter(|due| *due <= now && !self.hushed)?;
        let every = Duration::from_secs(seconds.max(1));
        // Of a long time in which nobody looked, only the last answer matters.
        let missed = u32::try_from((now - due).as_secs() / every.as_secs()).unwrap_or(u32::MAX);
        let due = due + every * missed;
        self.next_stats = Some(due + every);
        Some(due)
    }

    /// Moves on to `now`: the size that the guest keeps then, of `actual` and on the way to `target`.
    pub(super) fn advance(&mut self, actual: u64, target: u64, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.seen_at);
        self.seen_at = self.seen_at.max(now);
        if self.wants(now) > actual.saturating_sub(LOWEST_FREE) {
            let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            self.alloc_stalls += millis * STALLS_A_MILLISECOND;
            self.direct_scans += millis * SCANS_A_MILLISECOND;
        }
        let micros = u128::from(self.load.balloon_rate) * elapsed.as_micros() / 1_000_000;
        let way = u64::try_from(micros).unwrap_or(u64::MAX).min(actual.abs_diff(target));
        // The driver works page by page, and the wire counts bytes.
        if target > actual { actual + way } else { actual - way }
    }

    /// What it wants to use.
    fn wants(&self, now: Instant) -> u64 {
        let millis = u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX);
        let swing = match self.load.period {
            0 => 0,
            period => {
                let at = (millis + self.load.phase) % period;
                let risen =
                    u128::from(self.load.swing) * 2 * u128::from(at.min(period - at)) / u128::from(period);
                u64::try_from(risen).unwrap_or(u64::MAX)
            }
        };
        let used = self.load.base.saturating_add(swing);
        self.stall.map_or(used, |stall| used.max(stall.wants))
    }

    /// What the driver answers `now`, in the guest that keeps `actual` of `boot`.
    pub(super) fn stats(&self, boot: u64, actual: u64, now: Instant) -> Map<String, Value> {
        let millis = u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX);
        let used = self.wants(now).min(actual.saturating_sub(LOWEST_FREE));
        let available = actual - used;
        let cache = self.load.cache.min(available.saturating_sub(LOWEST_FREE));
        let counters = [
            ("stat-total-memory", boot - boot / 32),
            ("stat-available-memory", available),
            ("stat-free-memory", available - cache),
            ("stat-disk-caches", cache),
            ("stat-swap-in", 0),
            ("stat-swap-out", 0),
            ("stat-major-faults", 700),
            ("stat-minor-faults", 100_000 + millis / 8),
            ("stat-htlb-pgalloc", 0),
            ("stat-htlb-pgfail", 0),
            ("stat-oom-kills", 0),
            ("stat-alloc-stalls", self.alloc_stalls),
            ("stat-async-scans", 0),
            ("stat-direct-scans", self.direct_scans),
            ("stat-async-reclaims", 0),
            ("stat-direct-reclaims", self.direct_scans / 2),
        ];
        counters.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
    }

    pub(super) fn tell(&self, news: &News) {
        if let Some(reporter) = &self.reporter {
            reporter.tell(news);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LOAD: Workload = Workload {
        base: 100 * MIB,
        swing: 60 * MIB,
        period: 60_000,
        phase: 0,
        cache: 10 * MIB,
        balloon_rate: 100 * MIB,
    };

    fn at(work: &Work, secs: u64) -> Instant {
        work.began + Duration::from_secs(secs)
    }

    #[test]
    fn use_rises_and_falls_evenly() {
        let work = Work::new(LOAD);
        let mib = |secs| (work.wants(at(&work, secs)) + MIB / 2) / MIB;
        assert_eq!([0, 15, 30, 45, 60].map(mib), [100, 130, 160, 130, 100]);
    }

    #[test]
    fn the_balloon_takes_time_and_want_is_counted() {
        let mut work = Work::new(LOAD);
        // 100 MiB a second.
        assert_eq!(work.advance(500 * MIB, 200 * MIB, at(&work, 1)), 400 * MIB);
        assert_eq!(work.advance(400 * MIB, 350 * MIB, at(&work, 2)), 350 * MIB);
        assert_eq!(work.alloc_stalls, 0);
        work.stall(350 * MIB, 350 * MIB, 64 * MIB, at(&work, 2));
        assert_eq!(work.advance(350 * MIB, 450 * MIB, at(&work, 3)), 450 * MIB);
        assert_eq!((work.alloc_stalls, work.direct_scans), (1000, 32_000));
        work.advance(450 * MIB, 450 * MIB, at(&work, 4));
        assert_eq!(work.alloc_stalls, 1000);
    }

    #[test]
    fn qemu_asks_every_so_many_seconds_and_at_once_after_zero() {
        let mut work = Work::new(LOAD);
        let start = at(&work, 0);
        work.polled(0, 2, start);
        let first = start + ANSWERS_AFTER;
        assert_eq!(work.next_answer(2, start), None);
        assert_eq!(work.next_answer(2, at(&work, 1)), Some(first));
        assert_eq!(work.next_answer(2, at(&work, 1)), None);
        assert_eq!(work.next_answer(2, at(&work, 9)), Some(first + Duration::from_secs(8)));
        work.polled(2, 0, at(&work, 9));
        assert_eq!(work.next_answer(0, at(&work, 20)), None);
    }
}
