//! Memory that passes of KSM have seen.

use crate::Bytes;

/// A process's memory that a whole pass of KSM has seen. Passes are counted by their number so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The complete passes when the process was seen first, and last.
    first: u64,
    last: u64,
    bytes: Bytes,
}

impl Scanned {
    /// A process that is seen for the first time after this many `passes`.
    #[must_use]
    pub const fn new(passes: u64) -> Self {
        Self { first: passes, last: passes, bytes: Bytes::ZERO }
    }

    /// The same process with this `mergeable` memory, after this many `passes`. The pass under way when it was seen first may have seen
    /// nothing of it.
    #[must_use]
    pub fn later(self, passes: u64, mergeable: Bytes) -> Self {
        let was_scanned = passes >= self.first.saturating_add(2) && passes > self.last;
        let bytes = if was_scanned { mergeable } else { self.bytes.min(mergeable) };
        Self { last: passes, bytes, ..self }
    }

    /// The memory that a whole pass has seen.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        self.bytes
    }
}
