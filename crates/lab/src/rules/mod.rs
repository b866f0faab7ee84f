//! Rules of other managers, with their published constants, as plain functions: what they would do with the same guests.
//!
//! Each takes what its own sensors would have seen and returns the sizes that it asks for. Who turns sensors and sizes into
//! readings and balloon commands is the same for all rules.

pub mod mom;
pub mod proxmox;
