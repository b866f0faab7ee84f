//! The knowledge about one guest: the questions of the next poll, and the meaning of answers and events.
//!
//! This module does no I/O: questions come out, answers and the time go in. Each question has its own period, because each one
//! costs both sides some 30 µs:
//!
//! | question | asked |
//! |---|---|
//! | actual, statistics | at each poll |
//! | reads from disks | after the statistics, by itself, if these lack the counters of scans |
//! | migration | every 5 s, and after an event |
//! | run state | after an event, if events may have been missed, and every 15 s |
//! | polling interval | every 15 s |
//! | sizes | at each poll if there is virtio-mem, else every 30 s, with the device, and when the process has mapped more |
//! | the device and its properties | once, and after events about devices; every 30 s if missing or silent, else every 5 min |
//! | memory, and whether KSM may merge it | with the device, and every 15 s |
//! | virtio status (does a driver work?) | while this is in doubt |

use std::time::{Duration, Instant};

use memtide_model::{Absence, Balloon, Bytes, DiskReads, Fence, Hotplug, Polling, Reading, Span, Told};
use serde::de::DeserializeOwned;

use super::balloon::{self, Abilities, Device, VirtioStatus};
use super::disks::{self, Disk};
use super::hotplug::{self, MemoryDevice, Summary};
use super::machine::DEFAULT_MEMORY;
use super::merge::{self, MemoryPart};
use super::qmp::{Command, QmpEvent, Reply, decode};
use super::run_state::{Migration, Status};
use super::signal::Signal;
use super::stats::WireStats;
use crate::reset::ResetWatch;
use crate::stats_clock::{Now, StatsClock};

/// The time between two questions about migration. QEMU sends migration events only to clients that enabled them before it began.
const MIGRATION_PERIOD: Duration = Duration::from_secs(5);
/// The time between two questions about values that rarely change, or that change with an event.
const SLOWLY: Duration = Duration::from_secs(15);
/// The time between two questions about the sizes of a guest without virtio-mem, and between two looks for a missing device.
const DEVICE_PERIOD: Duration = Duration::from_secs(30);
/// The time between two looks for a device that answers. Each look costs two more exchanges.
const KNOWN_DEVICE_PERIOD: Duration = Duration::from_secs(300);
/// Statistics up to this age are fresh, however short the polling interval is.
const LEAST_FRESH: Duration = Duration::from_secs(3);
/// Older statistics are not fresh, however long the polling interval is.
const MOST_FRESH: Duration = Duration::from_secs(12);
/// The time that an answer may take beyond the polling interval.
const GRACE: Duration = Duration::from_secs(2);

/// One question of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    RunState,
    Migration,
    Actual,
    Summary,
    MemoryDevices,
    Interval,
    Stats,
    Disks,
    Driver,
    Memory,
    /// Half of a question: QEMU asks the guest at once if its polling, which memtide set up, is stopped …
    StopPolling,
    /// … and started again.
    StartPolling,
}

/// The last answer to a question, and why it is missing or old.
#[derive(Debug)]
struct Last<T> {
    value: Option<(T, Instant)>,
    missing: Option<Absence>,
}

/// The knowledge about the device.
#[derive(Debug)]
enum Known {
    /// Not known yet, or the object model does not answer.
    Unknown(Absence),
    None,
    Found(Device),
}

/// The knowledge about one guest.
#[derive(Debug)]
pub(super) struct Picture {
    device: Known,
    device_at: Option<Instant>,
    sizes_at: Option<Instant>,
    slow_at: Option<Instant>,
    migration_at: Option<Instant>,
    run_state_due: bool,
    full: Bytes,
    /// Nothing says the size that the guest was started with: `full` is a guess until QEMU tells it.
    is_guessed: bool,
    /// Memory at start and all that is plugged, as QEMU sums it up.
    all: Option<Bytes>,
    /// The part of it that is no RAM.
    no_ram: Bytes,
    actual: Last<Bytes>,
    hotplug: Last<Hotplug>,
    memory: Last<Vec<MemoryPart>>,
    disks: Last<DiskReads>,
    /// The guest reads from disks that QEMU does not count.
    pub(super) disks_elsewhere: bool,
    /// What QEMU tells of its disks is too long.
    pub(super) disks_are_too_many: bool,
    fence: Option<Fence>,
    migrating: bool,
    /// Seconds between two polls of the statistics; 0: off.
    interval: Option<u64>,
    /// The interval that memtide set, and when.
    ours: Option<(u64, Instant)>,
    /// When memtide made QEMU ask for statistics out of turn.
    refreshed_at: Option<Instant>,
    stats: StatsClock,
    stats_missing: Option<Absence>,
    driver: Option<bool>,
    /// Whether QEMU offers the virtio status.
    driver_can_be_asked: bool,
    /// What a working driver can do, if QEMU tells.
    abilities: Option<Abilities>,
    reset: ResetWatch,
    /// Why the last poll failed as a whole.
    unreachable: Option<Absence>,
}

