//! Programs: the memory that they want over time, and the memory that they get.

use memtide_model::Span;

use crate::file::HOT_FOR;
use crate::random::Random;
use crate::spec::{Course, Program};

/// How long an allocation may fail before the guest's OOM killer acts, in milliseconds (measured: about a second).
pub(crate) const KILLED_AFTER: u64 = 1_000;
/// A typical time between two turns of a drift, in milliseconds.
const DRIFTS_FOR: u64 = 4_000;

/// A running program. Times in milliseconds from the start of the guest.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) spec: Program,
    /// Resident in the guest.
    pub(crate) resident: u64,
    /// In the guest's swap.
    pub(crate) swapped: u64,
    /// In the tier.
    pub(crate) tiered: u64,
    /// What it accesses now, in bytes a second.
    pub(crate) touches: u64,
    stage: Stage,
    /// How long it has got none of the memory that it wants.
    pub(crate) denied: u64,
    /// How long it has got none of the memory back that it reads from the tier.
    pub(crate) unread: u64,
    /// Whether it was killed and has not restarted.
    killed: bool,
    drift: Drift,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not running before this moment.
    Down(u64),
    /// At its base size, until this moment.
    Base(u64),
    /// On its way up.
    Rising,
    /// At the top, until this moment.
    Top(u64),
    /// It has ended.
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
struct Drift {
    wants: u64,
    up: bool,
    turns: u64,
}

const NEVER: u64 = u64::MAX;

impl Running {
    pub(crate) fn new(spec: Program) -> Self {
        let stage = Stage::Down(spec.starts.as_millis());
        let drift = Drift { wants: spec.size.get(), ..Drift::default() };
        let touches = if spec.touches_from == Span::ZERO { spec.touches } else { 0 };
        Self {
            spec,
            resident: 0,
            swapped: 0,
            tiered: 0,
            touches,
            stage,
            denied: 0,
            unread: 0,
            killed: false,
            drift,
        }
    }

    /// Its memory, resident and swapped.
    pub(crate) const fn has(&self) -> u64 {
        self.resident + self.swapped + self.tiered
    }

    /// Its weight for reclaim. A program counts half as much as a file with the same number of accesses (`vm.swappiness` is 60 of 200, rounded up).
    pub(crate) fn weight(&self) -> u128 {
        let size = self.has().max(1);
        u128::from(self.resident) * u128::from(size) / u128::from(size + self.touches * HOT_FOR) / 2
    }

    /// The start of its next rise, or never.
    fn next_rise(&self, now: u64) -> u64 {
        match self.spec.course {
            Course::Rise { at, every, .. } => {
                let at = at.as_millis();
                match every.map(Span::as_millis).filter(|every| *every > 0) {
                    Some(every) if now > at => at + (now - at).div_ceil(every) * every,
                    None if now > at => NEVER,
                    _ => at,
                }
            }
            _ => NEVER,
        }
    }

    /// Its first stage when it runs. After a kill, a permanent rise begins again.
    fn begin(&self, now: u64) -> Stage {
        match self.spec.course {
            Course::Rise { at, holds: None, every: None, .. } if now >= at.as_millis() => Stage::Rising,
            _ => Stage::Base(self.next_rise(now)),
        }
    }

    /// Follows its course up to `now`, and returns the size that it wants from then on.
    pub(crate) fn wants(&mut self, now: u64, elapsed: u64, random: &mut Random) -> u64 {
        if self.spec.ends.is_some_and(|ends| ends.as_millis() <= now) {
            self.stage = Stage::Over;
        }
        if self.spec.touches_from.as_millis() <= now {
            self.touches = self.spec.touches;
        }
        self.stage = match self.stage {
            Stage::Down(until) if until <= now => {
                self.killed = false;
                self.begin(now)
            }
            Stage::Base(until) if until <= now => Stage::Rising,
            Stage::Top(until) if until <= now => Stage::Base(self.next_rise(now)),
            stage => stage,
        };
        match (self.stage, &self.spec.course) {
            (Stage::Down(_) | Stage::Over, _) => 0,
            (Stage::Base(_), Course::Drift { to, rate }) => {
                let (low, high, rate) = (self.spec.size.get(), to.get(), *rate);
                self.drift.follow((low, high), rate, (now, elapsed), random)
            }
            (Stage::Base(_), Course::Recorded(sizes)) => {
                let at = sizes.partition_point(|(at, _)| at.as_millis() <= now);
                at.checked_sub(1).map_or(self.spec.size.get(), |last| sizes[last].1.get())
            }
            (Stage::Rising | Stage::Top(_), Course::Rise { to, .. }) => to.get(),
            _ => self.spec.size.get(),
        }
    }

