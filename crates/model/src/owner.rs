//! Who sets a guest's memory besides memtide.
//!
//! Two programs that set one balloon work against each other. memtide leaves such a guest alone, and counts it at what its owner may make of it: its full size.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The one who may set a guest's memory in place of memtide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// oVirt: the MOM beside its VDSM moves the balloons of its guests.
    Ovirt,
    /// Proxmox VE: its `pvestatd` moves this balloon.
    Pvestatd,
    /// Nobody else, but libvirt's daemon lets memtide only read.
    LibvirtLetsRead,
}

/// For people: why memtide does not set the guest's memory.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ovirt => "oVirt's MOM sets its balloon",
            Self::Pvestatd => "Proxmox VE's pvestatd sets its balloon",
            Self::LibvirtLetsRead => "libvirt gives memtide only read access",
        })
    }
}
