//! `memtide top`: the screen, with the same words as the other commands.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use memtide_top::TopError;
use memtide_top::hands::Words;
use memtide_top::journal::Journal;

use crate::style::Style;
use crate::when::When;
use crate::{Socket, explain, hold, reclaim};

/// The options of `memtide top`.
#[derive(Args)]
pub struct Top {
    #[command(flatten)]
    socket: Socket,
    /// Show this journal in place of the daemon: a directory, or one file of it.
    #[arg(long, value_name = "JOURNAL", conflicts_with_all = ["socket", "config"])]
    from: Option<PathBuf>,
    /// Begin at this time of the journal, as in `14:32`, `2026-11-30 14:32:10`, `+90s` (after the journal's first decision) or `-10m` (before its
    /// last one) [default: its end]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "from")]
    at: Option<When>,
}

impl Top {
    /// Shows the daemon or the journal until the user quits.
    pub fn execute(self) -> Result<ExitCode> {
        match &self.from {
            Some(journal) => replayed(journal, self.at),
            None => live(&self.socket.path()?),
        }
    }
}

fn live(socket: &Path) -> Result<ExitCode> {
    let words = Words {
        explain: |detail| explain::render(detail, Style::plain()),
        held: hold::render,
        offer: |answer, detail| reclaim::offer(answer, &detail.seen.told),
        reclaimed: |request, answer| {
            answer.done.as_ref().map_or_else(String::new, |done| reclaim::render(request, answer, done))
        },
    };
    match memtide_top::live(socket, words) {
        // The exit code depends on the kind of error.
        Err(TopError::Daemon(error)) => Err(error.into()),
        other => other.map(|()| ExitCode::SUCCESS).map_err(Into::into),
    }
}

fn replayed(path: &Path, at: Option<When>) -> Result<ExitCode> {
    let journal = Journal::open(path, |detail| explain::render(detail, Style::plain()))
        .with_context(|| format!("{}", path.display()))?;
    memtide_top::recorded(journal, |walls, zone| at.map(|at| at.within(walls, zone)))?;
    Ok(ExitCode::SUCCESS)
}
