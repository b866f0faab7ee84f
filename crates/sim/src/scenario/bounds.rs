//! The bounds that a scenario promises for memtide's run, and the test whether a run keeps them.

use std::fmt;

use memtide_model::{Bytes, Span, counted, name_matches, printable};
use serde::{Deserialize, Serialize};

use super::Mistake;
use super::positions::Position;
use super::values::{PerMille, Size, Time};
use crate::measure::{GuestMeasures, HostMeasures};
use crate::run::{Manager, Outcome};
use crate::words::seconds;

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
    to_tier: Option<Size>,
    from_tier: Option<Size>,
    above_capacity: Option<Size>,
    above_fair_share: Option<Size>,
    right_again: Option<Time>,
    merged: Option<Size>,
    saved: Option<PerMille>,
    ksm_cpu: Option<Time>,
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

/// One key of a `[[keep]]` held against a run. To `Display`, in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The key, or `refused_plans`.
    pub key: &'static str,
    /// The guest, if it is about one.
    pub guest: Option<String>,
    /// What must hold.
    pub bound: Quantity,
    /// What was measured.
    pub value: Quantity,
    /// Whether the bound held.
    pub is_kept: bool,
    /// What the value alone does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A number with its unit; a program reads the number alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Quantity {
    /// Thousandths.
    Share(u64),
    /// Bytes.
    Size(u64),
    /// Milliseconds.
    Time(u64),
    /// How many.
    Count(u64),
    /// How many in ten minutes.
    Rate(f64),
    /// A time that did not come.
    Never,
}

impl Keep {
    /// It bounds something, and what can be.
    pub(super) fn check(&self, position: &Position<'_, '_>) -> Result<(), Mistake> {
        let Self { policy: _, guest: _, fails: _, work, work_of_none, work_of_best, saved, .. } = self;
        let shares = [work, work_of_none, work_of_best, saved].map(Option::is_some);
        let times = [self.starved, self.hungry, self.right_again, self.ksm_cpu].map(|bound| bound.is_some());
        let tiers = [self.to_tier, self.from_tier];
        let sizes = [self.refaults, self.moved, self.above_capacity, self.above_fair_share, self.merged];
        let sizes = sizes.into_iter().chain(tiers);
        let rates = [("targets", self.targets), ("turns", self.turns)];
        let is_set = shares.into_iter().chain(times).chain(sizes.map(|bound| bound.is_some()));
        let mut is_set = is_set.chain(rates.map(|(_, rate)| rate.is_some())).chain([self.kills.is_some()]);
        position.refuse(
            !is_set.any(|is_set| is_set),
            "keep",
            "it bounds nothing: add a bound such as kills = 0",
        )?;
        for (key, share) in [("work", work), ("saved", saved)] {
            position.refuse(share.is_some_and(|share| share.0 > 1_000), key, "100% is the most")?;
        }
        for (key, rate) in rates {
            let is_wrong = rate.is_some_and(|rate| !(0.0..=1e9).contains(&rate));
            position.refuse(is_wrong, key, "write a number, 0 or more")?;
        }
        Ok(())
    }

    /// Whether it needs guests with equal memory.
    pub(super) const fn is_about_merging(&self) -> bool {
        self.saved.is_some() || self.merged.is_some()
    }