impl<T> Last<T> {
    const fn nothing() -> Self {
        Self { value: None, missing: Some(Absence::NotYet) }
    }

    const fn unsupported() -> Self {
        Self { value: None, missing: Some(Absence::Unsupported) }
    }

    fn set(&mut self, value: T, now: Now) {
        *self = Self { value: Some((value, now.instant)), missing: None };
    }
}

impl<T: Clone> Last<T> {
    fn value(&self) -> Option<T> {
        self.value.as_ref().map(|(value, _)| value.clone())
    }

    fn reading(&self, now: Now, unreachable: Option<&Absence>) -> Reading<T> {
        let age = |at: Instant| Span::from(now.instant.saturating_duration_since(at));
        match (&self.value, unreachable.or(self.missing.as_ref())) {
            (Some((value, at)), None) => Reading::Fresh { value: value.clone(), age: age(*at) },
            (Some((value, at)), Some(why)) => {
                Reading::Stale { value: value.clone(), age: age(*at), why: why.clone() }
            }
            (None, Some(why)) => Reading::absent(why.clone()),
            (None, None) => Reading::absent(Absence::NotYet),
        }
    }
}

impl Picture {
    /// A guest that was started with `boot` bytes, according to its command line.
    pub(super) fn new(boot: Option<Bytes>) -> Self {
        Self {
            device: Known::Unknown(Absence::NotYet),
            device_at: None,
            sizes_at: None,
            slow_at: None,
            migration_at: None,
            run_state_due: true,
            full: boot.unwrap_or(DEFAULT_MEMORY),
            is_guessed: boot.is_none(),
            all: None,
            no_ram: Bytes::ZERO,
            actual: Last::nothing(),
            hotplug: Last::nothing(),
            disks: Last::unsupported(),
            disks_elsewhere: false,
            disks_are_too_many: false,
            memory: Last::nothing(),
            fence: None,
            migrating: false,
            interval: None,
            ours: None,
            refreshed_at: None,
            stats: StatsClock::default(),
            stats_missing: None,
            driver: None,
            driver_can_be_asked: true,
            abilities: None,
            reset: ResetWatch::default(),
            unreachable: Some(Absence::NotYet),
        }
    }

    pub(super) fn device(&self) -> Option<&Device> {
        match &self.device {
            Known::Found(device) => Some(device),
            Known::Unknown(_) | Known::None => None,
        }
    }

    pub(super) fn device_is_due(&self, now: Now) -> bool {
        let answers = self.device().is_some() && self.stats_missing.is_none();
        is_due(self.device_at, if answers { KNOWN_DEVICE_PERIOD } else { DEVICE_PERIOD }, now)
    }

    /// Notes the result of the look for the device.
    pub(super) fn note_device(&mut self, found: Result<Option<Device>, Absence>, now: Now) {
        self.device_at = Some(now.instant);
        self.device = match found {
            Ok(Some(device)) => Known::Found(device),
            Ok(None) => Known::None,
            Err(why) => Known::Unknown(why),
        };
    }

    /// The interval that memtide set, if it is still the active one.
    pub(super) fn our_interval(&self) -> Option<u64> {
        self.ours.map(|(seconds, _)| seconds).filter(|&seconds| self.interval == Some(seconds))
    }

