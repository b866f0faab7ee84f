//! Uses memory at a known rate, in a known way, and checks its content.
//!
//! ```text
//! options ─▶ run ─▶ worker (one a thread) ─▶ touch ─▶ memory
//!             │         ├ schedule: how much is due
//!             │         ├ walk: the next place, and whether it is written
//!             │         ├ content: the expected content of a page
//!             │         └ latency: the duration
//!             ├ start, available: the available memory, the content of a file
//!             ├ machine: the kernel's counters
//!             ├ command: commands while it runs
//!             └ report: a line a second, and the summary
//! ```

pub mod available;
pub mod command;
pub mod content;
pub mod error;
pub mod latency;
pub mod machine;
pub mod memory;
pub mod options;
pub mod report;
pub mod run;
pub mod schedule;
pub mod start;
pub mod touch;
pub mod walk;
pub mod worker;
