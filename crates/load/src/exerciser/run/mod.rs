//! A run: room, memory and threads; then its course.

mod course;
mod obey;

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::Bytes;

use self::course::{Look, Run};
use super::command::Commands;
use super::content::PAGE;
use super::error::RunError;
use super::machine;
use super::memory::Memory;
use super::options::Options;
use super::report::{Ended, Reporter, Summary};
use super::schedule::Rate;
use super::start::{Found, all_memory, look_at_the_file, reserve, size};
use super::touch::{Backing, Layout, Toucher};
use super::worker::{Counters, Instructions, SharedInstructions, Worker};

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
        // Half of the 8 MiB, whatever else the machine does.
        assert!(summary.reached() && asked.abs_diff(summary.touched_bytes) <= 1 << 20, "{summary:?}");
        assert!(asked < 7 << 20, "{summary:?}");
    }

    #[test]
    fn many_threads_touch_what_one_would() {
        let summary = run_line("--size 2M --rate 1M --duration 500ms --threads 100").unwrap();
        // A busy machine misses a part.
        assert_eq!(summary.touched_bytes + summary.missed_bytes, 1 << 19, "{summary:?}");
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
        assert!(error.to_string().starts_with("100 TiB is not available: "), "{error}");
    }

    #[test]
    fn steps_change_size_and_rate() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0.2 16M 2M\n0.2 0 1M\n0.2 8M 1M\n").unwrap();
        let line = format!("--shape file:{} --duration 600ms --verify --writes 50%", file.path().display());
        let summary = run_line(&line).unwrap();
        // 0.2 × 16 + 0.2 × 8 = 4.8 MiB, accurate to one page. A busy machine misses a part.
        let asked = summary.touched_bytes + summary.missed_bytes;
        assert!(asked.abs_diff(48 * (1 << 20) / 10) <= 4096 && summary.touched_bytes > 0, "{summary:?}");
        assert_eq!((summary.size_bytes, summary.errors), (1 << 20, 0));
    }

    #[test]
    fn memory_that_grows_is_touched_as_far_as_it_is_there() {
        let summary = run_line("--size 4M --grow 8M --rate 1M --duration 1s --verify").unwrap();
        assert_eq!((summary.size_bytes, summary.errors), (4 << 20, 0));
        assert!(summary.touched_bytes <= 1 << 20);
    }
}
