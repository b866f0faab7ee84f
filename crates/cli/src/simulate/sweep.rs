//! `memtide simulate --faults`: random hosts with faults, one for each seed.

use std::ops::Range;
use std::process::ExitCode;
use std::thread;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memtide_sim::seeds;

use super::{UNEXPECTED, told};

/// Tries all seeds and prints what went wrong.
pub fn command(range: Range<u64>, json: bool) -> Result<ExitCode> {
    let bar =
        ProgressBar::with_draw_target(Some(range.end - range.start), ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {pos} of {len} seeds, {elapsed} of about {duration}")
    {
        bar.set_style(style);
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let sweep = seeds::sweep(range, threads, &|done| bar.set_position(done));
    bar.finish_and_clear();
    let text = if json { format!("{}\n", serde_json::to_string(&sweep)?) } else { sweep.to_string() };
    told::print(&text)?;
    Ok(if sweep.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(UNEXPECTED) })
}
