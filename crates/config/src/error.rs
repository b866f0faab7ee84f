//! Why there is no configuration.

use std::path::PathBuf;

use memtide_host::HostError;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The path is not a file, or the file is too long.
    #[error("{path} {why}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The problem, and the fix.
        why: &'static str,
    },
    /// The reserve leaves nothing for guests.
    #[error("{path}: reserve: {why}: write less, as in reserve = \"5%\"")]
    NothingLeft {
        /// The file.
        path: PathBuf,
        /// The reserve, and the memory of the host or budget.
        why: String,
    },
    /// The size of the host's memory is unknown.
    #[error("cannot read the host's memory")]
    Host(#[from] HostError),
    /// The file has a mistake.
    #[error("{path}:{line}:{column}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// The mistake, and the fix.
        message: String,
    },
}
