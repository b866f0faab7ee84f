//! The machine behind a stand-in's monitor.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use memtide_model::{Agent, Bytes};
use serde_json::{Map, Value, json};

use super::workload::Work;

/// A guest as QEMU knows it. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Memory at start.
    pub boot: u64,
    /// Memory that the guest keeps, without virtio-mem.
    pub actual: u64,
    /// Memory that it was asked to keep.
    pub target: u64,
    /// The step of `actual` at each look.
    pub step: u64,
    /// The size below which the guest does not follow its target.
    pub stops_at: u64,
    /// Whether there is a balloon device.
    pub balloon: bool,
    /// Whether a driver works in the guest.
    pub driver: bool,
    /// Whether that driver sends statistics.
    pub sends_statistics: bool,
    /// Whether `x-query-virtio-status` is offered.
    pub virtio_status: bool,
    /// Property of the device.
    pub deflate_on_oom: bool,
    /// Property of the device.
    pub free_page_reporting: bool,
    /// Seconds between two polls of the statistics.
    pub interval: u64,
    /// `guest-stats`.
    pub stats: Map<String, Value>,
    /// When they were last updated, in seconds since 1970.
    pub last_update: u64,
    /// The number of seconds by which the clock of `last_update` is ahead of this machine's clock.
    pub clock_ahead: i64,
    /// Bytes that it has read from its disks.
    pub disk_reads: u64,
    /// The layers of its disk, each of which makes the answer longer by 2 KiB.
    pub disk_layers: usize,
    /// Run state.
    pub status: String,
    /// Status of a migration, if there ever was one.
    pub migration: Option<String>,
    /// A virtio-mem device: requested and plugged.
    pub virtio_mem: Option<(u64, u64)>,
    /// Whether KSM may merge its memory.
    pub merge: bool,
    /// The guest's work; `None`: its balloon moves at each look, and its statistics are the given ones.
    pub work: Option<Work>,
}

impl Machine {
    /// A running guest with `mib` MiB, an empty balloon and a driver that has not been polled yet.
    #[must_use]
    pub fn new(mib: u64) -> Self {
        let bytes = mib << 20;
        Self {
            boot: bytes,
            actual: bytes,
            target: bytes,
            step: u64::MAX,
            stops_at: 0,
            balloon: true,
            driver: true,
            sends_statistics: true,
            virtio_status: true,
            deflate_on_oom: true,
            free_page_reporting: true,
            interval: 0,
            stats: Map::new(),
            last_update: 0,
            clock_ahead: 0,
            disk_reads: 0,
            disk_layers: 1,
            status: "running".to_owned(),
            migration: None,
            virtio_mem: None,
            merge: true,
            work: None,
        }
    }

    /// Advances a working guest to the present.
    pub fn advance(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        let now = Instant::now();
        if let Some(answer) = work.next_answer(self.interval, now).filter(|_| self.driver) {
            work.advance(answer);
            self.stats = work.stats();
            let wall = SystemTime::now() - now.saturating_duration_since(answer);
            let seconds = wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            self.last_update = seconds.saturating_add_signed(self.clock_ahead);
        }
        work.advance(now);
        self.actual = work.actual();
        self.disk_reads = work.disk_reads();
        self.work = Some(work);
    }

    /// What an agent in the guest tells now; `None` for a guest without work.
    pub(super) fn agent(&mut self) -> Option<Agent> {
        self.advance();
        self.work.as_ref()?.agent()
    }

    /// The guest drops up to `bytes` of page cache; returns how much it dropped.
    pub(super) fn trim(&mut self, bytes: Bytes) -> Bytes {
        self.advance();
        self.work.as_mut().map_or(Bytes::ZERO, |work| work.trim(bytes))
    }

    /// Whether the guest waits for memory.
    pub(super) fn stalls(&mut self) -> bool {
        self.advance();
        self.work.as_ref().is_some_and(Work::stalls)
    }

    /// The driver answers: statistics with this number of minor faults, sent in this second.
    pub fn update_stats(&mut self, minor_faults: u64) {
        self.stats = Map::from_iter([
            ("stat-total-memory".to_owned(), json!(self.boot)),
            ("stat-free-memory".to_owned(), json!(self.boot / 2)),
            ("stat-minor-faults".to_owned(), json!(minor_faults)),
            ("stat-major-faults".to_owned(), json!(u64::MAX)),
        ]);
        self.last_update = Self::now();
    }

    /// The present second, since 1970.
    #[must_use]
    pub fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Resets like QEMU: the driver and the statistics are gone, and the old `actual` stays.
    pub fn reset(&mut self) {
        self.driver = false;
        self.last_update = 0;
    }

    /// The value of `stat-minor-faults`.
    pub(super) fn minor_faults(&self) -> u64 {
        self.stats.get("stat-minor-faults").and_then(Value::as_u64).unwrap_or(0)
    }
}
