//! Readers of the host's own memory.
//!
//! **Problem.** The ledger needs to know, several times a second, what the host has, what its guests cost and what the
//! rest of the host uses; and it needs to know it on every kernel, with cgroups of either version, in a test as well as
//! on a real machine.
//!
//! **Terms.** A [`Root`] is the directory in which `/proc` and `/sys` are looked for: `/`, or a captured tree. A
//! [`Source`] is a kernel file that is kept open and read again from its start. [`Scratch`] is the one buffer that all
//! sources of a thread are read into.
//!
//! **Rule.** Every format has a parser that takes text and never panics, and a reader that only joins a path, a source
//! and that parser. What a kernel does not offer is an error that [`HostError::absence`] turns into the reason of an
//! absent reading; it is never a zero.
//!
//! | subject | read |
//! |---|---|
//! | the whole host | [`Meminfo`], [`Vmstat`], [`pressure`], [`Trigger`] |
//! | a guest's process | [`ProcessReader`] ([`Footprint`]), [`SharedRam`], [`KsmReader`]; slowly: [`Mappings`] |
//! | a memory cgroup | [`Cgroup`], [`CgroupReader`] |
//! | all of it as the ledger's host | [`HostSensor`] |
#![forbid(unsafe_code)]

mod capacity;
mod cgroup;
mod error;
mod footprint;
mod ksm;
mod mappings;
mod meminfo;
pub mod pressure;
mod process;
mod root;
mod shared_ram;
mod smaps;
mod source;
mod text;
mod trigger;
mod vmstat;

pub use capacity::{GuestCost, HostSensor};
pub use cgroup::{Cgroup, CgroupEvents, CgroupReader, CgroupSeen, CgroupVersion};
pub use error::{HostError, ParseError};
pub use footprint::{Footprint, ProcessReader};
pub use ksm::{KsmPages, KsmReader};
pub use mappings::{CodeBuffer, Mappings, RamBlock};
pub use meminfo::Meminfo;
pub use process::{Statm, start_time, statm};
pub use root::{Root, page_size};
pub use shared_ram::SharedRam;
pub use smaps::Mapping;
pub use source::{Scratch, Source};
pub use trigger::Trigger;
pub use vmstat::Vmstat;
