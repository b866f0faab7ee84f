//! QEMU: found through /proc without configuration, read and controlled through QMP.
//!
//! From the outside in:
//!
//! 1. [`Qemu`] is the backend: the guests, and which of them the configuration names. Its controls share monitors with other clients.
//! 2. [`Discovery`] finds the processes (`recognise`). [`Arguments`] are the options that they were started with, also from files; [`CommandLine`],
//!    [`Equipment`] and [`Launcher`] say what the options mean. `places` says where their monitors may be reached, and `listed` reads the kernel's
//!    list of sockets.
//! 3. [`Monitor`] is one guest: the questions of each poll, the meaning of the answers, and the age at which they are too old.
//! 4. [`Qmp`] is one connection: lines, identifiers, deadlines, events.
//!
//! Terms. *Actual* and *target* are memory that the guest keeps. On QEMU's wire neither counts virtio-mem. Only this module
//! converts: it adds the *plugged* size to incoming values, and subtracts it from outgoing values. A discovered monitor is used
//! *briefly* (connect, ask, close), because it serves one client at a time and somebody else may need it. While memtide manages, such
//! a monitor is *kept open* until somebody knocks, and the next poll reads its events. A monitor is *dedicated* if the configuration says
//! that it belongs to memtide. Only a dedicated monitor's events are heard as they come.
//!
//! Rules. memtide never connects to a QEMU that libvirt owns ([`libvirt`](crate::libvirt) reaches its guests), nor to a monitor that a launcher keeps for itself ([`Launcher::keeps`]). It trusts nothing from a guest or a monitor: lines, texts, queues and
//! numbers are bounded. A failure is a [`memtide_model::Absence`], never a zero.

mod arguments;
mod backend;
mod backlogs;
mod balloon;
mod command_line;
mod control;
mod discovery;
mod disks;
mod equipment;
mod facts;
mod hotplug;
mod launcher;
mod lines;
mod link;
mod listed;
mod machine;
mod merge;
mod monitor;
mod options;
mod owner;
mod picture;
mod places;
mod proxmox;
mod qmp;
mod ram;
mod recognise;
mod run_state;
mod signal;
pub(crate) mod socket;
mod stats;
mod tier;
mod wire;

pub use arguments::{Arguments, Source};
pub use backend::{ConfiguredGuest, LEAST_GROWTH, Qemu, ram_blocks};
pub use backlogs::Backlogs;
pub use command_line::CommandLine;
pub use discovery::{Accel, Changes, Discovery, DiscoveryError, ProcessFacts, QemuProcess};
pub use equipment::{BalloonArgument, Equipment, InFile, MemoryArgument};
pub use launcher::Launcher;
pub use listed::is_held;
pub(crate) use machine::DEFAULT_MEMORY;
pub use monitor::{Monitor, MonitorConfig, MonitorError, Use};
pub use owner::SetsBalloon;
pub use qmp::{Command, Qmp, QmpError, QmpEvent, Refusal};
pub use ram::{Backing, MemoryBlock, MemoryRole};
pub use recognise::resembles_qemu;
pub use signal::Signal;
pub use socket::{Peer, listener_of};
pub(crate) use stats::GuestStatsAnswer;
