//! What a host and its guests lack for memtide, what that costs, and the exact lines that mend it.
//!
//! **Problem.** A guest without a balloon, a socket that somebody else holds, memory that a device pins, swap on a disk: each
//! of them makes memtide do less than its operator thinks, and none of them shows before memory is short.
//!
//! **Terms.** [`Facts`] are what was seen of host and guests, and what could not be seen and why. A [`Finding`] is something
//! that is lacking: a [`Severity`], whom it concerns, what is so, what it costs, and how to mend it. A *rule* makes
//! findings of facts.
//!
//! **Rule.** Facts are gathered by reading alone ([`gather`]): no target, no interval and no file is written, a guest's
//! monitor is used once and briefly, and that of a guest of libvirt never. Rules are pure functions ([`diagnose`]). What
//! cannot be seen is never taken for good: it is a finding of its own.
#![forbid(unsafe_code)]

pub mod facts;
mod finding;
mod quote;
mod rules;

pub use facts::{Facts, Question, gather};
pub use finding::{Finding, Mend, Severity, Subject};
pub use rules::diagnose;
