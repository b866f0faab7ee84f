//! One run of one arm: the guests at rest, and their bursts in turn.

use std::thread;
use std::time::{Duration, Instant};

use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_model::Bytes;
use serde::Serialize;

use super::BurstResult;
use crate::error::LabError;
use crate::experiments::experiment::{Effort, Repetition, Seen};
use crate::guest::channel::Job;
use crate::guest::{BOOT, Guest, GuestBuilder, in_tiers};
use crate::machine::lab::Run;
use crate::machine::small_host::SmallHost;
use crate::managers::{Managed, Manager, check_untouched};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::statistics::median;
use crate::wait::{LOOK_EVERY, check_interrupt, until};
use crate::work::exercise::{cold_heap, load};

/// The prefix of the guests' names.
pub(super) const NAMES: &str = "burst-";
pub(super) const GUESTS: usize = 3;
/// The cold heap of each guest, and how far it compresses.
pub(super) const COLD_MIB: u64 = 240;
pub(super) const RATIO: &str = "2.5";
/// What each guest uses all the time, and the bytes that it touches a second.
const WARM: &str = "--size 32M --rate 16M --writes 30% --random --content heap --verify";
/// A burst: how fast it fills its memory, and how it touches it.
const USES: &str = "--grow 150M --hot 50%:80% --writes 30% --passes 1 --content heap --verify";
/// How long a burst keeps its memory.
const LASTS: Duration = Duration::from_secs(10);
/// The pause between two bursts.
const PAUSE: Duration = Duration::from_secs(3);
/// A burst that takes longer is not done.
const LONGEST: Duration = Duration::from_secs(90);
/// The longest time to fill a heap, or to check it.
const HEAP: Duration = Duration::from_secs(120);
/// The most memory of a guest: nobody's burst is limited by it.
const MOST_MIB: u64 = 2048;
/// The part of the host that can be used, in percent: memtide keeps a reserve of 5 %.
const USABLE: u64 = 95;
/// The part of a cold heap, in percent, that each guest at rest must give to another one that bursts: more than the reserve, so that nobody's guests do not fit. Compression
/// gives up to 57 %.
const MUST_GIVE: u64 = 40;

pub(super) const fn rounds(effort: Effort) -> usize {
    match effort {
        Effort::Quick => 1,
        Effort::Usual => 2,
        Effort::Full => 3,
    }
}

/// What all arms share.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    pub(super) rounds: usize,
    pub(super) cold_mib: u64,
    /// What a guest at rest takes from the host.
    #[serde(rename = "rest_bytes")]
    pub(super) rest: Bytes,
    /// What a burst fills.
    pub(super) burst_mib: u64,
    /// The time of its work in a guest that has the host to itself.
    pub(super) burst_seconds: f64,
    /// The host: three shares, of which a guest in its burst takes two.
    #[serde(rename = "capacity_bytes")]
    pub(super) capacity: Bytes,
}

impl Setting {
    /// Measures one guest alone.
    ///
    /// A burst takes `peak`, twice the share of a guest; so the host has 3/2 × peak. Beside it are two guests at rest, each of which has to give a part of
    /// its cold heap: peak + 2 × (rest − given) = usable × 3/2 × peak. So peak = (rest − given) / (usable × 3/4 − 1/2).
    pub(super) fn measure(cold_mib: u64, rounds: usize, run: &Run) -> Result<Self, LabError> {
        let guest = builder("alone", false).free_page_reporting(true).start(run, None)?;
        guest.wait_up(BOOT)?;
        guest.run(cold_heap(0, cold_mib, RATIO), HEAP)?;
        guest.begin(warm(0))?;
        let rest = at_rest(&guest)?;
        let given = Bytes::from_mib(cold_mib).mul_div(MUST_GIVE, 100);
        // Per thousand: usable × 3/4 − 1/2.
        let peak = rest.saturating_sub(given).mul_div(1_000, USABLE * 30 / 4 - 500);
        let burst_mib = peak.saturating_sub(rest).whole_mib().min(MOST_MIB - 2 * cold_mib);
        let begun = Instant::now();
        let burst = guest.run(burst(1, burst_mib), LONGEST)?;
        let burst_seconds = begun.elapsed().as_secs_f64();
        guest.run(Ask::Cancel { job: burst.id() }, LONGEST)?;
        let peak = rest.saturating_add(Bytes::from_mib(burst_mib));
        Ok(Self { rounds, cold_mib, rest, burst_mib, burst_seconds, capacity: peak.mul_div(3, 2) })
    }
}

