//! Virtual machine monitors: the wire's units and signs end here.
//!
//! Each backend finds its guests, asks them for their memory in its own language, and answers in the words of
//! `memtide-model`: sizes of memory that the *guest keeps*, in bytes, and a reason wherever there is no number. A
//! backend never decides anything.
//!
//! - [`qemu`]: QEMU processes of this host, through their QMP monitors;
//! - `stand_in` (feature `stand-in`): a monitor that speaks real QMP, or misbehaves on purpose, for tests.
#![forbid(unsafe_code)]

pub mod qemu;
#[cfg(feature = "stand-in")]
pub mod stand_in;
