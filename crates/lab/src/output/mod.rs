//! The output of a run: samples, statistics, results, plots, a report page.

pub mod png;
pub mod report;
pub mod results;
pub mod sample;
pub mod screen;
pub mod show;
pub mod statistics;

use std::io::{ErrorKind, Result, Write as _};

/// Prints `text`. A reader that has seen enough is no error.
///
/// # Errors
/// If it cannot be written for another reason.
pub fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
