//! Scenarios: a host, its guests and what goes wrong, as a short commented TOML file that a person writes.
//!
//! `file` has the keys of a file and their values, and what cannot be in one, `places` knows where each key stands, `values` reads sizes, rates and times, `mistake` says what is wrong and where,
//! `bounds` holds a run against what the scenario promises, `verdict` says how the bounds held, `write` writes such a file. docs/simulator.md teaches the format.

mod bounds;
mod file;
mod mistake;
mod places;
mod values;
mod verdict;
mod write;

use std::path::{Path, PathBuf};

pub use bounds::{Bounds, Measured, Quantity, a_ten_minutes, part_done, percent, total_work, work};
pub use mistake::Mistake;
pub use verdict::{Held, Verdict, verdicts};
pub(crate) use write::name_of;
pub use write::{Bound, Inexpressible, Promise, write};

use memtide_engine::journal::segments;

use crate::from_journal::is_journal;
use crate::run::Manager;
use crate::setup::Setup;

/// A scenario as its file describes it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it shows, in a sentence or two.
    pub about: String,
    /// What is simulated.
    pub setup: Setup,
    /// The commitments that it is about, in the order of a table.
    pub commitments: Vec<Manager>,
    /// What must hold.
    pub bounds: Vec<Bounds>,
}

/// Why a scenario cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
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
        /// What is wrong, and where.
        mistake: Mistake,
    },
}

impl Scenario {
    /// The scenario in the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or says something that is not a scenario: the message names line, column and key.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        if is_journal(path) || segments(path).is_ok_and(|segments| !segments.is_empty()) {
            return Err(ScenarioError::Journal { path: path.to_owned() });
        }
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|mistake| ScenarioError::Wrong { path: path.to_owned(), mistake })
    }

    /// The scenario that `text` describes.
    ///
    /// # Errors
    /// If it describes none.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        file::File::parse(text)?.scenario(text)
    }
}
