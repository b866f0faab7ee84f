//! A run: room, memory, threads, a look at the threads each second, and the end.

mod obey;

use std::io::Write;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::Bytes;

use super::command::Commands;
use super::content::{PAGE, Tally};
use super::error::RunError;
use super::latency::Counts;
use super::machine;
use super::memory::Memory;
use super::options::{Hold, Options};
use super::report::{Ended, Reporter, Second, Summary};
use super::schedule::Rate;
use super::start::{Found, all_memory, look_at_the_file, reserve, size};
use super::touch::{Backing, Layout, Toucher};
use super::worker::{Counters, Instructions, SharedInstructions, Worker};

const SECOND: Duration = Duration::from_secs(1);
/// The interval between looks at the threads and signals.
const LOOK: Duration = Duration::from_millis(50);
/// The interval between looks at signals while memory is only held.
const LOOK_WHILE_HELD: Duration = Duration::from_millis(250);

/// Runs until the end. `interrupted` becomes true at a signal.
///
/// # Errors
/// If the memory is not available, or something fails during the run.
pub fn run(options: &Options, out: impl Write, interrupted: &AtomicBool) -> Result<Summary, RunError> {
    let size = size(options)?;
    let most = options.control.as_ref().map_or(size, |_| size.max(all_memory()));
    let memory = reserve(options, size, most)?;
    let (size, most) = (size.min(memory.reserved()), most.min(memory.reserved()));
    let Found { there, ours } = look_at_the_file(options, &memory, size)?;
    if !there {
        memory.extend(size.get()).map_err(|error| RunError::Memory(size, error))?;
    }
    let commands = match &options.control {
        Some(path) => Some(
            Commands::listen(path).map_err(|error| RunError::Control(path.display().to_string(), error))?,
        ),
        None => None,
    };
    let shared = SharedInstructions::new(first_instructions(options, size));
    let counters: Vec<Counters> = (0..options.threads).map(|_| Counters::default()).collect();
    thread::scope(|scope| {
        for (index, counters) in (0..).zip(&counters) {
            let (shared, memory) = (&shared, &memory);
            let worker = move || worker(options, shared, counters, memory, (index, there)).run();
            scope.spawn(worker);
        }
        let mut run = Run {
            options,
            memory: &memory,
            ours,
            most,
            shared: &shared,
            counters: &counters,
            commands,
            interrupted,
            reporter: Reporter::new(options.output, out),
            ended: Ended::Done,
            begun: Instant::now(),
            fill_took: Duration::ZERO,
            at_start: machine::Counters::default(),
            last: Look::default(),
            asked: 0,
            longest: 0,
            freed: false,
            touched_for: None,
        };
        let result = run.all();
        shared.change(|instructions| instructions.stop = true);
        result
    })
}

fn first_instructions(options: &Options, size: Bytes) -> Instructions {
    Instructions {
        pages: pages(size),
        grow: options.grow.unwrap_or(Rate::Unpaced),
        schedule: super::schedule::Schedule { rate: options.rate, shape: options.shape.clone() },
        epoch: None,
        since: None,
        until: None,
        passes: options.passes,
        pattern: options.pattern,
        writes: options.writes,
        check: 0,
        stop: false,
    }
}

fn pages(size: Bytes) -> u64 {
    size.get() / PAGE as u64
}

fn worker<'a>(
    options: &Options,
    shared: &'a SharedInstructions,
    counters: &'a Counters,
    memory: &'a Memory,
    (index, there): (u64, bool),
) -> Worker<'a> {
    let backing = match memory.cached() {
        Some(file) => Backing::Cached(file),
        None => Backing::Mapped(memory.all_words()),
    };
    let layout = Layout::new(index, options.threads, options.stride);
    let how = (options.pattern, options.writes);
    let toucher = Toucher::new(backing, layout, options.content, how, options.verify);
    let toucher = toucher.filling_through(memory.mapped_file());
    Worker::new(shared, counters, toucher, (index, options.threads), there)
}

