//! The promises that a setup with faults must keep.

use memtide_guest::{Course, File, Spec};
use memtide_model::{Bytes, Commitment, Fence, Span, counted};
use serde::Serialize;

use super::draw::later;
use super::{faults_of, need, uses_always};
use memtide_sim::Outcome;
use memtide_sim::setup::{Fault, FaultKind, GuestSetup, Setup};
use memtide_sim::words::seconds;

/// Nothing may be wrong from this long after the beginning of the quiet phase.
pub const RIGHT_WITHIN: Span = Span::from_secs(180);
/// The first statistics of a guest come within this time, and are acted on.
const FIRST_STATISTICS: Span = Span::from_secs(2);
/// At the end, a guest may have this much less than it always uses: counters are not exact.
const SLACK: Bytes = Bytes::from_mib(1);

/// A broken promise of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wrong {
    /// The kind of the problem.
    pub kind: WrongKind,
    /// The problem, with names and numbers.
    pub text: String,
}

/// The ways in which a run can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WrongKind {
    /// Actions were refused by memtide's own check.
    Refused,
    /// The host was above its capacity by more than memtide could not prevent.
    AboveCapacity,
    /// The host killed guests.
    Killed,
    /// Guests starved or were hungry in the quiet phase.
    Lacks,
    /// The host was above its capacity in the quiet phase.
    StaysAbove,
    /// At the end, a guest is gone or does not have the memory that it always uses.
    Ends,
    /// The daemon has a warning at the end.
    Warns,
}

impl WrongKind {
    const fn with(self, text: String) -> Wrong {
        Wrong { kind: self, text }
    }
}

/// Everything that is wrong with a run of memtide in a setup of [`super::faulty`]; empty if the run is right.
///
/// **Safety**, all the time:
/// - No action is refused.
/// - The host is above its capacity only by an amount that memtide cannot prevent (`unpreventable`). This covers all memory that a guest
///   can touch if it arrives during the run, returns, is reset, deflates its own balloon or is moved by somebody else. It also covers a
///   sudden rise of the others' use, and what guests read into their page cache before their first inflation if they begin with more memory
///   than the host has. An elastic commitment promises less. It does not keep memory for programs that never rose before.
///   Guests that cannot be moved during a fault may fill all memory that they hold; these are all guests while the daemon is killed, or the
///   host is suspended or unreadable.
///
/// **Liveness**, from [`RIGHT_WITHIN`] after the beginning of the quiet phase to the end:
/// - No guest starves or is hungry. So no program is killed either: a program starves for a second before it is killed.
/// - The host is not above its capacity, unless the others take more than the reserve at once.
///
/// **At the end:** every guest is running and has the memory that it always uses, within `SLACK`. The daemon has no warnings: its journal
/// works again. A balloon that somebody else moved may stay where it is if all of this holds.
#[must_use]
pub fn judge(setup: &Setup, outcome: &Outcome) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    if outcome.violation_count > 0 {
        let first = outcome.violations.first().map_or("", |(_, text)| text);
        let text = format!("{} refused: {first}", counted(outcome.violation_count, "action"));
        wrong.push(WrongKind::Refused.with(text));
    }
    let (above, explained) = (Bytes::new(outcome.host.above_capacity), unpreventable(setup));
    if above > explained {
        let text = format!("the host was {above} above its capacity; {explained} cannot be prevented");
        wrong.push(WrongKind::AboveCapacity.with(text));
    }
    if outcome.host.killed_guests > 0 {
        let text = format!("the host killed {}", counted(outcome.host.killed_guests, "guest"));
        wrong.push(WrongKind::Killed.with(text));
    }
    lacks(setup, outcome, &mut wrong);
    ends(setup, outcome, &mut wrong);
    let warns = |warning: &String| WrongKind::Warns.with(format!("the daemon warns at the end: {warning}"));
    wrong.extend(outcome.warnings.iter().map(warns));
    wrong
}

/// The beginning of the quiet phase: the last fault is over, the last guest has come or gone, and all changing programs have ended.
#[must_use]
pub fn quiet_from(setup: &Setup) -> Span {
    let ends = setup.guests.iter().enumerate().filter_map(|(index, guest)| {
        let ends = guest.spec.programs.iter().filter_map(|program| program.ends).max()?;
        Some(later(stands_still(&setup.faults, guest, index), ends))
    });
    ends.max().unwrap_or_default().max(setup.calm_from())
}

/// The moment from which the programs of a guest's last life count their time. They stand still while the guest is paused or the host is
/// suspended, so these times are added.
pub(super) fn stands_still(faults: &[Fault], guest: &GuestSetup, index: usize) -> Span {
    let returned = faults_of(faults, index).filter(|fault| fault.kind == FaultKind::Vanishes);
    let began = returned.map(|fault| later(fault.at, fault.lasts)).max().unwrap_or_default();
    let paused = faults_of(faults, index).filter(|f| f.kind == FaultKind::Fenced(Fence::Paused));
    let suspended = faults.iter().filter(|fault| fault.kind == FaultKind::Suspended);
    let still = paused.chain(suspended).map(|fault| fault.lasts.as_millis()).sum();
    later(began.max(guest.arrives), Span::from_millis(still))
}

