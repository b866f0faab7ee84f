//! The fuzz targets, and the properties that must hold for any input.
//!
//! Problem: monitors, consoles, libvirt's daemons, agents, the kernel's files, configurations and journals come from outside. Nothing in them may crash the
//! daemon, cost it unbounded memory or time, or make it report something untrue. And a fuzzer finds only violations of
//! assertions.
//!
//! Terms: a *fuzz target* is a function that takes any bytes and panics if a property does not hold. Its *corpus* is a
//! directory of inputs to start from, `fuzz/corpus/NAME`.
//!
//! Rule: a fuzz target uses the same interfaces as the daemon, including files and sockets. It is called by libFuzzer
//! (`fuzz/`, see docs/fuzzing.md), and by the tests of this crate with each input of its corpus and with mutations of them.
#![forbid(unsafe_code)]

pub mod agent;
pub mod config;
pub mod journal;
pub mod libvirt;
pub mod mconsole;
pub mod proc;
pub mod qmp;
mod scratch;
mod texts;
