//! The bounds that a scenario promises for memtide's run, and the test whether a run keeps them.

use std::ops::Range;

use memtide_model::{Bytes, Span, name_matches};
use serde::Deserialize;

use super::Mistake;
use super::values::{PerMille, Size, Time};
use crate::measure::GuestMeasures;
use crate::run::{Manager, Outcome};

/// One `[[keep]]` of a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Keep {
    policy: Option<PolicyName>,
    guest: Option<String>,
    work: Option<PerMille>,
    work_of_none: Option<PerMille>,
    work_of_best: Option<PerMille>,
    starved: Option<Time>,
    hungry: Option<Time>,
    refaults: Option<Size>,
    kills: Option<u64>,
    targets: Option<f64>,
    turns: Option<f64>,
    moved: Option<Size>,
    above_capacity: Option<Size>,
    above_fair_share: Option<Size>,
    right_again: Option<Time>,
    fails: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PolicyName {
    Strict,
    Elastic,
}

/// Bounds that must hold in a run of memtide.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The only commitment that they apply to; `None`: both.
    pub manager: Option<Manager>,
    /// The guests that they apply to; `None`: all.
    pub guest: Option<String>,
    /// The reason why memtide's policy breaks them, if it does.
    pub fails: Option<String>,
    /// The line in the file.
    pub line: usize,
    keep: Keep,
}

/// A bound that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The measured value, and the bound.
    pub what: String,
}

impl Keep {
    pub(super) fn bounds(&self, names: &[&str], text: &str, span: &Range<usize>) -> Result<Bounds, Mistake> {
        let place = Mistake::at(text, span, "");
        if let Some(pattern) = &self.guest
            && !names.iter().any(|name| name_matches(pattern, name))
        {
            let message = format!("guest: there is no guest `{pattern}`");
            return Err(Mistake { message, ..place });
        }
        let manager = self.policy.map(|policy| match policy {
            PolicyName::Strict => Manager::STRICT,
            PolicyName::Elastic => Manager::ELASTIC,
        });
        let (guest, fails) = (self.guest.clone(), self.fails.clone());
        Ok(Bounds { manager, guest, fails, line: place.line, keep: self.clone() })
    }
}

/// The work of a guest, in thousandths of the work that it could have done.
#[must_use]
pub fn work(guest: &GuestMeasures) -> u64 {
    part_done(guest.busy_us, guest.done_us)
}

/// The part of `busy` microseconds of work that was `done`, in thousandths. If there was nothing to do, all of it is done.
#[must_use]
pub fn part_done(busy: u64, done: u64) -> u64 {
    match busy {
        0 => 1_000,
        busy => u64::try_from(u128::from(done) * 1_000 / u128::from(busy)).unwrap_or(u64::MAX),
    }
}

/// `count` as a rate per guest and 10 minutes.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a rate for people, and a bound of one")]
pub fn a_ten_minutes(count: u64, lasts: Span) -> f64 {
    count as f64 * 600_000.0 / lasts.as_millis().max(1) as f64
}

impl Bounds {
    /// Whether the bounds apply to a run of `manager`.
    #[must_use]
    pub fn is_about(&self, manager: Manager) -> bool {
        matches!(manager, Manager::Memtide(_)) && self.manager.is_none_or(|only| only == manager)
    }

    /// Whether judging needs a run without any manager, and runs under all other rules.
    #[must_use]
    pub const fn needs_others(&self) -> (bool, bool) {
        (self.keep.work_of_none.is_some(), self.keep.work_of_best.is_some())
    }

