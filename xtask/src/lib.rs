//! The project's own chores, run as `cargo xtask CHORE`.
//!
//! - `prepush`: everything that continuous integration checks, in its order ([`prepush`]).
//! - `tidy`: the rules of style that neither rustfmt nor clippy knows ([`tidy`]).
//! - `dashboards`: the files for Prometheus and Grafana, and the table of metrics in docs/api.md (memtide-dashboards writes them).
//! - `golden`: the policy's decisions on each recorded trace, as text to be reviewed ([`golden`]).
//!
//! [`licences`] is a part of `prepush`.
//!
//! This is a library, so each rule has unit tests. The program in `main.rs` only reads arguments and prints.
#![forbid(unsafe_code)]

use std::ffi::OsString;

pub mod golden;
pub mod licences;
pub mod prepush;
pub mod tidy;

/// The cargo that runs us, else the one on the path.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"))
}
