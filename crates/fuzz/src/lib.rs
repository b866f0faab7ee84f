//! What is fuzzed, and what must hold for any input.
//!
//! Problem: monitors, the kernel's files, configurations and journals come from outside. Nothing in them may crash the daemon,
//! cost it unbounded memory or time, or make it say something untrue; and a fuzzer finds only what is asserted.
//!
//! Terms: a *fuzz target* is a function that takes any bytes and panics where something does not hold; its *corpus* is a directory
//! of inputs to start from, `fuzz/corpus/NAME`.
//!
//! Rule: a fuzz target goes through the interfaces that the daemon uses, with files and sockets where it has them. It is called by
//! libFuzzer (`fuzz/`, see docs/fuzzing.md), and by the tests of this crate with every input of its corpus and with mutations
//! of them.
#![forbid(unsafe_code)]

pub mod config;
pub mod journal;
pub mod proc;
pub mod qmp;
mod scratch;
mod texts;
