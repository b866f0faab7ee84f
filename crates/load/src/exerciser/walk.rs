//! Chooses the next place to touch.
//!
//! **Terms.** A *unit* is the memory that one touch counts as: a page, or less with `--stride`. A thread's units are numbered
//! from 0.
//!
//! **Rule.**
//! - Sequential: one unit after the other, then again from the start.
//! - Random: each unit is equally likely, with replacement.
//! - Hot: a given share of the touches goes to a given share of the units, both spread evenly. The hot units are adjacent. A
//!   shift moves them on by their own number.
//!
//! Writes are spread evenly over the touches. The pattern moves with each round, so that not always the same units are
//! written.

use std::time::Duration;

use memtide_model::Share;

/// The access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One after the other.
    Sequential,
    /// Any unit.
    Random,
    /// Mostly units of the hot part.
    Hot {
        /// The share of the memory that is hot.
        part: Share,
        /// The share of the touches that go to the hot part.
        touches: Share,
        /// The interval between shifts of the hot part; `None`: it stays.
        shift: Option<Duration>,
    },
}

/// A walk over the units of one thread.
#[derive(Clone, Debug)]
pub struct Walk {
    pattern: Pattern,
    next: u64,
    random: u64,
    /// The start of the hot part, before it is limited to the number of units.
    hot_from: u64,
    shifts: u128,
    /// The number of times that a sequential walk has reached the end.
    rounds: u64,
}

impl Walk {
    /// A walk that depends on `seed`.
    #[must_use]
    pub const fn new(pattern: Pattern, seed: u64) -> Self {
        Self { pattern, next: 0, random: super::content::mix(seed) | 1, hot_from: 0, shifts: 0, rounds: 0 }
    }

    /// The access pattern.
    #[must_use]
    pub const fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// Continues in another pattern.
    pub const fn set_pattern(&mut self, pattern: Pattern) {
        self.pattern = pattern;
    }

    /// The number of times that a sequential walk has passed all units.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Moves the hot part to its place after `elapsed`.
    pub fn shift(&mut self, elapsed: Duration, units: u64) {
        if let Pattern::Hot { part, shift: Some(every), .. } = self.pattern
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

    /// The next unit out of `units` (at least one), and the number of adjacent units from there: at most `most`.
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

    /// Any of the `units` units.
    #[inline]
    pub fn random(&mut self, units: u64) -> u64 {
        below(self.draw(), units)
    }

    /// One of `units` units, of which `hot` are hot. `touches`, in units of 2⁻⁶⁴, is the share of touches for the hot units.
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

/// The number of hot units out of `units`: at least one. If there are two or more, at least one is not hot.
#[must_use]
pub fn hot_units(part: Share, units: u64) -> u64 {
    let hot = u128::from(units) * u128::from(part.basis_points()) / 10_000;
    u64::try_from(hot).unwrap_or(units).clamp(1, units.saturating_sub(1).max(1))
}

/// A share of the touches, in units of 2⁻⁶⁴.
#[must_use]
pub fn probability(touches: Share) -> u64 {
    let scaled = (u128::from(touches.basis_points()) << 64) / 10_000;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// A random number scaled to less than `below`.
#[inline]
fn below(random: u64, below: u64) -> u64 {
    let scaled = (u128::from(random) * u128::from(below)) >> 64;
    // Less than `below`, which has 64 bits.
    u64::try_from(scaled).unwrap_or(0)
}

/// Decides for each touch whether it writes. After any number of touches, the share is accurate to one touch.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    share: u32,
    sum: u32,
}

/// A whole, in basis points.
const WHOLE: u32 = 10_000;
/// The fraction of the golden ratio: successive rounds begin at places that are far apart.
const TURN: u32 = 6_180;

impl Spread {
    /// Lets `share` of the touches write.
    #[must_use]
    pub fn new(share: Share) -> Self {
        Self { share: u32::from(share.basis_points()), sum: WHOLE / 2 }
    }

    /// Changes the share.
    pub fn set(&mut self, share: Share) {
        self.share = u32::from(share.basis_points());
    }

    /// Whether all touches are of the same kind: `Some(true)` if all write.
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

    /// Begins a new round.
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
        let mut walk = Walk::new(Pattern::Sequential, 1);
        let runs: Vec<(u64, u64)> = [2, 5, 1, 9].map(|most| walk.run(3, most)).to_vec();
        assert_eq!(runs, [(0, 2), (2, 1), (0, 1), (1, 2)]);
        assert_eq!(walk.rounds(), 1);
    }

    #[test]
    fn a_random_walk_is_even() {
        let mut walk = Walk::new(Pattern::Random, 1);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[usize::try_from(walk.random(10)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 500), "{counts:?}");
    }

    #[test]
    fn hot_units_get_their_touches_and_move_on() {
        let every = Duration::from_secs(10);
        let pattern = Pattern::Hot { part: percent(20), touches: percent(80), shift: Some(every) };
        let mut walk = Walk::new(pattern, 1);
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
        let mut walk = Walk::new(Pattern::Random, 1);
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
