//! Squeeze until it squeals: the search for the page cache that a guest needs.
//!
//! No counter tells how much of its page cache a guest needs. While something is pressing, the cache left to the guest falls
//! step by step, and its stalls are watched. Pressing means: another guest lacks used memory and cannot be granted it now,
//! or the host is in danger.
//!
//! **Rule.**
//! - Gently: a quarter of the cache, at least 16 MiB. At most one step in `STEP_TAKES`, and only when the guest has reached
//!   its target: inflating, settling and watching take this long.
//! - Urgently (another guest starves, or the host is hard or low and not covered): all pressing memory at once, from all caches
//!   in proportion. Guests that squealed before give only the part that the others cannot cover.
//! - A stall while a step is watched is a squeal. The guest gets the last good size back and is left alone for a minute,
//!   twice as long each further time, at most an hour.
//! - The result of the search counts only while something presses. Otherwise the guest keeps its present cache. Once the
//!   commitment is kept it may have the rest back as comfort, from other guests' idle memory and from spare memory. The
//!   search is forgotten ten minutes after its last step.
//!
//! **Property.** A guest is never squeezed if its driver shows no signs of want. During its back-off, it is squeezed only if
//! the host is low.

use memtide_model::{Bytes, GuestState, HostState, Moment, Span, Squeeze};

use crate::demand::Demand;

/// The time of one step: the guest inflates for up to a second, settles for two and is watched for one.
const STEP_TAKES: Span = Span::from_secs(4);
/// A stall counts as a squeal for this long after a step.
const WATCHED: Span = Span::from_secs(20);
/// The first back-off after a squeal.
const FIRST_BACK_OFF: Span = Span::from_secs(60);
/// The longest back-off.
const LONGEST_BACK_OFF: Span = Span::from_secs(3600);
/// After this long without a step, the guest has all of its cache again.
const FORGOTTEN: Span = Span::from_secs(600);
/// The smallest step.
const LEAST_STEP: Bytes = Bytes::from_mib(16);

/// Applies the search so far: hears squeals, forgets old searches, and leaves the guest the cache that the search found.
/// Returns the cache given back and the back-off if the guest squealed.
pub fn listen(before: &GuestState, demand: &mut Demand, now: Moment) -> (Squeeze, Option<(Bytes, Span)>) {
    let mut squeeze = before.squeeze;
    let mut squealed = None;
    let watched = squeeze.stepped_at.is_some_and(|at| now.since(at) < WATCHED);
    if let (true, true, Some(good)) = (demand.stalls, watched, squeeze.good) {
        let back_off = squeeze.back_off.doubled().clamp(FIRST_BACK_OFF, LONGEST_BACK_OFF);
        squeeze = Squeeze {
            cache: Some(good),
            good: None,
            stepped_at: None,
            backs_off_until: Some(now.after(back_off)),
            back_off,
        };
        squealed = Some((good, back_off));
    } else if squeeze.stepped_at.is_some_and(|at| now.since(at) >= FORGOTTEN) {
        squeeze = Squeeze { back_off: squeeze.back_off, ..Squeeze::default() };
    }
    demand.cache = demand.cache_held.min(squeeze.cache.unwrap_or(Bytes::MAX));
    (squeeze, squealed)
}

/// The guest's page cache while nothing presses: all that it holds. Once the commitment `is_kept`, cache that the search
/// took without need comes back as comfort.
#[must_use]
pub fn before_the_search(squeeze: &Squeeze, demand: &Demand, is_kept: bool) -> Bytes {
    let found = squeeze.good.max(squeeze.cache).filter(|_| is_kept);
    demand.cache_held.max(found.unwrap_or_default())
}

/// Whether the guest may be squeezed further now.
#[must_use]
pub fn may_step(
    squeeze: &Squeeze,
    demand: &Demand,
    host: HostState,
    at_target: bool,
    urgent: bool,
    now: Moment,
) -> bool {
    let backs_off = squeeze.backs_off_until.is_some_and(|until| now < until) && host != HostState::Low;
    let due = urgent || (at_target && squeeze.stepped_at.is_none_or(|at| now.since(at) >= STEP_TAKES));
    let able = demand.shows_squeals() && !demand.cache.is_zero() && !demand.stalls;
    able && due && !backs_off
}

/// The part of its cache that a guest gives in a gentle step.
#[must_use]
pub fn gentle_step(demand: &Demand) -> Bytes {
    demand.cache.mul_div(1, 4).max(LEAST_STEP).min(demand.cache)
}

/// Takes `step` from the cache left to the guest. The size before is good if it was watched without a squeal. If steps
/// follow too quickly to be watched, the last good size stays.
pub fn take(squeeze: &mut Squeeze, demand: &mut Demand, step: Bytes, now: Moment) {
    let watched = squeeze.stepped_at.is_none_or(|at| now.since(at) >= STEP_TAKES);
    let good = squeeze.good.filter(|_| !watched).unwrap_or(demand.cache);
    squeeze.good = Some(good.max(demand.cache));
    demand.cache = demand.cache.saturating_sub(step);
    squeeze.cache = Some(demand.cache);
    squeeze.stepped_at = Some(now);
}
