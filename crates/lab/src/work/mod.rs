//! Work that moves from guest to guest.
//!
//! A *round* is one turn of each guest. A turn keeps its memory until the next guest's turn has read its disk. So two guests
//! are busy for a moment, and the others are idle with the page cache that their last turn has left behind.

pub mod exercise;
pub mod turn;

use std::time::Duration;

use memtide_model::Bytes;

use crate::error::LabError;
use crate::guest::Guest;
use crate::work::turn::{Load, Turn};

/// How long the last turn keeps its memory, since no other turn follows.
const LAST_HOLD: Duration = Duration::from_secs(3);

/// Planned and finished work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Bytes that the turns had to check.
    pub planned: Bytes,
    /// Bytes that they have found intact.
    pub verified: Bytes,
    /// Words that differ from their expected value.
    pub mismatches: u64,
    /// Turns that failed in a surviving guest: no memory, or its own OOM killer.
    pub failures: u64,
}

impl Done {
    /// The intact part of the planned bytes, rounded down to four digits, so results stay readable.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        if self.planned.is_zero() {
            return 1.0;
        }
        let exact = self.verified.mul_div(10_000, self.planned.get()).get();
        f64::from(u32::try_from(exact).unwrap_or(u32::MAX)) / 10_000.0
    }
}

/// A turn that takes this many times as long as the first one, whose guest has the host to itself, counts as failed. It may take
/// [`turn::LONGEST`] in any case.
const FAR_TOO_SLOW: u32 = 4;

/// The turns of all guests.
pub struct Work<'a> {
    load: Load,
    guests: &'a [Guest],
    turns: Vec<Turn>,
}

impl<'a> Work<'a> {
    /// This many rounds of `load` for `guests`. The first turn's content has `seed`; each further turn has its own seed.
    #[must_use]
    pub fn new(load: &'a Load, rounds: usize, seed: u64, guests: &'a [Guest]) -> Self {
        let order = (0..rounds).flat_map(|_| 0..guests.len());
        let turns = (seed..).zip(order).map(|(seed, guest)| Turn::new(guest, seed)).collect();
        Self { load: Load { longest: turn::LONGEST_ALONE, ..load.clone() }, guests, turns }
    }

    /// Continues as far as possible without waiting. Returns true when nothing is left to do.
    ///
    /// # Errors
    /// Only an interrupt. An error in a guest fails its turn, and the work continues with the next one.
    pub fn step(&mut self) -> Result<bool, LabError> {
        crate::wait::check_interrupt()?;
        for nth in 0..self.turns.len() {
            let may_begin = nth.checked_sub(1).is_none_or(|before| self.turns[before].has_filled());
            let may_free = match self.turns.get(nth + 1) {
                Some(next) => next.has_read(),
                None => self.turns[nth].held_for().is_some_and(|held| held >= LAST_HOLD),
            };
            let turn = &mut self.turns[nth];
            if !may_begin || turn.is_over() {
                continue;
            }
            turn.step(&self.load, &self.guests[turn.guest()], may_free);
            if nth == 0 && turn.has_filled() {
                // If it failed, nobody knows how long a turn takes.
                let longest = |alone| turn::LONGEST.max(alone * FAR_TOO_SLOW);
                self.load.longest = turn.took().map_or(turn::LONGEST_ALONE, longest);
            }
        }
        Ok(self.turns.iter().all(Turn::is_over))
    }

    /// The work done so far.
    #[must_use]
    pub fn done(&self) -> Done {
        done(&self.load, &self.turns)
    }

    /// The present work of the guest `guest`.
    #[must_use]
    pub fn doing(&self, guest: usize) -> String {
        doing(&self.load, &self.turns, guest, &self.guests[guest])
    }
}

/// The finished and the planned work of these turns.
#[must_use]
pub fn done(load: &Load, turns: &[Turn]) -> Done {
    Done {
        planned: load.bytes().mul_div(turns.len() as u64, 1),
        verified: Bytes::sum(turns.iter().map(Turn::verified)),
        mismatches: turns.iter().map(Turn::mismatches).sum(),
        failures: turns.iter().map(|turn| u64::from(turn.was_refused())).sum(),
    }
}

/// The present work of the guest with this number, according to the last of its turns that has begun.
#[must_use]
pub fn doing(load: &Load, turns: &[Turn], number: usize, guest: &Guest) -> String {
    if !guest.alive() {
        return "killed".to_owned();
    }
    let last = turns.iter().rev().find(|turn| turn.guest() == number && turn.has_begun());
    last.map_or_else(|| "waits for its turn".to_owned(), |turn| turn.doing(load, guest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_readable() {
        let third = Done { planned: Bytes::new(3), verified: Bytes::new(1), ..Done::default() };
        assert!((third.fraction() - 0.3333).abs() < f64::EPSILON);
        assert!((Done::default().fraction() - 1.0).abs() < f64::EPSILON);
    }
}