    /// The bounds that `run` breaks. `names` are the names of the guests; `others` are runs of the same setup under other managers.
    #[must_use]
    pub fn judge(&self, names: &[&str], run: &Outcome, others: &[Outcome]) -> Vec<Broken> {
        let mut broken = Vec::new();
        let keep = &self.keep;
        let mut say = |what: String| broken.push(Broken { what });
        if run.violation_count > 0 {
            let first = run.violations.first().map_or("", |(_, text)| text);
            say(format!("{} plans were refused: {first}", run.violation_count));
        }
        for (index, (name, guest)) in names.iter().zip(&run.guests).enumerate() {
            if self.guest.as_ref().is_none_or(|pattern| name_matches(pattern, name)) {
                self.judge_guest(name, index, guest, run, others, &mut say);
            }
        }
        if let Some(most) = keep.above_capacity
            && run.host.above_capacity > most.0.get()
        {
            say(format!(
                "the host is {} above its capacity, bound {}",
                Bytes::new(run.host.above_capacity),
                most.0
            ));
        }
        if let Some(most) = keep.right_again {
            match run.right_again {
                Some(after) if after <= most.0 => {}
                Some(after) => say(format!("right again after {after}, bound {}", most.0)),
                None => say(format!("never right again, bound {}", most.0)),
            }
        }
        if let Some(least) = keep.work_of_best {
            // Without nobody: if nothing is killed, a run without a manager may well be the best.
            let rules = others.iter().filter(|other| matches!(other.manager, Manager::Rule(_)));
            let (own, best) = (total_work(run), rules.map(total_work).max().unwrap_or(0));
            if u128::from(own) * 1_000 < u128::from(best) * u128::from(least.0) {
                say(format!(
                    "all work is {} of the best other manager's, bound {}",
                    part(own, best),
                    percent(least.0)
                ));
            }
        }
        broken
    }

    fn judge_guest(
        &self,
        name: &str,
        index: usize,
        guest: &GuestMeasures,
        run: &Outcome,
        others: &[Outcome],
        say: &mut impl FnMut(String),
    ) {
        let keep = &self.keep;
        let time = |millis: u64| Span::from_millis(millis);
        if let Some(least) = keep.work
            && work(guest) < least.0
        {
            say(format!("{name}: work {}, bound {}", percent(work(guest)), percent(least.0)));
        }
        let nobody = others.iter().find(|other| other.manager == Manager::Nobody);
        if let (Some(least), Some(nobody)) = (keep.work_of_none, nobody) {
            let (own, free) = (guest.done_us, nobody.guests[index].done_us);
            if u128::from(own) * 1_000 < u128::from(free) * u128::from(least.0) {
                say(format!(
                    "{name}: work {} of that without a manager, bound {}",
                    part(own, free),
                    percent(least.0)
                ));
            }
        }
        for (what, measured, most) in
            [("starved", guest.starved_ms, keep.starved), ("hungry", guest.hungry_ms, keep.hungry)]
        {
            if let Some(most) = most.filter(|most| measured > most.0.as_millis()) {
                say(format!("{name}: {what} for {}, bound {}", time(measured), most.0));
            }
        }
        for (what, measured, most) in [
            ("refaults", guest.refaults, keep.refaults),
            ("moved", guest.moved, keep.moved),
            ("above its fair share", guest.above_fair, keep.above_fair_share),
        ] {
            if let Some(most) = most.filter(|most| measured > most.0.get()) {
                say(format!("{name}: {what} {}, bound {}", Bytes::new(measured), most.0));
            }
        }
        if let Some(most) = keep.kills.filter(|most| guest.kills > *most) {
            say(format!("{name}: {} kills, bound {most}", guest.kills));
        }
        for (what, count, most) in
            [("targets", guest.targets, keep.targets), ("turns", guest.turns, keep.turns)]
        {
            let rate = a_ten_minutes(count, run.lasts);
            if let Some(most) = most.filter(|most| rate > *most) {
                say(format!("{name}: {rate:.1} {what} in 10 minutes, bound {most}"));
            }
        }
    }
}

/// The total work of all guests.
#[must_use]
pub fn total_work(run: &Outcome) -> u64 {
    run.guests.iter().map(|guest| guest.done_us).sum()
}

/// Thousandths as percent.
#[must_use]
pub fn percent(per_mille: u64) -> String {
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

fn part(of: u64, whole: u64) -> String {
    percent(u64::try_from(u128::from(of) * 1_000 / u128::from(whole.max(1))).unwrap_or(u64::MAX))
}
