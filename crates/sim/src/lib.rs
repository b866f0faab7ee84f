//! A simulated world for the engine: hosts, guests, faults and time, and the managers that act on them.
//!
//! **Problem.** A decision that looks right can hurt an hour later. Real guests show this, but their runs take real time and cannot be
//! repeated. Here the real engine manages simulated guests in virtual time: a day of a thousand guests takes a minute, and the same seed
//! gives the same bytes on every machine.
//!
//! **Terms.** A [`Setup`] is a host with guests and faults, for some time. A [`Machine`] is that setup at a moment; it is the engine's
//! [`World`](memtide_engine::World). A [`Manager`] is memtide with one of its commitments, another manager's rule, or nobody. An
//! [`Outcome`] is the result of a run.
//!
//! Nothing in this crate reads the machine that it runs on. It links `host` only through `config`, for the keys of `[memtide]`, and never `vmm`.
#![forbid(unsafe_code)]

mod daemon;
mod from_journal;
mod host;
pub mod json;
pub mod machine;
pub mod measure;
mod merged;
mod merging;
mod processors;
pub mod report;
mod resident;
pub mod rules;
mod run;
pub mod scenario;
pub mod setup;
pub mod table;
mod tmpfs;
pub mod words;

pub use from_journal::{FromJournalError, from_journal, is_journal};
pub use machine::Machine;
pub use run::{Explained, Manager, Options, Outcome, known_as, run};
pub use scenario::Scenario;
pub use setup::Setup;
