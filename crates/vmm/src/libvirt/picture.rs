//! The knowledge about one domain: what is asked when, and what the answers mean.
//!
//! This module does no I/O. libvirt's daemon answers for all its guests, so it is asked no more than needed:
//!
//! | question | asked |
//! |---|---|
//! | statistics, with the size of the balloon | at each look at a guest in play; for an idle guest, the interval is 100 ms times the number of guests of its daemon, but no longer than 10 s (2 s if the guest has an agent) |
//! | reads from disks | with the statistics, if these lack the counters of scans and the guest has no agent |
//! | state, and whether a job is under way | after events, and every 5 s with the statistics (10 s of an idle guest) |
//! | description | at first, after events about devices or metadata, and every 60 s |

use std::time::{Duration, Instant};

use memtide_model::{Absence, Balloon, Bytes, DiskReads, Fence, GuestStats, Polling, Reading, Span, Told};

use super::daemon::News;
use super::description::Description;
use super::protocol::{Event, Job};
use crate::reset::ResetWatch;
use crate::stats_clock::{Now, StatsClock};

/// The time between two questions about the state of a guest in play.
const STATE_PERIOD: Duration = Duration::from_secs(5);
/// The time between two looks at the description: nobody tells of a change of the polling period.
const DESCRIPTION_PERIOD: Duration = Duration::from_secs(60);
/// The time between two looks at an idle guest for each guest of its daemon: ten looks a second at idle guests cost a daemon half a percent of a processor.
const IDLE_PER_GUEST: Duration = Duration::from_millis(100);
/// The longest time between two looks at an idle guest, and at one whose agent tells of stalls.
const LONGEST_IDLE: Duration = Duration::from_secs(10);
const LONGEST_WITH_AGENT: Duration = Duration::from_secs(2);
/// Older statistics are not fresh, however they are asked for.
const MOST_FRESH: Duration = Duration::from_secs(12);
/// The time that an answer may take beyond the polling period.
const GRACE: Duration = Duration::from_secs(2);
/// The least time that a driver has for its first answer after memtide has set the period.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// No guest has this much memory, in KiB (1 PiB).
const MOST_MEMORY: u64 = 1 << 40;
/// No guest has swapped this much since its boot, in KiB (1 EiB).
const MOST_TRAFFIC: u64 = 1 << 50;

/// One question of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Description,
    State,
    Job,
    Stats,
    Disks,
}

/// The guest of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Its process works or moves, or something was asked of it.
    pub(super) is_in_play: bool,
    /// Its agent tells of stalls.
    pub(super) has_agent: bool,
    /// The guests of its daemon.
    pub(super) guests: u32,
}

/// The knowledge about one domain.
#[derive(Debug)]
pub(super) struct Picture {
    description: Option<Description>,
    described_at: Option<Instant>,
    /// It may have changed.
    description_is_due: bool,
    state_at: Option<Instant>,
    asked_at: Option<Instant>,
    actual: Option<(Bytes, Instant)>,
    /// What the balloon held then.
    held: Option<Bytes>,
    stats: StatsClock,
    /// What it had read from its disks, and when that was told.
    disks: Option<(DiskReads, Instant)>,
    disks_refused: bool,
    /// The driver has moved its balloon or sent statistics since the guest's last start.
    driver_works: bool,
    /// The period that memtide set, in seconds, and when.
    ours: Option<(u32, Instant)>,
    reset: ResetWatch,
    fence: Option<Fence>,
    job: Option<Fence>,
    unreachable: Option<Absence>,
    full: Bytes,
}

impl Picture {
    /// A domain of `full` bytes, according to its process.
    pub(super) fn new(full: Bytes) -> Self {
        Self {
            description: None,
            described_at: None,
            description_is_due: true,
            state_at: None,
            asked_at: None,
            actual: None,
            held: None,
            stats: StatsClock::default(),
            disks: None,
            disks_refused: false,
            driver_works: false,
            ours: None,
            reset: ResetWatch::default(),
            fence: None,
            job: None,
            unreachable: Some(Absence::NotYet),
            full,
        }
    }

