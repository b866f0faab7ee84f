//! `memtide simulate --faults`: random hosts with faults, one for each seed.

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memtide_sim::seeds::{self, Failure};

use super::{UNEXPECTED, interrupt, told};

/// Tries all seeds, prints the failures, and writes them as scenarios into `out`.
pub fn command(range: Range<u64>, json: bool, out: Option<&Path>) -> Result<ExitCode> {
    let (stopped, all) = (interrupt::listen()?, range.end - range.start);
    let goes_on = || !stopped.load(Ordering::Relaxed);
    if let Some(out) = out {
        fs::create_dir_all(out).with_context(|| format!("cannot create the directory {}", out.display()))?;
    }
    let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {pos} of {len} seeds, {elapsed} of about {duration}")
    {
        bar.set_style(style);
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let sweep = seeds::sweep(range, threads, &|done| {
        bar.set_position(done);
        goes_on()
    });
    bar.finish_and_clear();
    if !goes_on() {
        eprintln!("memtide: stopped early, after {} of {all} seeds", sweep.seeds);
    }
    let text = if json { format!("{}\n", serde_json::to_string(&sweep)?) } else { sweep.to_string() };
    told::print(&text)?;
    if let Some(out) = out {
        let written = write(&sweep.failures, out, &goes_on)?;
        told::print(if json { "" } else { &written })?;
    }
    Ok(if sweep.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(UNEXPECTED) })
}

/// Makes the failures small and writes those of different kinds. What was written, a line each.
fn write(failures: &[Failure], out: &Path, goes_on: &dyn Fn() -> bool) -> Result<String> {
    let bar =
        ProgressBar::with_draw_target(Some(failures.len() as u64), ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len} failures shrunk, {elapsed}") {
        bar.set_style(style);
    }
    let found = seeds::violations(failures, &mut |done| {
        bar.set_position(done as u64);
        goes_on()
    });
    bar.finish_and_clear();
    let mut text = String::new();
    for violation in found {
        let path = out.join(format!("fault-{}.toml", violation.seed));
        fs::write(&path, &violation.file).with_context(|| format!("cannot write {}", path.display()))?;
        let _ = writeln!(text, "{}\n  {}", path.display(), violation.about);
    }
    Ok(text)
}
