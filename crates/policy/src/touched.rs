//! Memory that guests have touched, and the part of it that a balloon can bring back.
//!
//! **Terms.** A guest has *touched* the memory that the host backs: its footprint without the VMM's overhead. *Ready* is
//! memory that its kernel keeps on per-CPU lists for the next allocation. It is freed, but neither free nor reported, so it
//! looks used. Linux keeps up to an eighth of its memory this way (`pcp->high_max`, since 6.7).
//!
//! **Rule.** Taking untouched memory frees nothing, and costs the guest a grant later. Of its touched memory, a guest can
//! give everything beyond its need, and its ready memory, as long as its need remains. Until it was tried, an eighth counts
//! as ready. A balloon prefers touched memory, but takes other memory, too. Once less than an eighth of the memory that it
//! takes comes back, it is *dry*: it can bring back no more until the guest costs more than it did then (*pressed*).
//!
//! (A guest that cost 208 MiB and used 157 gave 28 of the first 72 that were taken, 15 of the next 73, and nothing of 590
//! more.)
//!
//! **Property.** Asking a guest that does not change comes to an end.

use memtide_model::Bytes;

use crate::guest::Guest;
use crate::stuck::TOLERANCE;

/// A kernel keeps at most one page in this many ready.
const READY_PART: u64 = 8;
/// A balloon is dry if less than one part in this many of the memory that it takes comes back.
const DRY_PART: u64 = 8;

impl Guest<'_> {
    /// Remembers the guest's cost if its balloon is dry, and notes how much may be ready.
    pub fn press(&mut self) {
        if let (Some(before), Some(now)) = (self.before.footprint, self.seen.cost.footprint.fresh().copied())
        {
            let taken = self.taken();
            let is_dry = before.saturating_sub(now).mul_div(DRY_PART, 1) < taken;
            self.next.pressed = match self.inflates() && taken > TOLERANCE && is_dry {
                true => Some(now),
                false => self.before.pressed.map(|pressed| pressed.min(now)),
            };
        }
        let pressed = self.next.pressed.unwrap_or_default();
        let most = self.seen.told.full.mul_div(1, READY_PART);
        self.ready = self.entry.footprint.saturating_sub(pressed).min(most);
    }

    /// The touched memory that it can give while it keeps `need`.
    #[must_use]
    pub fn idle_touched(&self, need: Bytes) -> Bytes {
        let touched = self.entry.touched();
        let idle = touched.saturating_sub(need);
        if !self.lacks().is_zero() || self.demand.used.is_none() {
            return idle;
        }
        idle.max(self.ready).min(touched).min(self.entry.held.saturating_sub(need))
    }

    /// The size, no less than `floor`, that brings back up to `most` of its touched memory. The guest must shrink by twice
    /// that amount if it has as much untouched memory.
    #[must_use]
    pub fn keeps_to_give(&self, most: Bytes, floor: Bytes) -> Bytes {
        let held = self.entry.held;
        let gives = self.idle_touched(floor).min(most);
        let untouched = held.saturating_sub(self.entry.touched());
        let inflation = gives.saturating_add(gives.min(untouched));
        held.saturating_sub(inflation).max(floor.min(held))
    }
}