/// The cost of a guest once it does not sink any more.
fn at_rest(guest: &Guest) -> Result<Bytes, LabError> {
    const QUIET: Duration = Duration::from_secs(4);
    let mut least = (guest.footprint(), Instant::now());
    until("a guest at rest", HEAP, || {
        let now = guest.footprint();
        if now.saturating_add(Bytes::from_mib(2)) < least.0 {
            least = (now, Instant::now());
        }
        Ok((least.1.elapsed() >= QUIET).then_some(now))
    })
}

fn builder(name: &str, has_tier: bool) -> GuestBuilder {
    Guest::builder(&format!("{NAMES}{name}"))
        .memory(Bytes::from_mib(MOST_MIB))
        .deflate_on_oom(true)
        .hotplug(has_tier)
}

fn warm(seed: u64) -> Ask {
    load(&format!("{WARM} --seed {seed}"))
}

fn burst(seed: u64, mib: u64) -> Ask {
    load(&format!("--size {mib}M {USES} --compress {RATIO} --seed {seed} --hold"))
}

/// One run.
struct Course<'a> {
    setting: &'a Setting,
    manager: &'a mut dyn Manager,
    run: &'a Run,
    screen: &'a Screen,
    host: SmallHost,
    guests: Vec<Guest>,
    /// The cold heaps, and the little work.
    cold: Vec<Job>,
    warm: Vec<Job>,
    /// The guest in its burst.
    bursting: Option<usize>,
    samples: Samples,
    result: BurstResult,
    times: Vec<f64>,
}

/// Runs an arm once under `manager`.
pub(super) fn run(
    setting: &Setting,
    of: &Repetition<'_>,
    manager: &mut dyn Manager,
    has_tier: bool,
    run: &Run,
    screen: &Screen,
) -> Result<Seen<BurstResult>, LabError> {
    let host = SmallHost::create(&of.arm.key, setting.capacity, Bytes::ZERO)?;
    let is_managed = manager.moves_memory();
    let mut guests = Vec::new();
    for nth in 1..=GUESTS {
        let guest = builder(&nth.to_string(), has_tier).free_page_reporting(true).agent(is_managed);
        let guest = guest.start(run, Some(&host))?;
        guest.wait_up(BOOT)?;
        screen.guest(guest.name(), MOST_MIB);
        guests.push(guest);
    }
    let names: Vec<String> = guests.iter().map(|guest| guest.name().to_owned()).collect();
    let mut course = Course {
        setting,
        manager,
        run,
        screen,
        host,
        guests,
        cold: Vec::new(),
        warm: Vec::new(),
        bursting: None,
        samples: Samples::default(),
        result: nothing(setting),
        times: Vec::new(),
    };
    course.begin(of.seed)?;
    let begun = Instant::now();
    match course.bursts(of.seed) {
        Err(error) if error.is_of_a_guest() => course.result.ended_by = error.with_cause(),
        other => other?,
    }
    course.result.seconds = begun.elapsed().as_secs_f64();
    course.count()?;
    Ok(Seen { names, samples: course.samples, result: course.result })
}

/// A result before the first burst.
fn nothing(setting: &Setting) -> BurstResult {
    BurstResult {
        bursts_planned: (setting.rounds * GUESTS) as u64,
        bursts_done: 0,
        ended_by: String::new(),
        burst_seconds: None,
        longest_seconds: None,
        slowdown: None,
        oom_kills: 0,
        guest_oom_kills: 0,
        cold_bytes: Bytes::from_mib(setting.cold_mib).mul_div(GUESTS as u64, 1),
        cold_verified_bytes: Bytes::ZERO,
        mismatched_words: 0,
        swapped_in_bytes: Bytes::ZERO,
        swapped_out_bytes: Bytes::ZERO,
        memory_moved_bytes: Bytes::ZERO,
        total_bytes: Bytes::ZERO,
        tier_held_bytes: Bytes::ZERO,
        seconds: 0.0,
    }
}

