//! The rule of squeezed, the memory manager of XenServer and XCP-ng.
//!
//! **Problem.** Guests share all of a host's memory. Each guest has a range (dynamic minimum to dynamic maximum), and squeezed squeezes all
//! guests alike. A guest with a stuck balloon must not hold up the others.
//!
//! **Rule.** If all guests went to their minima, a surplus would be free beyond the host's own reserve. The surplus is divided in
//! proportion to the ranges: each guest's target is its minimum plus γ times its range, with the same γ from 0 to 1 for all. The guests'
//! memory in use has no effect.
//!
//! ```text
//! γ = (free + Σ max(0, actual − min − 2 · inaccuracy) − reserve) / Σ (max − min), within 0 and 1
//! target = min + γ · (max − min)
//! ```
//!
//! Targets are written in two phases: first those that free memory. Those that allocate memory follow only when no guest has memory to
//! free. A guest that should move but has made no progress for more than 5 s is inactive: it is left out, and the others divide the memory
//! again. Its target is lowered to its actual size if that is less, but not below its minimum. A guest becomes active again if it moves
//! towards its target.
//!
//! **When.** Every 10 s squeezed checks whether a target would change. If so, a run begins: one step a second until all active guests have
//! reached their targets and no target changes. Each run begins with all guests active.
//!
//! **Left out.** squeezed also makes room for a guest before it starts; here guests start without asking. It tells other programs about
//! guests that have not reached their target for 20 s; that changes no target.
//!
//! **Free memory.** Xen gives a guest its memory when it creates the guest, touched or not. So free memory is the memory for guests less the
//! actual sizes of all guests. It is below zero if the guests have more memory than the host.
//!
//! **A guest without statistics** is treated like every other guest: squeezed reads none. A guest without a balloon driver keeps its size.
//!
//! **Source.** xapi-project/xen-api: `ocaml/squeezed/lib/squeeze.ml` (the rule and its steps), `ocaml/squeezed/src/squeeze_xen.ml` (the
//! reserve, the tolerance, the inaccuracy), `ocaml/squeezed/src/squeezed.ml` (the interval).

use memtide_model::{Bytes, Moment, Span};

/// How often squeezed checks whether the host is balanced (`balance-check-interval`).
pub const CHECK_EVERY: Span = Span::from_secs(10);
/// The time between two steps of a run.
pub const STEP: Span = Span::from_secs(1);
/// A guest that makes no progress for longer than this is inactive (`assume_balloon_driver_stuck_after`).
pub const STUCK_AFTER: Span = Span::from_secs(5);

/// The reserve that stays free, in KiB: 64 MiB for Xen plus 8 MiB (`target_host_free_mem_kib`).
const KEPT: i64 = (64 + 8) << 10;
/// A host with less than this beyond [`KEPT`] is balanced, in KiB (`free_memory_tolerance_kib`).
const TOLERANCE: i64 = 512;
/// A guest this close to a target has reached it, in KiB (`inaccuracy_kib`).
const INACCURACY: i64 = 4;

/// A guest, as squeezed sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Whether its balloon driver is running (`can_balloon`).
    pub driver: bool,
    /// The least that it may keep (`dynamic_min`).
    pub min: Bytes,
    /// The most that it may keep (`dynamic_max`).
    pub max: Bytes,
    /// Its last target.
    pub target: Bytes,
    /// Its size (`memory_actual`).
    pub actual: Bytes,
}

/// The state of one guest between two steps of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    actual: Bytes,
    moved: Moment,
    stuck: bool,
}

impl Progress {
    fn first(guest: &Guest, now: Moment) -> Self {
        Self { actual: guest.actual, moved: now, stuck: false }
    }