    /// Notes what events have told.
    pub(super) fn note(&mut self, news: &News, now: Now) {
        for event in &news.events {
            match event {
                // Below: what the balloon did before says nothing of the new driver.
                Event::Reboot => {}
                Event::DeviceAdded
                | Event::DeviceRemoved
                | Event::MemoryDeviceSizeChange
                | Event::MetadataChange => self.description_is_due = true,
                Event::Lifecycle | Event::JobCompleted => self.state_at = None,
                Event::BalloonChange => self.driver_works = true,
            }
        }
        if news.events.contains(&Event::Reboot) {
            self.reset.seen(now.wall.as_secs(), self.actual.map(|(actual, _)| actual));
            self.driver_works = false;
        }
        if news.missed {
            self.description_is_due = true;
            self.state_at = None;
        }
        if news.missed || !news.events.is_empty() {
            self.asked_at = None;
        }
    }

    /// The questions of this look; none if the guest is idle and was asked lately.
    pub(super) fn questions(&mut self, of: Asked, now: Instant) -> Vec<Question> {
        let Asked { is_in_play, has_agent, guests } = of;
        let longest = if has_agent { LONGEST_WITH_AGENT } else { LONGEST_IDLE };
        let idle_period = IDLE_PER_GUEST.saturating_mul(guests).min(longest);
        if !is_in_play && self.unreachable.is_none() && !is_due(self.asked_at, idle_period, now) {
            return Vec::new();
        }
        self.asked_at = Some(now);
        let mut questions = Vec::new();
        if self.description_is_due || is_due(self.described_at, DESCRIPTION_PERIOD, now) {
            questions.push(Question::Description);
        }
        if is_due(self.state_at, STATE_PERIOD, now) {
            self.state_at = Some(now);
            questions.extend([Question::State, Question::Job]);
        }
        questions.push(Question::Stats);
        // An agent counts refaults.
        if has_agent {
            self.disks = None;
        } else {
            questions.push(Question::Disks);
        }
        questions
    }

    pub(super) fn description(&self) -> Option<&Description> {
        self.description.as_ref()
    }

    /// Whether this description has other terms than the last one.
    pub(super) fn has_other_terms(&self, new: &Description) -> bool {
        self.description.as_ref().is_none_or(|old| (&old.terms, &old.mistakes) != (&new.terms, &new.mistakes))
    }

    /// The description may have changed.
    pub(super) const fn doubt_description(&mut self) {
        self.description_is_due = true;
    }

    pub(super) fn described(&mut self, description: Description, now: Instant) {
        self.described_at = Some(now);
        self.description_is_due = false;
        self.disks_refused = false;
        self.full = description.full;
        self.description = Some(description);
    }

    /// Notes the state (`VIR_DOMAIN_…`) and its reason.
    pub(super) fn state(&mut self, (state, reason): (i32, i32)) {
        self.fence = match (state, reason) {
            // Running, and blocked in the hypervisor.
            (1 | 2, _) => None,
            // Paused for a migration, also by postcopy.
            (3, 2 | 12 | 13) => Some(Fence::Migrating),
            // Paused to be saved or dumped, from a snapshot, for a snapshot.
            (3, 3 | 4 | 7 | 9) => Some(Fence::Snapshot),
            _ => Some(Fence::Paused),
        };
    }

    /// Notes the job that is under way.
    pub(super) fn job(&mut self, job: Job) {
        self.job = job.is_active.then_some(match job.operation {
            // Migration, in and out.
            4 | 5 => Fence::Migrating,
            _ => Fence::Snapshot,
        });
    }

    /// Notes the size of the balloon among libvirt's statistics.
    pub(super) fn size(&mut self, stats: &[(i32, u64)], now: Instant) {
        let actual = of_tag(stats, 6).map(Bytes::from_kib).filter(|actual| *actual <= self.start_size());
        if let Some(actual) = actual {
            // Memory that is plugged changes what QEMU tells, and not what the driver holds.
            let holds = self.start_size().saturating_sub(actual);
            let moved = self.held.is_some_and(|before| before != holds);
            self.driver_works |= moved || (!holds.is_zero() && !self.reset.is_pending());
            self.held = Some(holds);
            self.actual = Some((actual, now));
        }
    }

    /// Whether to ask what it has read from its disks: its driver does not tell what its kernel scans, and QEMU serves its disks.
    pub(super) fn counts_disks(&self) -> bool {
        let are_served = self.description.as_ref().is_some_and(|description| !description.disks_elsewhere);
        self.stats.lacks_scans() && !self.disks_refused && are_served
    }

