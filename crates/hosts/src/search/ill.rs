//! How bad a run of memtide is, measured against the best other manager.
//!
//! **Rule.** A manager is *clean* in a setup if it loses no guest and the host is never above its capacity. The *best* is the clean manager
//! under which the guests do most work. Nobody, with free page reporting alone, also takes part: a manager must do no harm. A setup without
//! any clean manager can only show refused actions.

use std::fmt;

use serde::Serialize;

use memtide_sim::measure::GuestMeasures;
use memtide_sim::rules::Rule;
use memtide_sim::scenario::total_work;
use memtide_sim::setup::Setup;
use memtide_sim::{Manager, Options, Outcome, run};

/// The ways in which a run can be bad. Each is measured in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ill {
    /// Actions were refused by memtide's own check.
    Refused,
    /// The host's OOM killer ended guests: 1,000 for each, as if for the whole run.
    Lost,
    /// More programs were killed than under the best: 50 for each in ten minutes.
    Killed,
    /// Guests starved longer than under the best: the extra time as a part of the run, summed over guests.
    Starved,
    /// Guests were hungry longer than under the best: half of the extra time as a part of the run, summed over guests.
    Hungry,
    /// All guests together did less work than under the best: the missing part.
    Work,
    /// One guest did less work than under the best: half of the missing part.
    OneGuest,
}

impl Ill {
    /// All of them, the most serious first.
    pub const ALL: [Self; 7] =
        [Self::Refused, Self::Lost, Self::Killed, Self::Starved, Self::Hungry, Self::Work, Self::OneGuest];
}

impl fmt::Display for Ill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Refused => "actions refused",
            Self::Lost => "guests lost",
            Self::Killed => "programs killed",
            Self::Starved => "starved",
            Self::Hungry => "hungry",
            Self::Work => "work",
            Self::OneGuest => "one guest's work",
        })
    }
}

/// The managers that memtide is measured against.
pub(super) fn others() -> impl Iterator<Item = Manager> {
    Rule::ALL.into_iter().map(Manager::Rule).chain([Manager::Nobody])
}

/// Runs a setup under one manager.
pub(super) fn tried(setup: &Setup, manager: Manager) -> Outcome {
    run(setup, manager, &Options::default(), &mut |_| ())
}

/// The run under the best clean manager, if there is one.
pub(super) fn best(setup: &Setup) -> Option<Outcome> {
    let runs = others().map(|manager| tried(setup, manager));
    let clean = runs.filter(|run| run.host.killed_guests == 0 && run.host.above_capacity == 0);
    // The first of equal runs.
    clean.reduce(|best, next| if total_work(&next) > total_work(&best) { next } else { best })
}

/// How bad `own`, a run of memtide, is compared with the `best` other run.
pub(super) fn badness(ill: Ill, own: &Outcome, best: Option<&Outcome>) -> u64 {
    if ill == Ill::Refused {
        return own.violation_count.min(1) * 10_000;
    }
    let Some(best) = best else { return 0 };
    let lasts = own.lasts.as_millis().max(1);
    let more = |of: fn(&GuestMeasures) -> u64| -> u64 {
        own.guests.iter().zip(&best.guests).map(|(own, best)| of(own).saturating_sub(of(best))).sum()
    };
    match ill {
        Ill::Refused => 0,
        Ill::Lost => own.host.killed_guests * 1_000,
        Ill::Killed => (more(|guest| guest.kills) * 50 * 600_000 / lasts).min(2_000),
        Ill::Starved => more(|guest| guest.starved_ms) * 1_000 / lasts,
        Ill::Hungry => more(|guest| guest.hungry_ms) * 500 / lasts,
        Ill::Work => missing(total_work(own), total_work(best)),
        Ill::OneGuest => worst_guest(own, best).map_or(0, |(_, missing)| missing / 2),
    }
}

/// The guest that lost the largest part of its work under the `best`, and that part, in thousandths. Guests with little work are left out.
pub(super) fn worst_guest(own: &Outcome, best: &Outcome) -> Option<(usize, u64)> {
    let worth = own.lasts.as_millis() * 1_000 / 10;
    let pairs = own.guests.iter().zip(&best.guests).enumerate();
    let busy = pairs.filter(|(_, (_, best))| best.done_us > worth);
    // The first of equal guests.
    busy.map(|(index, (own, best))| (index, missing(own.done_us, best.done_us)))
        .reduce(|worst, next| if next.1 > worst.1 { next } else { worst })
}

/// The part of `whole` that `part` lacks, in thousandths; zero if `whole` is zero.
fn missing(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    let part = u128::from(part) * 1_000 / u128::from(whole);
    1_000 - u64::try_from(part).unwrap_or(1_000).min(1_000)
}