    fn next(mut self, guest: &Guest, now: Moment) -> Self {
        let distance = kib(guest.target) - kib(guest.actual);
        let step = kib(guest.actual) - kib(self.actual);
        let asked = distance.abs() > INACCURACY;
        if asked && step.signum() == distance.signum() {
            self.moved = now;
            self.stuck = false;
        }
        self.stuck |= asked && now.since(self.moved) > STUCK_AFTER;
        self.actual = guest.actual;
        self
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// Guests still move, or targets change: the next step follows after [`STEP`].
    Moving,
    /// The host is balanced.
    Balanced,
    /// Nothing can be done: no guest can take the free memory.
    Failed,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The targets to write, in the order of the guests; `None` leaves a target as it is.
    pub targets: Vec<Option<Bytes>>,
    /// The progress of each guest, for the next step.
    pub progress: Vec<Progress>,
    /// Whether there is a next step.
    pub conclusion: Conclusion,
}

/// One step. `for_guests` is the host's memory for guests. `before` is the progress after the last step, in the order of the guests. It is `None`
/// for new guests, and for all guests in the first step of a run.
#[must_use]
pub fn step(now: Moment, for_guests: Bytes, guests: &[Guest], before: &[Option<Progress>]) -> Step {
    let remembered = |i: usize| before.get(i).copied().flatten();
    let progress: Vec<Progress> = (guests.iter().enumerate())
        .map(|(i, guest)| remembered(i).unwrap_or_else(|| Progress::first(guest, now)).next(guest, now))
        .collect();
    let free = kib(for_guests) - guests.iter().map(|guest| kib(guest.actual)).sum::<i64>();
    let active: Vec<bool> = guests.iter().zip(&progress).map(|(g, p)| g.driver && !p.stuck).collect();
    let mut wanted = proportional(free, guests, &active);
    // In the first phase, only those that free memory.
    let frees = |guest: &Guest, wanted: i64| wanted < kib(guest.actual) - INACCURACY;
    let freeing = guests.iter().zip(&wanted).any(|(guest, wanted)| wanted.is_some_and(|w| frees(guest, w)));
    for (guest, wanted) in guests.iter().zip(&mut wanted) {
        *wanted = wanted.filter(|&to| frees(guest, to) == freeing && to != kib(guest.target));
    }
    let reached = (guests.iter().zip(&active))
        .all(|(guest, &active)| !active || (kib(guest.target) - kib(guest.actual)).abs() <= INACCURACY);
    let conclusion = if !reached || wanted.iter().any(Option::is_some) {
        Conclusion::Moving
    } else if free - KEPT < TOLERANCE {
        Conclusion::Balanced
    } else {
        Conclusion::Failed
    };
    for (i, guest) in guests.iter().enumerate() {
        let was_stuck = remembered(i).is_some_and(|progress| progress.stuck);
        if guest.driver && progress[i].stuck && !was_stuck {
            let to = kib(guest.target).min(kib(guest.actual)).max(kib(guest.min)).min(kib(guest.max));
            wanted[i] = Some(to).filter(|&to| to != kib(guest.target));
        }
    }
    Step { targets: wanted.into_iter().map(|kib| kib.map(bytes)).collect(), progress, conclusion }
}

/// The targets of the active guests, in KiB.
fn proportional(free: i64, guests: &[Guest], active: &[bool]) -> Vec<Option<i64>> {
    let range = |guest: &Guest| (kib(guest.max) - kib(guest.min)).max(0);
    let freeable = |guest: &Guest| (kib(guest.actual) - kib(guest.min) - 2 * INACCURACY).max(0);
    let sum = |of: &dyn Fn(&Guest) -> i64| -> i64 {
        guests.iter().zip(active).filter(|&(_, &active)| active).map(|(guest, _)| of(guest)).sum()
    };
    let surplus = (free + sum(&freeable) - KEPT).max(0);
    // Without any range, the quotient is infinite or not a number. It is then multiplied by 0, so 0 does as well.
    let ranges = sum(&range);
    let gamma = if ranges == 0 { 0.0 } else { (surplus as f64 / ranges as f64).clamp(0.0, 1.0) };
    let target = |guest: &Guest| kib(guest.min) + whole(gamma * range(guest) as f64);
    guests.iter().zip(active).map(|(guest, &active)| active.then(|| target(guest))).collect()
}

#[allow(clippy::cast_possible_truncation, reason = "at most a guest's range in KiB, below 2⁵⁴")]
fn whole(kib: f64) -> i64 {
    kib as i64
}

/// Converts to KiB, the unit of squeezed.
fn kib(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get() >> 10).unwrap_or(i64::MAX)
}

