//! A model of a Linux guest's memory: programs, page cache, reclaim, swap, a balloon, and the counters that its driver reports.
//!
//! **Problem.** The guests' reactions decide whether a policy is good. A squeezed guest reads its files again, swaps, stalls or kills; a
//! guest left alone keeps cold cache forever. A test of a single decision sees none of this.
//!
//! **Terms.** A [`Spec`] describes a [`Guest`]: its size, its kernel, its disk, the [`Program`]s that it runs and the [`File`]s that they
//! read. [`Guest::advance`] moves it forward to a moment. It has no clock of its own, reads nothing from outside, and draws random numbers
//! from a seed: the same spec, seed and calls give the same bytes on every machine.
//!
//! **Rule.** The model counts bytes, not pages. Every byte of a guest is in exactly one place: the kernel, a program, the page cache, the
//! per-CPU lists, free memory or the balloon. The footprint, the memory that the host spends on it, is all memory touched and not yet
//! returned. `pools` keeps this account. `reclaim` decides who loses memory, `balloon` and `reporting` return memory to the host, `program`
//! and `file` ask for it, and `stats` reports it. `tier` swaps to a device that the host keeps compressed.
//!
//! docs/simulator.md lists everything that the model leaves out.
#![forbid(unsafe_code)]

mod agent;
mod balloon;
mod counters;
mod device;
mod file;
mod guest;
mod limits;
mod pools;
mod program;
mod random;
mod reclaim;
mod reporting;
mod spec;
mod stats;
mod tier;

pub use guest::{Guest, Progress, Size};
pub use random::Random;
pub use spec::{Course, File, Kernel, Program, Spec};
