//! The guest behind a stand-in: a [`Guest`] of memtide-guest runs in real time, and QEMU asks it for statistics.
//!
//! Nothing runs between two commands: each command first advances the guest to the present. The guest's need is a function of the
//! time, so a guest that changes all the time costs no more than a quiet guest.
//!
//! **Rule.** The guest uses `base` and a swing that rises and falls evenly within `period`. While it [stalls](Work::stall), it wants
//! more than it keeps, and waits. It neither deflates its own balloon nor kills, so a test measures the daemon and not the guest.
//! Statistics are polled like in QEMU: every N seconds after the last answer, and at once if N was 0 before.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memtide_guest::{File, Guest, Program, Spec};
use memtide_model::{Agent, Bytes, Span};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The driver's time to answer QEMU's request for statistics.
const ANSWERS_AFTER: Duration = Duration::from_millis(1);
/// The rate at which its program fills memory, in bytes a second: at once.
const AT_ONCE: u64 = 1 << 40;
/// The time in which the guest reads its page cache once, in seconds.
const READS_CACHE_IN: u64 = 60;
/// Milliseconds between two minor faults of a quiet guest. The model counts none, but a real driver's answers always differ.
const FAULTS_EVERY: u64 = 8;

/// A guest's use of its memory. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Constant use by kernel and program: at least 16 MiB plus a 64th of the guest's memory, which a driver never counts as
    /// managed.
    pub base: u64,
    /// The amount by which its use rises and falls; 0: the guest is at rest.
    pub swing: u64,
    /// Milliseconds from one low to the next.
    pub period: u64,
    /// Milliseconds by which this guest is ahead of others.
    pub phase: u64,
    /// Page cache that it fills if there is memory for it.
    pub cache: u64,
}

impl Workload {
    /// The guest of `memory` with this workload: a kernel, one program and one file.
    fn spec(&self, memory: Bytes) -> Spec {
        let (base, cache) = (Bytes::new(self.base), Bytes::new(self.cache));
        let kernel_size = Spec::default().kernel_size.min(base);
        let program = Program { rate: AT_ONCE, ..Program::constant(base.saturating_sub(kernel_size)) };
        Spec {
            memory,
            kernel_size,
            slab: Bytes::ZERO,
            programs: vec![program],
            agent: true,
            files: vec![File::hot(cache, self.cache / READS_CACHE_IN)],
            ..Spec::default()
        }
    }

    /// Its use `millis` after its start.
    fn used(&self, millis: u64) -> u64 {
        let swing = match self.period {
            0 => 0,
            period => {
                let at = (millis + self.phase) % period;
                let risen = u128::from(self.swing) * 2 * u128::from(at.min(period - at)) / u128::from(period);
                u64::try_from(risen).unwrap_or(u64::MAX)
            }
        };
        self.base.saturating_add(swing)
    }
}

/// News from a stand-in in its own process to the process that started it, one datagram each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// Its monitor can be connected to.
    Ready,
    /// It stalled, and its target was raised for the first time since then.
    Raised {
        /// Microseconds from the beginning of the stall to the command.
        after_us: u64,
    },
    /// The target was raised to all memory that it wanted.
    Enough {
        /// Microseconds from the beginning of the stall to the command.
        after_us: u64,
    },
    /// It cannot stall as ordered, because it keeps all of its memory already.
    IsFull,
    /// The requests so far.
    Counted {
        /// Commands.
        commands: u64,
        /// Connections.
        connections: u64,
    },
}

/// The destination of the news.
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
        // If nobody listens, nobody needs the news.
        let _ = self.socket.send(json!({"guest": self.name, "news": news}).to_string().as_bytes());
    }
}

/// A guest at work.
#[derive(Clone, Debug)]
pub struct Work {
    load: Workload,
    guest: Guest,
    began: Instant,
    /// When QEMU takes the next statistics; `None`: QEMU does not poll.
    next_stats: Option<Instant>,
    hushed: bool,
    stall: Option<Stall>,
    reporter: Option<Reporter>,
}

#[derive(Clone, Copy, Debug)]
struct Stall {
    at: Instant,
    /// The memory that it wants to keep.
    wants: u64,
    /// Its target when the stall began.
    target: u64,
    raised: bool,
    has_enough: bool,
}

impl Work {
    /// A guest of `memory` that starts now.
    #[must_use]
    pub fn new(load: Workload, memory: Bytes) -> Self {
        let mut guest = Guest::new(Arc::new(load.spec(memory)), 0);
        guest.wait(true);
        let began = Instant::now();
        Self { load, guest, began, next_stats: None, hushed: false, stall: None, reporter: None }
    }

    pub(super) fn reporting_to(self, reporter: Option<Reporter>) -> Self {
        Self { reporter, ..self }
    }

    /// Makes it want `more` bytes than it keeps, from `now` on.
    pub fn stall(&mut self, more: u64, now: Instant) {
        let (wants, target) = (self.actual().saturating_add(more), self.guest.target().get());
        self.stall = Some(Stall { at: now, wants, target, raised: false, has_enough: false });
    }

    /// Makes it want only as much as before it stalled.
    pub fn calm(&mut self) {
        self.stall = None;
    }

    /// What its agent tells.
    pub(super) fn agent(&self) -> Option<Agent> {
        self.guest.agent()
    }

