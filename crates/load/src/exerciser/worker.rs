//! One thread: pays its debt in chunks, and sleeps until more is due.
//!
//! **Rule.**
//! - A thread wakes at those ticks of 1 ms when at least one of its units is due. It never busy-waits.
//! - Touches are made in chunks of about 50 µs, or 1 ms through the page cache, where one system call then reads many. After
//!   each chunk, one touch is measured alone. If touches take longer than a chunk should, chunks shrink until every touch is
//!   measured. The time of a chunk beyond its usual time counts as one touch of this duration.
//! - Without a rate, chunks follow each other, and the thread checks for instructions between them.
//! - If nothing is due, a thread waits until something is or new instructions come. If nothing will ever be due, it waits only for
//!   instructions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use memtide_model::{Bytes, Share};

use super::content::Tally;
use super::latency::Histogram;
use super::schedule::{Debt, Rate, Schedule};
use super::touch::Toucher;
use super::walk::Pattern;

/// The grid of wake-ups.
pub const TICK: Duration = Duration::from_millis(1);
/// If growth stood still because the kernel had to find memory first, at most one second divided by this number is caught up.
/// Then growth continues at its rate: a burst would be a different load from the one requested.
const GROWTH_LATE: u64 = 10;
/// If more time of the rate than this is unpaid, touches are late.
const LATE: Duration = Duration::from_millis(10);
/// The longest wait of a thread.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The intended duration of a chunk.
const CHUNK: Duration = Duration::from_micros(50);
/// The same, through the page cache.
const CACHED_CHUNK: Duration = TICK;
const LARGEST_CHUNK: u64 = 65_536;
/// If a chunk exceeds its usual time by this much, it counts as one slow touch.
const SLOW: Duration = Duration::from_micros(50);
/// Pages filled between two checks for instructions.
const FILLED_AT_ONCE: u64 = 256;

/// The instructions for all threads.
#[derive(Clone, Debug)]
pub struct Instructions {
    /// The pages of all threads together.
    pub pages: u64,
    /// The rate of filling.
    pub grow: Rate,
    /// When touches are due.
    pub schedule: Schedule,
    /// The start of the schedule; `None`: nothing is touched yet.
    pub epoch: Option<Instant>,
    /// The moment from which the schedule counts.
    pub since: Option<Instant>,
    /// The moment from which nothing is touched.
    pub until: Option<Instant>,
    /// The number of touches of each unit, if it is limited.
    pub passes: Option<u64>,
    /// The access pattern.
    pub pattern: Pattern,
    /// The share of touches that write.
    pub writes: Share,
    /// Compare all pages with their expected content, once for each new number here.
    pub check: u64,
    /// End the thread.
    pub stop: bool,
}

/// Instructions that can change.
#[derive(Debug)]
pub struct SharedInstructions {
    instructions: Mutex<Arc<Instructions>>,
    changed: Condvar,
    generation: AtomicU64,
}

impl SharedInstructions {
    /// The first instructions.
    #[must_use]
    pub fn new(instructions: Instructions) -> Self {
        Self {
            instructions: Mutex::new(Arc::new(instructions)),
            changed: Condvar::new(),
            generation: AtomicU64::new(1),
        }
    }

    /// The present instructions.
    #[must_use]
    pub fn latest(&self) -> Arc<Instructions> {
        Arc::clone(&self.instructions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the instructions. Returns their generation.
    pub fn change(&self, change: impl FnOnce(&mut Instructions)) -> u64 {
        let mut instructions = self.instructions.lock().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut instructions));
        let generation = self.generation.fetch_add(1, Ordering::Release) + 1;
        self.changed.notify_all();
        generation
    }

