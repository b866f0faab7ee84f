//! The course of a run: the fill, a look at the threads at short intervals, and the end.

use std::io::Write;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::Bytes;

use super::super::command::Commands;
use super::super::content::{PAGE, Tally};
use super::super::error::RunError;
use super::super::latency::Counts;
use super::super::machine;
use super::super::memory::Memory;
use super::super::options::{Hold, Options};
use super::super::report::{Ended, Reporter, Second, Summary};
use super::super::schedule::Rate;
use super::super::worker::{Counters, Instructions, SharedInstructions};
use super::pages;

const SECOND: Duration = Duration::from_secs(1);
/// The interval between looks at the threads and signals.
const LOOK: Duration = Duration::from_millis(50);
/// The interval between looks at signals while memory is only held.
const LOOK_WHILE_HELD: Duration = Duration::from_millis(250);

/// The work of the threads up to a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    at: Duration,
    touched: u64,
    written: u64,
    missed: u64,
    filled: u64,
    errors: u64,
    latency: Counts,
    machine: machine::Counters,
    asked: u128,
}

pub(super) struct Run<'a, W> {
    pub(super) options: &'a Options,
    pub(super) memory: &'a Memory,
    /// Whether the file may be written.
    pub(super) ours: bool,
    pub(super) most: Bytes,
    pub(super) shared: &'a SharedInstructions,
    pub(super) counters: &'a [Counters],
    pub(super) commands: Option<Commands>,
    pub(super) interrupted: &'a AtomicBool,
    pub(super) reporter: Reporter<W>,
    pub(super) ended: Ended,
    pub(super) begun: Instant,
    pub(super) fill_took: Duration,
    pub(super) at_start: machine::Counters,
    pub(super) last: Look,
    /// Bytes that were due under replaced schedules, in byte-nanoseconds.
    pub(super) asked: u128,
    /// The longest touch so far, in nanoseconds.
    pub(super) longest: u64,
    pub(super) freed: bool,
    /// The duration of the touches, once all are done.
    pub(super) touched_for: Option<Duration>,
}

