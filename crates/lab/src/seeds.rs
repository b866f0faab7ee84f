//! `memtide-lab seeds`: random hosts with faults, one for each seed.

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memtide_hosts::seeds::{self, Failure, Violation};

use crate::output::print;
use crate::wait::check_interrupt;

/// Tries all seeds, prints the failures, and writes them as scenarios into `out`. Returns `true` if nothing went wrong. An interrupt ends it with what was
/// found so far.
///
/// # Errors
/// If the files cannot be written.
pub fn command(range: Range<u64>, json: bool, out: Option<&Path>) -> Result<bool> {
    let all = range.end - range.start;
    let goes_on = || check_interrupt().is_ok();
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
        eprintln!("memtide-lab: stopped early, after {} of {all} seeds", sweep.seeds);
    }
    let text = if json { format!("{}\n", serde_json::to_string(&sweep)?) } else { sweep.to_string() };
    let written = match out {
        Some(out) => write(&small(&sweep.failures, &goes_on), out)?,
        None => String::new(),
    };
    print(&text)?;
    print(if json { "" } else { &written })?;
    Ok(sweep.failures.is_empty())
}

/// Those of different kinds, made small.
fn small(failures: &[Failure], goes_on: &dyn Fn() -> bool) -> Vec<Violation> {
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
    found
}

/// Writes each into a file of its own. What was written, two lines each.
fn write(found: &[Violation], out: &Path) -> Result<String> {
    let mut text = String::new();
    for violation in found {
        let path = out.join(format!("fault-{}.toml", violation.seed));
        fs::write(&path, &violation.file).with_context(|| format!("cannot write {}", path.display()))?;
        let _ = writeln!(text, "{}\n  {}", path.display(), violation.about);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use memtide_hosts::seeds::WrongKind;

    use super::*;

    #[test]
    fn each_violation_has_its_file_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let violation = |seed: u64| Violation {
            seed,
            kind: WrongKind::Killed,
            about: format!("strict: the host killed {seed} guests"),
            file: format!("about = \"{seed}\""),
        };
        let text = write(&[violation(7), violation(8)], dir.path()).unwrap();
        for seed in ["7", "8"] {
            let file = dir.path().join(format!("fault-{seed}.toml"));
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("about = \"{seed}\""));
            assert!(
                text.contains(&format!("{}\n  strict: the host killed {seed} guests\n", file.display())),
                "{text}"
            );
        }
        assert_eq!(text.lines().count(), 4);
    }
}
