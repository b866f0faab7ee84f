//! Uses memory at a known rate, in a known way, and checks what it finds.
//!
//! ```text
//! options ─▶ run ─▶ worker (one a thread) ─▶ touch ─▶ memory
//!             │         ├ schedule: what is due, what is owed
//!             │         ├ walk: which place is next, and whether it is written
//!             │         ├ content: what a page must hold
//!             │         └ latency: how long it took
//!             ├ start, room: what can be had, what a file holds
//!             ├ machine: what the kernel counts
//!             ├ command: orders while it runs
//!             └ report: a line a second, and the summary
//! ```

pub mod command;
pub mod content;
pub mod error;
pub mod latency;
pub mod machine;
pub mod memory;
pub mod options;
pub mod report;
pub mod room;
pub mod run;
pub mod schedule;
pub mod start;
pub mod touch;
pub mod walk;
pub mod worker;
