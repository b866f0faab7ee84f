//! Real guests, the demo, experiments, plots and reports.
//!
//! Problem: what memtide claims must be seen on real, stock guests, on anybody's machine, against the same host without
//! memtide, in one run.
//!
//! Terms: a [`Lab`](lab::Lab) is what guests need (QEMU, a kernel, an initrd), a [`Guest`](guest::Guest) is a QEMU process
//! with the exerciser's agent in it, a [`SmallHost`](small_host::SmallHost) is a memory cgroup that plays the machine, an *arm* is
//! the same work under one manager.
//!
//! Rule: conditions are waited for, with a deadline; all that the lab starts dies with it; what it changes on the machine
//! it announces with the command that undoes it.

#![forbid(unsafe_code)]

pub mod accel;
pub mod calibrate;
pub mod cgroup;
pub mod channel;
pub mod cpio;
pub mod daemon;
pub mod disk;
pub mod error;
pub mod exercise;
pub mod experiment;
pub mod experiments;
pub mod guest;
pub mod image;
pub mod kernel;
pub mod lab;
pub mod live;
pub mod machine;
pub mod manager;
pub mod memtide;
pub mod old_qemu;
pub mod packages;
pub mod peer;
pub mod places;
pub mod plot;
pub mod process;
pub mod qmp;
pub mod report;
pub mod results;
pub mod sample;
pub mod show;
pub mod small_host;
pub mod statistics;
pub mod swap;
pub mod turn;
pub mod wait;
pub mod work;
