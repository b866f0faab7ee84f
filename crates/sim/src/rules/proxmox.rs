//! The autoballoon rule of Proxmox VE.
//!
//! **Problem.** Four fifths of a host's memory should be in use: with less in use guests grow, with more they shrink.
//!
//! **Rule.** Every 10 s, the goal is four fifths of the host's memory less the memory in use. A goal within 10 MiB of zero is ignored. The
//! goal is divided among guests by their shares above their minima, and a guest changes by at most 100 MiB. If the goal gives memory, the
//! uncomfortable guests come first; if it takes memory, the comfortable ones. All guests take part only if the first group makes no
//! progress. A guest is comfortable if its free memory exceeds a quarter of its minimum, and its size is at least its minimum.
//!
//! **Left alone** are guests whose balloon does not answer, guests without a minimum, and guests with shares of 0. (Also guests in
//! migration, which do not occur here.) **A guest without statistics** takes part: it counts as uncomfortable.
//!
//! **Source.** proxmox/pve-manager: `PVE/AutoBalloon.pm` (the rule), `PVE/Service/pvestatd.pm` (the goal, the interval, the largest
//! change); proxmox/qemu-server: `src/PVE/QemuServer.pm` (the statistics and how often QEMU polls them). The original divides in floating
//! point, this rule in integers: in 3000 random cases they differed by at most one byte.

use memtide_model::{Bytes, Span};

/// How often the rule decides (`$updatetime`).
pub const DECIDE_EVERY: Span = Span::from_secs(10);
/// How often QEMU asks guests for statistics (`guest-stats-polling-interval`).
pub const POLL_EVERY: Span = Span::from_secs(2);

/// The part of the host that should be in use, in percent (`ballooning-target`, default value).
const USED_PERCENT: u64 = 80;
/// A goal within this many bytes of zero is ignored.
const CLOSE: i64 = 10 << 20;
/// The most that a guest changes in one decision, in bytes (`$maxchange`).
const MOST_CHANGE: i64 = 100 << 20;

/// A guest, as Proxmox VE sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its size (`balloon`); zero if its balloon does not answer.
    pub size: Bytes,
    /// Free memory, as its kernel reports it (`freemem`); `None` without statistics.
    pub free: Option<Bytes>,
    /// The least that it may keep (`balloon_min`); zero if none is set.
    pub min: Bytes,
    /// The most that it may keep (`maxmem`).
    pub max: Bytes,
    /// Its weight; 1000 by default.
    pub shares: u64,
}

impl Guest {
    fn takes_part(&self) -> bool {
        !self.size.is_zero() && !self.min.is_zero() && self.shares > 0
    }

    fn is_comfortable(&self) -> bool {
        self.free.is_some_and(|free| free.get() > self.min.get() / 4) && self.size >= self.min
    }
}

/// The sizes that the rule asks for, in the order of the guests. `used` is the memory in use on the host, out of `total`.
#[must_use]
pub fn decide(used: Bytes, total: Bytes, guests: &[Guest]) -> Vec<Bytes> {
    let unchanged: Vec<i64> = guests.iter().map(|guest| signed(guest.size)).collect();
    let goal = signed(total.mul_div(USED_PERCENT, 100)) - signed(used);
    let sizes = if goal.abs() > CLOSE {
        let first = share_out(goal, guests, &unchanged, &|guest| guest.is_comfortable() == (goal < 0));
        // No progress: together they came no nearer to the goal.
        let rest = goal - (first.iter().sum::<i64>() - unchanged.iter().sum::<i64>());
        let nowhere = if goal > 0 { rest >= goal } else { rest <= goal };
        if nowhere { share_out(rest, guests, &first, &|_| true) } else { first }
    } else {
        unchanged
    };
    sizes.into_iter().map(|size| Bytes::new(size.unsigned_abs())).collect()
}

/// Divides `goal` among the guests for which `only` holds. The goal plus all memory above their minima is divided by their shares, so a
/// guest can shrink although the goal gives memory. If a bound keeps one guest from taking its part, the others get it in the next turn.
fn share_out(goal: i64, guests: &[Guest], sizes: &[i64], only: &dyn Fn(&Guest) -> bool) -> Vec<i64> {
    let mut sizes = sizes.to_vec();
    let mut open: Vec<usize> =
        (0..guests.len()).filter(|&i| guests[i].takes_part() && only(&guests[i])).collect();
    let mut rest = goal;
    while rest != 0 && !open.is_empty() {
        let weights: i128 = open.iter().map(|&i| i128::from(guests[i].shares)).sum();
        let above: i128 = open.iter().map(|&i| i128::from(sizes[i] - signed(guests[i].min))).sum();
        let pool = above + i128::from(rest);
        let (mut moved, mut progress) = (0, false);
        let mut settled = Vec::new();
        for &i in &open {
            let guest = &guests[i];
            let (begun, min, max) = (signed(guest.size), signed(guest.min), signed(guest.max));
            let fair = i64::try_from(pool * i128::from(guest.shares) / weights).unwrap_or(i64::MAX);
            // Not `clamp`: it panics if an operator has set a minimum above the full size.
            let wanted = min.saturating_add(fair).max(min).min(max);
            if wanted == begun || (wanted > begun && goal < 0) {
                settled.push(i);
                continue;
            }
            let next = wanted.clamp(begun - MOST_CHANGE, begun + MOST_CHANGE);
            moved += next - sizes[i];
            progress |= next != sizes[i];
            sizes[i] = next;
        }
        if !progress {
            break;
        }
        rest -= moved;
        open.retain(|i| !settled.contains(i));
    }
    sizes
}

