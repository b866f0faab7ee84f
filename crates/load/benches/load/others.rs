//! Other programs that use memory: a plain C loop, stress-ng, lookbusy.

use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::outside::Outside;

/// The text that stress-ng writes after a rate.
const PER_SECOND: &str = concat!(" M", "B per sec");
/// The running time of each program.
const SECONDS: u64 = 16;

/// Compiles the plain loop with the machine's C compiler, with optimisation.
pub fn compile_loop(directory: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/load/loop.c");
    let program = directory.join("loop");
    let status = Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(source).status()?;
    if status.success() { Ok(program) } else { Err("the C loop cannot be compiled".into()) }
}

/// The bytes that the loop touches in a second.
pub fn run_loop(program: &Path, size: u64, stride: u32, write: bool) -> Result<f64, Box<dyn Error>> {
    let arguments = [size.to_string(), stride.to_string(), u8::from(write).to_string(), "1".to_owned()];
    let output = Command::new(program).args(arguments).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// The distance between the rates requested from stress-ng's memrate and the rates it reports; null if it is not installed.
pub fn stress_ng() -> Result<Value, Box<dyn Error>> {
    let mut all = Map::new();
    for rate in [10_u32, 100, 1000, 5000, 10_000] {
        let begun = Instant::now();
        let run = Command::new("stress-ng")
            .args(["--memrate", "1", "--memrate-bytes", "64M", "--metrics"])
            .args(["--memrate-rd-mbs", &rate.to_string(), "--memrate-wr-mbs", &rate.to_string()])
            .args(["-t", &SECONDS.to_string()])
            .stderr(Stdio::piped())
            .output();
        let output = match run {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Value::Null),
            other => other?,
        };
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let mut errors: Vec<f64> = text.lines().filter_map(memrate).map(|found| error(found, rate)).collect();
        errors.sort_by(f64::total_cmp);
        let cpu = text.lines().find_map(cpu_seconds).map(|cpu| cpu / begun.elapsed().as_secs_f64() * 100.0);
        let middle = errors.get(errors.len() / 2).copied();
        let worst = errors.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
        let found =
            json!({ "median_error_percent": middle, "worst_error_percent": worst, "cpu_percent": cpu });
        all.insert(format!("{rate} MiB/s"), found);
    }
    Ok(Value::Object(all))
}

fn error(found: f64, asked: u32) -> f64 {
    (found / f64::from(asked) - 1.0) * 100.0
}

/// The number before the method's name and the unit. stress-ng calls the unit a megabyte but means 2²⁰ bytes.
fn memrate(line: &str) -> Option<f64> {
    let (before, _) = line.split_once(PER_SECOND)?;
    before.split_whitespace().rev().nth(1)?.parse().ok()
}

/// The user and system time from the line of totals: `… memrate  0  8.09  0.46  0.97 …`.
fn cpu_seconds(line: &str) -> Option<f64> {
    let (_, after) = line.split_once("] memrate ")?;
    let numbers: Vec<f64> = after.split_whitespace().map_while(|word| word.parse().ok()).collect();
    (numbers.len() > 4).then(|| numbers[2] + numbers[3])
}

/// The memory use of lookbusy; null if it is not installed. lookbusy takes no rate, so this measures only its cost and the
/// pages that it writes in some seconds.
pub fn lookbusy() -> Result<Value, Box<dyn Error>> {
    let size = 512_u64 << 20;
    let run = Command::new("lookbusy")
        .args(["--cpu-mode", "none", "--mem-util", "512m"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match run {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Value::Null),
        other => other?,
    };
    thread::sleep(Duration::from_secs(5));
    // The newest child of lookbusy owns the memory.
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))?;
    let pid = children.split_whitespace().last().and_then(|pid| pid.parse().ok()).unwrap_or(child.id());
    let outside = Outside::of(pid);
    outside.forget_writes()?;
    let cpu = outside.cpu_ns()?;
    thread::sleep(Duration::from_secs(SECONDS));
    let cpu = outside.cpu_ns()? - cpu;
    let written = outside.written()?;
    child.kill()?;
    child.wait()?;
    Ok(json!({
        "cpu_percent": cpu as f64 / 1e7 / SECONDS as f64,
        "pages_written_percent": written.map(|written| written as f64 / size as f64 * 100.0),
    }))
}
