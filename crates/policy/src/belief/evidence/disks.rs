//! Evidence from what a guest reads from its disks, where the driver tells nothing of stalls and scans (Linux before 6.12, or through libvirt).
//!
//! **Rule.** A guest that lost page cache that it needs reads it again, and its VMM counts what its disks read. A first reading looks the same, so
//! reads are a hypothesis, as scans are ([`crate::belief::search`]). As long as a guest has more free memory than its kernel keeps, they tell nothing. On a slow disk,
//! few reads cost much: there, the time that they take counts.
//!
//! **Property.** Without such a count, only swap traffic, faults and kills remain.

use memtide_model::{Bytes, DiskReads, Span};

use super::Evidence;

impl Evidence {
    /// The evidence with what the guest has read since `before`, within `elapsed`; without it, there is no news. `is_full`: little memory is free. Where the driver counts scans, they stay.
    #[must_use]
    pub fn with_disks(
        self,
        before: Option<&DiskReads>,
        now: &DiskReads,
        elapsed: Span,
        is_full: bool,
    ) -> Self {
        if self.shows_refaults {
            return self;
        }
        let heard = Self { shows_refaults: true, ..self };
        let (Some(before), millis @ 1..) = (before, elapsed.as_millis()) else { return heard };
        if !is_full {
            return heard;
        }
        let read = Bytes::new(now.bytes.saturating_sub(before.bytes).get().saturating_mul(1000) / millis);
        let took_us = now.took_us.unwrap_or_default().saturating_sub(before.took_us.unwrap_or_default());
        heard.reading_again(read, took_us, elapsed)
    }
}