fn lacks(setup: &Setup, outcome: &Outcome, wrong: &mut Vec<Wrong>) {
    let quiet = quiet_from(setup);
    let allowed = later(quiet, RIGHT_WITHIN);
    let into = |at: Span| seconds(Span::from_millis(at.as_millis() - quiet.as_millis()));
    let allowed_for = seconds(RIGHT_WITHIN);
    let before = wrong.len();
    for (guest, measured) in setup.guests.iter().zip(&outcome.guests) {
        let at = Span::from_millis(measured.wrong_at);
        if at > allowed {
            let text = format!(
                "{} starved or was hungry {} into the quiet phase; {allowed_for} are allowed",
                guest.name,
                into(at)
            );
            wrong.push(WrongKind::Lacks.with(text));
        }
    }
    let last = outcome.right_again.map_or(outcome.lasts, |after| later(setup.calm_from(), after));
    let is_alive = outcome.host.killed_guests == 0;
    if is_alive && wrong.len() == before && last > allowed && surprise(setup).is_zero() {
        let text = format!(
            "the host was above its capacity {} into the quiet phase; {allowed_for} are allowed",
            into(last)
        );
        wrong.push(WrongKind::StaysAbove.with(text));
    }
}

fn ends(setup: &Setup, outcome: &Outcome, wrong: &mut Vec<Wrong>) {
    let Some(last) = outcome.samples.last() else { return };
    let is_there = |guest: &GuestSetup| guest.leaves.is_none_or(|at| at >= setup.lasts);
    for (guest, sample) in setup.guests.iter().zip(&last.guests).filter(|(guest, _)| is_there(guest)) {
        let Some(sample) = sample else {
            wrong.push(WrongKind::Ends.with(format!("{} is gone", guest.name)));
            continue;
        };
        let uses = uses_always(&guest.spec).saturating_sub(SLACK);
        let (has, keeps) = (Bytes::new(sample.used), Bytes::new(sample.actual));
        if has < uses || keeps < has.min(uses) && guest.spec.swap.is_zero() {
            let name = &guest.name;
            let text = format!("{name} always uses {uses}, but uses {has} and keeps {keeps} at the end");
            wrong.push(WrongKind::Ends.with(text));
        }
    }
}

/// The most that the host can be above its capacity without a mistake: see [`judge`].
pub(super) fn unpreventable(setup: &Setup) -> Bytes {
    let elastic = setup.config.commitment == Commitment::Elastic;
    let ties = |fault: &Fault| {
        matches!(fault.kind, FaultKind::DaemonKilled | FaultKind::HostUnreadable | FaultKind::Suspended)
    };
    let all_tied = setup.faults.iter().any(ties);
    let begins_over = begins_over(setup);
    let of_guest = |(index, guest): (usize, &GuestSetup)| {
        let faults: Vec<FaultKind> = faults_of(&setup.faults, index).map(|fault| fault.kind).collect();
        let spec = &guest.spec;
        if guest.arrives > Span::ZERO || faults.iter().any(|kind| escapes(*kind)) {
            return spec.memory.saturating_add(spec.overhead_bound);
        }
        let tied = all_tied || !faults.is_empty();
        match elastic {
            true if tied => spec.memory.saturating_sub(need(spec)).saturating_add(rises(spec)),
            true => rises(spec),
            false if begins_over => fills_first(spec),
            false => Bytes::ZERO,
        }
    };
    let guests = setup.guests.iter().enumerate().map(of_guest);
    Bytes::sum(guests).saturating_add(surprise(setup))
}

/// Whether the guests begin with more memory than the host has.
fn begins_over(setup: &Setup) -> bool {
    let most = |guest: &GuestSetup| guest.spec.memory.saturating_add(guest.spec.overhead_bound);
    let guests = Bytes::sum(setup.guests.iter().map(most));
    guests.saturating_add(setup.host.other) > setup.host.memory
}

/// The most that the files of a guest fill before its balloon has taken what it began with.
fn fills_first(spec: &Spec) -> Bytes {
    let inflates_for = Span::from_secs(spec.memory.get() / spec.inflates.max(1));
    let millis = later(FIRST_STATISTICS, inflates_for).as_millis();
    let read = |file: &File| Bytes::new(file.rate).mul_div(millis, 1000);
    Bytes::sum(spec.files.iter().map(read)).min(spec.memory.saturating_sub(need(spec)))
}

/// The most that the host's other use can take at once beyond the reserve.
fn surprise(setup: &Setup) -> Bytes {
    let noise = setup.host.other_most.saturating_sub(setup.host.other);
    noise.saturating_sub(setup.config.reserve_of(setup.host.memory))
}

/// Faults after which a guest has more memory than memtide gave it, or knows of.
const fn escapes(kind: FaultKind) -> bool {
    let knows_less = matches!(kind, FaultKind::Unknown | FaultKind::TellsSize(_));
    knows_less
        || matches!(
            kind,
            FaultKind::Vanishes | FaultKind::Reset | FaultKind::SelfDeflates | FaultKind::Foreign(_)
        )
}

/// The most that the programs of a guest can rise.
fn rises(spec: &Spec) -> Bytes {
    let rise = spec.programs.iter().map(|program| match &program.course {
        Course::Rise { to, .. } | Course::Drift { to, .. } => to.saturating_sub(program.size),
        Course::Constant | Course::Recorded(_) => Bytes::ZERO,
    });
    Bytes::sum(rise)
}
