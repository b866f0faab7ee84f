//! The balloon rule of oVirt's MOM (`doc/balloon.rules` of the project), with its constants.
//!
//! Every 10 s: where less than a fifth of the host is free or cache, all guests shrink, else all grow. That and a guest's
//! memory in use, its size less what its kernel calls unused, are averages over the last 10 samples of 5 s; the size that it
//! changes from is that of the last sample. A guest shrinks by at most 5 % of its size, to what it uses and a guard that becomes smaller as the host does; it grows by 5 %, or at once to what it uses
//! and a fifth of its size. Changes of a quarter percent or less are left out.

use std::time::Duration;

use memtide_model::Bytes;

/// How often the monitors look.
pub const MONITOR_EVERY: Duration = Duration::from_secs(5);
/// How often the rule decides.
pub const DECIDE_EVERY: Duration = Duration::from_secs(10);
/// Over how many samples is averaged.
pub const SAMPLES: usize = 10;

/// Less of the host free than this: all guests shrink.
const PRESSURE: f64 = 0.20;
/// Less than this: the guard of a guest can become negative.
const HARD: f64 = 0.05;
/// The guard: how much of its size a guest has free besides.
const GUARD: f64 = 0.20;
const MOST_CHANGE: f64 = 0.05;
const LEAST_CHANGE: f64 = 0.0025;

/// A guest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guest {
    /// What it keeps (`balloon_cur`), by the last sample.
    pub size: Bytes,
    /// What it uses: the average of what it keeps less the average of what its kernel calls free (`mem_unused`).
    pub used: Bytes,
    /// The least that it may get (`balloon_min`).
    pub min: Bytes,
    /// The most (`balloon_max`).
    pub max: Bytes,
}

/// The sizes that the rule asks for; `None` leaves a guest as it is. `free` is what the host has free, its cache included.
#[must_use]
pub fn decide(free: Bytes, total: Bytes, guests: &[Guest]) -> Vec<Option<Bytes>> {
    let free = float(free) / float(total).max(1.0);
    guests.iter().map(|guest| if free < PRESSURE { shrink(guest, free) } else { grow(guest) }).collect()
}

fn shrink(guest: &Guest, free: f64) -> Option<Bytes> {
    let (size, used) = sizes(guest);
    let guard = if free <= HARD { free - HARD } else { GUARD * free / PRESSURE };
    let least = float(guest.min).max(used + guard * size);
    let wanted = ((1.0 - MOST_CHANGE) * size).max(least);
    changed(size, wanted).filter(|_| wanted <= size)
}

fn grow(guest: &Guest) -> Option<Bytes> {
    let (size, used) = sizes(guest);
    let least = float(guest.min).max(used + GUARD * size);
    let wanted = ((1.0 + MOST_CHANGE) * size).max(least).min(float(guest.max));
    changed(size, wanted).filter(|_| wanted >= size)
}

fn sizes(guest: &Guest) -> (f64, f64) {
    (float(guest.size), float(guest.used))
}

fn changed(size: f64, wanted: f64) -> Option<Bytes> {
    ((wanted - size).abs() > LEAST_CHANGE * size).then(|| bytes(wanted))
}

/// Whole KiB: the rule speaks in them, and every size fits.
fn float(size: Bytes) -> f64 {
    f64::from(u32::try_from(size.get() >> 10).unwrap_or(u32::MAX))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size in KiB, within 0 and 2³²")]
fn bytes(kib: f64) -> Bytes {
    Bytes::from_kib(kib.clamp(0.0, f64::from(u32::MAX)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn guest(size: u64, unused: u64) -> Guest {
        Guest { size: mib(size), used: mib(size - unused), min: mib(100), max: mib(1000) }
    }

    #[test]
    fn a_host_with_a_fifth_free_lets_guests_grow_by_a_twentieth() {
        // Uses 200: 200 + 0.2 × 400 = 280 < 1.05 × 400 = 420.
        assert_eq!(decide(mib(200), mib(1000), &[guest(400, 200)]), [Some(mib(420))]);
        // Uses 390: 390 + 80 = 470 > 420, at once.
        assert_eq!(decide(mib(200), mib(1000), &[guest(400, 10)]), [Some(mib(470))]);
        // At its most nothing is left to grow.
        assert_eq!(decide(mib(200), mib(1000), &[guest(1000, 10)]), [None]);
    }

    #[test]
    fn a_host_with_less_shrinks_all_by_at_most_a_twentieth() {
        // 100 of 1000 free: the guard is 0.2 × 0.1 / 0.2 = 0.1. Uses 200: 200 + 40 = 240 < 0.95 × 400 = 380.
        assert_eq!(decide(mib(100), mib(1000), &[guest(400, 200)]), [Some(mib(380))]);
        // Uses 350: 350 + 40 = 390 > 380.
        assert_eq!(decide(mib(100), mib(1000), &[guest(400, 50)]), [Some(mib(390))]);
        // Uses 380: 420 would be more than it has.
        assert_eq!(decide(mib(100), mib(1000), &[guest(400, 20)]), [None]);
    }

    #[test]
    fn an_empty_host_takes_what_is_in_use() {
        // Nothing free: the guard is −0.05. Uses 400: 400 − 20 = 380 = 0.95 × 400.
        assert_eq!(decide(mib(0), mib(1000), &[guest(400, 0)]), [Some(mib(380))]);
    }

    #[test]
    fn a_change_of_a_quarter_percent_is_left_out() {
        // Uses 359: 359 + 40 = 399, a change of exactly 0.25 %.
        assert_eq!(decide(mib(100), mib(1000), &[guest(400, 41)]), [None]);
    }
}