    pub(super) fn note_our_interval(&mut self, seconds: u64, now: Now) {
        self.stats.asks_at_once();
        self.interval = Some(seconds);
        self.ours = Some((seconds, now.instant));
    }

    /// Whether a read after `moment` brought new statistics.
    pub(super) fn stats_advanced_since(&self, moment: Instant) -> bool {
        self.stats.advanced_at().is_some_and(|at| at > moment)
    }

    /// Whether memtide may make QEMU ask for statistics out of turn: memtide set the interval, and the newest statistics may
    /// be older than `age`.
    pub(super) fn may_refresh(&self, age: Duration, now: Now) -> bool {
        let newer = || self.stats.newest(now).is_some_and(|(_, newest)| Duration::from(newest) < age);
        self.device().is_some() && self.our_interval().is_some() && !newer()
    }

    /// The last time that QEMU was made to ask out of turn since the last call. Later statistics are the answer.
    pub(super) fn take_refreshed(&mut self) -> Option<Instant> {
        self.refreshed_at.take()
    }

    /// Whether there may be virtio-mem.
    pub(super) fn may_have_plugged(&self) -> bool {
        self.hotplug.missing != Some(Absence::Unsupported) || self.sizes_at.is_none()
    }

    /// Memory that virtio-mem has plugged.
    pub(super) fn plugged(&self) -> Bytes {
        self.hotplug.value().map_or(Bytes::ZERO, |hotplug| hotplug.plugged)
    }

    /// The guest's memory as QEMU lists it.
    pub(super) fn memory(&self) -> Vec<MemoryPart> {
        self.memory.value().unwrap_or_default()
    }

    /// The sizes may have changed: they are asked for at the next poll.
    pub(super) const fn doubt_sizes(&mut self) {
        self.sizes_at = None;
    }

    /// The questions of this poll. `looked`: the device was just looked for.
    pub(super) fn questions(&mut self, looked: bool, now: Now) -> Vec<Question> {
        let mut questions = Vec::new();
        let slow = is_due(self.slow_at, SLOWLY, now);
        if slow {
            self.slow_at = Some(now.instant);
        }
        if is_due(self.migration_at, MIGRATION_PERIOD, now) {
            self.migration_at = Some(now.instant);
            questions.push(Question::Migration);
        }
        if slow || self.run_state_due {
            questions.push(Question::RunState);
        }
        if looked || self.hotplug.value.is_some() || is_due(self.sizes_at, DEVICE_PERIOD, now) {
            self.sizes_at = Some(now.instant);
            questions.extend([Question::Summary, Question::MemoryDevices]);
        }
        // More may have been plugged.
        if looked || slow {
            questions.push(Question::Memory);
        }
        if self.device().is_some() {
            questions.push(Question::Actual);
            if slow || self.interval.is_none() {
                questions.push(Question::Interval);
            }
            questions.push(Question::Stats);
            // After the statistics: of the two answers, this one describes the present.
            if self.driver_is_in_doubt(slow, now) {
                questions.push(Question::Driver);
            }
        }
        questions
    }

    /// Whether to ask at this poll what the guest has read from its disks. If not, nothing is known of it.
    pub(super) fn asks_disks(&mut self) -> bool {
        let asks = self.stats.lacks_scans()
            && self.device().is_some()
            && !self.disks_elsewhere
            && !self.disks_are_too_many;
        if !asks {
            self.disks = Last::unsupported();
        }
        asks
    }

    fn driver_is_in_doubt(&self, slow: bool, now: Now) -> bool {
        let silent =
            || self.stats.newest(now).is_none_or(|(_, age)| Duration::from(age) > self.answers_within());
        let polled = self.interval.is_some_and(|seconds| seconds > 0);
        self.driver_can_be_asked
            && (self.driver != Some(true) || self.reset.is_pending() || if polled { silent() } else { slow })
    }

