//! One run of one arm: guests are launched one after another in a small host and do their work, until one does not get
//! through.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::meminfo::Meminfo;
use memtide_load::helper::wire::Ask;
use memtide_model::Bytes;

use super::Scale;
use super::alone::COLD_RATIO;
use super::case::{Case, Peaks};
use super::guest::guest;
use super::setting::Setting;
use super::{DensityResult, Step};
use crate::error::LabError;
use crate::experiments::experiment::{Repetition, Seen};
use crate::guest::channel::Job;
use crate::guest::{BOOT, Boot, Guest, in_tiers};
use crate::machine::facts;
use crate::machine::lab::Run;
use crate::machine::small_host::SmallHost;
use crate::machine::swap::ZramSwap;
use crate::managers::{Managed, Manager, check_untouched};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::statistics::median;
use crate::wait::{LOOK_EVERY, check_interrupt};
use crate::work;
use crate::work::exercise::cold_heap;
use crate::work::turn::{self, Turn};

/// The seeds of cold heaps begin here: no turn has them.
const COLD_SEEDS: u64 = 5_000;
/// The pause of a guest that has freed its memory, before the next one begins.
const PAUSE: Duration = Duration::from_secs(1);

/// The reason to launch no more guests.
enum Stop {
    /// The guest with this number did not get through.
    At(usize, String),
    /// The lab itself cannot go on.
    Error(LabError),
}

impl From<LabError> for Stop {
    fn from(error: LabError) -> Self {
        Self::Error(error)
    }
}

/// A small host that fills with guests.
struct Rise<'a> {
    setting: &'a Setting,
    case: Case,
    of: &'a Repetition<'a>,
    run: &'a Run,
    screen: &'a Screen,
    host: SmallHost,
    manager: &'a mut dyn Manager,
    guests: Vec<Guest>,
    names: Vec<String>,
    turns: Vec<Turn>,
    /// The number of guests at each turn.
    guests_at: Vec<usize>,
    /// The idle guests, the one that has idled longest first.
    waiting: VecDeque<usize>,
    /// The cold heaps of the guests, in their order.
    cold: Vec<Job>,
    /// The most that compressed tiers have taken. The kernel charges it to no cgroup: the lab adds it to what the small host uses.
    most_in_tiers: Bytes,
    samples: Samples,
    /// Guests and turns of the rounds that all guests got through.
    finished: (usize, usize),
}

/// The end of a run. Events while the arm is taken down are not part of its figures.
struct End {
    /// `None` if all guests that were tried got through.
    ended_by: Option<String>,
    oom_kills: u64,
    major_faults: u64,
    peak_usage: Option<Bytes>,
    seconds: f64,
    swap_in: Option<Bytes>,
}

/// Runs an arm once under `manager`.
///
/// # Errors
/// If the arm cannot be run. Killed guests are a result, not an error.
pub fn run(
    setting: &Setting,
    case: Case,
    of: &Repetition<'_>,
    manager: &mut dyn Manager,
    run: &Run,
    screen: &Screen,
) -> Result<Seen<DensityResult>, LabError> {
    let swap = case.swap.then(|| ZramSwap::on(setting.swap(), &|text| screen.say(text))).transpose()?;
    let host =
        SmallHost::create(&of.arm.key, setting.capacity, swap.as_ref().map_or(Bytes::ZERO, ZramSwap::size))?;
    let swapped_before = facts::swapped_in();
    let mut rise = Rise {
        setting,
        case,
        of,
        run,
        screen,
        host,
        manager,
        guests: Vec::new(),
        names: Vec::new(),
        turns: Vec::new(),
        guests_at: Vec::new(),
        waiting: VecDeque::new(),
        cold: Vec::new(),
        most_in_tiers: Bytes::ZERO,
        samples: Samples::default(),
        finished: (0, 0),
    };
    let begun = Instant::now();
    rise.manager.start(Managed { dir: run.path(), host: &rise.host, guests: &[] })?;
    let ended_by = match rise.rise() {
        Ok(()) => None,
        Err(Stop::At(guest, why)) => Some(rise.ended_by(guest, &why)),
        Err(Stop::Error(error)) => return Err(error),
    };
    let end = End {
        ended_by,
        oom_kills: rise.host.oom_kills()?,
        major_faults: rise.host.major_faults()?,
        peak_usage: rise.host.peak().ok(),
        seconds: begun.elapsed().as_secs_f64(),
        swap_in: facts::swapped_in_since(swapped_before),
    };
    rise.finish(end)
}

