//! `memtide replay FILE`: decides again from a journal.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use memtide_engine::{ReplayError, replay_journal};

use crate::journal;

/// Decides again. At the first decision that differs, prints the difference and returns exit code 3.
pub fn command(path: &Path) -> Result<ExitCode> {
    let mut reader = journal::open(path)?;
    match replay_journal(&mut reader) {
        Ok(summary) if summary.ticks == 0 => bail!("{}: contains no decision", path.display()),
        Ok(summary) => {
            if let Some(torn) = reader.torn() {
                eprintln!("memtide: {}: skipped a torn tail from byte {}", torn.path.display(), torn.offset);
            }
            let span = match (summary.first, summary.last) {
                (Some(first), Some(last)) => format!(" over {}", last.since(first)),
                _ => String::new(),
            };
            println!(
                "same: {} decisions{span}, {} actions ({} failed, {} refused by the check), {} runs, {} gaps",
                summary.ticks, summary.actions, summary.failed, summary.refused, summary.runs, summary.gaps
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(ReplayError::Differs(difference)) => {
            println!("{difference}");
            Ok(ExitCode::from(3))
        }
        Err(error) => Err(error.into()),
    }
}
