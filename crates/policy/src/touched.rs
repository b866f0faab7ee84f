//! What guests have touched, and what of it a balloon can bring back.
//!
//! **Terms.** A guest has *touched* what the host has memory for: its footprint without the VMM's overhead. *Ready* is what
//! its kernel keeps on the lists of its processors for the next allocation: freed, but neither free nor reported, and so it passes
//! for used. Linux keeps up to an eighth of its memory so (`pcp->high_max`, since 6.7).
//!
//! **Rule.** Taking what was never touched frees nothing, and costs the guest a grant later. Of what it has touched, a guest can give
//! what lies beyond its need, and what is ready, as long as its need stays: that eighth, until it was tried. A balloon takes
//! touched memory before all other, but not only. Once it takes memory of which less than an eighth comes back, it is *dry*: there
//! is no more to be had, until the guest costs more than it did then (*pressed*).
//!
//! (A guest that cost 208 MiB and used 157 was seen to give 28 of the first 72 that were taken, 15 of the next 73, and nothing of
//! 590 more.)
//!
//! **Property.** Asking a guest that does not change comes to an end.

use memtide_model::Bytes;

use crate::guest::Guest;
use crate::stuck::TOLERANCE;

/// A kernel keeps at most one in so many of its pages ready.
const READY_PART: u64 = 8;
/// A balloon is dry where less than one in so many parts of what it takes comes back.
const DRY_PART: u64 = 8;

impl Guest<'_> {
    /// Remembers what it costs where its balloon is dry, and notes what may be ready.
    pub fn press(&mut self) {
        if let (Some(before), Some(now)) = (self.before.footprint, self.seen.footprint.fresh().copied()) {
            let taken = self.taken();
            let is_dry = before.saturating_sub(now).mul_div(DRY_PART, 1) < taken;
            self.next.pressed = match self.inflates() && taken > TOLERANCE && is_dry {
                true => Some(now),
                false => self.before.pressed.map(|pressed| pressed.min(now)),
            };
        }
        let pressed = self.next.pressed.unwrap_or_default();
        let most = self.seen.full.mul_div(1, READY_PART);
        self.ready = self.entry.footprint.saturating_sub(pressed).min(most);
    }

    /// What it can give of what it has touched, and keep `need`.
    #[must_use]
    pub fn idle_touched(&self, need: Bytes) -> Bytes {
        let touched = self.entry.touched();
        let idle = touched.saturating_sub(need);
        if !self.lacks().is_zero() || self.demand.used.is_none() {
            return idle;
        }
        idle.max(self.ready).min(touched).min(self.entry.held.saturating_sub(need))
    }

    /// What it keeps, no less than `floor`, so that up to `most` of what it has touched comes back: to give so much it must become
    /// smaller by as much again, where it has so much that it has not touched.
    #[must_use]
    pub fn keeps_to_give(&self, most: Bytes, floor: Bytes) -> Bytes {
        let held = self.entry.held;
        let gives = self.idle_touched(floor).min(most);
        let untouched = held.saturating_sub(self.entry.touched());
        let inflation = gives.saturating_add(gives.min(untouched));
        held.saturating_sub(inflation).max(floor.min(held))
    }
}