    /// Nothing is told of its disks: they are asked for again with the next description.
    pub(super) const fn disks_are_refused(&mut self) {
        (self.disks, self.disks_refused) = (None, true);
    }

    /// Notes what it has read from its disks; `None` if that cannot be told.
    pub(super) fn read_disks(&mut self, reads: Option<DiskReads>, now: Instant) {
        self.disks = reads.map(|reads| (reads, now));
    }

    /// Notes libvirt's statistics of the driver.
    pub(super) fn statistics(&mut self, stats: &[(i32, u64)], now: Now) {
        self.answered(
            guest_stats(|tag| of_tag(stats, tag)),
            of_tag(stats, 9).filter(|second| *second > 0),
            now,
        );
    }

    /// Notes the answer of QEMU's own statistics, which have more counters; `last_update`: `None` if the driver never answered.
    pub(super) fn answered(&mut self, stats: GuestStats, last_update: Option<u64>, now: Now) {
        let Some(last_update) = last_update else {
            if self.stats.note_never() {
                self.reset.seen(now.wall.as_secs(), self.actual.map(|(actual, _)| actual));
                self.driver_works = false;
            }
            return;
        };
        let every = self.our_period().filter(|seconds| *seconds > 0);
        let every = every.map(|seconds| Duration::from_secs(seconds.into()));
        let progress = self.stats.note(stats, last_update, every, now);
        self.driver_works |= progress.advanced;
        match (progress.backwards, self.reset.is_pending()) {
            (true, true) => self.reset.over(),
            (true, false) => {
                self.reset.seen(last_update.saturating_sub(1), self.actual.map(|(actual, _)| actual));
            }
            (false, _) => self.reset.stats_of(last_update),
        }
    }

    /// Evaluates all answers of a look together.
    pub(super) fn settle(&mut self) {
        self.unreachable = None;
        if let Some((actual, _)) = self.actual.filter(|_| self.driver_works) {
            self.reset.driver_with(actual, self.start_size());
        }
    }

    /// Notes that the look failed as a whole.
    pub(super) fn note_unreachable(&mut self, why: Absence) {
        self.unreachable = Some(why);
        self.state_at = None;
    }

    /// The size of the balloon with nothing in it: without virtio-mem, which QEMU's balloon does not count.
    fn start_size(&self) -> Bytes {
        self.full.saturating_sub(self.plugged())
    }

    /// Memory that virtio-mem has plugged.
    pub(super) fn plugged(&self) -> Bytes {
        let hotplug = self.description.as_ref().and_then(|description| description.hotplug.as_ref());
        hotplug.map_or(Bytes::ZERO, |hotplug| hotplug.plugged)
    }

    /// Seconds between two polls of the statistics, as libvirt says, or as memtide has set it since.
    fn period(&self) -> Option<u32> {
        self.description.as_ref()?.balloon.as_ref().map(|balloon| balloon.period)
    }

    /// The period that memtide set, if it is still the active one.
    pub(super) fn our_period(&self) -> Option<u32> {
        self.ours.map(|(seconds, _)| seconds).filter(|seconds| self.period() == Some(*seconds))
    }

    pub(super) fn note_our_period(&mut self, seconds: u32, now: Instant) {
        self.stats.asks_at_once();
        if let Some(balloon) = self.description.as_mut().and_then(|description| description.balloon.as_mut())
        {
            balloon.period = seconds;
        }
        self.ours = Some((seconds, now));
    }

    /// QEMU is made to ask out of turn.
    pub(super) const fn asks_at_once(&mut self) {
        self.stats.asks_at_once();
    }

    /// Whether memtide may make QEMU ask for statistics out of turn: it set the period, and the newest ones may be older than `age`.
    pub(super) fn may_refresh(&self, age: Duration, now: Now) -> bool {
        let newer = || self.stats.newest(now).is_some_and(|(_, newest)| Duration::from(newest) < age);
        self.our_period().is_some_and(|seconds| seconds > 0) && !newer()
    }

    /// Whether a read after `moment` brought new statistics.
    pub(super) fn stats_advanced_since(&self, moment: Instant) -> bool {
        self.stats.advanced_at().is_some_and(|at| at > moment)
    }

