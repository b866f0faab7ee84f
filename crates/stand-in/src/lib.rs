//! Stand-ins for guests, for tests and benchmarks of this workspace.
//!
//! **Problem.** A real guest takes seconds to boot and does not misbehave on request. If a test needs many guests or hostile ones, stand-ins play them.
//! They speak the real protocols over real sockets.
//!
//! - [`qemu`]: a monitor that speaks QMP, alone or in a process that looks like a QEMU;
//! - [`libvirt`]: a daemon of libvirt;
//! - [`uml`]: the management console of an instance of User Mode Linux;
//! - [`conformance`]: the cases that every backend must pass.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod libvirt;
pub mod qemu;
pub mod uml;
