//! The memory exerciser that runs inside guests.
//!
//! Problem: an experiment needs guests that use memory in a way that is known beforehand, at a known rate, and whose
//! contents can be checked afterwards: a host that loses or mixes up a page must not go unnoticed.
//!
//! Terms: a *job* is one request on the control channel and lasts until its final answer. A *block* is anonymous memory
//! filled by a job; it lives in a process of its own until it is freed. The *pattern* is the content of every page, a
//! function of a seed and the page's index ([`pattern`]), so that the lab can generate and predict it on the host.
//!
//! Rule: the control process is protected from the guest's OOM killer and the blocks offer themselves to it. Whatever
//! happens to a block, the control channel goes on and says so ([`wire::Answer::Lost`]).

#![deny(unsafe_code)]

pub mod block;
pub mod cache;
pub mod control;
pub mod exerciser;
pub mod meminfo;
pub mod pace;
pub mod pattern;
pub mod shell;
pub mod wire;

/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;
