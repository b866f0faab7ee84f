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
        /// Why not.
        source: std::io::Error,
    },
    /// Something else than a file, or a file of the wrong length.
    #[error("{path} {why}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        why: &'static str,
    },
    /// The reserve leaves nothing for guests.
    #[error("{path}: reserve: {why}: write less, as in reserve = \"5%\"")]
    NothingLeft {
        /// The file.
        path: PathBuf,
        /// What it is, and what there is.
        why: String,
    },
    /// How much memory the host has is not known.
    #[error("cannot read the host's memory")]
    Host(#[from] HostError),
    /// The file says something that is not understood.
    #[error("{path}:{line}:{column}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What is wrong, and what to do.
        message: String,
    },
}
