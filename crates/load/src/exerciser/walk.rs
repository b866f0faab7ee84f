//! Which place is touched next.
//!
//! **Terms.** A *unit* is what one touch counts as: a page, or less with `--stride`. A thread's units are numbered from 0.
//!
//! **Rule.**
//! - Sequential: one after the other, from the start again at the end.
//! - Random: each unit is as likely as any other, with replacement.
//! - Hot: so many of the touches go to so many of the units, both chosen evenly within; the hot units are next to each other
//!   and move on by their own number when they shift.
//!
//! Which touches write is spread evenly, and moves on with each round, so that not always the same units are written.

use std::time::Duration;

use memtide_model::Share;

/// The order of touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other.
    Sequential,
    /// Anywhere.
    Random,
    /// Mostly within the hot part.
    Hot {
        /// The part of the memory that is hot.
        part: Share,
        /// The part of the touches that go there.
        touches: Share,
        /// How often the hot part moves on; `None`: it stays.
        shift: Option<Duration>,
    },
}

/// A walk over the units of one thread.
#[derive(Clone, Debug)]
pub struct Walk {
    order: Order,
    next: u64,
    random: u64,
    /// Where the hot part begins, before it is cut at the number of units.
    hot_from: u64,
    shifts: u128,
    /// Times that a sequential walk has come to the end.
    rounds: u64,
}

impl Walk {
    /// A walk that `seed` chooses.
    #[must_use]
    pub const fn new(order: Order, seed: u64) -> Self {
        Self { order, next: 0, random: super::content::mix(seed) | 1, hot_from: 0, shifts: 0, rounds: 0 }
    }

    /// The order.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.order
    }

    /// Goes on in another order.
    pub const fn set_order(&mut self, order: Order) {
        self.order = order;
    }

    /// Times that a sequential walk has been through all units.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Lets the hot part be where it should be after `elapsed`.
    pub fn shift(&mut self, elapsed: Duration, units: u64) {
        if let Order::Hot { part, shift: Some(every), .. } = self.order
            && units > 0
        {
            let due = elapsed.as_nanos() / every.as_nanos().max(1);
            if due != self.shifts {
                let moved = u128::from(hot_units(part, units)) * due % u128::from(units);
                self.hot_from = u64::try_from(moved).unwrap_or(0);
                self.shifts = due;
            }
        }
    }

    /// The next of `units` units, which are at least one, and how many follow each other from there on: at most `most`.
    pub fn run(&mut self, units: u64, most: u64) -> (u64, u64) {
        if self.next >= units {
            self.next = 0;
            self.rounds += 1;
        }
        let first = self.next;
        let run = most.min(units - first);
        self.next += run;
        (first, run)
    }

    /// Any of `units` units.
    #[inline]
    pub fn random(&mut self, units: u64) -> u64 {
        below(self.draw(), units)
    }

    /// One of `units` units, `hot` of which are hot; `touches` in 2⁻⁶⁴ of the touches go there.
    #[inline]
    pub fn hot(&mut self, units: u64, hot: u64, touches: u64) -> u64 {
        let unit = if self.draw() < touches {
            below(self.draw(), hot)
        } else {
            hot + below(self.draw(), units - hot)
        };
        let place = unit + self.hot_from;
        if place >= units { place - units } else { place }
    }

    /// A linear congruential generator (Knuth's MMIX), with its high bits mixed into the low ones.
    #[inline]
    const fn draw(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random ^ (self.random >> 32)
    }
}

/// The number of hot units out of `units`: at least one, and at least one is not, where there are two.
#[must_use]
pub fn hot_units(part: Share, units: u64) -> u64 {
    let hot = u128::from(units) * u128::from(part.basis_points()) / 10_000;
    u64::try_from(hot).unwrap_or(units).clamp(1, units.saturating_sub(1).max(1))
}

