//! The things that a host and its guests lack for memtide, their cost, and the exact lines that fix them.
//!
//! **Problem.** A guest without a balloon, a socket that another client holds, memory that a device pins, swap on a disk:
//! with each of them, memtide does less than its operator thinks. None of them shows before memory is short.
//!
//! **Terms.** [`Facts`] are the observations of the host and its guests, and the reasons for missing observations. A
//! [`Finding`] is something that is lacking, with its [`Severity`], its subject, its cost and its fix. A *rule* turns facts
//! into findings.
//!
//! **Rule.** Facts are only read ([`gather`]): doctor writes no target, no interval and no file. It uses a guest's monitor
//! once and briefly, and a libvirt guest's monitor never. Rules are pure functions ([`diagnose`]). A fact that cannot be
//! seen is never taken as good: it is a finding of its own.
#![forbid(unsafe_code)]

pub mod advice;
pub mod facts;
mod finding;
mod quote;
mod rules;

pub use facts::{Facts, Question, gather};
pub use finding::{Finding, Fix, Severity, Subject};
pub use rules::diagnose;
