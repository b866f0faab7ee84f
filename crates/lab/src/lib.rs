//! Real guests, the demo, experiments, plots and reports.
//!
//! Problem: what memtide claims must be seen on real, stock guests, on anybody's machine, against the same host without
//! memtide, in one run.
//!
//! Terms: a [`Lab`](machine::lab::Lab) is what guests need (QEMU, a kernel, an initrd), a [`Guest`](guest::Guest) is a QEMU process
//! with the exerciser's agent in it, a [`SmallHost`](machine::small_host::SmallHost) is a memory cgroup that plays the machine, an *arm* is
//! the same work under one manager.
//!
//! - [`machine`]: what guests run on: the machine as it is, what is prepared on it, and the small host within it;
//! - [`guest`]: a guest, and the ways to it;
//! - [`work`]: what guests are asked to do, and when;
//! - [`managers`]: who manages them;
//! - [`experiments`]: what is tried; [`calibrate`]: recorded runs beside their simulation;
//! - [`output`]: what is seen, computed, drawn and left.
//!
//! Rule: conditions are waited for, with a deadline; all that the lab starts dies with it; what it changes on the machine
//! it announces with the command that undoes it.

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod error;
pub mod experiments;
pub mod guest;
pub mod machine;
pub mod managers;
pub mod output;
pub mod wait;
pub mod work;
