//! The memory exerciser: uses memory in a way that is known beforehand, at a known rate, and checks what it finds.
//!
//! Problem: an experiment needs load whose size, rate and content are known, and whose content can be checked afterwards: a
//! host that loses or mixes up a page must not go unnoticed.
//!
//! - [`exerciser`]: what `memtide-load` does.
//! - [`agent`]: what `memtide-load agent` does inside the lab's guests: it starts exercisers, and tells of the guest.

#![deny(unsafe_code)]

pub mod agent;
pub mod exerciser;
