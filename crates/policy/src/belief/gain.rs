//! The host's gain from a guest is judged: one that gives nothing is left alone.
//!
//! **Problem.** A balloon can inflate and the host gain nothing: a device pins the memory, it is locked, it lies in huge pages. Some of these causes
//! are known in advance ([`memtide_model::Withheld`]); the next one is not.
//!
//! **Terms.** *Resident* is the guest's memory that the host backs: its footprint without its VMM's own memory, with what KSM merged and what is in
//! swap. Its mappings tell it exactly, but late.
//!
//! **Rule.** The host gains from a guest once half a [`PROBE`] that was resident has come back, whether a balloon took it or the guest's kernel
//! returned it by itself: both discard pages in the same way. Until then the guest gives at most a probe below what is resident. What is not
//! resident brings no gain and costs nothing: it may be taken at once.
//!
//! A step down is judged when the guest keeps no more than it was asked to keep, also later on. If the footprint shows that more than that size and
//! half of the step is resident, and the mappings, read since, show it, too, the step was in vain: the guest gives nothing any more, counts at its
//! full size, and gets that back at once, since the host pays for it in any case. While the mappings are being read, the guest gives nothing, for a
//! second at most.
//!
//! If the full size changes, nothing is known again: memory that was plugged may lie elsewhere.
//!
//! **Property.** A guest that gives the host nothing loses a probe of its memory, once.

use memtide_model::{Bytes, Gain, GivenStep, GuestSeen, GuestState, Moment, Proof, Reading, Withheld};

use crate::constants::{JUDGED_WITHIN, PROBE, RESET_SETTLES, TOLERANCE};

/// What is known of a guest's gain now.
#[must_use]
pub fn judge(before: &GuestState, seen: &GuestSeen, now: Moment) -> Gain {
    let (full, roughly) = (seen.told.full, resident(seen));
    if before.gain.full != full {
        return Gain { full, most: roughly.unwrap_or_default(), ..Gain::default() };
    }
    let most = before.gain.most.max(roughly.unwrap_or_default());
    let has_fallen = |resident| most.saturating_sub(resident) >= PROBE.of(full).mul_div(1, 2);
    let proof = match before.gain.proof {
        Proof::None if roughly.is_some_and(has_fallen) => Proof::Gained,
        proof => proof,
    };
    let gain = Gain { most, proof, ..before.gain };
    let was_reset = seen.told.reset || before.reset_at.is_some_and(|at| now.since(at) < RESET_SETTLES);
    let Some(step) = gain.step.filter(|_| !was_reset) else { return Gain { step: None, ..gain } };
    let keeps = seen.actual();
    if keeps > step.to.saturating_add(TOLERANCE) {
        return Gain { step: Some(GivenStep { arrived_at: None, ..step }), ..gain };
    }
    let arrived_at = step.arrived_at.unwrap_or(now);
    let waits = Gain { step: Some(GivenStep { arrived_at: Some(arrived_at), ..step }), ..gain };
    let Some(roughly) = roughly else { return waits };
    let since = now.since(arrived_at);
    let exactly = match &seen.cost.ram {
        Reading::Fresh { value, age } if *age <= since => Some(*value),
        // Nobody will know it better.
        Reading::Absent { .. } if since >= JUDGED_WITHIN => Some(roughly),
        _ => None,
    };
    let is_little = |resident| resident <= keeps.saturating_add(excess(step, full));
    if is_little(roughly) || exactly.is_some_and(is_little) {
        return Gain { step: None, ..gain };
    }
    match exactly {
        // Not even the facts about its size are right.
        Some(resident) if resident > full.saturating_add(excess(step, full)) => Gain { step: None, ..gain },
        Some(resident) => Gain { proof: Proof::Vain { size: keeps, resident }, step: None, ..gain },
        None => waits,
    }
}

/// How much more than its size may be resident after a step that was not in vain.
fn excess(step: GivenStep, full: Bytes) -> Bytes {
    step.from.saturating_sub(step.to).max(PROBE.of(full)).mul_div(1, 2)
}

/// The guest's memory that the host backs, as far as its footprint tells.
#[must_use]
pub fn resident(seen: &GuestSeen) -> Option<Bytes> {
    let footprint = seen.cost.footprint.fresh()?;
    Some(footprint.saturating_sub(seen.cost.overhead).saturating_add(seen.cost.not_in_footprint()))
}

/// Whether a step seems to have brought nothing, and the mappings have not told yet.
#[must_use]
pub fn is_in_doubt(gain: &Gain, now: Moment) -> bool {
    let arrived_at = gain.step.and_then(|step| step.arrived_at);
    arrived_at.is_some_and(|at| now.since(at) <= JUDGED_WITHIN)
}

/// Why the guest gives the host nothing, if its steps have shown it.
#[must_use]
pub const fn why_withheld(gain: &Gain) -> Option<Withheld> {
    match gain.proof {
        Proof::Vain { size, resident } => Some(Withheld::GivesNothing { size, resident }),
        Proof::None | Proof::Gained => None,
    }
}

/// Notes that a guest which keeps `keeps` is asked for another size.
#[must_use]
pub fn asked(gain: &Gain, seen: &GuestSeen, target: Bytes) -> Gain {
    let keeps = seen.actual();
    if target.saturating_add(TOLERANCE) > keeps {
        return Gain { step: None, ..*gain };
    }
    let from = resident(seen).map_or(keeps, |resident| resident.min(keeps));
    let new = || GivenStep { from, to: target, arrived_at: None };
    let step = match gain.step {
        Some(step) if step.arrived_at.is_none() => GivenStep { to: target, ..step },
        _ => new(),
    };
    Gain { step: Some(step), ..*gain }
}
