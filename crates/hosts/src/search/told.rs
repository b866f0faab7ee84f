//! A finding in words: the problem, the kind of setup, and a scenario file.

use std::collections::BTreeSet;

use memtide_guest::{Course, Kernel, Spec};
use memtide_model::{Bytes, Commitment, Span, counted};

use super::ill::{Ill, worst_guest};
use memtide_sim::scenario::{Bound, Promise, part_done, percent, total_work, work, write};
use memtide_sim::setup::Setup;
use memtide_sim::{Manager, Outcome};

/// The kind of a setup: everything in it beyond quiet guests.
pub(crate) fn shape(setup: &Setup) -> BTreeSet<&'static str> {
    let mut shape = BTreeSet::new();
    let mut note = |is: bool, what: &'static str| {
        if is {
            shape.insert(what);
        }
    };
    note(setup.host.other_most > setup.host.other, "noise");
    note(!setup.host.swap.is_zero(), "a host with swap");
    note(setup.config.classes.len() > 1, "classes");
    for guest in &setup.guests {
        note(guest.arrives > Span::ZERO, "guests that come");
        note(guest.leaves.is_some(), "guests that leave");
        note(role(&guest.spec) != "steady", role(&guest.spec));
        note(guest.spec.kernel < Kernel::V6_12, "old kernels");
        note(!guest.spec.swap.is_zero(), "guests with swap");
        note(!guest.spec.free_page_reporting, "no free page reporting");
    }
    shape
}

/// A guest's work, as a word that can be its name.
fn role(spec: &Spec) -> &'static str {
    let rises = |again: bool| {
        move |program: &memtide_guest::Program| match program.course {
            Course::Rise { every, .. } => every.is_some() == again,
            _ => false,
        }
    };
    let is_read = |file: &&memtide_guest::File| file.size.is_some();
    match spec {
        _ if spec.programs.iter().any(rises(true)) => "bursts",
        _ if spec.programs.iter().any(rises(false)) => "grows",
        _ if spec.programs.iter().any(|p| matches!(p.course, Course::Drift { .. })) => "drifts",
        _ if spec.files.iter().any(|file| file.size.is_none()) => "streams",
        _ if spec.files.iter().filter(is_read).any(|file| file.periods.is_some()) => "reads-at-times",
        _ if spec.files.iter().any(|file| file.size.is_some()) => "reads",
        _ if spec.full_of_cold || !spec.cold.is_zero() => "cold",
        _ => "steady",
    }
}

/// The setup with its guests named after their work, and similar guests side by side.
pub(crate) fn named(setup: &Setup) -> Setup {
    let mut named = setup.clone();
    let mut guests: Vec<_> = std::mem::take(&mut named.guests);
    let first_like = |guests: &[memtide_sim::setup::GuestSetup], index: usize| {
        guests.iter().position(|other| other.spec == guests[index].spec).unwrap_or(index)
    };
    let order: Vec<usize> = (0..guests.len()).map(|index| first_like(&guests, index)).collect();
    let mut by_kind: Vec<usize> = (0..guests.len()).collect();
    by_kind.sort_by_key(|&index| (order[index], guests[index].arrives, guests[index].leaves, index));
    let roles: Vec<&str> = by_kind.iter().map(|&index| role(&guests[index].spec)).collect();
    for (place, &index) in by_kind.iter().enumerate() {
        let same = roles.iter().filter(|role| **role == roles[place]).count();
        let number = roles[..place].iter().filter(|role| **role == roles[place]).count() + 1;
        guests[index].name = match same {
            1 => roles[place].to_owned(),
            _ => format!("{}-{number}", roles[place]),
        };
    }
    let place = |guest: usize| by_kind.iter().position(|&index| index == guest);
    named.faults.iter_mut().for_each(|fault| fault.guest = fault.guest.and_then(place));
    named.guests = by_kind.iter().map(|&index| guests[index].clone()).collect();
    named
}