fn bytes(kib: i64) -> Bytes {
    Bytes::from_kib(u64::try_from(kib).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn at(secs: u64) -> Moment {
        Moment::from_millis(secs * 1000)
    }

    /// A guest that has reached its target.
    fn guest(min: u64, max: u64, actual: u64) -> Guest {
        Guest { driver: true, min: mib(min), max: mib(max), target: mib(actual), actual: mib(actual) }
    }

    fn first(for_guests: u64, guests: &[Guest]) -> Step {
        step(at(0), mib(for_guests), guests, &[])
    }

    #[test]
    fn all_are_squeezed_alike_and_memory_is_freed_first() {
        // Free: 1072 − 1100 = −28. Surplus: −28 + (500 + 200 MiB, less 8 KiB each) − 72 = 600 MiB − 16 KiB. Ranges: 800 and
        // 400. γ = (614400 − 16) / (1200 · 1024) = 0.49998…: 100 MiB + 409589.3 KiB and 100 MiB + 204794.6 KiB.
        let guests = [guest(100, 900, 600), guest(100, 500, 300), guest(200, 200, 200)];
        let seen = first(1072, &guests);
        // The second would get 299.995 MiB, 5.3 KiB less than it has, so it also frees memory.
        let (large, small) = (Bytes::from_kib(102_400 + 409_589), Bytes::from_kib(102_400 + 204_794));
        assert_eq!(seen.targets, [Some(large), Some(small), None]);
        assert_eq!(seen.conclusion, Conclusion::Moving);
    }

    #[test]
    fn memory_is_given_only_when_nobody_has_to_free_any() {
        // Free: 1072 − 1000 = 72. Surplus: 600 + 200 MiB − 16 KiB. Ranges: 800 each: γ is a half less 8 KiB: 500 MiB − 8 KiB each.
        let guests = [guest(100, 900, 700), guest(100, 900, 300)];
        let half = Bytes::from_kib(500 * 1024 - 8);
        assert_eq!(first(1072, &guests).targets, [Some(half), None]);
        // Once the first has freed its memory, the second gets it. Free: 1072 − 800 + 8 KiB. Surplus: 72 + 200 + 400 MiB + …: the same.
        let freed = Guest { target: half, actual: half, ..guests[0] };
        assert_eq!(first(1072, &[freed, guests[1]]).targets, [None, Some(half)]);
    }

    #[test]
    fn a_balanced_host_and_one_with_more_than_guests_take_are_left() {
        // Free: 72 MiB and 500 KiB. All are at their maxima: γ = (500 KiB + 1600 MiB − 16 KiB) / 1600 MiB, so 1.
        let guests = [guest(100, 900, 900), guest(100, 900, 900)];
        let for_guests = mib(1872).saturating_add(Bytes::from_kib(500));
        let seen = step(at(0), for_guests, &guests, &[]);
        assert_eq!((seen.targets, seen.conclusion), (vec![None, None], Conclusion::Balanced));
        let seen = first(1900, &guests);
        assert_eq!((seen.targets, seen.conclusion), (vec![None, None], Conclusion::Failed));
    }

    #[test]
    fn too_little_room_brings_all_to_their_minima() {
        // Free: 300 − 1000 = −700. Surplus: −700 + 600 − 72 < 0.
        let seen = first(300, &[guest(200, 900, 500), guest(200, 900, 500)]);
        assert_eq!(seen.targets, [Some(mib(200)), Some(mib(200))]);
    }

    #[test]
    fn after_five_seconds_without_progress_a_guest_is_left_out() {
        // Both should free memory: −128 MiB (272 − 400) are free, and γ follows from a surplus of −128 + 200 − 72 = 0.
        let stuck = Guest { target: mib(100), ..guest(100, 900, 200) };
        let works = |actual| Guest { target: mib(100), ..guest(100, 900, actual) };
        let mut before = Vec::new();
        for secs in 0..=5 {
            let seen = step(at(secs), mib(272), &[stuck, works(200 - 10 * secs)], &before);
            assert_eq!((seen.targets, seen.conclusion), (vec![None, None], Conclusion::Moving), "{secs}");
            before = seen.progress.into_iter().map(Some).collect();
        }
        // At 6 s, only the second works. Free: 272 − 340 = −68. Surplus: −68 + 40 − 72 < 0: its target stays 100. The stuck guest may free
        // memory later, so its target also stays.
        let seen = step(at(6), mib(272), &[stuck, works(140)], &before);
        assert_eq!((&seen.targets, seen.conclusion), (&vec![None, None], Conclusion::Moving));
        assert!(seen.progress[0].stuck && !seen.progress[1].stuck);
        // The run ends when the second reaches its target.
        let before: Vec<_> = seen.progress.into_iter().map(Some).collect();
        assert_eq!(step(at(7), mib(272), &[stuck, works(100)], &before).conclusion, Conclusion::Balanced);
        // A stuck guest that moves is active again.
        let moves = Guest { actual: mib(190), ..stuck };
        assert!(!step(at(7), mib(272), &[moves, works(140)], &before).progress[0].stuck);
    }

    #[test]
    fn a_stuck_guest_may_not_take_later_what_others_have() {
        // It was asked to grow to 500, but has stayed at 200 for 6 s: its target becomes 200.
        let guest = Guest { target: mib(500), ..guest(100, 900, 200) };
        let before = [Some(Progress { actual: mib(200), moved: at(0), stuck: false })];
        assert_eq!(step(at(6), mib(572), &[guest], &before).targets, [Some(mib(200))]);
        // Not below its minimum: it has 50, and its target becomes 100.
        let guest = Guest { actual: mib(50), ..guest };
        let before = [Some(Progress { actual: mib(50), moved: at(0), stuck: false })];
        assert_eq!(step(at(6), mib(572), &[guest], &before).targets, [Some(mib(100))]);
    }

    #[test]
    fn a_guest_without_a_driver_keeps_what_it_has() {
        // Free: 1072 − 1400 = −328. Surplus: −328 + 600 − 72 = 200 MiB − 8 KiB of a range of 800 MiB.
        let silent = Guest { driver: false, ..guest(100, 900, 700) };
        let seen = first(1072, &[guest(100, 900, 700), silent]);
        assert_eq!(seen.targets, [Some(Bytes::from_kib(300 * 1024 - 8)), None]);
    }
}