    /// Waits for instructions newer than `generation`, at most for this time.
    fn wait(&self, generation: u64, at_most: Duration) {
        let instructions = self.instructions.lock().unwrap_or_else(PoisonError::into_inner);
        if self.generation() == generation {
            drop(self.changed.wait_timeout(instructions, at_most).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// The work of one thread.
#[derive(Debug, Default)]
pub struct Counters {
    /// Units touched.
    pub touched: AtomicU64,
    /// Units written.
    pub written: AtomicU64,
    /// Bytes that were due and not touched.
    pub missed: AtomicU64,
    /// Own pages that can be touched.
    pub filled: AtomicU64,
    /// The generation of the instructions that the thread obeys.
    pub generation: AtomicU64,
    /// The moment when nothing was left to touch.
    pub finished: OnceLock<Instant>,
    /// The duration of touches.
    pub latency: Histogram,
    /// Findings from checks of touched pages, and from checks of all pages.
    pub found: Mutex<Tally>,
    /// The number and the result of the last check of all pages.
    pub checked: Mutex<(u64, Tally)>,
    /// Why the thread ended before it was told to end.
    pub failed: Mutex<Option<String>>,
}

/// A thread's work.
#[derive(Debug)]
pub struct Worker<'a> {
    shared: &'a SharedInstructions,
    counters: &'a Counters,
    toucher: Toucher<'a>,
    /// The pages have the expected content before they are filled.
    there: bool,
    instructions: Arc<Instructions>,
    generation: u64,
    debt: Debt,
    grow_debt: Debt,
    /// The debt is known up to this moment.
    counted: Instant,
    checked: u64,
    chunk: u64,
    /// The intended duration of a chunk, in nanoseconds.
    chunk_takes: u64,
    /// The usual duration of a touch in a chunk, in 1/16 ns.
    usual: u64,
    clock_costs: u64,
    touched: u64,
}

impl<'a> Worker<'a> {
    /// The worker for thread `thread` of `threads`.
    #[must_use]
    pub fn new(
        shared: &'a SharedInstructions,
        counters: &'a Counters,
        toucher: Toucher<'a>,
        (thread, threads): (u64, u64),
        there: bool,
    ) -> Self {
        let stride = toucher.layout().stride();
        let chunk_takes = nanos(if toucher.is_cached() { CACHED_CHUNK } else { CHUNK });
        Self {
            shared,
            counters,
            toucher,
            there,
            instructions: shared.latest(),
            generation: 0,
            debt: Debt::new(stride, thread, threads),
            grow_debt: Debt::new(super::content::PAGE as u64, thread, threads),
            counted: Instant::now(),
            checked: 0,
            chunk: 16,
            chunk_takes,
            usual: 0,
            clock_costs: clock_costs(),
            touched: 0,
        }
    }

    /// Works until it is told to stop. An error goes into the counters.
    pub fn run(mut self) {
        while !self.instructions.stop {
            if let Err(error) = self.step() {
                *self.counters.failed.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(error.to_string());
                break;
            }
        }
        self.finish(Instant::now());
    }

    /// Records that nothing is left to touch since `at`. Only the first call counts.
    fn finish(&self, at: Instant) {
        self.counters.finished.get_or_init(|| at);
    }

    fn has_finished(&self) -> bool {
        self.counters.finished.get().is_some()
    }

    fn step(&mut self) -> std::io::Result<()> {
        self.obey()?;
        let now = Instant::now();
        self.count(now);
        let filling = self.fill()?;
        let touching = self.touch(now)?;
        self.tell();
        if !filling && !touching && !self.instructions.stop {
            self.shared.wait(self.generation, self.pause());
        }
        Ok(())
    }

    /// Adopts new instructions.
    fn obey(&mut self) -> std::io::Result<()> {
        let generation = self.shared.generation();
        if generation == self.generation {
            return Ok(());
        }
        let instructions = self.shared.latest();
        // Touches that became due before the new schedule began belong to the old instructions.
        let begins = instructions.since.filter(|_| instructions.since != self.instructions.since);
        self.count(begins.unwrap_or_else(Instant::now));
        if let Some(begins) = begins {
            self.counted = begins;
            self.give_up_if_late();
        }
        let own = self.toucher.layout().own(instructions.pages);
        if own < self.toucher.filled() {
            self.toucher.shrink(own);
        }
        self.toucher.set_writes(instructions.writes);
        self.toucher.walk().set_pattern(instructions.pattern);
        self.instructions = instructions;
        if self.instructions.check != self.checked {
            self.checked = self.instructions.check;
            let tally = self.toucher.check_all()?;
            *self.counters.checked.lock().unwrap_or_else(PoisonError::into_inner) = (self.checked, tally);
        }
        self.tell();
        self.generation = generation;
        self.counters.generation.store(generation, Ordering::Release);
        Ok(())
    }

    /// Adds the touches that have become due since the last call.
    fn count(&mut self, now: Instant) {
        let now = self.instructions.until.map_or(now, |until| now.min(until));
        if now <= self.counted || self.has_finished() {
            return;
        }
        if let Rate::PerSecond(grow) = self.instructions.grow {
            let nanos = (now - self.counted).as_nanos();
            self.grow_debt.add(u128::from(grow.get()) * nanos, grow.mul_div(1, GROWTH_LATE));
        }
        // If all memory was given back, no touch is due.
        if let Some(epoch) = self.instructions.epoch.filter(|_| self.instructions.pages > 0) {
            let from = self.counted.saturating_duration_since(epoch);
            let to = now.saturating_duration_since(epoch);
            let schedule = &self.instructions.schedule;
            self.debt.add(schedule.due(from, to), schedule.highest());
            if schedule.rate_at(to) == Rate::PerSecond(Bytes::ZERO) {
                self.give_up_if_late();
            }
        }
        self.counted = now;
    }

    /// Gives up late touches: a new rate, or a pause, does not wait for them.
    fn give_up_if_late(&mut self) {
        if self.debt.lasts(self.instructions.schedule.highest()) > LATE {
            self.debt.give_up();
        }
    }

    /// Pages that must still be filled.
    fn missing(&self) -> u64 {
        self.toucher.layout().own(self.instructions.pages).saturating_sub(self.toucher.filled())
    }

    /// Fills pages that are due. Returns whether more can be filled at once.
    fn fill(&mut self) -> std::io::Result<bool> {
        let missing = self.missing();
        let pages = match self.instructions.grow {
            Rate::PerSecond(_) => self.grow_debt.units().min(missing),
            Rate::Unpaced => missing,
        };
        let pages = pages.min(FILLED_AT_ONCE);
        if pages > 0 {
            self.toucher.grow(pages, self.there)?;
            self.grow_debt.pay(pages);
        }
        if missing == 0 {
            self.grow_debt.forgive();
        }
        Ok(pages > 0)
    }

    /// Makes the touches that are due, for at most one tick. Returns whether more can be made at once.
    fn touch(&mut self, now: Instant) -> std::io::Result<bool> {
        let Some(epoch) = self.instructions.epoch else { return Ok(false) };
        let elapsed = now.saturating_duration_since(epoch);
        let over = self.instructions.until.is_some_and(|until| now >= until);
        let pages = self.toucher.filled();
        let units = self.toucher.layout().units(pages);
        self.toucher.walk().shift(elapsed, units);
        let paced = self.instructions.schedule.rate_at(elapsed) != Rate::Unpaced;
        let mut owed = if paced || over { self.debt.units() } else { u64::MAX };
        if let Some(passes) = self.instructions.passes {
            owed = owed.min((units * passes).saturating_sub(self.touched));
        }
        if pages == 0 {
            owed = 0;
        }
        let mut mark = Instant::now();
        let end = mark + TICK;
        while owed > 0 && mark < end {
            let count = self.chunk.min(owed);
            mark = self.chunk(count, mark)?;
            owed -= count;
            if paced || over {
                self.debt.pay(count);
            }
        }
        let all_there = pages > 0 && self.missing() == 0;
        let done = self.instructions.passes.is_some_and(|passes| {
            self.instructions.pages == 0 || (all_there && self.touched >= units * passes)
        });
        // At the end, touches that did not fit into a tick are missed.
        let late = done && self.debt.lasts(self.instructions.schedule.highest()) > LATE;
        if (over && owed > 0) || late {
            self.debt.give_up();
        }
        if over || done {
            self.finish(self.instructions.until.filter(|_| over).unwrap_or(mark));
        }
        Ok(owed > 0 && !over)
    }

    /// Makes one chunk that begins at `begun`. Returns the time at its end.
    fn chunk(&mut self, count: u64, begun: Instant) -> std::io::Result<Instant> {
        let mut written = 0;
        let mut middle = begun;
        if count > 1 {
            written += self.toucher.touch(count - 1)?;
            middle = Instant::now();
            self.judge(count - 1, nanos(middle - begun));
        }
        written += self.toucher.touch(1)?;
        let end = Instant::now();
        let alone = nanos(end - middle).saturating_sub(self.clock_costs);
        self.counters.latency.record(alone);
        if count == 1 && alone < self.chunk_takes {
            self.chunk = (self.chunk * 2).min(LARGEST_CHUNK);
        }
        self.touched += count;
        add(&self.counters.touched, count);
        add(&self.counters.written, written);
        Ok(end)
    }

    /// Learns from a chunk of `count` touches that took `took` ns.
    fn judge(&mut self, count: u64, took: u64) {
        let usual = self.usual * count / 16;
        if self.usual > 0 && took > usual.saturating_mul(2).saturating_add(nanos(SLOW)) {
            self.counters.latency.record(took - usual);
            self.chunk = (self.chunk / 4).max(1);
            return;
        }
        let each = (took * 16 / count).max(1);
        self.usual = if self.usual == 0 { each } else { (self.usual * 7 + each) / 8 };
        if took < self.chunk_takes {
            self.chunk = (self.chunk * 2).min(LARGEST_CHUNK);
        } else if took > 4 * self.chunk_takes {
            self.chunk = (self.chunk / 2).max(1);
        }
    }

    fn tell(&mut self) {
        self.counters.filled.store(self.toucher.filled(), Ordering::Release);
        self.counters.missed.store(self.debt.missed(), Ordering::Relaxed);
        let found = self.toucher.tally();
        if found.bytes > 0 || found.mismatches > 0 {
            self.counters.found.lock().unwrap_or_else(PoisonError::into_inner).clone_from(found);
        }
    }

    /// The time until the tick when the next unit is due.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let Some(epoch) = self.instructions.epoch.filter(|_| !self.has_finished()) else {
            return LONGEST_WAIT;
        };
        let elapsed = now.saturating_duration_since(epoch);
        let schedule = &self.instructions.schedule;
        let mut wake = elapsed + LONGEST_WAIT;
        if let Rate::PerSecond(rate) = schedule.rate_at(elapsed)
            && let Some(next) = self.debt.next_in(rate)
        {
            wake = wake.min(elapsed.saturating_add(next));
        }
        if let Some(change) = schedule.next_change(elapsed) {
            wake = wake.min(change);
        }
        if let Rate::PerSecond(grow) = self.instructions.grow
            && self.missing() > 0
            && let Some(next) = self.grow_debt.next_in(grow)
        {
            wake = wake.min(elapsed.saturating_add(next));
        }
        let tick = TICK.as_nanos();
        let wake = Duration::from_nanos_u128(wake.as_nanos().div_ceil(tick) * tick);
        let until = self
            .instructions
            .until
            .map(|until| until.saturating_duration_since(epoch))
            .filter(|until| *until > elapsed);
        until.map_or(wake, |until| wake.min(until)).saturating_sub(elapsed).max(Duration::from_micros(50))
    }
}

/// The shortest time between two readings of the clock, in nanoseconds.
fn clock_costs() -> u64 {
    let costs = (0..64).map(|_| {
        let begun = Instant::now();
        nanos(begun.elapsed())
    });
    costs.min().unwrap_or(0)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
