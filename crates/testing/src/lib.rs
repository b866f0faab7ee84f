//! What the tests of several crates share.
//!
//! - [`Mortal`] is a child process that ends with its test, whatever the test's end is.
//! - [`skip`] ends a test that cannot run on this machine, [`skipped`] reports one that goes on without a part. Both say why in one line, so that
//!   no test is green by silence. `make test` counts these lines.
//! - [`helper_of`] finds a helper of a running daemon, and [`start`] is the first record of a journal.

#![forbid(unsafe_code)]

mod helper;
mod mortal;
mod skip;
mod start;

pub use helper::helper_of;
pub use mortal::Mortal;
pub use skip::{cannot_trace, skip, skipped, trial};
pub use start::start;
