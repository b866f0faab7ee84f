//! The balloon rule of oVirt's MOM.
//!
//! **Problem.** A KVM host runs short of memory, and its guests should give some of theirs until the host has enough.
//!
//! **Rule.** Every 10 s: if less than a fifth of the host is free or page cache, all guests shrink; otherwise all grow. The host's free
//! memory, and a guest's memory in use (its size less its unused memory), are averages over the last 10 samples of 5 s. The change starts
//! from the size in the last sample. A guest shrinks by at most 5 % of its size, and keeps its memory in use plus a guard; the guard
//! shrinks with the host's free memory. It grows by 5 %, or at once to its memory in use plus a fifth of its size. Changes of at most a
//! quarter percent are ignored.
//!
//! **A guest without statistics** stays as it is: MOM takes no incomplete sample, and its policy does not see a guest whose last sample was
//! incomplete.
//!
//! **Source.** oVirt/mom: `doc/balloon.rules` (the rule and its constants), `doc/mom-balloon.conf` (the intervals), `mom/Monitor.py` and
//! `mom/Entity.py` (samples and averages).

use memtide_model::{Bytes, Span};

/// How often the monitors take a sample (`host-monitor-interval`, `guest-monitor-interval`).
pub const MONITOR_EVERY: Span = Span::from_secs(5);
/// How often the rule decides (`policy-engine-interval`).
pub const DECIDE_EVERY: Span = Span::from_secs(10);
/// The number of samples in an average (`sample-history-length`).
pub const SAMPLES: usize = 10;

/// If less than this fraction of the host is free, all guests shrink.
const PRESSURE: f64 = 0.20;
/// If less than this fraction of the host is free, the guard of a guest is negative.
const HARD: f64 = 0.05;
/// The guard, as a fraction of a guest's size: memory that it keeps beyond its memory in use.
const GUARD: f64 = 0.20;
/// The most that a guest shrinks in one decision, and the least that it grows, as a fraction of its size.
const MOST_CHANGE: f64 = 0.05;
/// A change is carried out only if it exceeds this fraction of the guest's size.
const LEAST_CHANGE: f64 = 0.0025;

/// A guest, as MOM sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guest {
    /// Its size (`balloon_cur`) in the last sample.
    pub size: Bytes,
    /// Its memory in use: the average of its size less the average of its unused memory (`mem_unused`).
    pub used: Bytes,
    /// The least that it may keep (`balloon_min`).
    pub min: Bytes,
    /// The most that it may keep (`balloon_max`).
    pub max: Bytes,
}

/// The sizes that the rule asks for, in the order of the guests; `None` leaves a guest as it is. `free` is the average of the host's free
/// memory and page cache; `total` is its memory.
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

/// Converts to KiB, the unit of the rule. Every number of KiB below 2⁵³ is exact.
fn float(size: Bytes) -> f64 {
    (size.get() >> 10) as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size in KiB, at least 0")]
fn bytes(kib: f64) -> Bytes {
    Bytes::from_kib(kib.max(0.0) as u64)
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
        // At its maximum, it cannot grow.
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

    #[test]
    fn a_host_of_several_tebibytes_is_measured_in_full() {
        // 1 of 8 TiB is free: 12.5 %, so guests shrink. The guard is 0.2 × 0.125 / 0.2 = 0.125. Uses 2: 2 + 0.5 = 2.5 <
        // 0.95 × 4 TiB.
        let tib = |tib: u64| Bytes::from_mib(tib << 20);
        let large = Guest { size: tib(4), used: tib(2), min: tib(1), max: tib(6) };
        // Floating point loses less than a KiB of 3.8 TiB.
        let shrunk = decide(tib(1), tib(8), &[large])[0].unwrap_or_default();
        assert!(shrunk.abs_diff(tib(4).mul_div(95, 100)) <= Bytes::from_kib(1), "{shrunk}");
    }
}