impl Course<'_> {
    /// Fills the cold heaps, and starts the manager and the little work.
    fn begin(&mut self, seed: u64) -> Result<(), LabError> {
        for (guest, nth) in self.guests.iter().zip(0..) {
            self.cold.push(guest.run(cold_heap(seed + nth, self.setting.cold_mib, RATIO), HEAP)?);
            self.warm.push(guest.begin(warm(seed + 10 + nth))?);
        }
        check_untouched(&self.guests)?;
        self.manager.start(Managed { dir: self.run.path(), host: &self.host, guests: &self.guests })?;
        self.rest(PAUSE)
    }

    fn bursts(&mut self, seed: u64) -> Result<(), LabError> {
        for round in 0..self.setting.rounds {
            for guest in 0..GUESTS {
                self.bursting = Some(guest);
                let begun = Instant::now();
                let ask = burst(seed + 100 + (round * GUESTS + guest) as u64, self.setting.burst_mib);
                let job = self.guests[guest].begin(ask)?;
                let summary: Summary = self.finish(guest, job, LONGEST)?;
                self.times.push(begun.elapsed().as_secs_f64());
                self.result.bursts_done += 1;
                self.result.mismatched_words += summary.errors;
                self.rest(LASTS.saturating_sub(begun.elapsed()))?;
                let freed = self.guests[guest].begin(Ask::Cancel { job: job.id() })?;
                self.finish::<serde_json::Value>(guest, freed, LONGEST)?;
                self.bursting = None;
                self.rest(PAUSE)?;
            }
        }
        Ok(())
    }

    /// Waits for a job, while everything else goes on.
    fn finish<T: serde::de::DeserializeOwned>(
        &mut self,
        guest: usize,
        job: Job,
        longest: Duration,
    ) -> Result<T, LabError> {
        let begun = Instant::now();
        loop {
            if let Some(outcome) = self.guests[guest].outcome(job)? {
                return Ok(outcome);
            }
            if begun.elapsed() > longest {
                let what = format!("the work of {}", self.guests[guest].name());
                return Err(LabError::Deadline { what, seconds: longest.as_secs() });
            }
            self.beat()?;
        }
    }

    fn rest(&mut self, time: Duration) -> Result<(), LabError> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.beat()?;
        }
        Ok(())
    }

    /// One step of everything that goes on.
    fn beat(&mut self) -> Result<(), LabError> {
        check_interrupt()?;
        let bursting = self.bursting;
        let doing =
            |guest: usize| if bursting == Some(guest) { "bursts" } else { "works a little" }.to_owned();
        if let Some(sample) = self.samples.take(&self.guests, doing) {
            self.screen.show(sample);
            let managed = Managed { dir: self.run.path(), host: &self.host, guests: &self.guests };
            self.manager.tick(managed)?;
            let tiers = in_tiers(&self.guests);
            let total = self.host.usage()?.saturating_add(tiers);
            self.result.total_bytes = self.result.total_bytes.max(total);
            self.result.tier_held_bytes = self.result.tier_held_bytes.max(tiers);
        }
        for guest in &self.guests {
            if let Some(how) = guest.ended()? {
                return Err(LabError::Gone { guest: guest.name().to_owned(), how });
            }
        }
        thread::sleep(LOOK_EVERY);
        Ok(())
    }

    /// The figures at the end, the check of the cold heaps, and the manager's end.
    fn count(&mut self) -> Result<(), LabError> {
        self.result.oom_kills = self.host.oom_kills()?;
        self.result.memory_moved_bytes = self.samples.moved();
        self.result.burst_seconds = median(self.times.iter().copied());
        self.result.longest_seconds = self.times.iter().copied().reduce(f64::max);
        self.result.slowdown = self.result.burst_seconds.map(|own| own / self.setting.burst_seconds);
        for guest in self.guests.iter().filter(|guest| guest.alive()) {
            // A guest that hangs tells nothing.
            let Ok(meminfo) = guest.meminfo() else { continue };
            let (read, written) = meminfo.swapped();
            let result = &mut self.result;
            result.guest_oom_kills += meminfo.oom_kills();
            result.swapped_in_bytes = result.swapped_in_bytes.saturating_add(Bytes::from_kib(4 * read));
            result.swapped_out_bytes = result.swapped_out_bytes.saturating_add(Bytes::from_kib(4 * written));
        }
        let order = |job: &Job, line: &str| Ask::Order { load: job.id(), line: line.to_owned() };
        let loads = self.guests.iter().zip(self.cold.iter().zip(&self.warm));
        for (guest, (cold, warm)) in loads.filter(|(guest, _)| guest.alive()) {
            let check = order(cold, "check");
            // If its own OOM killer has taken the heap, the bytes are missing from the figures.
            let Ok(tally) = guest.ask::<Tally>(check, HEAP) else { continue };
            self.result.mismatched_words += tally.mismatches;
            let intact = Bytes::new(if tally.mismatches == 0 { tally.bytes } else { 0 });
            self.result.cold_verified_bytes = self.result.cold_verified_bytes.saturating_add(intact);
            if let Ok(summary) = guest.ask::<Summary>(order(warm, "status"), HEAP) {
                self.result.mismatched_words += summary.errors;
            }
            let _ = guest.run(Ask::Cancel { job: cold.id() }, HEAP);
        }
        let managed = Managed { dir: self.run.path(), host: &self.host, guests: &self.guests };
        self.manager.stop(managed)?;
        if self.manager.moves_memory() { Ok(()) } else { check_untouched(&self.guests) }
    }
}
