//! Guests whose memory must not be taken, because the host would gain nothing by it, or somebody else would lose something.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Bytes;
use crate::text::printable;

/// Why memory taken from a guest brings the host nothing, or hurts others. Such a guest counts at its full size, and memtide never asks it for
/// memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withheld {
    /// A device writes to its memory without the processor: QEMU keeps every page that the guest gives (`ram_block_discard_disable`). The device, as
    /// in `vfio-pci 0000:65:00.0`.
    Pinned(String),
    /// Its memory is encrypted, and QEMU keeps it as if it were pinned. The kind, as in `sev-guest`.
    Confidential(String),
    /// Its memory is locked: the kernel frees no locked page.
    Locked,
    /// Its memory lies in a pool of huge pages: what it gives returns to the pool, if a whole page is free, and giving touches pages.
    HugePages,
    /// Its memory is a private mapping of a file: QEMU would punch holes into the file, which other guests may have as theirs. The path.
    PrivateFile(String),
    /// It was shown by a step down: the cause is not known.
    GivesNothing {
        /// The size that the guest had been asked to keep, and kept.
        size: Bytes,
        /// The guest's memory that was resident then.
        resident: Bytes,
    },
}

/// For people, as in `a device pins its memory (vfio-pci 0000:65:00.0)`.
impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned(device) => write!(f, "a device pins its memory ({})", printable(device)),
            Self::Confidential(kind) => write!(f, "its memory is encrypted ({})", printable(kind)),
            Self::Locked => f.write_str("its memory is locked"),
            Self::HugePages => f.write_str("its memory lies in a pool of huge pages"),
            Self::PrivateFile(path) => {
                write!(
                    f,
                    "its memory is a private mapping of {}, and QEMU would punch holes into that file",
                    printable(path)
                )
            }
            Self::GivesNothing { size, resident } => {
                write!(f, "it kept only {size}, and {resident} of its memory stayed on the host")
            }
        }
    }
}
