//! Real guests, the demo, experiments, plots and reports.
//!
//! Problem: memtide's claims must be visible on real, stock guests, on anybody's machine, compared with the same host without
//! memtide, in one run.
//!
//! Terms: a [`Lab`](machine::lab::Lab) is everything that guests need (QEMU, a kernel, an initrd). A [`Guest`](guest::Guest)
//! is a QEMU process with the exerciser's helper in it. A [`SmallHost`](machine::small_host::SmallHost) is a memory cgroup
//! that plays the machine. An *arm* is the same work under one manager.
//!
//! - [`machine`]: the base of the guests: the machine itself, everything prepared on it, and the small host within it;
//! - [`guest`]: a guest, and the connections to it;
//! - [`work`]: the work of guests, and its times;
//! - [`managers`]: the managers of the guests' memory;
//! - [`experiments`]: the experiments; [`calibrate`]: recorded runs beside their simulation;
//! - [`seeds`] and [`search`]: thousands of random hosts, simulated;
//! - [`output`]: samples, statistics, plots and reports.
//!
//! Rule: the lab waits for conditions, with a deadline. Everything that it starts ends with it. It announces each change to
//! the machine, with the command to undo it.

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod error;
pub mod experiments;
pub mod guest;
pub mod machine;
pub mod managers;
pub mod output;
pub mod search;
pub mod seeds;
pub mod wait;
pub mod work;