/// The work of the threads up to a moment.
#[derive(Clone, Debug, Default)]
struct Look {
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

struct Run<'a, W> {
    options: &'a Options,
    memory: &'a Memory,
    /// Whether the file may be written.
    ours: bool,
    most: Bytes,
    shared: &'a SharedInstructions,
    counters: &'a [Counters],
    commands: Option<Commands>,
    interrupted: &'a AtomicBool,
    reporter: Reporter<W>,
    ended: Ended,
    begun: Instant,
    fill_took: Duration,
    at_start: machine::Counters,
    last: Look,
    /// Bytes that were due under replaced schedules, in byte-nanoseconds.
    asked: u128,
    /// The longest touch so far, in nanoseconds.
    longest: u64,
    freed: bool,
    /// The duration of the touches, once all are done.
    touched_for: Option<Duration>,
}

impl<W: Write> Run<'_, W> {
    fn all(&mut self) -> Result<Summary, RunError> {
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
    fn resize(&mut self, size: Bytes) -> Result<(), RunError> {
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
    fn change_schedule(&mut self, change: impl FnOnce(&mut Instructions)) -> u64 {
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

    fn check(&mut self) -> Result<Tally, RunError> {
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

    fn summary(&mut self) -> Summary {
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::exerciser::content::Content;
    use crate::exerciser::options::{Asked as Line, Chosen, Output};

    fn run_line(line: &str) -> Result<Summary, RunError> {
        let arguments = line.split_whitespace().map(std::ffi::OsString::from);
        let Ok(Line::Run(options)) = Options::parse(arguments, Chosen { seed: 1, instance: 2 }) else {
            panic!("{line}")
        };
        run(&options, io::sink(), &AtomicBool::new(false))
    }

    #[test]
    fn a_rate_is_held_to_the_unit() {
        let summary = run_line("--size 8M --rate 16M --writes 30% --duration 500ms --quiet").unwrap();
        assert_eq!(summary.missed_bytes, 0);
        // 8 MiB are 2048 touches; 30 % of them write.
        assert_eq!(summary.touched_bytes, 8 << 20);
        assert!(summary.written_bytes.abs_diff((8 << 20) * 3 / 10) <= 2 * 4096, "{summary:?}");
        assert!(summary.latency_ns.samples > 0);
    }

    #[test]
    fn passes_touch_everything_so_often() {
        for line in
            ["--size 4M --passes 3 --verify --writes 50%", "--size 1M --passes 2 --stride 64 --threads 3"]
        {
            let summary = run_line(line).unwrap();
            let touched = summary.size_bytes * if line.contains("--passes 3") { 3 } else { 2 };
            assert_eq!((summary.touched_bytes, summary.errors), (touched, 0), "{line}");
        }
    }

    #[test]
    fn what_was_verified_is_said_with_its_outcome() {
        let said = |summary: &Summary| {
            let mut out = Vec::new();
            Reporter::new(Output::Quiet, &mut out).summary(summary).unwrap();
            String::from_utf8(out).unwrap()
        };
        let unchecked = run_line("--size 1M --passes 1").unwrap();
        assert!(!said(&unchecked).contains("verified"), "{}", said(&unchecked));
        let right = run_line("--size 1M --passes 1 --verify").unwrap();
        assert!(said(&right).contains("\nverified 1 MiB: all as it was written\n"), "{}", said(&right));
        let wrong = Summary { errors: 1, ..right.clone() };
        assert!(said(&wrong).contains("\nverified 1 MiB: not all as it was written\n"), "{}", said(&wrong));
        let none = Summary { checked_bytes: Some(0), ..right };
        assert!(said(&none).contains("\nverified nothing: no page was touched\n"), "{}", said(&none));
    }

    #[test]
    fn every_kind_can_be_touched_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        for kind in ["anonymous", "huge", "shared", "file", "cache"] {
            let mut line = format!("--size 2M --kind {kind} --passes 2 --verify --writes 100% --threads 2");
            if matches!(kind, "file" | "cache") {
                line += &format!(" --file {}", file.display());
            }
            let summary = run_line(&line).unwrap();
            assert_eq!(
                (summary.touched_bytes, summary.written_bytes, summary.errors),
                (4 << 20, 4 << 20, 0),
                "{kind}"
            );
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "precious".repeat(1024)).unwrap();
        for kind in ["file", "cache"] {
            let line =
                format!("--size 1M --kind {kind} --passes 1 --writes 10% --file {}", file.path().display());
            assert!(matches!(run_line(&line), Err(RunError::Foreign(_))));
        }
        assert_eq!(std::fs::read(file.path()).unwrap(), "precious".repeat(1024).as_bytes());
        let read = format!("--size 8K --kind cache --passes 1 --file {}", file.path().display());
        assert_eq!(run_line(&read).unwrap().touched_bytes, 8192);
    }

    #[test]
    fn a_file_is_ours_only_where_all_of_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        let begins_as =
            |content: &[u8]| std::fs::write(file.path(), [content, b"precious"].concat()).unwrap();
        for (options, mut first) in [("--content zero", vec![0; 4096]), ("--seed 7", vec![0; 8192])] {
            if options == "--seed 7" {
                Content::of(7).fill_bytes(0, &mut first);
            }
            begins_as(&first);
            let line = format!("--size 1M --kind file --file {path} --passes 0 {options}");
            assert!(matches!(run_line(&line), Err(RunError::Foreign(_))), "{options}");
            assert_eq!(std::fs::read(file.path()).unwrap(), [first.as_slice(), b"precious"].concat());
        }
    }

    #[test]
    fn a_file_that_is_taken_away_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = format!(
            "--size 1M --kind cache --file {} --rate 10M --verify --duration 20s",
            file.path().display()
        );
        let result = thread::scope(|scope| {
            let running = scope.spawn(|| run_line(&line));
            // Blocks have 512 bytes: the file is filled.
            while file.as_file().metadata().unwrap().blocks() < 2048 {
                thread::sleep(Duration::from_millis(1));
            }
            file.as_file().set_len(4096).unwrap();
            running.join().unwrap()
        });
        assert!(matches!(result, Err(RunError::Thread(_))), "{result:?}");
    }

    #[test]
    fn what_is_given_back_is_asked_for_no_more() {
        let summary = run_line("--size 1M --rate 8M --duration 1s --free-after 500ms").unwrap();
        let asked = summary.asked_bytes.unwrap();
        // Accurate to a few ticks of 1 ms.
        assert!(summary.reached() && asked.abs_diff(summary.touched_bytes) <= 32 << 10, "{summary:?}");
        assert!(asked < 7 << 20, "{summary:?}");
    }

    #[test]
    fn many_threads_touch_what_one_would() {
        let summary = run_line("--size 2M --rate 1M --duration 500ms --threads 100").unwrap();
        assert_eq!((summary.touched_bytes, summary.missed_bytes), (1 << 19, 0));
    }

    #[test]
    fn memory_grows_at_its_rate_however_fast_it_is_touched() {
        let summary = run_line("--size 64M --grow 16M --duration 500ms --threads 2").unwrap();
        assert!((4 << 20..=(8 << 20) + 8192).contains(&summary.size_bytes), "{summary:?}");
    }

    #[test]
    fn more_than_there_is_is_refused_at_once() {
        let error = run_line("--size 100T --duration 1s").unwrap_err();
        assert!(error.is_refusal(), "{error}");
        assert!(error.to_string().starts_with("100 TiB cannot be had: "), "{error}");
    }

    #[test]
    fn steps_change_size_and_rate() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0.2 16M 2M\n0.2 0 1M\n0.2 8M 1M\n").unwrap();
        let line = format!("--shape file:{} --duration 600ms --verify --writes 50%", file.path().display());
        let summary = run_line(&line).unwrap();
        // 0.2 × 16 + 0.2 × 8 = 4.8 MiB, accurate to one page.
        assert!(summary.touched_bytes.abs_diff(48 * (1 << 20) / 10) <= 4096, "{summary:?}");
        assert_eq!((summary.size_bytes, summary.errors), (1 << 20, 0));
    }

    #[test]
    fn memory_that_grows_is_touched_as_far_as_it_is_there() {
        let summary = run_line("--size 4M --grow 8M --rate 1M --duration 1s --verify").unwrap();
        assert_eq!((summary.size_bytes, summary.errors), (4 << 20, 0));
        assert!(summary.touched_bytes <= 1 << 20);
    }
}