    /// All knowledge in the model's types.
    pub(super) fn told(&self, now: Now) -> Told {
        let hotplug = self.description.as_ref().zip(self.described_at).map(|(of, at)| (of.hotplug, at));
        Told {
            full: self.full,
            claimed: self.description.is_none(),
            balloon: self.balloon(now),
            hotplug: match hotplug {
                Some((Some(value), at)) => self.reading((value, at), now),
                _ => Reading::unsupported(),
            },
            stats: self.stats(now),
            agent: Reading::unsupported(),
            disks: self.disks.map_or_else(Reading::unsupported, |disks| self.reading(disks, now)),
            merges: Reading::unsupported(),
            polling: match self.period() {
                None => Polling::Unknown,
                Some(0) => Polling::Off,
                Some(seconds) => Polling::Every(Span::from_secs(seconds.into())),
            },
            reset: self.reset.is_pending(),
            fence: self.job.or(self.fence),
            terms: None,
        }
    }

    /// A value with the time of its answer.
    fn reading<T>(&self, (value, at): (T, Instant), now: Now) -> Reading<T> {
        let age = Span::from(now.instant.saturating_duration_since(at));
        match &self.unreachable {
            None => Reading::Fresh { value, age },
            Some(why) => Reading::Stale { value, age, why: why.clone() },
        }
    }

    fn balloon(&self, now: Now) -> Reading<Balloon> {
        let not_yet = || self.unreachable.clone().unwrap_or(Absence::NotYet);
        let device = match &self.description {
            None => return Reading::absent(not_yet()),
            Some(Description { balloon: None, .. }) => return Reading::absent(Absence::NoBalloon),
            Some(Description { balloon: Some(device), .. }) => device,
        };
        if !self.driver_works && self.unreachable.is_none() {
            return Reading::absent(Absence::NoDriver);
        }
        let Some(actual) = self.actual else { return Reading::absent(not_yet()) };
        let balloon = self.reading(actual, now).map(|actual| Balloon {
            actual: actual.saturating_add(self.plugged()),
            deflate_on_oom: device.deflate_on_oom,
            free_page_reporting: device.free_page_reporting,
        });
        match balloon {
            Reading::Fresh { value, age } if self.reset.is_pending() => {
                Reading::Stale { value, age, why: Absence::NoDriver }
            }
            other => other,
        }
    }

    fn stats(&self, now: Now) -> Reading<GuestStats> {
        if self.description.as_ref().is_some_and(|description| description.balloon.is_none()) {
            return Reading::absent(Absence::NoBalloon);
        }
        let Some((value, age)) = self.stats.newest(now) else {
            return Reading::absent(self.unreachable.clone().unwrap_or_else(|| self.why_never(now.instant)));
        };
        let why = match &self.unreachable {
            Some(why) => why.clone(),
            None if self.reset.is_pending() => Absence::NoDriver,
            None if Duration::from(age) <= self.fresh_within(now.instant) => {
                return Reading::Fresh { value, age };
            }
            None if self.period() == Some(0) => Absence::NotPolled,
            None => Absence::Silent,
        };
        Reading::Stale { value, age, why }
    }

    /// The greatest age of statistics that are fresh: the driver answers each poll, and what it told is read with the next look.
    fn fresh_within(&self, now: Instant) -> Duration {
        let since_look = self.asked_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let answers = Duration::from_secs(self.period().unwrap_or(0).into()).saturating_add(GRACE);
        answers.max(FIRST_ANSWER).saturating_add(since_look).min(MOST_FRESH)
    }

    /// Why the driver has sent no statistics.
    fn why_never(&self, now: Instant) -> Absence {
        let is_just_set = |at: Instant| now.saturating_duration_since(at) <= FIRST_ANSWER;
        match self.period() {
            None => Absence::NotYet,
            Some(0) => Absence::NotPolled,
            Some(_) if self.ours.is_some_and(|(_, at)| is_just_set(at)) => Absence::NotYet,
            Some(_) if !self.driver_works => Absence::NoDriver,
            Some(_) => Absence::Silent,
        }
    }
}

/// The value of a tag (`VIR_DOMAIN_MEMORY_STAT_…`): in KiB but for counters and seconds.
fn of_tag(stats: &[(i32, u64)], tag: i32) -> Option<u64> {
    stats.iter().find(|(of, _)| *of == tag).map(|(_, value)| *value)
}

