//! `memtide top`: the screen, with the same words as the other commands.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use memtide_top::TopError;
use memtide_top::hands::Words;

use crate::style::Style;
use crate::{explain, hold, reclaim};

/// Shows the daemon at `socket` until the user quits.
pub fn command(socket: &Path) -> Result<ExitCode> {
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