    /// Its agent drops up to `bytes` of page cache; returns how much it dropped.
    pub(super) fn trim(&mut self, bytes: Bytes) -> Bytes {
        self.guest.trim(bytes)
    }

    /// Whether it waits for memory.
    pub(super) fn stalls(&self) -> bool {
        self.stall.is_some_and(|stall| !stall.has_enough)
    }

    /// Stops its driver's statistics.
    pub(super) fn hush(&mut self) {
        self.hushed = true;
    }

    /// Notes the target `target`.
    pub(super) fn asked(&mut self, target: u64, now: Instant) {
        self.guest.set_target(Bytes::new(target));
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

    /// From `now` on, QEMU polls every `seconds`; before, every `before` seconds.
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
        // After a long time without a look, only the last answer matters.
        let missed = u32::try_from((now - due).as_secs() / every.as_secs()).unwrap_or(u32::MAX);
        let due = due + every * missed;
        self.next_stats = Some(due + every);
        Some(due)
    }

    /// Advances the guest to `now`.
    pub(super) fn advance(&mut self, now: Instant) {
        let age = self.age(now);
        let used = self.load.used(age.as_millis());
        let wants = Bytes::new(self.stall.map_or(used, |stall| used.max(stall.wants)));
        self.guest.wish(0, wants.saturating_sub(self.guest.spec().kernel_size));
        self.guest.advance(age);
    }

    fn age(&self, now: Instant) -> Span {
        now.saturating_duration_since(self.began).into()
    }

    /// The memory that it keeps, in bytes.
    pub(super) fn actual(&self) -> u64 {
        self.guest.size().actual.get()
    }

    /// What it has read from its disks, in bytes.
    pub(super) fn disk_reads(&self) -> u64 {
        self.guest.disks().bytes.get()
    }

    /// The driver's answer at the guest's present moment.
    pub(super) fn stats(&self) -> Map<String, Value> {
        let stats = self.guest.stats();
        let faults = stats.minor_faults.map(|faults| faults + self.guest.age().as_millis() / FAULTS_EVERY);
        let bytes = |size: Option<Bytes>| size.map(Bytes::get);
        let counters = [
            ("stat-total-memory", bytes(stats.total)),
            ("stat-available-memory", bytes(stats.available)),
            ("stat-free-memory", bytes(stats.free)),
            ("stat-disk-caches", bytes(stats.disk_caches)),
            ("stat-swap-in", bytes(stats.swapped_in)),
            ("stat-swap-out", bytes(stats.swapped_out)),
            ("stat-major-faults", stats.major_faults),
            ("stat-minor-faults", faults),
            ("stat-htlb-pgalloc", stats.htlb_pgalloc),
            ("stat-htlb-pgfail", stats.htlb_pgfail),
            ("stat-oom-kills", stats.oom_kills),
            ("stat-alloc-stalls", stats.alloc_stalls),
            ("stat-async-scans", stats.async_scans),
            ("stat-direct-scans", stats.direct_scans),
            ("stat-async-reclaims", stats.async_reclaims),
            ("stat-direct-reclaims", stats.direct_reclaims),
        ];
        counters.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))).collect()
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
    const LOAD: Workload =
        Workload { base: 100 * MIB, swing: 60 * MIB, period: 60_000, phase: 0, cache: 10 * MIB };

    fn work() -> Work {
        Work::new(LOAD, Bytes::from_mib(500))
    }

    fn at(work: &Work, secs: u64) -> Instant {
        work.began + Duration::from_secs(secs)
    }

    /// Its use in MiB after `secs` seconds, and the number of allocations that have waited.
    fn seen(work: &mut Work, secs: u64) -> (u64, u64) {
        work.advance(at(work, secs));
        (work.guest.size().used.whole_mib(), work.stats()["stat-alloc-stalls"].as_u64().unwrap_or(u64::MAX))
    }

    #[test]
    fn use_rises_and_falls_evenly() {
        let mut work = work();
        let used = [0, 15, 30, 45, 60].map(|secs| seen(&mut work, secs).0);
        assert_eq!(used, [100, 130, 160, 130, 100]);
    }

    #[test]
    fn a_stall_lasts_until_the_target_is_raised() {
        let mut work = work();
        work.asked(200 * MIB, at(&work, 0));
        assert_eq!((seen(&mut work, 9), work.actual()), ((118, 0), 200 * MIB));
        work.stall(64 * MIB, at(&work, 9));
        let (_, early) = seen(&mut work, 10);
        let (used, later) = seen(&mut work, 20);
        // It can use the 200 MiB except for its watermarks. Each second at least 4 allocations wait, enough for the policy to see a stall.
        assert!((170..200).contains(&used) && early >= 4 && later >= early + 40, "{used} {early} {later}");
        assert_eq!(work.actual(), 200 * MIB);
        work.asked(300 * MIB, at(&work, 20));
        let helped = seen(&mut work, 21);
        assert_eq!((helped.0, seen(&mut work, 29).1), (264, helped.1));
        work.calm();
        assert_eq!(seen(&mut work, 60).0, 100);
    }

    #[test]
    fn qemu_asks_every_so_many_seconds_and_at_once_after_zero() {
        let mut work = work();
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
