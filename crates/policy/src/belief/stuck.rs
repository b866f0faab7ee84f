//! Guests that make no progress towards their target.
//!
//! **Rule.** Progress is a step of at least 1 MiB towards the target. A guest without progress for [`STUCK_AFTER`] is stuck:
//! it is no donor until its back-off has passed, and gets no grant either if its balloon was to deflate. The back-off doubles each
//! time, and ends if the balloon deflates. A stuck guest is drawn back: its target is set to its actual. A guest without progress for
//! [`SAID_AFTER`] is called uncooperative.
//!
//! **Property.** A guest at its target is never stuck.

use memtide_model::{Bytes, GuestState, Moment, Span, Stuck};

use crate::belief::ledger::Entry;
use crate::constants::{LONGEST_PAUSE, SAID_AFTER, STUCK_AFTER, TOLERANCE};

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
    if entry.actual > before.actual.saturating_add(TOLERANCE) {
        // It has more to give than before.
        return match distance > TOLERANCE {
            true => Stuck { progress_at: Some(now), distance, ..Stuck::default() },
            false => Stuck::default(),
        };
    }
    if distance <= TOLERANCE {
        // A guest that was drawn back to its actual has not shown that it can follow: its back-off is kept for a while.
        let arrived = stuck.progress_at.is_some();
        let kept = |until| now < until || (!arrived && now.since(until) < LONGEST_PAUSE);
        let kept = if stuck.until.is_some_and(kept) { stuck } else { Stuck::default() };
        return Stuck { progress_at: None, distance: Bytes::ZERO, ..kept };
    }
    let Some(progress_at) = stuck.progress_at else {
        return Stuck { progress_at: Some(now), distance, ..stuck };
    };
    if distance.saturating_add(TOLERANCE) <= stuck.distance {
        return Stuck { progress_at: Some(now), distance, ..Stuck::default() };
    }
    let distance = if distance > stuck.distance { distance } else { stuck.distance };
    let takes = entry.target > entry.actual;
    // A pause is over before the guest is judged again, if it was for the same direction.
    let pause = stuck.until.filter(|_| stuck.takes == takes);
    let tried_since = pause.map_or(progress_at, |until| until.max(progress_at));
    let uncooperative = stuck.uncooperative || now.since(progress_at) >= SAID_AFTER;
    if tried_since <= now && now.since(tried_since) >= STUCK_AFTER {
        let back_off = stuck.back_off.doubled().clamp(STUCK_AFTER, LONGEST_PAUSE);
        // It was drawn back after each of its last failures, so their times add up.
        let uncooperative = uncooperative || back_off >= SAID_AFTER;
        return Stuck { distance, until: Some(now.after(back_off)), takes, back_off, uncooperative, ..stuck };
    }
    Stuck { distance, uncooperative, ..stuck }
}

/// The progress of a guest that cannot run: the time does not count.
#[must_use]
pub fn wait(before: &GuestState, now: Moment) -> Stuck {
    Stuck { progress_at: before.stuck.progress_at.map(|_| now), ..before.stuck }
}

/// The time since a stuck guest last made progress. One that was drawn back to its actual has been stuck since its back-off began.
#[must_use]
pub fn since(stuck: &Stuck, now: Moment) -> Span {
    let failed = stuck
        .until
        .map_or(now.as_millis(), |until| until.as_millis().saturating_sub(stuck.back_off.as_millis()));
    let drawn_back = Moment::from_millis(failed.saturating_sub(STUCK_AFTER.as_millis()));
    now.since(stuck.progress_at.map_or(drawn_back, |at| at.min(drawn_back)))
}

/// Whether the guest is excluded from giving.
#[must_use]
pub fn is_stuck(stuck: &Stuck, now: Moment) -> bool {
    stuck.until.is_some_and(|until| now < until)
}

/// Whether the guest is excluded from taking, too: its balloon did not deflate.
#[must_use]
pub fn is_stuck_taking(stuck: &Stuck, now: Moment) -> bool {
    stuck.takes && is_stuck(stuck, now)
}
