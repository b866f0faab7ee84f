//! Guests that make no progress towards their target.
//!
//! **Rule.** Progress is a step of at least 1 MiB towards the target. A guest without progress for [`STUCK_AFTER`] is stuck:
//! it is no donor and gets no grant until its back-off has passed. The back-off doubles each time. If a guest does not take
//! a grant, its target is lowered to its actual. A guest without progress for [`SAID_AFTER`] is called uncooperative.
//!
//! **Property.** A guest at its target is never stuck.

use memtide_model::{Bytes, GuestState, Moment, Span, Stuck};

use crate::ledger::Entry;

/// A guest without progress for this long is stuck (squeezed's constant).
pub const STUCK_AFTER: Span = Span::from_secs(5);
/// A guest without progress for this long is reported (squeezed's constant).
pub const SAID_AFTER: Span = Span::from_secs(20);
const FIRST_BACK_OFF: Span = Span::from_secs(5);
const LONGEST_BACK_OFF: Span = Span::from_secs(600);
/// A smaller distance counts as arrived; a smaller step is no progress.
pub const TOLERANCE: Bytes = Bytes::from_mib(1);

/// Whether a guest keeps its target.
#[must_use]
pub fn at_target(entry: &Entry) -> bool {
    entry.actual.abs_diff(entry.target) <= TOLERANCE
}

/// A guest's progress since the last decision.
#[must_use]
pub fn judge(entry: &Entry, before: &GuestState, now: Moment) -> Stuck {
    let stuck = before.stuck;
    let distance = entry.actual.abs_diff(entry.target);
    if distance <= TOLERANCE {
        // The guest arrived, or its target was lowered to its actual: a running back-off continues.
        let backs_off = stuck.until.filter(|until| now < *until);
        let kept = if backs_off.is_some() { stuck } else { Stuck::default() };
        return Stuck { progress_at: None, distance: Bytes::ZERO, until: backs_off, ..kept };
    }
    let Some(progress_at) = stuck.progress_at else {
        return Stuck { progress_at: Some(now), distance, ..stuck };
    };
    if distance.saturating_add(TOLERANCE) <= stuck.distance {
        return Stuck {
            progress_at: Some(now),
            distance,
            until: None,
            back_off: Span::ZERO,
            uncooperative: false,
        };
    }
    let distance = if distance > stuck.distance { distance } else { stuck.distance };
    let tried_since = stuck.until.map_or(progress_at, |until| until.max(progress_at));
    let uncooperative = now.since(progress_at) >= SAID_AFTER;
    if tried_since <= now && now.since(tried_since) >= STUCK_AFTER {
        let back_off = stuck.back_off.doubled().clamp(FIRST_BACK_OFF, LONGEST_BACK_OFF);
        return Stuck { distance, until: Some(now.after(back_off)), back_off, uncooperative, ..stuck };
    }
    Stuck { distance, uncooperative, ..stuck }
}

/// The progress of a guest that cannot run: the time does not count.
#[must_use]
pub fn wait(before: &GuestState, now: Moment) -> Stuck {
    Stuck { progress_at: before.stuck.progress_at.map(|_| now), ..before.stuck }
}

/// Whether the guest is excluded from giving and taking.
#[must_use]
pub fn is_stuck(stuck: &Stuck, now: Moment) -> bool {
    stuck.until.is_some_and(|until| now < until)
}
