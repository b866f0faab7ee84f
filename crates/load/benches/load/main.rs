//! Counts the exerciser from outside. A plain C loop runs beside it, and stress-ng and lookbusy if they are installed.
//!
//! After a run, `target/bench/load.json` contains:
//!
//! ```json
//! {
//!   "schema": 1,
//!   "rates": { "1 MiB/s": { "asked_bytes_per_s": …, "seconds": …,
//!                           "error_percent": { "median": …, "least": …, "most": … },
//!                           "cpu_percent": { "median": …, "least": …, "most": … } }, … },
//!   "write_share": { "asked_percent": 30, "counted_percent": …, "reported_percent": … },
//!   "unpaced": { "read 4096": { "ratio_to_c": { "median": …, "least": …, "most": … }, "c_bytes_per_s": … }, … },
//!   "measuring": { "cost_percent": { "median": …, "least": …, "most": … } },
//!   "resident_beyond_size_bytes": …,
//!   "static_program": { "bytes": …, "resident_beyond_size_bytes": … } or null,
//!   "stress_ng": { "1000 MiB/s": { "median_error_percent": …, "worst_error_percent": …, "cpu_percent": … }, … } or null,
//!   "lookbusy": { "cpu_percent": …, "pages_written_percent": … } or null
//! }
//! ```
//!
//! Rates are counted with the accessed bits of the page tables: the bench clears the bits of all pages, a sequential walk
//! that is too short to wrap around touches each page once, and the kernel reports the touched pages. The bench measures time
//! itself, from the answer to the command that starts the rate to the answer to the command that ends it. Writes are counted in
//! the content of a file. The cost of a rate is measured over 512 MiB: in one pass over many GiB, each touch waits for page
//! tables that are in no cache.

