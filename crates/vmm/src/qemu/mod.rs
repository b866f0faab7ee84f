//! QEMU: found through /proc without configuration, asked and driven through QMP.
//!
//! From the outside in:
//!
//! 1. [`Fleet`] is what the engine's thread holds: one call asks every guest at once, within one deadline;
//! 2. [`Discovery`] finds the processes, [`CommandLine`] reads what they were started with;
//! 3. [`Monitor`] is one guest: what to ask at each poll, what the answers mean, when they are too old;
//! 4. [`Qmp`] is one connection: lines, identifiers, deadlines, events.
//!
//! Terms. *Actual* and *target* are memory that the guest keeps. On QEMU's wire neither counts virtio-mem: the
//! *plugged* size is added on the way in and subtracted on the way out, here and nowhere else. A monitor is used
//! *briefly* (connect, ask, close) where it was discovered, since it serves one client at a time and somebody else may
//! need it. While memtide manages, it is *kept open* until somebody knocks, and its events are read with the next poll. It is *held*
//! where the configuration says that it is ours: only then events are heard as they come.
//!
//! Rules. A QEMU that libvirt owns is never connected to. Nothing from a guest or a monitor is trusted: lines, texts,
//! queues and numbers are bounded. A failure is a [`memtide_model::Absence`], never a zero.

mod actor;
mod balloon;
mod command_line;
mod discovery;
mod equipment;
mod exit;
mod fleet;
mod hotplug;
mod knock;
mod lines;
mod link;
mod monitor;
mod options;
mod picture;
mod proc_fs;
mod qmp;
mod reset;
mod rests;
mod round;
mod run_state;
mod signal;
mod socket;
mod stats;
mod stats_clock;
mod wire;

pub use actor::WakeReason;
pub use command_line::{CommandLine, RamBackend, RamKind};
pub use discovery::{Accel, Changes, Discovery, DiscoveryError, Owner, ProcessFacts, QemuProcess};
pub use equipment::{BalloonArgument, Equipment, MemoryArgument};
pub use fleet::{ConfiguredGuest, Fleet, FleetConfig, FleetError, QemuSeen, Unmatched};
pub use monitor::{Monitor, MonitorConfig, MonitorError, PollWish, Use};
pub use qmp::{Command, Qmp, QmpError, QmpEvent, Refusal};
pub use signal::Signal;
