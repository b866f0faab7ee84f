//! Scenarios: a host, its guests and their faults, as a short commented TOML file that a person writes.
//!
//! `file` has the keys of a file and their values, `values` reads sizes, rates and times, `mistake` describes mistakes and their positions,
//! `bounds` compares a run with the scenario's promises, and `write` writes such a file. docs/simulator.md teaches the format.

mod bounds;
mod file;
mod judged;
mod mistake;
mod positions;
mod values;
mod write;

use std::path::{Path, PathBuf};

pub use bounds::{
    Bounds, Measured, Quantity, a_ten_minutes, part_done, part_saved, percent, total_work, work,
};
pub use judged::{Judged, Judgement, judged};
pub use mistake::Mistake;

pub use write::{Bound, Inexpressible, Promise, name_of, write};

use memtide_engine::journal::segments;

use crate::from_journal::is_journal;
use crate::run::Manager;
use crate::setup::Setup;

/// A scenario as described by its file.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its purpose, in a sentence or two.
    pub about: String,
    /// The setup to simulate.
    pub setup: Setup,
    /// The commitments to run it with, in the order of a table.
    pub commitments: Vec<Manager>,
    /// The bounds that must hold.
    pub bounds: Vec<Bounds>,
}

/// The reasons why a scenario cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is a recorded run.
    #[error("{path} is a journal: simulate its guests with --from {path}")]
    Journal {
        /// The file or directory.
        path: PathBuf,
    },
    /// The file says something that is not a scenario.
    #[error("{path}:{mistake}")]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The mistake and its place.
        mistake: Mistake,
    },
}

impl Scenario {
    /// Reads the scenario in the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, or if it is not a scenario: the message names line, column and key.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        if is_journal(path) || segments(path).is_ok_and(|segments| !segments.is_empty()) {
            return Err(ScenarioError::Journal { path: path.to_owned() });
        }
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|mistake| ScenarioError::Wrong { path: path.to_owned(), mistake })
    }

    /// Reads the scenario that `text` describes.
    ///
    /// # Errors
    /// If the text is not a scenario.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        file::File::parse(text)?.scenario(text)
    }
}