    /// The command of a question; `None` if it needs a device and there is none.
    pub(super) fn command(&self, question: Question) -> Option<Command> {
        Some(match question {
            Question::RunState => Command::plain("query-status"),
            Question::Migration => Command::plain("query-migrate"),
            Question::Actual => Command::plain("query-balloon"),
            Question::Summary => Command::plain("query-memory-size-summary"),
            Question::MemoryDevices => Command::plain("query-memory-devices"),
            Question::Interval => self.device()?.get(balloon::INTERVAL),
            Question::Stats => self.device()?.get(balloon::STATS),
            Question::Disks => disks::question(),
            Question::Driver => self.device()?.virtio_status(),
            Question::Memory => Command::plain("query-memdev"),
            Question::StopPolling => self.device()?.set_interval(0),
            Question::StartPolling => self.device()?.set_interval(self.our_interval()?),
        })
    }

    /// Notes the answer to a question. A value with another shape than QMP's counts as no answer.
    pub(super) fn answer(&mut self, question: Question, reply: &Reply, now: Now) {
        match question {
            Question::RunState => {
                if let Ok(status) = read::<Status>(reply) {
                    self.fence = status.fence();
                    self.run_state_due = false;
                }
            }
            Question::Migration => {
                self.migrating = read::<Migration>(reply).is_ok_and(|migration| migration.is_under_way());
            }
            Question::Actual => self.answer_actual(reply, now),
            Question::Summary => {
                if let Ok(summary) = read::<Summary>(reply) {
                    self.all = Some(summary.all());
                    self.note_full();
                }
            }
            Question::MemoryDevices => self.answer_memory_devices(reply, now),
            // QEMU accepts at most 32 bits.
            Question::Interval => self.interval = read::<u32>(reply).ok().map(u64::from),
            Question::Stats => self.answer_stats(reply, now),
            Question::Disks => match read::<Vec<Disk>>(reply).map(|disks| disks::sum(&disks)) {
                Ok(Some(reads)) => self.disks.set(reads, now),
                Ok(None) => self.disks = Last::unsupported(),
                Err(why) => self.disks.missing = Some(why),
            },
            Question::Driver => self.answer_driver(reply, now),
            Question::Memory => match read::<Vec<MemoryPart>>(reply) {
                Ok(parts) => {
                    let parts = merge::settable(parts);
                    let missing = if parts.is_empty() { Some(Absence::Unsupported) } else { None };
                    self.memory = Last { value: missing.is_none().then_some((parts, now.instant)), missing };
                }
                Err(why) => self.memory.missing = Some(why),
            },
            Question::StopPolling => {
                self.refreshed_at = reply.is_ok().then_some(now.instant);
                self.stats.asks_at_once();
            }
            Question::StartPolling => self.refreshed_at = self.refreshed_at.filter(|_| reply.is_ok()),
        }
    }

    fn answer_actual(&mut self, reply: &Reply, now: Now) {
        match read::<balloon::Info>(reply) {
            Ok(info) => {
                let actual = Bytes::new(info.actual);
                self.actual.set(actual, now);
                // A DIMM was plugged. (QEMU's balloon does not count virtio-mem.)
                if actual > self.full.saturating_sub(self.plugged()) {
                    self.doubt_sizes();
                }
            }
            // The device is being set up or removed.
            Err(_) if matches!(reply, Err(refusal) if refusal.class == "DeviceNotActive") => {
                self.actual = Last { value: None, missing: Some(Absence::NoDriver) };
                self.device_at = None;
            }
            Err(why) => self.actual.missing = Some(why),
        }
    }

    fn answer_memory_devices(&mut self, reply: &Reply, now: Now) {
        let devices = match read::<Vec<MemoryDevice>>(reply) {
            Ok(devices) => devices,
            Err(why) => {
                self.hotplug.missing = Some(why);
                return;
            }
        };
        match hotplug::virtio_mem(&devices) {
            Some(hotplug) => self.hotplug.set(hotplug, now),
            None => self.hotplug = Last::unsupported(),
        }
        self.no_ram = hotplug::no_ram(&devices);
        self.note_full();
    }

    fn note_full(&mut self) {
        if let Some(all) = self.all {
            self.full = all.saturating_sub(self.no_ram);
        }
    }

