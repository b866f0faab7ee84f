//! What KSM does with one guest's memory.

use memtide_model::{Bytes, MIB, Scanned, Span};

/// A pass over all memory, in the unit in which passes are counted.
pub(crate) const PASS: u64 = 1_000_000;
/// Bytes a second that come apart because their guest writes to them: as fast as programs fill memory.
const WRITTEN: u64 = 300 * MIB;
/// Bytes a second that come apart because their guest may not be merged any more: QEMU copies them at once.
const COPIED: u64 = 1024 * MIB;

/// A guest's part in the merging.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merged {
    /// Whether its memory may be merged. QEMU allows it unless told otherwise.
    pub(crate) may: bool,
    /// Its part of all savings.
    pub(crate) saved: Bytes,
    /// The same as the kernel counts it: what has come apart is still counted until a pass has found it.
    pub(crate) told: Bytes,
    /// Its merged memory.
    pub(crate) bytes: u64,
    /// Passes over its memory.
    passes: u64,
    /// How often it has written to all of its equal memory, and that has come apart.
    written: u64,
    /// What passes of the host have seen of its memory; `None` before the first look.
    scanned: Option<Scanned>,
}

impl Default for Merged {
    fn default() -> Self {
        Self {
            may: true,
            saved: Bytes::ZERO,
            told: Bytes::ZERO,
            bytes: 0,
            passes: 0,
            written: 0,
            scanned: None,
        }
    }
}

/// What the kernel counts of something that is `now`, if it counted `told` before and `progress` of a pass is done since.
pub(crate) fn told_of(now: Bytes, told: Bytes, progress: u64) -> Bytes {
    let stale = told.saturating_sub(now);
    told.max(now).saturating_sub(stale.mul_div(progress.min(PASS), PASS))
}

impl Merged {
    /// Lets `dt` pass. Memory that was written to comes apart, and `equal` memory that a pass has seen before is merged. `progress` is the part
    /// of a pass in this time, `written` how often the guest has written to all of its equal memory.
    pub(crate) fn go_on(&mut self, equal: u64, (progress, written): (u64, u64), dt: Span) {
        let in_dt = |rate: u64| rate * dt.as_millis() / 1_000;
        self.bytes = self.bytes.min(equal);
        if !self.may {
            self.bytes = self.bytes.saturating_sub(in_dt(COPIED));
            self.passes = 0;
        } else if written > self.written {
            self.bytes = self.bytes.saturating_sub(in_dt(WRITTEN));
            self.passes = 0;
            if self.bytes == 0 {
                self.written = written;
            }
        } else {
            let before = self.passes;
            self.passes += progress;
            let again = self.passes.saturating_sub(before.max(PASS));
            self.bytes = (self.bytes + Bytes::new(equal).mul_div(again, PASS).get()).min(equal);
        }
    }

    /// Notes what the host's `passes` have seen of its `present` memory.
    pub(crate) fn note(&mut self, passes: u64, present: Bytes) {
        let scanned = self.scanned.map_or(Scanned::new(passes), |scanned| scanned.later(passes, present));
        self.scanned = Some(scanned);
    }

    /// Its memory that a whole pass of the host has seen.
    pub(crate) fn scanned(&self) -> Bytes {
        self.scanned.map_or(Bytes::ZERO, |scanned| scanned.bytes())
    }
}