mod others;
mod outside;

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memtide_load::exerciser::content::{Content, PAGE};
use memtide_load::exerciser::memory::{Kind, Memory};
use memtide_load::exerciser::touch::{Backing, Layout, Toucher};
use memtide_load::exerciser::walk::Pattern;
use memtide_model::{Bytes, Share};
use outside::Outside;
use serde_json::{Map, Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const RATES: [(&str, u64); 4] =
    [("1 MiB/s", MIB), ("100 MiB/s", 100 * MIB), ("1 GiB/s", GIB), ("10 GiB/s", 10 * GIB)];
/// The size of the memory for measuring costs and speeds.
const SIZE: u64 = 512 * MIB;
/// The number of measurements of each figure.
const TIMES: usize = 7;
/// The time that threads may take to make the touches that were due when the rate ended.
const SETTLES: Duration = Duration::from_millis(50);

/// An exerciser that takes commands.
struct Exerciser {
    child: Child,
    commands: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Exerciser {
    fn start(options: &str) -> Outcome<Self> {
        Self::start_program(Path::new(env!("CARGO_BIN_EXE_memtide-load")), options)
    }

    fn start_program(program: &Path, options: &str) -> Outcome<Self> {
        let mut child = Command::new(program)
            .args(options.split_whitespace())
            .args(["--lines", "--control", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = child.stdin.take().ok_or("no pipe")?;
        let lines = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        let mut exerciser = Self { child, commands, lines };
        exerciser.wait_for("filled")?;
        Ok(exerciser)
    }

    fn outside(&self) -> Outside {
        Outside::of(self.child.id())
    }

    /// The next line with this key.
    fn wait_for(&mut self, key: &str) -> Outcome<Value> {
        for line in self.lines.by_ref() {
            let mut line: Value = serde_json::from_str(&line?)?;
            if let Some(error) = line.get("error") {
                return Err(error.to_string().into());
            }
            if let Some(found) = line.get_mut(key) {
                return Ok(found.take());
            }
        }
        Err(format!("the exerciser has ended without `{key}`").into())
    }

    fn command(&mut self, line: &str) -> Outcome<Value> {
        writeln!(self.commands, "{line}")?;
        self.wait_for("ok")
    }
}

impl Drop for Exerciser {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bytes touched at `rate` bytes a second, counted in parts of a walk through up to `most` bytes of memory.
fn rate(rate: u64, most: u64) -> Outcome<Value> {
    // Reserve a tenth more, for touches before the exerciser reads the command to end.
    let millis = (most / 11 * 10 * 1000 / rate).min(10_000);
    let size = (rate / 1000 * millis / 10 * 11).max(8 * MIB).next_multiple_of(MIB);
    let mut exerciser = Exerciser::start(&format!("--size {size} --rate 0"))?;
    let outside = exerciser.outside();
    let mut errors = Vec::new();
    for _ in 0..if millis < 2000 { TIMES } else { 3 } {
        outside.forget_touches()?;
        exerciser.command(&format!("rate {rate}"))?;
        let begun = Instant::now();
        thread::sleep(Duration::from_millis(millis));
        exerciser.command("rate 0")?;
        let took = begun.elapsed().as_secs_f64();
        thread::sleep(SETTLES);
        errors.push((outside.touched()? as f64 / took / rate as f64 - 1.0) * 100.0);
    }
    Ok(
        json!({ "asked_bytes_per_s": rate, "error_percent": spread(errors), "seconds": millis as f64 / 1000.0 }),
    )
}

/// The CPU cost of `rate` over 512 MiB that are touched again and again.
fn cpu(rate: u64) -> Outcome<Value> {
    let mut exerciser = Exerciser::start(&format!("--size {SIZE} --rate {rate}"))?;
    let outside = exerciser.outside();
    exerciser.wait_for("second")?;
    let mut costs = Vec::new();
    for _ in 0..TIMES {
        let (begun, cpu) = (Instant::now(), outside.cpu_ns()?);
        thread::sleep(Duration::from_secs(1));
        costs.push((outside.cpu_ns()? - cpu) as f64 / 1e7 / begun.elapsed().as_secs_f64());
    }
    Ok(spread(costs))
}

/// The share of writes at 100 MiB/s, in one pass over a file, with checking: each write changes the content of its page.
fn write_share() -> Outcome<Value> {
    let (asked, rate, seconds, seed) = (30, 100 * MIB, 5, 1);
    let size = rate * (seconds + 1);
    let path = std::env::temp_dir().join(format!("memtide-load-bench-{}", std::process::id()));
    let shown = path.display();
    let mut exerciser = Exerciser::start(&format!(
        "--kind file --file {shown} --size {size} --seed {seed} --rate 0 --writes {asked}% --verify"
    ))?;
    let file = File::open(&path)?;
    fs::remove_file(&path)?;
    exerciser.command(&format!("rate {rate}"))?;
    thread::sleep(Duration::from_secs(seconds));
    exerciser.command("rate 0")?;
    thread::sleep(SETTLES);
    let status = exerciser.command("status")?;
    let content = Content::of(seed);
    let (mut written, mut word) = (0_u64, [0; 8]);
    for page in 0..size / PAGE as u64 {
        file.read_exact_at(&mut word, page * PAGE as u64)?;
        written += u64::from(u64::from_le_bytes(word) == content.first_word(page, 1));
    }
    let number = |key: &str| status[key].as_f64().ok_or("a number is missing");
    Ok(json!({
        "asked_percent": asked,
        "counted_percent": written as f64 * PAGE as f64 / number("touched_bytes")? * 100.0,
        "reported_percent": number("written_bytes")? / number("touched_bytes")? * 100.0,
    }))
}

fn spread(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    let (least, most) = (values.first(), values.last());
    json!({ "median": values.get(values.len() / 2), "least": least, "most": most })
}

/// The bytes that the exerciser touches in a second without a rate.
fn unpaced(options: &str) -> Outcome<f64> {
    let output = Command::new(env!("CARGO_BIN_EXE_memtide-load"))
        .args(["--size", &SIZE.to_string(), "--duration", "1s", "--json"])
        .args(options.split_whitespace())
        .stdin(Stdio::null())
        .output()?;
    let summary: Value = serde_json::from_slice(&output.stdout)?;
    let number = |key: &str| summary[key].as_f64().ok_or("a number is missing");
    Ok(number("touched_bytes")? / number("seconds")?)
}

/// Runs the exerciser and the C loop in turn, over the same number of pages.
fn beside_c(directory: &Path) -> Outcome<Value> {
    let program = others::compile_loop(directory)?;
    let mut all = Map::new();
    for (stride, write) in [(4096_u32, false), (4096, true), (64, false), (64, true)] {
        let (mut ratios, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            let c = others::run_loop(&program, SIZE, stride, write)?;
            let ours = unpaced(&format!("--stride {stride} --writes {}%", u8::from(write) * 100))?;
            ratios.push(ours / c);
            plain.push(c);
        }
        let name = format!("{} {stride}", if write { "write" } else { "read" });
        let plain = spread(plain);
        all.insert(name, json!({ "ratio_to_c": spread(ratios), "c_bytes_per_s": plain["median"] }));
    }
    Ok(Value::Object(all))
}

/// The cost of pacing and measuring: runs the exerciser and its bare touches in turn.
fn measuring() -> Outcome<Value> {
    let pages = SIZE / PAGE as u64;
    let memory = Memory::reserve(Kind::Anonymous, Bytes::new(SIZE))?;
    let (layout, how) = (Layout::new(0, 1, PAGE as u64), (Pattern::Sequential, Share::default()));
    let mut toucher = Toucher::new(Backing::Mapped(memory.all_words()), layout, Content::of(1), how, false);
    toucher.grow(pages, false)?;
    let mut costs = Vec::new();
    for _ in 0..TIMES {
        let (begun, mut touched) = (Instant::now(), 0_u64);
        while begun.elapsed() < Duration::from_secs(1) {
            toucher.touch(pages)?;
            touched += pages * PAGE as u64;
        }
        let alone = touched as f64 / begun.elapsed().as_secs_f64();
        costs.push((1.0 - unpaced("")? / alone) * 100.0);
    }
    Ok(json!({ "cost_percent": spread(costs) }))
}

/// Resident memory of `program` beyond the requested size.
fn resident_beyond_size(program: &Path) -> Outcome<u64> {
    let mut exerciser = Exerciser::start_program(program, &format!("--size {GIB} --rate 1G"))?;
    exerciser.wait_for("second")?;
    Ok(exerciser.outside().resident()?.saturating_sub(GIB))
}

/// The static program that the lab builds for its guests, if it was built.
fn static_program(directory: &Path) -> Outcome<Value> {
    let target = directory.parent().ok_or("the bench directory lies in the target directory")?;
    let program = target.join("guest/x86_64-unknown-linux-musl/guest/memtide-load");
    let Ok(file) = fs::metadata(&program) else { return Ok(Value::Null) };
    Ok(json!({ "bytes": file.len(), "resident_beyond_size_bytes": resident_beyond_size(&program)? }))
}

/// Half of this machine's available memory, at most 4 GiB.
fn most() -> Outcome<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let line =
        meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).ok_or("no MemAvailable")?;
    Ok(line.split_whitespace().next().ok_or("a size without a number")?.parse::<u64>()? * 1024 / 2)
        .map(|half| half.min(4 * GIB))
}

fn rates() -> Outcome<Value> {
    let mut all = Map::new();
    println!("{:>12} {:>12} {:>10}", "rate", "error, %", "CPU, %");
    let shown = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    for (name, bytes) in RATES {
        let mut found = rate(bytes, most()?)?;
        let cpu = cpu(bytes)?;
        println!(
            "{name:>12} {:>12.4} {:>10.2}",
            shown(&found["error_percent"]["median"]),
            shown(&cpu["median"])
        );
        found["cpu_percent"] = cpu;
        all.insert(name.to_owned(), found);
    }
    Ok(Value::Object(all))
}

fn measure(directory: &Path) -> Outcome<Value> {
    let rates = rates()?;
    let write_share = write_share()?;
    println!("writes: 30 % asked, counted {}", write_share["counted_percent"]);
    let unpaced = beside_c(directory)?;
    println!("unpaced beside C: {unpaced:#}");
    let measuring = measuring()?;
    println!("measuring: {measuring}");
    let resident = resident_beyond_size(Path::new(env!("CARGO_BIN_EXE_memtide-load")))?;
    let static_program = static_program(directory)?;
    println!("resident beyond --size: {resident} bytes; static program: {static_program}");
    let stress_ng = others::stress_ng()?;
    println!("stress-ng memrate: {stress_ng:#}");
    let lookbusy = others::lookbusy()?;
    println!("lookbusy: {lookbusy}");
    Ok(json!({
        "schema": 1,
        "rates": rates,
        "write_share": write_share,
        "unpaced": unpaced,
        "measuring": measuring,
        "resident_beyond_size_bytes": resident,
        "static_program": static_program,
        "stress_ng": stress_ng,
        "lookbusy": lookbusy,
    }))
}

/// `target/bench`. (The bench itself is in `target/release/deps`.)
fn bench_directory() -> Outcome<PathBuf> {
    let program = std::env::current_exe()?;
    let directory =
        program.ancestors().nth(3).ok_or("the bench is not run from a target directory")?.join("bench");
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

fn main() -> Outcome<()> {
    // `cargo test --benches` only checks that the bench compiles.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let directory = bench_directory()?;
    let found = measure(&directory)?;
    let file = directory.join("load.json");
    fs::write(&file, serde_json::to_string_pretty(&found)? + "\n")?;
    println!("written: {}", file.display());
    Ok(())
}