    fn answer_stats(&mut self, reply: &Reply, now: Now) {
        let wire = match read::<WireStats>(reply) {
            Ok(wire) => wire,
            Err(why) => {
                self.stats_missing = Some(why);
                return;
            }
        };
        self.stats_missing = None;
        let Some(last_update) = wire.last_update() else {
            // QEMU forgets the time when the device is reset.
            if self.stats.note_never() {
                self.note_reset(now.wall.as_secs());
            }
            return;
        };
        let every = self.our_interval().filter(|&seconds| seconds > 0).map(Duration::from_secs);
        let progress = self.stats.note(wire.guest_stats(), last_update, every, now);
        if progress.advanced {
            self.driver = Some(true);
            self.reset.stats_of(last_update);
        }
        match (progress.backwards, self.reset.is_pending()) {
            (true, true) => self.reset.over(),
            // Noticed only when the driver reports again. So the reset is reported once, until the next poll.
            (true, false) => self.reset.seen(last_update.saturating_sub(1), self.actual.value()),
            (false, _) => self.reset.stats_of(last_update),
        }
    }

    fn answer_driver(&mut self, reply: &Reply, now: Now) {
        match read::<VirtioStatus>(reply) {
            Ok(status) => {
                if self.driver == Some(true) && !status.has_driver() {
                    self.note_reset(now.wall.as_secs());
                }
                self.driver = Some(status.has_driver());
                self.abilities = status.has_driver().then(|| status.abilities());
            }
            Err(_) => {
                self.driver_can_be_asked = false;
                self.driver = None;
            }
        }
    }

    /// Evaluates all answers of a poll together.
    pub(super) fn settle(&mut self) {
        self.unreachable = None;
        let Some(actual) = self.actual.value() else { return };
        let boot = match self.driver {
            Some(true) => self.full.saturating_sub(self.plugged()),
            None => Bytes::MAX,
            Some(false) => return,
        };
        self.reset.driver_with(actual, boot);
    }

    /// Notes that the poll failed as a whole.
    pub(super) fn note_unreachable(&mut self, why: Absence) {
        self.unreachable = Some(why);
        self.note_silence();
        (self.slow_at, self.migration_at) = (None, None);
    }

    /// Notes that the connection was missing for a while: events may have been missed.
    pub(super) const fn note_silence(&mut self) {
        self.run_state_due = true;
    }

    pub(super) const fn run_state_is_due(&self) -> bool {
        self.run_state_due
    }

    fn note_reset(&mut self, second: u64) {
        self.reset.seen(second, self.actual.value());
        // A working driver may be gone, or back already. Only an answer can show it.
        self.driver = self.driver.filter(|&at_work| !at_work);
    }

    /// Notes an event. Returns its signal if it is relevant.
    pub(super) fn event(&mut self, event: &QmpEvent, now: Now) -> Option<Signal> {
        let signal = Signal::of(&event.name)?;
        match signal {
            Signal::Reset => {
                self.note_reset(event.at.unwrap_or(now.wall.as_secs()));
                self.run_state_due = true;
            }
            Signal::Stop | Signal::Resume | Signal::Shutdown => self.run_state_due = true,
            Signal::Migration => {
                self.run_state_due = true;
                self.migration_at = None;
            }
            Signal::MemoryDeviceSizeChange | Signal::DeviceDeleted => {
                (self.device_at, self.sizes_at) = (None, None);
            }
            Signal::BalloonChange => {}
        }
        Some(signal)
    }

    /// The longest time for an answer of the driver.
    fn answers_within(&self) -> Duration {
        (Duration::from_secs(self.interval.unwrap_or(0)).saturating_add(GRACE)).max(LEAST_FRESH)
    }

    /// All knowledge in the model's types.
    pub(super) fn polled(&self, now: Now) -> Told {
        Told {
            full: self.full,
            claimed: self.all.is_none() && (self.is_guessed || self.actual.value.is_none()),
            balloon: self.balloon_reading(now),
            hotplug: self.hotplug.reading(now, self.unreachable.as_ref()),
            stats: self.stats_reading(now),
            agent: Reading::unsupported(),
            disks: self.disks.reading(now, self.unreachable.as_ref()),
            merges: self.memory.reading(now, self.unreachable.as_ref()).map(|parts| merge::may(&parts)),
            polling: match (&self.device, self.interval) {
                (Known::Found(_), Some(0)) => Polling::Off,
                (Known::Found(_), Some(seconds)) => Polling::Every(Span::from_secs(seconds)),
                _ => Polling::Unknown,
            },
            reset: self.reset.is_pending(),
            fence: if self.migrating { Some(Fence::Migrating) } else { self.fence },
            terms: None,
        }
    }

