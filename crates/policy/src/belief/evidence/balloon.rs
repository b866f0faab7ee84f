//! Evidence from the statistics of the balloon's driver.
//!
//! Thresholds are rates, so that the length of a tick does not matter. The statistics have no counter for refaults. In one measurement,
//! 305,600 refaults changed only kswapd's scan counter. So `async_scans` stands for refaults. Scans are counted in bytes (`virtio_balloon.c`).

use memtide_model::{BalloonCounters, Bytes, GuestStats, Span};

use crate::constants::{ALLOC_STALLS, MAJOR_FAULTS, REFAULT_SCANS, SCANS};

use super::Evidence;

impl Evidence {
    /// The evidence in statistics `now`, made `elapsed` after those with the counters `before`. Without earlier counters there is none. `is_full`: little
    /// memory is free.
    #[must_use]
    pub fn of_balloon(
        before: Option<&BalloonCounters>,
        now: &GuestStats,
        elapsed: Span,
        is_full: bool,
    ) -> Self {
        // The counters of Linux 6.12 and later.
        let none = Self {
            shows_stalls: now.alloc_stalls.is_some(),
            shows_refaults: now.async_scans.is_some(),
            stalls: false,
            reclaims: false,
            refaults: false,
            kills: false,
            scanned: Bytes::ZERO,
        };
        let (Some(before), millis @ 1..) = (before, elapsed.as_millis()) else { return none };
        let count = |now: Option<u64>, before: Option<u64>| match (now, before) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        };
        let rate = |now, before| count(now, before).saturating_mul(1000) / millis;
        let bytes = |b: Option<Bytes>| b.map(Bytes::get);
        let byte_rate = |now, before| Bytes::new(rate(now, before));
        let scanned = byte_rate(now.async_scans, before.async_scans);
        Self {
            stalls: rate(now.alloc_stalls, before.alloc_stalls) >= ALLOC_STALLS
                || byte_rate(bytes(now.swapped_in), bytes(before.swapped_in)) >= SCANS,
            reclaims: byte_rate(now.direct_scans, before.direct_scans) >= SCANS,
            refaults: scanned >= REFAULT_SCANS
                || (is_full && rate(now.major_faults, before.major_faults) >= MAJOR_FAULTS),
            scanned,
            kills: count(now.oom_kills, before.oom_kills) > 0,
            ..none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_want_is_told_apart() {
        let before = GuestStats {
            alloc_stalls: Some(0),
            async_scans: Some(0),
            oom_kills: Some(0),
            ..GuestStats::default()
        };
        let after = |stats| Evidence::of_balloon(Some(&(&before).into()), &stats, Span::from_secs(1), true);
        let kinds = |evidence: Evidence| (evidence.is_stalled(), evidence.refaults, evidence.kills);
        assert_eq!(kinds(after(before)), (false, false, false));
        assert_eq!(kinds(after(GuestStats { alloc_stalls: Some(4), ..before })), (true, false, false));
        assert_eq!(kinds(after(GuestStats { async_scans: Some(16 << 20), ..before })), (false, true, false));
        assert_eq!(
            kinds(after(GuestStats { async_scans: Some((16 << 20) - 1), ..before })),
            (false, false, false)
        );
        assert_eq!(kinds(after(GuestStats { oom_kills: Some(1), ..before })), (false, false, true));
    }

    #[test]
    fn a_driver_without_scans_misses_squeals() {
        let shows = |stats| {
            let evidence = Evidence::of_balloon(None, &stats, Span::ZERO, true);
            evidence.shows_stalls && evidence.shows_refaults
        };
        assert!(!shows(GuestStats::default()));
        let new = GuestStats { alloc_stalls: Some(0), async_scans: Some(0), ..GuestStats::default() };
        assert!(shows(new));
    }
}