/// A share of the touches in 2⁻⁶⁴.
#[must_use]
pub fn probability(touches: Share) -> u64 {
    let scaled = (u128::from(touches.basis_points()) << 64) / 10_000;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// A random number scaled to less than `below`.
#[inline]
fn below(random: u64, below: u64) -> u64 {
    let scaled = (u128::from(random) * u128::from(below)) >> 64;
    // Less than `below`, which is 64 bits.
    u64::try_from(scaled).unwrap_or(0)
}

/// Says of each touch whether it writes, so that after any number of them the share is right to one touch.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    share: u32,
    sum: u32,
}

/// Basis points in all.
const WHOLE: u32 = 10_000;
/// The golden ratio's part of a whole: successive rounds begin at places that are far from each other.
const TURN: u32 = 6_180;

impl Spread {
    /// `share` of the touches write.
    #[must_use]
    pub fn new(share: Share) -> Self {
        Self { share: u32::from(share.basis_points()), sum: WHOLE / 2 }
    }

    /// Changes the share.
    pub fn set(&mut self, share: Share) {
        self.share = u32::from(share.basis_points());
    }

    /// Whether every touch is of the same kind: `Some(true)` where all write.
    #[must_use]
    pub const fn always(&self) -> Option<bool> {
        match self.share {
            0 => Some(false),
            WHOLE => Some(true),
            _ => None,
        }
    }

    /// Whether the next touch writes.
    #[inline]
    pub const fn writes(&mut self) -> bool {
        self.sum += self.share;
        let writes = self.sum >= WHOLE;
        if writes {
            self.sum -= WHOLE;
        }
        writes
    }

    /// A new round begins.
    pub const fn turn(&mut self) {
        self.sum = (self.sum + TURN) % WHOLE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: u8) -> Share {
        Share::percent(percent).unwrap()
    }

    #[test]
    fn a_sequential_walk_comes_by_everywhere() {
        let mut walk = Walk::new(Order::Sequential, 1);
        let runs: Vec<(u64, u64)> = [2, 5, 1, 9].map(|most| walk.run(3, most)).to_vec();
        assert_eq!(runs, [(0, 2), (2, 1), (0, 1), (1, 2)]);
        assert_eq!(walk.rounds(), 1);
    }

    #[test]
    fn a_random_walk_is_even() {
        let mut walk = Walk::new(Order::Random, 1);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[usize::try_from(walk.random(10)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 500), "{counts:?}");
    }

    #[test]
    fn hot_units_get_their_touches_and_move_on() {
        let every = Duration::from_secs(10);
        let order = Order::Hot { part: percent(20), touches: percent(80), shift: Some(every) };
        let mut walk = Walk::new(order, 1);
        for (elapsed, from) in [(0, 0), (9, 0), (10, 20), (20, 40), (40, 80), (50, 0)] {
            walk.shift(Duration::from_secs(elapsed), 100);
            let mut inside = 0_u32;
            for _ in 0..100_000 {
                let unit = walk.hot(100, hot_units(percent(20), 100), probability(percent(80)));
                assert!(unit < 100);
                inside += u32::from((from..from + 20).contains(&unit));
            }
            assert!(inside.abs_diff(80_000) < 800, "{inside} of 100000 after {elapsed} s");
        }
    }

    #[test]
    fn there_is_always_a_hot_unit() {
        assert_eq!(hot_units(percent(1), 2), 1);
        assert_eq!(hot_units(percent(1), 1), 1);
        assert_eq!(hot_units(percent(100), 10), 9);
        let mut walk = Walk::new(Order::Random, 1);
        assert_eq!(walk.hot(1, 1, u64::MAX), 0);
    }

    #[test]
    fn the_share_of_writes_is_right_to_one_touch() {
        for basis_points in ["0%", "0.01%", "30%", "33.33%", "50%", "99.99%", "100%"] {
            let share: Share = basis_points.parse().unwrap();
            let mut spread = Spread::new(share);
            let writes = (0..100_000).filter(|_| spread.writes()).count() as u64;
            assert!(writes.abs_diff(u64::from(share.basis_points()) * 10) <= 1, "{writes} at {share}");
        }
    }
}
