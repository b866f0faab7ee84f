//! Virtual machine monitors: the wire's units and signs end here.
//!
//! Each backend finds its guests, asks them about their memory in its own protocol, and answers in the types of
//! `memtide-model`: memory that the *guest keeps*, in bytes, or a reason if a number is missing. A backend never decides
//! anything.
//!
//! - [`qemu`]: QEMU processes of this host, through their QMP monitors;
//! - `stand_in` (feature `stand-in`): a monitor for tests that speaks real QMP, or misbehaves on purpose.
#![forbid(unsafe_code)]

pub mod qemu;
#[cfg(feature = "stand-in")]
pub mod stand_in;