impl Rise<'_> {
    fn rise(&mut self) -> Result<(), Stop> {
        while self.guests.len() < self.setting.most_guests(self.case) {
            self.launch()?;
            match self.case.peaks {
                Peaks::Offset => self.one_after_another()?,
                Peaks::Simultaneous => self.all_at_once()?,
            }
            self.finished = (self.guests.len(), self.turns.len());
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<(), Stop> {
        let number = self.guests.len();
        let nth = (number + 1).to_string();
        let name = format!("{}{nth}", self.setting.scale.names);
        self.names.push(name.clone());
        self.screen.guest(&name, self.setting.scale.guest_memory.whole_mib());
        let Setting { scale, load, .. } = self.setting;
        let scale = Scale { agents: scale.agents || self.case.has_agents(), ..*scale };
        let guest = guest(&nth, scale, load, self.case.reporting()).hotplug(self.case.by.has_tier());
        match guest.start(self.run, Some(&self.host)) {
            Ok(guest) => self.guests.push(guest),
            Err(LabError::Gone { how, .. }) => return Err(Stop::At(number, how)),
            Err(error @ LabError::Deadline { .. }) => return Err(Stop::At(number, error.to_string())),
            Err(error) => return Err(error.into()),
        }
        let (mut boot, begun) = (Boot::default(), Instant::now());
        loop {
            match boot.look(&self.guests[number]) {
                Ok(Some(_)) => break,
                Ok(None) if begun.elapsed() < BOOT => self.beat()?,
                Ok(None) => return Err(Stop::At(number, format!("no boot within {} s", BOOT.as_secs()))),
                Err(error) => {
                    self.check_alive()?;
                    return Err(error.into());
                }
            }
        }
        self.waiting.push_front(number);
        self.fill_cold_heap(number)
    }

    /// Fills the cold heap of a new guest, if the job has one.
    fn fill_cold_heap(&mut self, number: usize) -> Result<(), Stop> {
        if self.setting.cold_mib == 0 {
            return Ok(());
        }
        let seed = self.of.seed + COLD_SEEDS + number as u64;
        let job = self.guests[number].begin(cold_heap(seed, self.setting.cold_mib, COLD_RATIO))?;
        self.cold.push(job);
        let begun = Instant::now();
        loop {
            match self.guests[number].outcome::<Summary>(job) {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if begun.elapsed() < turn::LONGEST => self.beat()?,
                Ok(None) => return Err(Stop::At(number, "its cold heap takes too long".to_owned())),
                Err(error) => {
                    self.check_alive()?;
                    return Err(Stop::At(number, error.with_cause()));
                }
            }
        }
    }

    /// Reads all cold heaps back, one after another, and frees them. Adds words that differ; returns the bytes that were intact.
    fn check_cold_heaps(&self, mismatches: &mut u64) -> Option<Bytes> {
        let check = |job: &Job| Ask::Order { load: job.id(), line: "check".to_owned() };
        let mut intact = Bytes::ZERO;
        for (guest, job) in self.guests.iter().zip(&self.cold).filter(|(guest, _)| guest.alive()) {
            // A guest that hangs, or whose own OOM killer took the heap, has no intact bytes.
            let Ok(tally) = guest.ask::<Tally>(check(job), turn::LONGEST) else { continue };
            *mismatches += tally.mismatches;
            if tally.mismatches == 0 {
                intact = intact.saturating_add(Bytes::new(tally.bytes));
            }
            let _ = guest.run(Ask::Cancel { job: job.id() }, turn::LONGEST);
        }
        (self.setting.cold_mib > 0).then_some(intact)
    }

    /// The new guest works, then the one that has idled longest.
    fn one_after_another(&mut self) -> Result<(), Stop> {
        for _ in 0..self.guests.len().min(2) {
            let Some(guest) = self.waiting.pop_front() else { break };
            self.begin(guest);
            while !self.turns.iter().all(Turn::is_over) {
                self.beat()?;
            }
            self.waiting.push_back(guest);
            self.pause()?;
        }
        Ok(())
    }

    fn all_at_once(&mut self) -> Result<(), Stop> {
        (0..self.guests.len()).for_each(|guest| self.begin(guest));
        while !self.turns.iter().all(Turn::is_over) {
            self.beat()?;
        }
        self.pause()
    }

    fn begin(&mut self, guest: usize) {
        self.turns.push(Turn::new(guest, self.of.seed + self.turns.len() as u64));
        self.guests_at.push(self.guests.len());
    }

    fn pause(&mut self) -> Result<(), Stop> {
        let begun = Instant::now();
        while begun.elapsed() < PAUSE {
            self.beat()?;
        }
        Ok(())
    }

    /// One step of everything that goes on: work, samples and management.
    fn beat(&mut self) -> Result<(), Stop> {
        check_interrupt()?;
        let load = &self.setting.load;
        // Guests that work at the same time keep their memory until all have filled theirs.
        let may_free = self.turns.iter().all(Turn::has_filled);
        for turn in self.turns.iter_mut().filter(|turn| !turn.is_over()) {
            turn.step(load, &self.guests[turn.guest()], may_free);
        }
        let (turns, guests) = (&self.turns, &self.guests);
        if let Some(sample) =
            self.samples.take(guests, |number| work::doing(load, turns, number, &guests[number]))
        {
            self.screen.show(sample);
            let managed = Managed { dir: self.run.path(), host: &self.host, guests };
            self.manager.tick(managed)?;
            if self.case.by.has_tier() {
                self.charge_tiers()?;
            }
        }
        self.check_alive()?;
        let failed = |turn: &Turn| Some(Stop::At(turn.guest(), turn.failure()?.to_owned()));
        if let Some(stop) = self.turns.iter().find_map(failed) {
            return Err(stop);
        }
        thread::sleep(LOOK_EVERY);
        Ok(())
    }

    /// Ends the run once the small host would be full if its cgroup paid for the tiers.
    fn charge_tiers(&mut self) -> Result<(), Stop> {
        let held = in_tiers(&self.guests);
        self.most_in_tiers = self.most_in_tiers.max(held);
        let used = self.host.usage()?.saturating_sub(self.host.cache()?).saturating_add(held);
        if used <= self.host.capacity() {
            return Ok(());
        }
        let working = self.turns.last().map_or(self.guests.len().saturating_sub(1), Turn::guest);
        Err(Stop::At(working, format!("the host is full: {used} are in use, {held} of them in tiers")))
    }

    fn check_alive(&self) -> Result<(), Stop> {
        match self.guests.iter().position(|guest| !guest.alive()) {
            Some(guest) => Err(Stop::At(guest, "killed".to_owned())),
            None => Ok(()),
        }
    }

    /// The guests that did not get through: all that are gone, or the one that failed.
    fn ended_by(&self, guest: usize, why: &str) -> String {
        let dead: Vec<&str> = self.guests.iter().filter(|guest| !guest.alive()).map(Guest::name).collect();
        match dead[..] {
            [] => format!("{}: {why}", self.names[guest]),
            _ => format!("{}: killed", dead.join(", ")),
        }
    }

    fn finish(mut self, end: End) -> Result<Seen<DensityResult>, LabError> {
        // The samples must include the last kill.
        while self.samples.take(&self.guests, |_| String::new()).is_none() {
            thread::sleep(LOOK_EVERY);
        }
        let memory: Vec<Option<Meminfo>> =
            self.guests.iter().filter(|guest| guest.alive()).map(|guest| guest.meminfo().ok()).collect();
        let of_all = |of: &dyn Fn(&Meminfo) -> u64| -> Option<u64> {
            memory.iter().map(|meminfo| meminfo.as_ref().map(of)).sum()
        };
        let guest_oom_kills = of_all(&Meminfo::oom_kills);
        let swapped_in = of_all(&|meminfo| meminfo.swapped().0).map(|pages| Bytes::from_kib(4 * pages));
        let mut cold_mismatches = 0;
        let cold_verified = self.check_cold_heaps(&mut cold_mismatches);
        let managed = Managed { dir: self.run.path(), host: &self.host, guests: &self.guests };
        let measured = self.manager.stop(managed)?;
        if !self.manager.moves_memory() {
            check_untouched(&self.guests)?;
        }
        let (guests, turns) = self.finished;
        let done = work::done(&self.setting.load, &self.turns[..turns]);
        let steps = self.steps();
        let result = DensityResult {
            guests_finished: guests as u64,
            bound: self.setting.bound(),
            at_least: end.ended_by.is_none(),
            ended_by: end.ended_by.unwrap_or_else(|| {
                format!("nobody: no more than {} guests were tried", self.setting.most_guests(self.case))
            }),
            work_planned_bytes: done.planned,
            work_done_bytes: done.verified,
            work_done_fraction: done.fraction(),
            mismatched_words: done.mismatches + cold_mismatches,
            slowdown: steps.last().map(|step| step.slowdown),
            by_guests: steps,
            oom_kills: end.oom_kills,
            guest_oom_kills,
            major_faults: end.major_faults,
            host_swap_in_bytes: end.swap_in,
            cold_bytes: Bytes::from_mib(self.setting.cold_mib * memory.len() as u64),
            cold_verified_bytes: cold_verified,
            guest_swap_in_bytes: swapped_in,
            tier_held_bytes: self.most_in_tiers,
            memory_moved_bytes: self.samples.moved(),
            peak_usage_bytes: end.peak_usage,
            seconds_to_grant: measured.seconds_to_grant,
            seconds: end.seconds,
        };
        Ok(Seen { names: self.names, samples: self.samples, result })
    }

    /// The turns of the finished rounds, by the number of guests at the time.
    fn steps(&self) -> Vec<Step> {
        let turns = || self.turns.iter().zip(&self.guests_at).take(self.finished.1);
        (1..=self.finished.0)
            .filter_map(|guests| {
                let took = turns().filter(|(_, at)| **at == guests).filter_map(|(turn, _)| turn.took());
                let middle = median(took.map(|took| took.as_secs_f64()))?;
                let slowdown = middle / self.setting.alone.turn_seconds;
                Some(Step { guests: guests as u64, turn_seconds: middle, slowdown })
            })
            .collect()
    }
}
