//! `memtide simulate --search`: searches for hosts on which memtide does badly, and writes them as scenarios.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memtide_model::counted;
use memtide_sim::Manager;
use memtide_sim::search::{Plan, Progress, search};

use super::{UNEXPECTED, interrupt, told};

/// The number of scenarios that are kept.
const FINDINGS: usize = 5;

/// Searches for at most the time `most`, then shrinks the worst findings and writes them into `out`.
pub fn command(seed: u64, starts: u64, most: Duration, out: &Path) -> Result<ExitCode> {
    let stopped = interrupt::listen()?;
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
        !stopped.load(Ordering::Relaxed) && (progress.shrunk.is_some() || began.elapsed() < most)
    });
    bar.finish_and_clear();
    if stopped.load(Ordering::Relaxed) {
        eprintln!("memtide: stopped early: these are the cases found so far, not all of them shrunk");
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
    told::print(&text)?;
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(UNEXPECTED) })
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