    fn balloon_reading(&self, now: Now) -> Reading<Balloon> {
        let device = match &self.device {
            Known::Found(device) => device,
            Known::None => return Reading::absent(Absence::NoBalloon),
            Known::Unknown(why) => {
                return Reading::absent(self.unreachable.clone().unwrap_or_else(|| why.clone()));
            }
        };
        if self.driver == Some(false) && self.unreachable.is_none() {
            return Reading::absent(Absence::NoDriver);
        }
        let untrue = self.reset.is_pending().then_some(&Absence::NoDriver);
        self.actual.reading(now, self.unreachable.as_ref().or(untrue)).map(|wire| Balloon {
            actual: wire.saturating_add(self.plugged()),
            deflate_on_oom: device.deflate_on_oom,
            free_page_reporting: device.free_page_reporting
                && self.abilities.is_none_or(|abilities| abilities.reports_free_pages),
        })
    }

    fn stats_reading(&self, now: Now) -> Reading<memtide_model::GuestStats> {
        if matches!(self.device, Known::None) {
            return Reading::absent(Absence::NoBalloon);
        }
        let absence = self.unreachable.as_ref().or(self.stats_missing.as_ref());
        let Some((value, age)) = self.stats.newest(now) else {
            return Reading::absent(absence.cloned().unwrap_or_else(|| self.why_never(now)));
        };
        let length = Duration::from(age);
        let why = match absence {
            Some(why) => why.clone(),
            None if self.reset.is_pending() || self.driver == Some(false) => Absence::NoDriver,
            None if length <= self.answers_within().min(MOST_FRESH) => return Reading::Fresh { value, age },
            None if self.interval == Some(0) => Absence::NotPolled,
            None if length <= self.answers_within() => Absence::NotYet,
            None => Absence::Silent,
        };
        Reading::Stale { value, age, why }
    }

    /// Why the driver has not sent any statistics since the guest's boot.
    fn why_never(&self, now: Now) -> Absence {
        let just_set = |at: Instant| {
            now.instant.saturating_duration_since(at) <= LEAST_FRESH && self.driver != Some(false)
        };
        match (&self.device, self.interval) {
            (Known::Unknown(why), _) => why.clone(),
            _ if self.abilities.is_some_and(|abilities| !abilities.sends_statistics) => Absence::Unsupported,
            (_, None) => Absence::NotYet,
            (_, Some(0)) => Absence::NotPolled,
            (_, Some(_)) if self.ours.is_some_and(|(_, at)| just_set(at)) => Absence::NotYet,
            (_, Some(_)) if self.driver == Some(false) => Absence::NoDriver,
            (_, Some(_)) => Absence::Silent,
        }
    }
}

fn is_due(last: Option<Instant>, period: Duration, now: Now) -> bool {
    last.is_none_or(|last| now.instant.saturating_duration_since(last) >= period)
}

/// Reads an answer as `T`, or says why there is none.
pub(super) fn read<T: DeserializeOwned>(reply: &Reply) -> Result<T, Absence> {
    match reply {
        Ok(value) => decode(value).map_err(|error| error.absence()),
        Err(refusal) => Err(refusal.absence()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_answers_is_looked_for_seldom() {
        let device = Device {
            path: "b0".into(),
            backend: "b0".into(),
            deflate_on_oom: false,
            free_page_reporting: false,
        };
        let now = Now::read();
        let later = |secs: u64| Now { instant: now.instant + Duration::from_secs(secs), ..now };
        let mut picture = Picture::new(Some(Bytes::from_mib(512)));
        picture.note_device(Ok(None), now);
        assert!(!picture.device_is_due(later(29)) && picture.device_is_due(later(30)), "it may be plugged");
        picture.note_device(Ok(Some(device)), now);
        assert!(!picture.device_is_due(later(299)) && picture.device_is_due(later(300)));
        picture.stats_missing = Some(Absence::Unsupported);
        assert!(picture.device_is_due(later(30)), "it may be another one");
    }
}
