//! Readers of the host's own memory.
//!
//! **Problem.** Several times a second, the ledger needs the memory of the host, the cost of its guests, and the memory that the rest of
//! the host uses. It needs them on every kernel, with cgroups of either version, in tests as well as on real machines.
//!
//! **Terms.** A [`Root`] is the directory that contains `/proc` and `/sys`: `/`, or a captured tree. A [`Source`] is a kernel file that
//! stays open and is read again from its start. [`Scratch`] is the buffer that all sources of a thread are read into.
//!
//! **Rule.** Every format has a parser that takes text and never panics, and a reader that only joins a path, a source and that parser. If
//! the kernel does not offer a value, the reader returns an error. [`HostError::absence`] turns the error into the reason of an absent
//! reading. A missing value never becomes zero.
//!
//! | subject | read |
//! |---|---|
//! | the whole host | [`Meminfo`], [`Vmstat`], [`pressure`], [`Trigger`] |
//! | a guest's process | [`ProcessReader`] ([`Footprint`]), [`SharedRam`], [`KsmReader`]; slowly: [`Mappings`] |
//! | a memory cgroup | [`Cgroup`], [`CgroupReader`]; now and then: [`Limited`], [`Kills`] |
//! | a NUMA node | [`space_of_node`], [`bound_to`] |
//! | torn huge pages, split | [`split()`] |
//! | all of it as the ledger's host | [`HostSensor`] |
//! | clients that wait at sockets | [`SocketDiagnosis`] |
//! | the swap of guests in compressed memory | [`zram`] |
//! | users and groups by name | [`Accounts`] |
#![forbid(unsafe_code)]

mod accounts;
mod arc;
mod backlog;
mod capacity;
mod cgroup;
mod error;
mod footprint;
pub mod ksm;
mod locked;
mod mappings;
mod meminfo;
mod mounts;
mod node;
pub mod pressure;
mod proc_fs;
mod process;
mod regular;
mod root;
mod run_time;
mod shared_ram;
mod smaps;
mod source;
mod split;
mod text;
mod torn;
mod trigger;
mod vmstat;
mod within;
pub mod zram;

pub use accounts::Accounts;
pub use arc::reclaimable_arc;
pub use backlog::SocketDiagnosis;
pub use capacity::{GuestCost, HostSensor};
pub use cgroup::reclaim::{ReclaimError, can_reclaim, reclaim};
pub use cgroup::{
    Cgroup, CgroupEvents, CgroupReader, CgroupSeen, CgroupVersion, Kill, KilledBy, Kills, Limited,
};
pub use error::{HostError, ParseError};
pub use footprint::{Footprint, ProcessReader};
pub use ksm::{KsmGuest, KsmPages, KsmReader, KsmSensor};
pub use locked::Locked;
pub use mappings::{CodeBuffer, DeviceFile, Mappings, RamBlock};
pub use meminfo::Meminfo;
pub use memtide_advise::PAGEMAP_SCAN;
pub use mounts::{mounted, name_of_tmpfs};
pub use node::{bound_to, nodes, space_of_node};
pub use proc_fs::ProcFs;
pub use process::{Stat, Statm, start_time, statm};
pub use regular::{SeenFile, open_regular, read_regular};
pub use root::{Root, page_size};
pub use run_time::RunTime;
pub use shared_ram::{FileId, FilePart, SharedRam};
pub use smaps::Mapping;
pub use source::{Scratch, Source};
pub use split::{Split, SplitError, can_split, split};
pub use trigger::Trigger;
pub use vmstat::Vmstat;
pub use within::within;
