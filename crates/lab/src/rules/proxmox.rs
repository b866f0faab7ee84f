//! The autoballoon rule of Proxmox VE (`PVE::AutoBalloon`), with its constants.
//!
//! Every 10 s the host is to be used to four fifths. What it is away from that, if that is more than 10 MiB, is shared out:
//! first among guests that are uncomfortable (where memory is to be given) or comfortable (where it is to be taken), by their
//! shares above their minima, at most 100 MiB a guest; only where that got nowhere among all. A guest is comfortable with
//! more free than a quarter of its minimum.

use std::time::Duration;

use memtide_model::Bytes;

/// How often the rule decides.
pub const DECIDE_EVERY: Duration = Duration::from_secs(10);

/// How much of the host is to be in use, in percent.
const USED_PERCENT: u64 = 80;
/// Within this of the goal nothing is done.
const CLOSE: i64 = 10 << 20;
/// The most that a guest changes in one round.
const MOST_CHANGE: i64 = 100 << 20;

/// A guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// What it keeps (`balloon`).
    pub size: Bytes,
    /// What its kernel calls free (`freemem`).
    pub free: Bytes,
    /// The least that it may get (`balloon_min`).
    pub min: Bytes,
    /// The most (`maxmem`).
    pub max: Bytes,
    /// Its weight; 1000 by default.
    pub shares: u64,
}

impl Guest {
    fn is_comfortable(&self) -> bool {
        self.free.get() > self.min.get() / 4 && self.size >= self.min
    }
}

/// The sizes that the rule asks for, in the order of the guests. `used` is what the host uses of `total`.
#[must_use]
pub fn decide(used: Bytes, total: Bytes, guests: &[Guest]) -> Vec<Bytes> {
    let unchanged: Vec<i64> = guests.iter().map(|guest| signed(guest.size)).collect();
    let goal = signed(total.mul_div(USED_PERCENT, 100)) - signed(used);
    let sizes = if goal.abs() > CLOSE {
        let first = share_out(goal, guests, &unchanged, &|guest| guest.is_comfortable() == (goal < 0));
        // It got nowhere where those together moved no nearer to the goal.
        let rest = goal - (first.iter().sum::<i64>() - unchanged.iter().sum::<i64>());
        let nowhere = if goal > 0 { rest >= goal } else { rest <= goal };
        if nowhere { share_out(rest, guests, &first, &|_| true) } else { first }
    } else {
        unchanged
    };
    sizes.into_iter().map(|size| Bytes::new(size.unsigned_abs())).collect()
}

/// Shares `goal` out among those guests for which `only` holds: what they have above their minima, and the goal, is divided
/// anew by their shares. So a guest can shrink while the goal is to give. What a bound keeps one from taking goes to the
/// others in the next turn.
fn share_out(goal: i64, guests: &[Guest], sizes: &[i64], only: &dyn Fn(&Guest) -> bool) -> Vec<i64> {
    let mut sizes = sizes.to_vec();
    let mut open: Vec<usize> =
        (0..guests.len()).filter(|&i| guests[i].shares > 0 && only(&guests[i])).collect();
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
            let wanted = min.saturating_add(fair).clamp(min, max);
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
        Guest { size: mib(size), free: mib(free), min: mib(200), max: mib(1000), shares: 1000 }
    }

    #[test]
    fn near_the_goal_nothing_is_done() {
        // 80 % of 1000 are 800; 791 is within 10 of it.
        assert_eq!(decide(mib(791), mib(1000), &[guest(500, 0)]), [mib(500)]);
    }

    #[test]
    fn the_uncomfortable_grow_first_and_by_a_hundred_at_most() {
        // Goal +300. Uncomfortable is the one with 50 free or less: a quarter of 200.
        assert_eq!(decide(mib(500), mib(1000), &[guest(400, 50), guest(400, 51)]), [mib(500), mib(400)]);
        // Where both are comfortable both grow.
        assert_eq!(decide(mib(500), mib(1000), &[guest(400, 90), guest(400, 90)]), [mib(500), mib(500)]);
    }

    #[test]
    fn the_comfortable_shrink_first() {
        // Goal −60, from the one that is comfortable: 200 + (400 − 200) − 60 = 340.
        assert_eq!(decide(mib(860), mib(1000), &[guest(400, 50), guest(400, 90)]), [mib(400), mib(340)]);
        // Where nobody is, all do: (200 + 200 − 60) / 2 + 200 = 370.
        assert_eq!(decide(mib(860), mib(1000), &[guest(400, 50), guest(400, 50)]), [mib(370), mib(370)]);
    }

    #[test]
    fn where_the_first_only_exchange_memory_all_take_part() {
        // Goal +20. Of the uncomfortable, 900 and 300 with 200 at least, each is to have 610: −100 and +100, nothing in all. Then of
        // all three, above their minima 600 + 200 + 300 + 20 = 1120: 373 each.
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
}
