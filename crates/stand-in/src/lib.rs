//! Stand-ins for guests, for tests and benchmarks of this workspace.
//!
//! **Problem.** A real guest takes seconds to boot, and does not misbehave on request. Where a test needs many guests, or hostile ones, a stand-in
//! plays them. It speaks the real protocol over a real socket.
//!
//! - [`qemu`]: a monitor that speaks QMP, alone or in a process that looks like a QEMU;
//! - [`uml`]: the management console of an instance of User Mode Linux;
//! - [`conformance`]: the cases that every backend must pass.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod qemu;
pub mod uml;
