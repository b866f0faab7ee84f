//! `memtide-lab search`: searches for hosts on which memtide does badly, and writes them as scenarios.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memtide_hosts::search::{Plan, Progress, search};
use memtide_model::counted;
use memtide_sim::Manager;

use crate::output::print;
use crate::wait::check_interrupt;

/// The number of scenarios that are kept.
const FINDINGS: usize = 5;

/// Searches for at most the time `most`, then shrinks the worst findings and writes them into `out`. Returns `true` if it found none. An interrupt ends it with
/// what was found so far.
///
/// # Errors
/// If the files cannot be written.
pub fn command(seed: u64, starts: u64, most: Duration, out: &Path) -> Result<bool> {
    fs::create_dir_all(out).with_context(|| format!("cannot create the directory {}", out.display()))?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(2));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}  {msg}") {
        bar.set_style(style);
    }
    let began = Instant::now();
    let plan = Plan { seed, starts, steps: u64::MAX, findings: FINDINGS };
    let found = search(&plan, &mut |progress| {
        bar.set_message(says(progress));
        bar.tick();
        check_interrupt().is_ok() && (progress.shrunk.is_some() || began.elapsed() < most)
    });
    bar.finish_and_clear();
    if check_interrupt().is_err() {
        eprintln!("memtide-lab: stopped early: these are the cases found so far, not all of them shrunk");
    }
    let mut text = String::new();
    for (finding, number) in found.iter().zip(1..) {
        let name = format!("found-{}-{number}.toml", finding.ill).replace(' ', "-").replace('\'', "");
        let path = out.join(name);
        fs::write(&path, &finding.file).with_context(|| format!("cannot write {}", path.display()))?;
        let _ = writeln!(text, "{}\n  {}", path.display(), finding.about.trim().replace('\n', "\n  "));
    }
    if found.is_empty() {
        text.push_str("found no host on which memtide does worse than the best other manager\n");
    }
    print(&text)?;
    Ok(found.is_empty())
}

fn says(progress: &Progress) -> String {
    let mut text = format!("{} tried", counted(progress.tried, "host"));
    if let Some(shrunk) = progress.shrunk {
        let _ = write!(text, ", {} shrunk", counted(shrunk as u64, "finding"));
    }
    for (ill, commitment, badness) in &progress.worst {
        let _ = write!(text, "; {} {ill} {badness}", Manager::Memtide(*commitment));
    }
    text
}
