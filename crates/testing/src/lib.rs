//! What the tests of several crates share.
//!
//! - [`Mortal`] is a child process that ends with its test, whatever the test's end is.
//! - [`skip`] ends a test that cannot run on this machine, [`skipped`] reports one that goes on without a part. Both say why in one line, so that
//!   no test is green by silence. `make test` counts these lines.

#![forbid(unsafe_code)]

mod mortal;
mod skip;

pub use mortal::Mortal;
pub use skip::{cannot_trace, skip, skipped, trial};