impl<W: Write> Run<'_, W> {
    pub(super) fn all(&mut self) -> Result<Summary, RunError> {
        let begun = Instant::now();
        if self.options.grow.is_none() {
            self.fill(begun)?;
        }
        self.fill_took = begun.elapsed();
        self.begin();
        let took = self.watch()?;
        self.failure()?;
        let end = self.begun + took;
        self.shared.change(|instructions| {
            instructions.until = Some(instructions.until.map_or(end, |until| until.min(end)))
        });
        self.touched_for = Some(took);
        let summary = self.summary();
        self.reporter.summary(&summary)?;
        if self.ended == Ended::Done {
            self.hold()?;
        }
        let errors = self.look().errors;
        Ok(Summary { errors: errors.max(summary.errors), ..summary })
    }

    /// Waits until the memory is filled.
    fn fill(&mut self, begun: Instant) -> Result<(), RunError> {
        let mut told = begun;
        loop {
            // A command can change this meanwhile.
            let wanted = self.shared.latest().pages;
            let filled: u64 = self.counters.iter().map(|own| own.filled.load(Ordering::Acquire)).sum();
            let bytes = Bytes::new(filled * PAGE as u64);
            if filled >= wanted {
                return Ok(self.reporter.filled(bytes, begun.elapsed())?);
            }
            if told.elapsed() >= SECOND {
                told = Instant::now();
                self.reporter.filling(bytes, Bytes::new(wanted * PAGE as u64))?;
            }
            if self.look_for_the_end()? {
                return Ok(());
            }
            self.serve(LOOK)?;
        }
    }

    /// Starts the touches.
    fn begin(&mut self) {
        self.at_start = machine::Counters::read();
        self.begun = Instant::now();
        let (begun, duration) = (self.begun, self.options.duration);
        self.shared.change(|instructions| {
            instructions.epoch = Some(begun);
            instructions.since = Some(begun);
            instructions.until = duration.map(|duration| begun + duration);
        });
        self.last = Look { machine: self.at_start, ..self.look() };
        self.last.at = Duration::ZERO;
    }

    /// Watches the threads until they have finished. Returns the duration of the touches.
    fn watch(&mut self) -> Result<Duration, RunError> {
        let mut next = self.begun + SECOND;
        let mut stopping = false;
        loop {
            if self.counters.iter().all(|own| own.finished.get().is_some()) {
                let end = self.counters.iter().filter_map(|own| own.finished.get()).max();
                return Ok(end.map_or(Duration::ZERO, |end| end.saturating_duration_since(self.begun)));
            }
            if !stopping && self.look_for_the_end()? {
                stopping = true;
                self.shared.change(|instructions| instructions.until = Some(Instant::now()));
            }
            self.follow_the_schedule()?;
            let now = Instant::now();
            if now >= next {
                self.tell()?;
                next += SECOND;
                continue;
            }
            self.serve(LOOK.min(next - now))?;
        }
    }

    /// Frees the memory when `--free-after` is due.
    fn free_when_due(&mut self) -> Result<(), RunError> {
        if !self.freed && self.options.free_after.is_some_and(|after| self.begun.elapsed() >= after) {
            self.freed = true;
            self.resize(Bytes::ZERO)?;
        }
        Ok(())
    }

    /// Applies sizes that the schedule or `--free-after` requests.
    fn follow_the_schedule(&mut self) -> Result<(), RunError> {
        self.free_when_due()?;
        let instructions = self.shared.latest();
        let since = instructions.epoch.map_or(Duration::ZERO, |epoch| epoch.elapsed());
        match instructions.schedule.size_at(since) {
            Some(size) if !self.freed && pages(size) != instructions.pages => self.resize(size),
            _ => Ok(()),
        }
    }

    /// Fills pages or gives pages back. Returns when no thread touches the pages given back.
    pub(super) fn resize(&mut self, size: Bytes) -> Result<(), RunError> {
        let size = size.min(self.most);
        let before = self.shared.latest().pages;
        if self.ours {
            self.memory.extend(size.get()).map_err(|error| RunError::Memory(size, error))?;
        }
        // While there is no memory, no touch is due.
        let generation = self.change_schedule(|instructions| instructions.pages = pages(size));
        if pages(size) < before {
            self.wait_for(generation)?;
            if self.ours || self.memory.mapped_file().is_none() {
                self.memory.give_back(pages(size), before)?;
            }
        }
        Ok(())
    }

    /// Waits until all threads obey the instructions of `generation`.
    fn wait_for(&self, generation: u64) -> Result<(), RunError> {
        while self.counters.iter().any(|own| own.generation.load(Ordering::Acquire) < generation) {
            self.failure()?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn failure(&self) -> Result<(), RunError> {
        for own in self.counters {
            if let Some(why) = own.failed.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                return Err(RunError::Thread(why));
            }
        }
        Ok(())
    }

    fn look_for_the_end(&mut self) -> Result<bool, RunError> {
        self.failure()?;
        if self.interrupted.load(Ordering::Relaxed) {
            self.ended = Ended::Interrupted;
        }
        Ok(self.ended != Ended::Done)
    }

    /// Changes the touches due from now on; touches that are already due stay due. Returns the generation of the instructions.
    pub(super) fn change_schedule(&mut self, change: impl FnOnce(&mut Instructions)) -> u64 {
        let now = Instant::now();
        self.asked += self.due(&self.shared.latest(), now);
        self.shared.change(|instructions| {
            change(instructions);
            instructions.since = instructions.since.map(|_| now);
        })
    }

    /// The byte-nanoseconds that the present schedule has made due until `now`.
    fn due(&self, instructions: &Instructions, now: Instant) -> u128 {
        let (Some(epoch), Some(since)) = (instructions.epoch, instructions.since) else { return 0 };
        let now = instructions.until.map_or(now, |until| until.min(now));
        if instructions.pages == 0 || now <= since {
            return 0;
        }
        let at = |moment: Instant| moment.saturating_duration_since(epoch);
        instructions.schedule.due(at(since), at(now))
    }

    pub(super) fn check(&mut self) -> Result<Tally, RunError> {
        let mut number = 0;
        let generation = self.shared.change(|instructions| {
            instructions.check += 1;
            number = instructions.check;
        });
        self.wait_for(generation)?;
        let mut all = Tally::default();
        for own in self.counters {
            let (found, tally) = &*own.checked.lock().unwrap_or_else(PoisonError::into_inner);
            if *found == number {
                all.merge(tally);
            }
        }
        Ok(all)
    }

    fn look(&mut self) -> Look {
        let instructions = self.shared.latest();
        let sum = |of: fn(&Counters) -> u64| self.counters.iter().map(of).sum::<u64>();
        let mut latency = Counts::default();
        for own in self.counters {
            own.latency.add_to(&mut latency);
        }
        self.longest = self.longest.max(latency.longest);
        Look {
            at: self.begun.elapsed(),
            touched: sum(|own| own.touched.load(Ordering::Relaxed)) * self.options.stride,
            written: sum(|own| own.written.load(Ordering::Relaxed)) * self.options.stride,
            missed: sum(|own| own.missed.load(Ordering::Relaxed)),
            filled: sum(|own| own.filled.load(Ordering::Relaxed)) * PAGE as u64,
            errors: sum(|own| own.found.lock().unwrap_or_else(PoisonError::into_inner).mismatches),
            latency,
            machine: machine::Counters::read(),
            asked: self.asked + self.due(&instructions, Instant::now()),
        }
    }

    /// Reports the second that has just passed.
    fn tell(&mut self) -> Result<(), RunError> {
        let now = self.look();
        let before = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let took = now.at - before.at;
        let paced = self.shared.latest().schedule.rate != Rate::Unpaced || now.asked != before.asked;
        let second = Second {
            at: now.at.as_secs_f64(),
            filled_bytes: now.filled,
            touched_bytes: now.touched,
            asked_bytes_per_s: paced.then(|| per_nano(now.asked.saturating_sub(before.asked), took)),
            reached_bytes_per_s: per_second(now.touched - before.touched, took),
            written_bytes_per_s: per_second(now.written - before.written, took),
            latency_ns: now.latency.since(&before.latency),
            major_faults: now.machine.major_faults - before.machine.major_faults,
            psi_some_us: psi_between(&before.machine, &now.machine),
        };
        Ok(self.reporter.second(&second)?)
    }

    pub(super) fn summary(&mut self) -> Summary {
        let begun = self.shared.latest().epoch.is_some();
        let took = self.touched_for.unwrap_or(if begun { self.begun.elapsed() } else { Duration::ZERO });
        let fill_took = if begun { self.fill_took } else { self.begun.elapsed() };
        let running = self.ended == Ended::Done && self.touched_for.is_none();
        let mut now = self.look();
        now.latency.longest = self.longest;
        let options = self.options;
        let asked = u64::try_from(now.asked / 1_000_000_000).unwrap_or(u64::MAX);
        let paced = options.rate != Rate::Unpaced || now.asked > 0;
        let mut tally = Tally::default();
        for own in self.counters {
            tally.merge(&own.found.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Summary {
            schema: 1,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ended: if running { Ended::Running } else { self.ended },
            size_bytes: now.filled,
            stride_bytes: options.stride,
            threads: options.threads,
            seed: options.content.seed,
            instance: options.content.instance,
            seconds: took.as_secs_f64(),
            fill_seconds: fill_took.as_secs_f64(),
            asked_bytes: paced.then_some(asked),
            touched_bytes: now.touched,
            written_bytes: now.written,
            reached_bytes_per_s: per_second(now.touched, took),
            missed_bytes: now.missed,
            latency_ns: now.latency.since(&Counts::default()),
            major_faults: now.machine.major_faults - self.at_start.major_faults,
            cpu_seconds: (now.machine.cpu.saturating_sub(self.at_start.cpu)).as_secs_f64(),
            psi_some_us: psi_between(&self.at_start, &now.machine),
            checked_bytes: self.options.verify.then_some(tally.bytes),
            checksum: self.options.verify.then_some(tally.checksum),
            errors: now.errors,
            described: tally.described,
        }
    }

    /// Keeps the memory after the end.
    fn hold(&mut self) -> Result<(), RunError> {
        let begun = Instant::now();
        loop {
            let over = match self.options.hold {
                Hold::No => true,
                Hold::For(time) => begun.elapsed() >= time,
                Hold::On => false,
            };
            if over || self.look_for_the_end()? {
                return Ok(());
            }
            self.free_when_due()?;
            self.serve(LOOK_WHILE_HELD)?;
        }
    }
}

/// The rate in bytes a second of `bytes` within `took`.
fn per_second(bytes: u64, took: Duration) -> u64 {
    per_nano(u128::from(bytes) * SECOND.as_nanos(), took)
}

fn per_nano(amount: u128, took: Duration) -> u64 {
    u64::try_from(amount / took.as_nanos().max(1)).unwrap_or(u64::MAX)
}

fn psi_between(before: &machine::Counters, now: &machine::Counters) -> Option<u64> {
    Some(now.psi_some_us?.saturating_sub(before.psi_some_us?))
}