fn signed(size: Bytes) -> i64 {
    i64::try_from(size.get()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    fn guest(size: u64, free: u64) -> Guest {
        Guest { size: mib(size), free: Some(mib(free)), min: mib(200), max: mib(1000), shares: 1000 }
    }

    #[test]
    fn near_the_goal_nothing_is_done() {
        // 80 % of 1000 are 800; 791 is within 10 of it.
        assert_eq!(decide(mib(791), mib(1000), &[guest(500, 0)]), [mib(500)]);
    }

    #[test]
    fn the_uncomfortable_grow_first_and_by_a_hundred_at_most() {
        // Goal +300. A guest with 50 free or less is uncomfortable: a quarter of 200.
        assert_eq!(decide(mib(500), mib(1000), &[guest(400, 50), guest(400, 51)]), [mib(500), mib(400)]);
        // If both are comfortable, both grow.
        assert_eq!(decide(mib(500), mib(1000), &[guest(400, 90), guest(400, 90)]), [mib(500), mib(500)]);
    }

    #[test]
    fn the_comfortable_shrink_first() {
        // Goal −60, from the comfortable guest: 200 + (400 − 200) − 60 = 340.
        assert_eq!(decide(mib(860), mib(1000), &[guest(400, 50), guest(400, 90)]), [mib(400), mib(340)]);
        // If none is comfortable, all shrink: (200 + 200 − 60) / 2 + 200 = 370.
        assert_eq!(decide(mib(860), mib(1000), &[guest(400, 50), guest(400, 50)]), [mib(370), mib(370)]);
    }

    #[test]
    fn all_take_part_if_the_first_only_exchange_memory() {
        // Goal +20. The uncomfortable guests have 900 and 300, with a minimum of 200: each should get 610, so −100 and +100, zero in total.
        // Then all three divide the memory above their minima, 600 + 200 + 300 + 20 = 1120: 373 each.
        let sizes = decide(mib(780), mib(1000), &[guest(900, 0), guest(300, 0), guest(500, 90)]);
        assert_eq!(sizes.iter().map(|size| size.whole_mib()).collect::<Vec<_>>(), [800, 400, 573]);
    }

    #[test]
    fn nobody_gets_less_than_its_minimum() {
        // Goal −700.
        assert_eq!(decide(mib(1500), mib(1000), &[guest(250, 90), guest(400, 90)]), [mib(200), mib(300)]);
    }

    #[test]
    fn what_is_above_the_minima_is_divided_anew_by_shares() {
        // Goal +40: above the minima 100 + 100 + 40 = 240, as 1:3 → 60 and 180.
        let heavy = Guest { shares: 3000, ..guest(300, 0) };
        assert_eq!(decide(mib(760), mib(1000), &[guest(300, 0), heavy]), [mib(260), mib(380)]);
        // A guest without shares is left alone.
        let apart = Guest { shares: 0, ..guest(300, 0) };
        assert_eq!(decide(mib(760), mib(1000), &[guest(300, 0), apart]), [mib(340), mib(300)]);
    }

    #[test]
    fn a_guest_without_a_minimum_or_an_answer_is_left_alone() {
        // Goal +40, all of it for the first: 200 + 100 + 40 = 340. The others have no minimum and no answer.
        let without = Guest { min: Bytes::ZERO, ..guest(300, 0) };
        let silent = Guest { size: Bytes::ZERO, ..guest(300, 0) };
        let sizes = decide(mib(760), mib(1000), &[guest(300, 0), without, silent]);
        assert_eq!(sizes, [mib(340), mib(300), Bytes::ZERO]);
    }

    #[test]
    fn a_guest_without_statistics_counts_as_uncomfortable() {
        // Goal +300: it grows first, by a hundred. Goal −60: the comfortable one gives all of it.
        let unknown = Guest { free: None, ..guest(400, 0) };
        assert_eq!(decide(mib(500), mib(1000), &[unknown, guest(400, 90)]), [mib(500), mib(400)]);
        assert_eq!(decide(mib(860), mib(1000), &[unknown, guest(400, 90)]), [mib(400), mib(340)]);
    }

    #[test]
    fn a_minimum_above_the_full_size_is_no_panic() {
        // Goal +40: it should get 1200 + (1000 − 1200) + 40 = 1040, above the full size of 1000.
        let wrong = Guest { min: mib(1200), ..guest(1000, 0) };
        assert_eq!(decide(mib(760), mib(1000), &[wrong]), [mib(1000)]);
    }
}
