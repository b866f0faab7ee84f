//! A model of a Linux guest's memory: programs, page cache, reclaim, swap, a balloon, and the counters its driver reports.
//!
//! **Problem.** A policy is judged by what its guests do next. A guest that is squeezed reads its files again, swaps, stalls or
//! kills; a guest that is left alone keeps cold cache for ever. A test that only looks at one decision sees none of that.
//!
//! **Terms.** A [`Guest`] is described by a [`Spec`]: its size, its kernel, its disk, the [`Program`]s it runs and the
//! [`File`]s they read. [`Guest::advance`] lets it live up to a moment. It has no clock of its own, reads nothing from outside,
//! and draws random numbers from a seed: the same spec, seed and calls give the same bytes on every machine.
//!
//! **Rule.** The model counts bytes, not pages. Every byte of a guest is in exactly one place: the kernel, a program, the page
//! cache, the per-CPU lists, free memory or the balloon. What the host has for it (the footprint) follows from what was
//! touched and not returned. `pools` keeps that account, `reclaim` decides who loses memory, `balloon` and `reporting` give it
//! back to the host, `program` and `file` ask for it, `stats` tells of it.
//!
//! What the model leaves out is listed in docs/simulator.md.
#![forbid(unsafe_code)]

mod balloon;
mod counters;
mod file;
mod guest;
mod pools;
mod program;
mod random;
mod reclaim;
mod reporting;
mod spec;
mod stats;

pub use guest::{Guest, Progress, Size};
pub use random::Random;
pub use spec::{Course, File, Kernel, Program, Spec};
