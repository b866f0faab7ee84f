//! Errors of the lab.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why the lab cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or directory cannot be used.
    #[error("{path}")]
    File {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program cannot be started.
    #[error("`{command}` cannot be started")]
    Start {
        /// The program and its arguments.
        command: String,
        /// The cause.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{command}` failed: {output}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// The end of its output.
        output: String,
    },
    /// Something that the lab needs is missing and cannot be installed.
    #[error("{0}")]
    Missing(String),
    /// A condition did not come true in time.
    #[error("{what} did not happen within {seconds} s")]
    Deadline {
        /// The condition.
        what: String,
        /// The time allowed, in seconds.
        seconds: u64,
    },
    /// A guest did not boot in time.
    #[error("{why}; the end of the console of {guest}:\n{console}")]
    NotUp {
        /// The guest.
        guest: String,
        /// What was waited for, and how long.
        why: String,
        /// The last lines of its console.
        console: String,
    },
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// The guest's process is gone.
    #[error("the guest {guest} is gone: {how}")]
    Gone {
        /// The guest.
        guest: String,
        /// How it ended.
        how: String,
    },
    /// The guest's monitor refuses a command, or misbehaves.
    #[error("the monitor of the guest {guest}: {why}")]
    Monitor {
        /// The guest.
        guest: String,
        /// The monitor's answer, or its mistake.
        why: String,
    },
    /// The helper in the guest answered with an error.
    #[error("in the guest {guest}: {why}")]
    Load {
        /// The guest.
        guest: String,
        /// Its answer.
        why: String,
    },
    /// Somebody else moves the balloons of the lab's guests.
    #[error(
        "another manager on this machine moves the balloon of {guest}: end it for the time of the experiment"
    )]
    Disturbed {
        /// The guest whose balloon was moved.
        guest: String,
    },
    /// No small host can be created here.
    #[error("no small host (a cgroup or a tmpfs with a limit): {0}")]
    NoSmallHost(String),
    /// The command line asks for something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// The results cannot be written.
    #[error("the results: {0}")]
    Results(String),
    /// A plot cannot be drawn.
    #[error("the plot: {0}")]
    Plot(String),
}

impl LabError {
    /// Whether a guest is the cause: it is gone, or it hangs, starves or refuses. In an experiment this is a result, since memory is what the guests
    /// lack there.
    #[must_use]
    pub const fn is_of_a_guest(&self) -> bool {
        matches!(
            self,
            Self::Deadline { .. }
                | Self::NotUp { .. }
                | Self::Gone { .. }
                | Self::Monitor { .. }
                | Self::Load { .. }
        )
    }

    /// The error of a file operation on `path`.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::File { path: path.to_owned(), source }
    }

    /// The error with its cause, for storing it as text.
    #[must_use]
    pub fn with_cause(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }

    /// The error if `command` cannot be started.
    pub fn start(command: &Command) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Start { command: shown(command), source }
    }
}

/// A command as a person would type it, shortened.
#[must_use]
pub fn shown(command: &Command) -> String {
    const LONGEST: usize = 200;
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    if text.chars().count() > LONGEST {
        text = text.chars().take(LONGEST).chain(['…']).collect();
    }
    text
}