/// The statistics that libvirt has a tag for. It has none for stalls, scans and kills.
fn guest_stats(of: impl Fn(i32) -> Option<u64>) -> GuestStats {
    let total = of(5).filter(|kib| *kib <= MOST_MEMORY).map(Bytes::from_kib);
    let part = |tag: i32| {
        of(tag).map(Bytes::from_kib).filter(|part| *part <= total.unwrap_or(Bytes::from_kib(MOST_MEMORY)))
    };
    let traffic = |tag: i32| of(tag).filter(|kib| *kib <= MOST_TRAFFIC).map(Bytes::from_kib);
    GuestStats {
        total,
        free: part(4),
        available: part(8),
        disk_caches: part(10),
        swapped_in: traffic(0),
        swapped_out: traffic(1),
        major_faults: of(2),
        minor_faults: of(3),
        htlb_pgalloc: of(11),
        htlb_pgfail: of(12),
        ..GuestStats::default()
    }
}

fn is_due(last: Option<Instant>, period: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= period)
}

#[cfg(test)]
mod tests {
    use super::super::description::BalloonDevice;
    use super::*;

    fn described(mib: u64) -> Description {
        let balloon = Some(BalloonDevice { period: 1, ..BalloonDevice::default() });
        Description { full: Bytes::from_mib(mib), balloon, ..Description::default() }
    }

    /// A look that finds the balloon at this size, and statistics of this second, if the driver has ever sent any.
    fn look(picture: &mut Picture, mib: u64, second: Option<u64>, now: Now) {
        let mut stats = vec![(6, mib << 10)];
        stats.extend(second.map(|second| (9, second)));
        stats.extend(second.map(|second| (3, second)));
        picture.size(&stats, now.instant);
        picture.statistics(&stats, now);
        picture.settle();
    }

    fn why_no_balloon(picture: &Picture, now: Now) -> Option<Absence> {
        picture.told(now).balloon.why_not().cloned()
    }

    #[test]
    fn a_driver_works_once_it_has_answered_or_holds_memory() {
        let now = Now::read();
        let mut picture = Picture::new(Bytes::from_mib(512));
        picture.described(described(512), now.instant);
        look(&mut picture, 512, None, now);
        assert_eq!(why_no_balloon(&picture, now), Some(Absence::NoDriver));
        // A DIMM is plugged: QEMU's number moves, and no driver has done it.
        picture.described(described(768), now.instant);
        look(&mut picture, 768, None, now);
        assert_eq!(why_no_balloon(&picture, now), Some(Absence::NoDriver));
        look(&mut picture, 700, None, now);
        assert_eq!(why_no_balloon(&picture, now), None);
    }

    #[test]
    fn after_a_reboot_the_driver_has_to_answer_anew() {
        let now = Now::read();
        let second = now.wall.as_secs();
        let mut picture = Picture::new(Bytes::from_mib(512));
        picture.described(described(512), now.instant);
        look(&mut picture, 512, Some(second - 2), now);
        assert_eq!(why_no_balloon(&picture, now), None);
        let events = [Event::Reboot, Event::BalloonChange].into();
        picture.note(&News { missed: false, events }, now);
        // Its balloon is empty, and its statistics are those from before.
        look(&mut picture, 512, Some(second - 2), now);
        assert_eq!(why_no_balloon(&picture, now), Some(Absence::NoDriver));
        look(&mut picture, 512, Some(second + 1), now);
        assert_eq!(why_no_balloon(&picture, now), None);
    }

    #[test]
    fn an_idle_guest_of_many_is_asked_seldom() {
        let now = Instant::now();
        let later = |millis: u64| now + Duration::from_millis(millis);
        let asked = |guests, has_agent| Asked { is_in_play: false, has_agent, guests };
        for (guests, has_agent, period) in
            [(1, false, 100), (30, false, 3_000), (500, false, 10_000), (500, true, 2_000)]
        {
            let mut picture = Picture::new(Bytes::from_mib(512));
            picture.unreachable = None;
            assert!(!picture.questions(asked(guests, has_agent), now).is_empty());
            assert!(picture.questions(asked(guests, has_agent), later(period - 1)).is_empty(), "{guests}");
            let of_play = Asked { is_in_play: true, ..asked(guests, has_agent) };
            assert!(!picture.questions(of_play, later(period - 1)).is_empty(), "{guests}");
            assert!(!picture.questions(asked(guests, has_agent), later(2 * period)).is_empty(), "{guests}");
        }
    }
}
