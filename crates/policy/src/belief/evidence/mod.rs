//! Evidence of want: signs that a guest lacks memory, with their source and their reliability.
//!
//! **Terms.** A *stall* is an allocation that had to wait. A *refault* is a read of memory that was taken shortly before. A *kill* is a process that the
//! guest's kernel ended for lack of memory. A *squeal* is a stall or a refault: the guest feels that memory was taken from it.
//!
//! **Rule.** Each source has one file here, which turns its counters into [`Evidence`]. The stages of a decision see no counters. To add a
//! source, add its file, its counters to `GuestState`, and the choice between the sources to `need` and to the engine's `asking`
//! (where what disks read waits for the next tick).

mod agent;
mod balloon;
mod disks;

use memtide_model::{Bytes, Span};

use crate::constants::{DISK_WAITS_US, REFAULT_SCANS, SCANS, SLOW_REFAULTS};

/// Evidence of a guest's want since the last fresh report of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Whether a guest whose allocations wait shows it.
    pub shows_stalls: bool,
    /// Whether a guest that loses page cache that it needs shows it. Otherwise only swap traffic, faults and kills are counted: the absence of evidence
    /// proves nothing.
    pub shows_refaults: bool,
    /// Allocations waited for memory.
    pub stalls: bool,
    /// Memory was reclaimed directly: by tasks that needed it, or by an agent that trims.
    pub reclaims: bool,
    /// Memory was read again that had been taken: from swap, or, by the number of scans and faults, from files. The balloon's statistics
    /// have no counter for refaults of files, so without an agent this is a hypothesis: a reader of a long file looks the same.
    pub refaults: bool,
    /// The guest killed a process for lack of memory.
    pub kills: bool,
    /// Memory that its kernel scanned per second in search of memory to free. With an agent: memory that was read again per second.
    pub scanned: Bytes,
}

impl Evidence {
    /// The same of a guest that reads `read` a second again, for which its tasks waited `waits_us` of `elapsed`. It counts if it is much; on a slow disk, little
    /// costs much.
    fn reading_again(self, read: Bytes, waits_us: u64, elapsed: Span) -> Self {
        let waits = read >= SLOW_REFAULTS && waits_us >= elapsed.as_millis() * DISK_WAITS_US;
        Self {
            refaults: self.refaults || waits || read >= REFAULT_SCANS,
            scanned: if waits { read.max(SCANS) } else { read },
            ..self
        }
    }

    /// Whether the guest squeals.
    #[must_use]
    pub const fn is_squeal(&self) -> bool {
        self.is_stalled() || self.refaults
    }

    /// Whether the guest's tasks wait for memory.
    #[must_use]
    pub const fn is_stalled(&self) -> bool {
        self.stalls || self.reclaims
    }
}
