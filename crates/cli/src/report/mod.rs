//! `memtide report`: one self-contained HTML file of a journal.
//!
//! `gather` goes through the decisions once, `stalls` follows stalls until they are answered, `thinned` keeps the extremes of long courses. `page` has the
//! sections, `draw` the figures, `html` the small parts, `look` the style and the script.

mod draw;
mod gather;
mod html;
mod look;
mod page;
mod stalls;
mod thinned;

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::tz::TimeZone;
use memtide_config::Settings;
use memtide_engine::Recorded;
use memtide_engine::journal::JournalError;

use crate::overwrite::refuse;
use crate::when::When;
use gather::Gathered;
use page::About;

/// The options of `memtide report`.
#[derive(Args)]
pub struct Report {
    /// Begin at this time, as in `14:32`, `2026-11-30 14:32:10`, `+90s` (after the journal's first decision) or `-10m` (before its last one)
    /// [default: the beginning of the journal]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<When>,
    /// End at this time [default: the end of the journal]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<When>,
    /// The journal: a directory, or one file of it [default: the daemon's]
    #[arg(long, value_name = "JOURNAL")]
    from: Option<PathBuf>,
    /// The configuration file that names the daemon's journal.
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    config: Option<PathBuf>,
    /// Write the page to this file; `-` writes it to standard output.
    #[arg(short, long, value_name = "FILE", default_value = "memtide-report.html")]
    output: PathBuf,
    /// Then open it in a browser.
    #[arg(long)]
    open: bool,
}

impl Report {
    pub fn execute(self) -> Result<ExitCode> {
        let from = match &self.from {
            Some(from) => from.clone(),
            None => Settings::load(self.config.as_deref())?.journal.dir,
        };
        let to_stdout = self.output == Path::new("-");
        if to_stdout && self.open {
            bail!("--open needs a file: name one with --output");
        }
        if !to_stdout {
            refuse("--output", &self.output, &[Some(&from)])?;
        }
        let mut recorded = Recorded::open(&from).map_err(|error| advised(error, &from))?;
        let page = page_of(&mut recorded, &from, (self.since, self.until), &TimeZone::system()).map_err(
            |error| match error.downcast::<JournalError>() {
                Ok(error) => advised(error, &from),
                Err(error) => error,
            },
        )?;
        if to_stdout {
            std::io::stdout().lock().write_all(page.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        let output = &self.output;
        fs::write(output, page)
            .with_context(|| format!("cannot write {}: name another file with --output", output.display()))?;
        println!("{} shows the journal in {}", output.display(), from.display());
        if self.open {
            open_in_browser(output)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The page of a journal between two times.
fn page_of(
    recorded: &mut Recorded,
    from: &Path,
    (since, until): (Option<When>, Option<When>),
    zone: &TimeZone,
) -> Result<String> {
    let Some(((_, first), (_, last))) = recorded.moments() else {
        bail!("{}: there is no decision in this journal", from.display());
    };
    let begin = match since.map(|when| when.within((first, last), zone)) {
        // The first decision that is not before it.
        Some(wall) if wall > first => {
            let place = recorded.place_at(wall);
            place + usize::from(recorded.moment(place).is_some_and(|(_, at)| at < wall))
        }
        _ => 0,
    };
    let end = match until.map(|when| when.within((first, last), zone)) {
        Some(wall) if wall < first => 0,
        Some(wall) => recorded.place_at(wall) + 1,
        None => recorded.len(),
    };
    if begin >= end {
        let [first, last] = [first, last].map(|wall| crate::when::in_words(wall, zone));
        bail!("the journal has no decision between these times: it goes from {first} to {last}");
    }
    let gathered = Gathered::gather(recorded, begin, end)?;
    let about = About { from: from.display().to_string(), unread: unread(recorded), zone };
    Ok(page::html(&gathered, &about))
}

/// What the journal cannot show, a sentence each.
fn unread(recorded: &Recorded) -> Vec<String> {
    let mut unread: Vec<String> = recorded.unread().iter().map(ToString::to_string).collect();
    unread.extend(recorded.torn().map(|torn| {
        format!(
            "{} ends in an incomplete record at byte {}, which was skipped",
            torn.path.display(),
            torn.offset
        )
    }));
    match recorded.missing() {
        0 => {}
        1 => unread.push("1 file is missing in the middle of the journal".to_owned()),
        missing => unread.push(format!("{missing} files are missing in the middle of the journal")),
    }
    unread
}

/// The error, with what to do about it.
fn advised(error: JournalError, from: &Path) -> anyhow::Error {
    let kind = if let JournalError::Io { source, .. } = &error { Some(source.kind()) } else { None };
    match kind {
        Some(ErrorKind::PermissionDenied) => {
            let command: Vec<String> = std::env::args().skip(1).map(|argument| quoted(&argument)).collect();
            anyhow::Error::new(error).context(format!(
                "only root and memtide’s own user may read the journal in {}: run `sudo memtide {}`",
                from.display(),
                command.join(" ")
            ))
        }
        Some(ErrorKind::NotFound) => anyhow::Error::new(error).context(format!(
            "there is no journal in {}: a daemon writes it to `journal.dir` of its configuration; name another one with --from",
            from.display()
        )),
        _ => error.into(),
    }
}

/// An argument as a shell reads it.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:+=,".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", memtide_model::printable(argument).replace('\'', r"'\''"))
}

/// Lets the desktop open a file, and does not wait for it.
fn open_in_browser(file: &Path) -> Result<()> {
    let opener = Command::new("xdg-open")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _opener = opener
        .with_context(|| format!("cannot start xdg-open: open {} in a browser yourself", file.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests;
