//! Random hosts for the simulator.
//!
//! **Problem.** People write scenarios only for situations that they can imagine.
//!
//! - [`seeds`]: hosts with faults, one for each seed, and the promises that must hold on them;
//! - [`search`]: hosts without faults on which memtide does worse than another manager;
//! - `shrink`: from a bad host to the simplest one that is still bad enough.
//!
//! `memtide-lab seeds` and `memtide-lab search` run them for a long time; the tests here try a few.
#![forbid(unsafe_code)]

pub mod search;
pub mod seeds;
mod shrink;