/// The problem of `own` against the `best` other manager, in a sentence.
pub(super) fn about(ill: Ill, setup: &Setup, own: &Outcome, best: Option<&Outcome>) -> String {
    let sum = |run: &Outcome, of: fn(&memtide_sim::measure::GuestMeasures) -> u64| -> u64 {
        run.guests.iter().map(of).sum()
    };
    let manager = own.manager;
    let Some(best) = best else {
        let first = own.violations.first().map_or("", |(_, text)| text);
        return format!("{manager}: {} refused: {first}", counted(own.violation_count, "action"));
    };
    let (other, time) = (name(best.manager), Span::from_millis);
    match ill {
        Ill::Refused => {
            let first = own.violations.first().map_or("", |(_, text)| text);
            format!("{manager}: {} refused: {first}", counted(own.violation_count, "action"))
        }
        Ill::Lost => {
            format!(
                "{manager}: the host kills {}; none under {other}",
                counted(own.host.killed_guests, "guest")
            )
        }
        Ill::Killed => {
            let (own, best) = (sum(own, |g| g.kills), sum(best, |g| g.kills));
            format!("{manager}: {} killed; {best} under {other}", counted(own, "program"))
        }
        Ill::Starved => {
            let (own, best) = (sum(own, |g| g.starved_ms), sum(best, |g| g.starved_ms));
            format!("{manager}: guests starve for {}; for {} under {other}", time(own), time(best))
        }
        Ill::Hungry => {
            let (own, best) = (sum(own, |g| g.hungry_ms), sum(best, |g| g.hungry_ms));
            format!("{manager}: guests are hungry for {}; for {} under {other}", time(own), time(best))
        }
        Ill::Work => {
            let part = percent(part_done(total_work(best), total_work(own)));
            format!("{manager}: all guests do {part} of their work under {other}")
        }
        Ill::OneGuest => {
            let (index, _) = worst_guest(own, best).unwrap_or_default();
            let name = &setup.guests[index].name;
            let part = percent(part_done(best.guests[index].done_us, own.guests[index].done_us));
            format!("{manager}: {name} does {part} of its work under {other}")
        }
    }
}

fn name(manager: Manager) -> String {
    match manager {
        Manager::Nobody => "nobody".to_owned(),
        manager => manager.to_string(),
    }
}

/// The bound that a good policy would keep and that this run breaks.
fn promise(ill: Ill, setup: &Setup, own: &Outcome, best: Option<&Outcome>, fails: &str) -> Promise {
    let policy = match own.manager {
        Manager::Memtide(commitment) => Some(commitment),
        _ => None,
    };
    let most = |of: fn(&memtide_sim::measure::GuestMeasures) -> u64| {
        best.into_iter().flat_map(|best| &best.guests).map(of).max().unwrap_or(0)
    };
    // Ten seconds more than the best other manager.
    let time = |millis: u64| Span::from_secs(millis.div_ceil(10_000) * 10 + 10);
    let is_nobody = best.is_some_and(|best| best.manager == Manager::Nobody);
    let mut guest = None;
    let bound = match ill {
        Ill::Refused | Ill::Lost | Ill::Killed => Bound::Kills(most(|guest| guest.kills)),
        Ill::Starved => Bound::Starved(time(most(|guest| guest.starved_ms))),
        Ill::Hungry => Bound::Hungry(time(most(|guest| guest.hungry_ms))),
        Ill::Work if is_nobody => Bound::WorkOfNone(980),
        Ill::Work => Bound::WorkOfBest(980),
        Ill::OneGuest => {
            let index = best.and_then(|best| worst_guest(own, best)).map_or(0, |(index, _)| index);
            guest = setup.guests.get(index).map(|guest| guest.name.clone());
            let theirs = best.and_then(|best| best.guests.get(index)).map_or(1_000, work);
            if is_nobody { Bound::WorkOfNone(950) } else { Bound::Work(theirs.saturating_sub(50)) }
        }
    };
    Promise { policy, guest, bound, fails: Some(fails.to_owned()) }
}

/// The scenario file of a finding; `None` if the format cannot express it.
pub(super) fn scenario(ill: Ill, setup: &Setup, own: &Outcome, best: Option<&Outcome>) -> Option<String> {
    let fails = about(ill, setup, own, best);
    let kinds: Vec<&str> = shape(setup).into_iter().collect();
    let total = Bytes::sum(setup.guests.iter().map(|guest| guest.spec.memory));
    let about = format!(
        "Found by the search. {} of {total} on a host of {} ({}).\n{fails}.",
        counted(setup.guests.len() as u64, "guest"),
        setup.host.memory,
        if kinds.is_empty() { "all steady".to_owned() } else { kinds.join(", ") },
    );
    let only = match own.manager {
        Manager::Memtide(commitment) => Some(commitment),
        _ => None::<Commitment>,
    };
    let promise = promise(ill, setup, own, best, &fails);
    write(&about, setup, only, &[promise]).ok()
}
