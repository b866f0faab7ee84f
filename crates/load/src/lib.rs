//! The memory exerciser: uses memory at a known rate, in a known way, and checks its content.
//!
//! Problem: an experiment needs a load with known size, rate and content. The content must be checkable afterwards: if a host
//! loses or mixes up a page, this must not go unnoticed.
//!
//! - [`exerciser`]: the work of `memtide-load`.
//! - [`helper`]: the work of `memtide-load lab-helper` inside the lab's guests. It starts exercisers, and reports on the guest.

#![deny(unsafe_code)]

pub mod exerciser;
pub mod helper;
