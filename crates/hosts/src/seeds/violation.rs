//! Turns failures into the smallest scenarios that show them.
//!
//! **Rule.** The setup of a seed is shrunk while guests still fit on the host and the run is wrong in the same way. Of several equal
//! results (the same commitment, way to be wrong, work of the guests and faults), the first counts.

use std::collections::BTreeSet;

use memtide_guest::Course;
use memtide_model::{Bytes, Commitment, Span};

use super::draw::later;
use super::judge::unpreventable;
use super::{
    Failure, RIGHT_WITHIN, Wrong, WrongKind, faulty, judge, need, quiet_from, self_deflations, starts_with,
};
use crate::search::told::{named, shape};
use crate::shrink::shrink;
use memtide_sim::scenario::{Bound, Promise, name_of, write};
use memtide_sim::setup::Setup;
use memtide_sim::{Manager, Options, run};

/// The most setups to try for each failure.
const RUNS: u64 = 400;
/// The least free part of the capacity, in addition to the reserve, when all guests have the memory that they need, in percent. Above it,
/// the host is never low.
const FREE: u64 = 6;
/// The shortest quiet phase.
const QUIET: Span = Span::from_secs(360);

/// A failure as a small setup.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that it comes from.
    pub seed: u64,
    /// The way in which it is wrong.
    pub kind: WrongKind,
    /// The problem, in a sentence.
    pub about: String,
    /// Its scenario file, with the bound that it breaks.
    pub file: String,
}

/// The failures made small, of those that are alike the first. `go_on` hears how many are done, and leaves
/// out the rest by `false`.
pub fn violations(failures: &[Failure], go_on: &mut dyn FnMut(usize) -> bool) -> Vec<Violation> {
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for (failure, done) in failures.iter().zip(1..) {
        let Some(wrong) = failure.wrong.first() else { continue };
        if let Some((kinds, violation)) = small(failure.seed, faulty(failure.seed), wrong.kind, RUNS)
            && known.insert((failure.commitment == Commitment::Strict, wrong.kind, kinds))
        {
            found.push(violation);
        }
        if !go_on(done) {
            break;
        }
    }
    found
}

/// The small form of the setup of a seed, found in fewer than `runs`, and its kind; `None` if the format cannot express it.
fn small(seed: u64, setup: Setup, kind: WrongKind, runs: u64) -> Option<(BTreeSet<&'static str>, Violation)> {
    let mut is_bad = |setup: &Setup| first(setup, kind).is_some();
    let mut setup = shrink(setup, runs, &fits, &mut is_bad);
    let named = named(&setup);
    if is_bad(&named) {
        setup = named;
    }
    let wrong = first(&setup, kind)?;
    let commitment = setup.config.commitment;
    let mut kinds = shape(&setup);
    kinds.extend(setup.faults.iter().map(|fault| name_of(fault.kind)));
    let about = format!("{}: {}", Manager::Memtide(commitment), wrong.text);
    let promise = Promise {
        policy: Some(commitment),
        guest: None,
        bound: bound(&setup, kind),
        fails: Some(about.clone()),
    };
    let text = format!("Found with seed {seed} of random faults, and shrunk.\n{about}.");
    let file = write(&text, &setup, Some(commitment), &[promise]).ok()?;
    Some((kinds, Violation { seed, kind, about, file }))
}

/// The first problem of this kind when memtide manages a setup.
fn first(setup: &Setup, kind: WrongKind) -> Option<Wrong> {
    let manager = Manager::Memtide(setup.config.commitment);
    let outcome = run(setup, manager, &Options::default(), &mut |_| ());
    judge(setup, &outcome).into_iter().find(|wrong| wrong.kind == kind)
}

/// The bound that the scenario should keep and breaks.
fn bound(setup: &Setup, kind: WrongKind) -> Bound {
    match kind {
        WrongKind::AboveCapacity => Bound::AboveCapacity(unpreventable(setup)),
        WrongKind::Refused | WrongKind::Killed => Bound::Kills(0),
        WrongKind::Lacks | WrongKind::StaysAbove | WrongKind::Ends | WrongKind::Warns => {
            let quiet = quiet_from(setup).as_millis().saturating_sub(setup.calm_from().as_millis());
            Bound::RightAgain(later(Span::from_millis(quiet), RIGHT_WITHIN))
        }
    }
}

/// Whether the guests fit, as in [`super::faulty`], and a quiet phase without changing programs remains.
fn fits(setup: &Setup) -> bool {
    let host = &setup.host;
    let needs = setup.guests.iter().map(|guest| need(&guest.spec).saturating_add(guest.spec.overhead_bound));
    let own = match setup.config.commitment {
        Commitment::Strict => self_deflations(&setup.guests, setup.config.self_deflations),
        Commitment::Elastic => Bytes::ZERO,
    };
    let free = setup.config.reserve_of(host.memory).saturating_add(host.memory.mul_div(FREE, 100));
    let at_start = setup.guests.iter().filter(|guest| guest.arrives == Span::ZERO);
    let at_start = Bytes::sum(at_start.map(|guest| starts_with(&guest.spec)).chain([host.other_most]));
    let mut programs = setup.guests.iter().flat_map(|guest| &guest.spec.programs);
    !setup.guests.is_empty()
        && programs.all(|program| program.course == Course::Constant || program.ends.is_some())
        && Bytes::sum(needs.chain([host.other_most, own, free])) <= host.memory
        && at_start <= host.memory
        && later(quiet_from(setup), QUIET) <= setup.lasts
}

#[cfg(test)]
mod tests {
    use memtide_model::Config;

    use super::*;
    use memtide_sim::Scenario;

    #[test]
    fn what_goes_wrong_is_made_small_and_its_file_breaks_the_bound() {
        // Nothing is known that memtide does wrong with these setups. Where it may not manage the guests, they go wrong.
        let found = (0..200).find_map(|seed| {
            let mut setup = faulty(seed);
            setup.config.classes.entry(Config::DEFAULT_CLASS.into()).or_default().manage = false;
            first(&setup, WrongKind::AboveCapacity).map(|_| (seed, setup))
        });
        let (seed, setup) = found.expect("on one of these hosts the guests do not fit by themselves");
        let (_, violation) = small(seed, setup.clone(), WrongKind::AboveCapacity, 40).unwrap();
        let written = Scenario::parse(&violation.file).unwrap();
        let size = |setup: &Setup| setup.guests.len() + setup.faults.len();
        assert!(size(&written.setup) < size(&setup), "{}", violation.file);
        assert!(violation.about.contains("above its capacity"), "{}", violation.about);
        assert_eq!(written.bounds[0].fails.as_deref(), Some(&*violation.about));
        assert!(first(&written.setup, WrongKind::AboveCapacity).is_some(), "{}", violation.file);
    }
}