    /// Notes that it has all the memory that it wants.
    pub(crate) fn is_served(&mut self, now: u64) {
        self.denied = 0;
        if let (Stage::Rising, Course::Rise { holds, .. }) = (self.stage, &self.spec.course) {
            let until = holds.map_or(NEVER, |holds| now.saturating_add(holds.as_millis()));
            self.stage = Stage::Top(until);
        }
    }

    /// Whether it is filling memory.
    pub(crate) fn is_growing(&self) -> bool {
        match self.stage {
            Stage::Rising => true,
            Stage::Base(_) => {
                matches!(self.spec.course, Course::Constant) && self.has() < self.spec.size.get()
            }
            _ => false,
        }
    }

    /// Whether it does work that counts. A job between two rises does none. Memory that is never touched does none.
    pub(crate) fn is_busy(&self) -> bool {
        let repeats = matches!(self.spec.course, Course::Rise { every: Some(_), .. });
        match self.stage {
            Stage::Over => false,
            Stage::Base(_) => !repeats && self.touches > 0,
            Stage::Down(_) => self.killed,
            Stage::Rising | Stage::Top(_) => true,
        }
    }

    /// Kills it, and frees all its memory.
    pub(crate) fn is_killed(&mut self, now: u64) {
        (self.resident, self.swapped, self.tiered) = (0, 0, 0);
        (self.denied, self.unread) = (0, 0);
        self.killed = true;
        self.drift = Drift { wants: self.spec.size.get(), ..Drift::default() };
        self.stage = match self.spec.restarts {
            Some(after) => Stage::Down(now.saturating_add(after.as_millis())),
            None => Stage::Down(NEVER),
        };
    }

    /// The next moment after `now` at which it may want a different size.
    pub(crate) fn next_change(&self, now: u64) -> u64 {
        let by_stage = match self.stage {
            Stage::Down(until) | Stage::Base(until) | Stage::Top(until) => until,
            Stage::Rising | Stage::Over => NEVER,
        };
        let by_course = match (&self.spec.course, self.stage) {
            (Course::Recorded(sizes), Stage::Base(_)) => {
                let at = sizes.partition_point(|(at, _)| at.as_millis() <= now);
                sizes.get(at).map_or(NEVER, |(at, _)| at.as_millis())
            }
            _ => NEVER,
        };
        let ends = self.spec.ends.map_or(NEVER, Span::as_millis);
        let ends = if ends > now { ends } else { NEVER };
        let touches = Some(self.spec.touches_from.as_millis()).filter(|from| *from > now).unwrap_or(NEVER);
        by_stage.min(by_course).min(ends).min(touches)
    }
}

impl Drift {
    /// Moves at `rate` between `low` and `high` for `elapsed` milliseconds, with occasional turns.
    fn follow(
        &mut self,
        (low, high): (u64, u64),
        rate: u64,
        (now, elapsed): (u64, u64),
        random: &mut Random,
    ) -> u64 {
        if self.turns <= now {
            self.up = random.chance(1, 2);
            self.turns = now + random.between(DRIFTS_FOR / 2, DRIFTS_FOR * 2);
        }
        let step = rate * elapsed / 1_000;
        self.wants = if self.up { self.wants.saturating_add(step) } else { self.wants.saturating_sub(step) };
        if self.wants <= low || self.wants >= high {
            self.up = self.wants <= low;
        }
        self.wants = self.wants.clamp(low.min(high), high);
        self.wants
    }
}