    pub(super) fn bounds(&self, names: &[&str], position: &Position<'_, '_>) -> Result<Bounds, Mistake> {
        if let Some(pattern) = &self.guest {
            let is_nobody = !names.iter().any(|name| name_matches(pattern, name));
            position.refuse(is_nobody, "guest", &format!("there is no guest `{pattern}`"))?;
        }
        let manager = self.policy.map(|policy| match policy {
            PolicyName::Strict => Manager::STRICT,
            PolicyName::Elastic => Manager::ELASTIC,
        });
        let (guest, fails) = (self.guest.clone(), self.fails.clone());
        Ok(Bounds { manager, guest, fails, line: position.line(), keep: self.clone() })
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

/// What KSM saved, in thousandths of what it could have saved, on average over the run.
#[must_use]
pub fn part_saved(host: &HostMeasures) -> u64 {
    let part = (host.saved * 1_000).checked_div(host.could_save).unwrap_or(1_000);
    u64::try_from(part).unwrap_or(u64::MAX)
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
    pub fn judge(&self, names: &[&str], run: &Outcome, others: &[Outcome]) -> Vec<Measured> {
        let mut all = self.measure(names, run, others);
        all.retain(|measured| !measured.is_kept);
        all
    }

    /// Each key held against `run`. Of a key for guests, all that break it; if none does, the one nearest to the bound.
    #[must_use]
    pub fn measure(&self, names: &[&str], run: &Outcome, others: &[Outcome]) -> Vec<Measured> {
        let mut all = Vec::new();
        if run.violation_count > 0 {
            let value = Quantity::Count(run.violation_count);
            let note = run.violations.first().map(|(_, text)| text.clone());
            all.push(Measured { note, ..Measured::new("refused_plans", None, Quantity::Count(0), value) });
        }
        self.measure_guests(names, run, others, &mut all);
        let keep = &self.keep;
        if let Some(most) = keep.above_capacity {
            let value = Quantity::Size(run.host.above_capacity);
            all.push(Measured::new("above_capacity", None, most.into(), value));
        }
        if let Some(most) = keep.right_again {
            let value = run.right_again.map_or(Quantity::Never, |after| Quantity::Time(after.as_millis()));
            all.push(Measured::new("right_again", None, most.into(), value));
        }
        if let Some(least) = keep.saved {
            let value = Quantity::Share(part_saved(&run.host));
            all.push(Measured::new("saved", None, least.into(), value));
        }
        if let Some(most) = keep.ksm_cpu {
            let value = Quantity::Time(run.host.ksm_cpu_ms);
            all.push(Measured::new("ksm_cpu", None, most.into(), value));
        }
        if let Some(least) = keep.work_of_best {
            // Without nobody: if nothing is killed, a run without a manager may well be the best.
            let rules = others.iter().filter(|other| matches!(other.manager, Manager::Rule(_)));
            let best = rules.map(work_of_survivors).max().unwrap_or(0);
            let value = Quantity::Share(part_done(best, work_of_survivors(run)));
            all.push(Measured::new("work_of_best", None, least.into(), value));
        }
        all
    }

    fn measure_guests(&self, names: &[&str], run: &Outcome, others: &[Outcome], all: &mut Vec<Measured>) {
        let keep = &self.keep;
        let mut each = |key, bound: Option<Quantity>, value: &dyn Fn(usize, &GuestMeasures) -> Quantity| {
            let Some(bound) = bound else { return };
            let guests = names.iter().zip(&run.guests).enumerate();
            let about = guests.filter(|(_, (name, _))| {
                self.guest.as_ref().is_none_or(|pattern| name_matches(pattern, name))
            });
            let measured = about.map(|(index, (name, guest))| {
                Measured::new(key, Some((*name).to_owned()), bound, value(index, guest))
            });
            all.extend(worst(measured.collect()));
        };
        each("work", keep.work.map(Into::into), &|_, guest| Quantity::Share(work(guest)));
        if let Some(nobody) = others.iter().find(|other| other.manager == Manager::Nobody) {
            each("work_of_none", keep.work_of_none.map(Into::into), &|index, guest| {
                Quantity::Share(part_done(nobody.guests[index].done_us, guest.done_us))
            });
        }
        each("starved", keep.starved.map(Into::into), &|_, guest| Quantity::Time(guest.starved_ms));
        each("hungry", keep.hungry.map(Into::into), &|_, guest| Quantity::Time(guest.hungry_ms));
        each("refaults", keep.refaults.map(Into::into), &|_, guest| Quantity::Size(guest.refaults));
        each("moved", keep.moved.map(Into::into), &|_, guest| Quantity::Size(guest.moved));
        each("to_tier", keep.to_tier.map(Into::into), &|_, guest| Quantity::Size(guest.to_tier));
        each("from_tier", keep.from_tier.map(Into::into), &|_, guest| Quantity::Size(guest.from_tier));
        each("above_fair_share", keep.above_fair_share.map(Into::into), &|_, guest| {
            Quantity::Size(guest.above_fair)
        });
        each("merged", keep.merged.map(Into::into), &|_, guest| Quantity::Size(guest.merged));
        each("kills", keep.kills.map(Quantity::Count), &|_, guest| Quantity::Count(guest.kills));
        let rate = |count| Quantity::Rate(a_ten_minutes(count, run.lasts));
        each("targets", keep.targets.map(Quantity::Rate), &|_, guest| rate(guest.targets));
        each("turns", keep.turns.map(Quantity::Rate), &|_, guest| rate(guest.turns));
    }
}

/// Those that break their bound; if none does, the one nearest to it.
fn worst(mut measured: Vec<Measured>) -> Vec<Measured> {
    if measured.iter().any(|one| !one.is_kept) {
        measured.retain(|one| !one.is_kept);
        return measured;
    }
    // Of equal ones the first.
    let worse = |a: Measured, b: Measured| if b.value.keeps(a.value) { a } else { b };
    measured.into_iter().reduce(worse).into_iter().collect()
}

impl Measured {
    fn new(key: &'static str, guest: Option<String>, bound: Quantity, value: Quantity) -> Self {
        Self { key, guest, bound, value, is_kept: value.keeps(bound), note: None }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(guest) = &self.guest {
            write!(f, "{}: ", printable(guest))?;
        }
        let value = self.value;
        match (self.key, value) {
            ("work_of_none", _) => write!(f, "work {value} of that without a manager"),
            ("work_of_best", _) => write!(f, "all work is {value} of that under the best other manager"),
            ("starved" | "hungry", _) => write!(f, "{} for {value}", self.key),
            ("to_tier", _) => write!(f, "{value} written to its tier"),
            ("from_tier", _) => write!(f, "{value} read back from its tier"),
            ("above_fair_share", _) => write!(f, "{value} above its fair share"),
            ("above_capacity", _) => write!(f, "the host is {value} above its capacity"),
            ("right_again", Quantity::Never) => f.write_str("never right again"),
            ("right_again", _) => write!(f, "right again after {value}"),
            ("saved", _) => write!(f, "KSM saves {value} of what it could"),
            ("ksm_cpu", _) => write!(f, "KSM scans for {value} of processor time"),
            ("kills", Quantity::Count(kills)) => f.write_str(&counted(kills, "kill")),
            ("refused_plans", Quantity::Count(plans)) => write!(f, "{} refused", counted(plans, "action")),
            ("targets" | "turns", _) => write!(f, "{value} {} in 10 minutes", self.key),
            (key, _) => write!(f, "{key} {value}"),
        }?;
        write!(f, ", bound {}", self.bound)?;
        self.note.iter().try_for_each(|note| write!(f, ": {note}"))
    }
}

impl Quantity {
    /// Whether this value keeps a bound: shares are bound from below, everything else from above.
    fn keeps(self, bound: Self) -> bool {
        match (self, bound) {
            (Self::Share(value), Self::Share(least)) => value >= least,
            (Self::Size(value), Self::Size(most))
            | (Self::Time(value), Self::Time(most))
            | (Self::Count(value), Self::Count(most)) => value <= most,
            (Self::Rate(value), Self::Rate(most)) => value <= most,
            _ => false,
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Share(per_mille) => f.write_str(&percent(per_mille)),
            Self::Size(bytes) => Bytes::new(bytes).fmt(f),
            Self::Time(millis) => f.write_str(&seconds(Span::from_millis(millis))),
            Self::Count(count) => count.fmt(f),
            Self::Rate(rate) => write!(f, "{rate:.1}"),
            Self::Never => f.write_str("never"),
        }
    }
}

impl From<PerMille> for Quantity {
    fn from(share: PerMille) -> Self {
        Self::Share(share.0)
    }
}

impl From<Size> for Quantity {
    fn from(size: Size) -> Self {
        Self::Size(size.0.get())
    }
}

impl From<Time> for Quantity {
    fn from(time: Time) -> Self {
        Self::Time(time.0.as_millis())
    }
}

/// The work of all guests.
#[must_use]
pub fn total_work(run: &Outcome) -> u64 {
    run.guests.iter().map(|guest| guest.done_us).sum()
}

/// The work of the guests that were never killed. Otherwise a manager would be credited for memory that it gained by killing a guest.
fn work_of_survivors(run: &Outcome) -> u64 {
    run.guests.iter().filter(|guest| guest.kills == 0).map(|guest| guest.done_us).sum()
}

/// Thousandths as percent.
#[must_use]
pub fn percent(per_mille: u64) -> String {
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}
