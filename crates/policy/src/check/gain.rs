//! The check's own view of what the host gains from a guest.
//!
//! **Rules.** The host gains from a guest once 1/128 of its memory was resident and is no more. Before, it may be asked for 1/64 of its memory below
//! what is resident. A step down has ended when the guest keeps what it was asked for. It was in vain if both the footprint and the mappings, read since,
//! show more than that and half of the step as resident; without mappings, the footprint counts after a second.

use memtide_model::{Bytes, Gain, GivenStep, GuestSeen, Moment, Proof, Reading, Span, Withheld, Witnessed};

/// A smaller difference is none.
const STEP: Bytes = Bytes::from_mib(1);
/// A reset guest's size is not known before this time.
const SETTLES: Span = Span::from_secs(10);
/// Mappings that are not there after this time do not come.
const MAPPINGS_COME: Span = Span::from_secs(1);

/// Looks at the guest in a snapshot.
pub(super) fn look(record: &mut Witnessed, guest: &GuestSeen, now: Moment) {
    let full = guest.told.full;
    let footprint = backed(guest);
    if record.gain.full != full {
        record.gain = Gain { full, ..Gain::default() };
    }
    if let Some(footprint) = footprint {
        record.gain.most = record.gain.most.max(footprint);
        let has_fallen = record.gain.most.saturating_sub(footprint) >= part(full).mul_div(1, 2);
        if has_fallen && record.gain.proof == Proof::None {
            record.gain.proof = Proof::Gained;
        }
    }
    if guest.told.reset || record.reset_at.is_some_and(|at| now.since(at) < SETTLES) {
        record.gain.step = None;
    }
    let keeps = guest.actual();
    let Some(step) = &mut record.gain.step else { return };
    if keeps.saturating_sub(STEP) > step.to {
        step.arrived_at = None;
        return;
    }
    let since = now.since(*step.arrived_at.get_or_insert(now));
    let Some(footprint) = footprint else { return };
    let half = step.from.saturating_sub(step.to).max(part(full)).mul_div(1, 2);
    let most = keeps.saturating_add(half);
    let mapped = match guest.cost.ram {
        Reading::Fresh { value, age } => Some(value).filter(|_| age <= since),
        Reading::Absent { .. } => Some(footprint).filter(|_| since >= MAPPINGS_COME),
        Reading::Stale { .. } => None,
    };
    let has_gained = footprint <= most || mapped.is_some_and(|mapped| mapped <= most);
    match mapped {
        _ if has_gained => {}
        Some(resident) if resident <= full.saturating_add(half) => {
            record.gain.proof = Proof::Vain { size: keeps, resident };
        }
        // Not even the facts about its size are right.
        Some(_) => {}
        None => return,
    }
    record.gain.step = None;
}

/// An accepted write.
pub(super) fn write(record: &mut Witnessed, guest: &GuestSeen, target: Bytes) {
    let keeps = guest.actual();
    let takes = target.saturating_add(STEP) <= keeps;
    let open = record.gain.step.filter(|step| step.arrived_at.is_none());
    let from = backed(guest).map_or(keeps, |backed| backed.min(keeps));
    let new = GivenStep { from, to: target, arrived_at: None };
    record.gain.step = takes.then(|| open.map_or(new, |open| GivenStep { to: target, ..open }));
}

/// Whether a step was in vain: the host pays for all of the guest's memory.
pub(super) const fn is_vain(record: &Witnessed) -> bool {
    matches!(record.gain.proof, Proof::Vain { .. })
}

/// Why the host gains nothing from this guest, if that is known or was seen.
pub(super) fn why_withheld(guest: &GuestSeen, record: &Witnessed) -> Option<Withheld> {
    let seen = match record.gain.proof {
        Proof::Vain { size, resident } => Some(Withheld::GivesNothing { size, resident }),
        Proof::None | Proof::Gained => None,
    };
    guest.withheld.clone().or(seen)
}

/// The least that it may be asked to keep; `None` if the host is known to gain.
pub(super) fn least(guest: &GuestSeen, record: &Witnessed) -> Option<Bytes> {
    let full = guest.told.full;
    let least = backed(guest).unwrap_or(full).min(full).saturating_sub(part(full));
    (record.gain.proof != Proof::Gained).then_some(least)
}

/// A probe, and the least step that is judged.
const fn part(full: Bytes) -> Bytes {
    Bytes::new(full.get() / 64)
}

/// The guest's memory that the host backs, here or elsewhere; `None` if its footprint is not known.
pub(super) fn backed(guest: &GuestSeen) -> Option<Bytes> {
    let own = guest.cost.footprint.fresh()?.saturating_sub(guest.cost.overhead);
    Some(own.saturating_add(guest.cost.not_in_footprint()))
}
