//! The check's own record: it looks at each snapshot, and hears the answer to each action.
//!
//! **Terms.** Growth is a leaky sum of the rises of all costs, as the policy counts it. But the policy measures its reaction time. The check
//! does not: it counts with the shortest one where a plan must leave room, and with the longest one where a plan must have a reason.
//!
//! **Rules.**
//! - Only an accepted action is a write. After a write without a known result, the balloon may follow either target for `DOUBT`.
//! - A guest makes progress if it comes 1 MiB closer to its target. A guest that is drawn back to its present size makes none. The check only
//!   judges guests that have not moved away from their target since it was written. One that has is judged again once it has arrived, or is asked to move
//!   the other way.
//! - Somebody else moved a balloon if it inflated below its target and its last size, or deflated above them and may not do so by itself. A
//!   recent write, a reset, a guest that has just begun and memory hot-plug explain such a movement. The policy also judges movements of
//!   balloons that guests may deflate themselves; the check does not.
//! - A guest is content if more than a quarter of its memory and an eighth of its full size are free, it has room for the largest growth that the policy expects of it, and no
//!   counter of stalls, swapping or kills has moved.

use std::collections::BTreeMap;

use memtide_model::{
    AgentCounters, Answer, BalloonCounters, Bytes, Config, GuestId, GuestSeen, GuestStats, Hold, Keeps, Mode,
    Moment, Order, Plan, Reading, Request, Snapshot, Span, Surge, Witness, Witnessed,
};

/// A stall raises what a guest needs for this long; the policy may have heard of it one report later.
pub(super) const STALL_LASTS: Span = Span::from_secs(12);
/// A stall raises it by at least this much.
const LEAST_RAISE: Bytes = Bytes::from_mib(64);
/// Statistics made within this time of each other are the same ones.
const SAME: Span = Span::from_millis(20);
/// The possible error in the age of statistics: a driver makes them while its balloon moves.
const AGE_ERROR: Span = Span::from_millis(100);
/// The shortest time in which memory can come back, and the longest.
const SHORTEST: Span = Span::from_millis(500);
const LONGEST: Span = Span::from_secs(3);
/// The time constant of remembered growth.
const MEMORY: Span = Span::from_secs(600);
/// The longest time between two snapshots that counts as observed.
const OBSERVED: Span = Span::from_secs(10);
/// After a write without a known result, the balloon may follow it for this long.
pub(super) const DOUBT: Span = Span::from_secs(30);
/// After a write, the balloon may still follow the one before for this long.
const FOLLOWS: Span = Span::from_secs(2);
/// After a reset, movements explain nothing for this long.
pub(super) const RESET: Span = Span::from_secs(10);
/// A smaller step is no progress, and a smaller distance is none.
const STEP: Bytes = Bytes::from_mib(1);
/// A guest that comes no closer for this long does not follow its target.
pub(super) const DOES_NOT_FOLLOW: Span = Span::from_secs(5);
/// A guest that was stuck may be left out for this long.
pub(super) const DRAWN_BACK: Span = Span::from_secs(600);

/// Looks at a snapshot. Must be called before the check of a plan for it.
pub fn looks(witness: &mut Witness, config: &Config, seen: &Snapshot) {
    let now = seen.taken_at;
    let elapsed = witness.seen_at.map_or(Span::ZERO, |at| now.since(at)).min(OBSERVED);
    // What grew until the last snapshot falls with the next one: a decision may still count on all of it.
    let elapsed_before = std::mem::replace(&mut witness.elapsed, elapsed);
    let mut grown = match (witness.seen_at, &seen.host.missed) {
        (Some(_), None) => seen.host.lasting_other().saturating_sub(witness.other),
        _ => Bytes::ZERO,
    };
    look_at_ksm(witness, config, seen);
    keep_present(witness, seen);
    let mut deflated = Bytes::ZERO;
    for (guest, (_, witnessed)) in seen.guests.iter().zip(&mut witness.guests) {
        let mut orders = seen.orders.iter().filter(|order| order.guest == guest.id);
        let is_ordered = !seen.orders.is_empty() && obey(witnessed, &mut orders);
        witnessed.hold = witnessed.hold.filter(|hold| !hold.is_over(now));
        let footprint = guest.cost.footprint.fresh().copied();
        let by = match (witnessed.footprint, footprint) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => Bytes::ZERO,
        };
        witnessed.grown = fallen(witnessed.grown, elapsed, SHORTEST).saturating_add(by);
        grown = grown.saturating_add(by);
        witnessed.footprint = footprint.or(witnessed.footprint);
        look_at(witnessed, guest, elapsed.min(elapsed_before), now);
        deflated = deflated.saturating_add(deflated_itself_by(witnessed, guest, now));
        super::gain::look(witnessed, guest, now);
        let watches = config.mode == Mode::Manage && !is_ordered && witnessed.hold.is_none();
        if watches && is_foreign(config, guest, witnessed, now) {
            let keeps = Keeps::Foreign { from: witnessed.was, held_until: None };
            witnessed.hold = Some(Hold { keeps, until: None });
        }
        witnessed.plugged = guest.told.hotplug.latest().map(|plug| plug.plugged);
    }
    if seen.host.missed.is_none() {
        witness.other = seen.host.lasting_other();
    }
    witness.seen_at = Some(now);
    let surge = |before: Surge, within| {
        let recent = fallen(before.recent, elapsed, within).saturating_add(deflated);
        Surge { recent, peak: fallen(before.peak, elapsed, MEMORY).max(recent) }
    };
    witness.self_deflation = surge(witness.self_deflation, SHORTEST);
    witness.self_deflation_at_most = surge(witness.self_deflation_at_most, LONGEST);
    witness.growth = fallen(witness.growth, elapsed, SHORTEST).saturating_add(grown);
    let recent = fallen(witness.surge.recent, elapsed_before, LONGEST).saturating_add(grown);
    witness.surge = Surge { recent, peak: fallen(witness.surge.peak, elapsed, MEMORY).max(recent) };
}

/// Hears the answers of a plan for the snapshot that it has looked at last. Actions without an answer were not tried.
pub fn hears(witness: &mut Witness, seen: &Snapshot, plan: &Plan, answers: &[Answer]) {
    let now = seen.taken_at;
    for (action, answer) in plan.actions.iter().zip(answers) {
        if let (Request::Merge(order), Some(ksm)) = (action.request, seen.host.ksm.fresh()) {
            let after = Some(order.after(ksm.settings));
            match answer {
                Answer::Accepted | Answer::Yielded(_) => {
                    (witness.ksm_written, witness.ksm_tried) = (after, None)
                }
                Answer::Failed(_) => witness.ksm_tried = after,
                Answer::Refused => {}
            }
        }
        let Some(id) = action.guest() else { continue };
        let (Some(witnessed), Some(guest)) = (witness.guests.get_mut(id), seen.guest(id)) else { continue };
        let target = match action.request {
            Request::SetTarget(target) => target,
            Request::Split => {
                if *answer != Answer::Refused {
                    witnessed.split_at = Some(now);
                }
                continue;
            }
            Request::Agent(_) => {
                if *answer != Answer::Refused {
                    witnessed.agent_asked_at = Some(now);
                }
                continue;
            }
            Request::PollStats(_) => {
                witnessed.is_polled |= matches!(answer, Answer::Accepted | Answer::Yielded(_));
                continue;
            }
            Request::Reclaim(_) | Request::Merge(_) | Request::Share(_) | Request::Tier(_) => continue,
        };
        match answer {
            Answer::Accepted | Answer::Yielded(_) => {
                super::gain::write(witnessed, guest, target);
                write(witnessed, guest, target, now);
            }
            Answer::Failed(_) => {
                (witnessed.doubted_at, witnessed.failed_at) = (Some(now), Some(now));
                end_foreign(witnessed);
            }
            Answer::Refused => {}
        }
    }
}

/// Whose settings of KSM are these? What a former run wrote may have been put back meanwhile.
fn look_at_ksm(witness: &mut Witness, config: &Config, seen: &Snapshot) {
    if !config.governs_ksm() {
        (witness.ksm_written, witness.ksm_tried, witness.ksm_is_anothers) = (None, None, false);
    }
    let Some(ksm) = seen.host.ksm.fresh() else { return };
    if witness.ksm_tried.is_some_and(|tried| tried.are(ksm.settings)) {
        witness.ksm_written = witness.ksm_tried.take();
    }
    let is_first = !std::mem::replace(&mut witness.ksm_seen, true);
    if witness.ksm_written.is_some_and(|written| !written.are(ksm.settings)) {
        if is_first {
            witness.ksm_written = None;
        } else {
            witness.ksm_is_anothers = true;
        }
    }
}

/// The lasting part of a record, for a run that begins at `now`. Writes of the last tick may be missing.
#[must_use]
pub fn lasting(witness: Witness, now: Moment) -> Witness {
    let guests = witness.guests.into_iter().map(|(id, guest)| {
        let lasting = Witnessed {
            footprint: None,
            grown: Bytes::ZERO,
            grew: Bytes::ZERO,
            content_since: None,
            tries_since: None,
            doubted_at: Some(now),
            failed_at: None,
            is_polled: false,
            ..guest
        };
        (id, lasting)
    });
    let surge = Surge { recent: Bytes::ZERO, peak: witness.surge.peak };
    let deflation = Surge { recent: Bytes::ZERO, peak: witness.self_deflation_at_most.peak };
    Witness {
        surge,
        self_deflation_at_most: deflation,
        ksm_written: witness.ksm_written,
        ksm_tried: witness.ksm_tried,
        ksm_is_anothers: witness.ksm_is_anothers,
        guests: guests.collect(),
        ..Witness::default()
    }
}

/// Forgets the guests that are gone, and begins with new ones: afterwards, the record has the guests of the snapshot in their order.
fn keep_present(witness: &mut Witness, seen: &Snapshot) {
    let same = witness.guests.len() == seen.guests.len()
        && witness.guests.keys().zip(&seen.guests).all(|(id, guest)| *id == guest.id);
    if same {
        return;
    }
    let mut before = std::mem::take(&mut witness.guests);
    let known = |guest: &GuestSeen| -> (GuestId, Witnessed) {
        let new = || Witnessed { actual: guest.actual(), ..Witnessed::default() };
        before.remove_entry(&guest.id).unwrap_or_else(|| (guest.id.clone(), new()))
    };
    witness.guests = seen.guests.iter().map(known).collect::<BTreeMap<_, _>>();
}

/// The last order about a guest counts. Returns whether there is one.
fn obey<'a>(witnessed: &mut Witnessed, orders: &mut impl Iterator<Item = &'a Order>) -> bool {
    use memtide_model::Ordered;
    let ordered = orders.filter_map(|order| match order.ordered {
        Ordered::Leave(hold) => Some(Some(hold)),
        Ordered::Manage => Some(None),
        Ordered::Reclaim(_) | Ordered::Trim(_) | Ordered::Fetch(_) => None,
    });
    let last = ordered.last();
    if let Some(hold) = last {
        witnessed.hold = hold;
    }
    last.is_some()
}

fn look_at(witnessed: &mut Witnessed, guest: &GuestSeen, elapsed: Span, now: Moment) {
    (witnessed.was, witnessed.actual) = (witnessed.actual, guest.actual());
    if matches!(witnessed.hold, Some(Hold { keeps: Keeps::Foreign { .. }, .. })) {
        // The target of memtide is void. At the snapshot that shows the movement, it counts for the last time.
        (witnessed.target, witnessed.tries_since) = (None, None);
    }
    if guest.told.reset {
        (witnessed.reset_at, witnessed.told_since, witnessed.hardships) = (Some(now), None, [None; 2]);
    }
    let keeps = witnessed.actual;
    if keeps != witnessed.was {
        witnessed.moved_at = Some(now);
    }
    let deflated_itself = !deflated_itself_by(witnessed, guest, now).is_zero();
    if deflated_itself {
        stall(witnessed, now);
    }
    let asked = witnessed.target.filter(|_| guest.has_driver()).unwrap_or(keeps).min(guest.told.full);
    follow(witnessed, keeps.abs_diff(asked), guest.told.fence.is_some(), now);
    let stats = guest.told.stats.fresh().filter(|_| guest.has_driver());
    let Some((stats, available)) = stats.and_then(|stats| Some((stats, stats.available?))) else {
        witnessed.content_since = None;
        return;
    };
    let was_reset = witnessed.reset_at.is_some_and(|at| now.since(at) < RESET);
    let used = if was_reset { guest.told.full } else { keeps }.saturating_sub(available);
    let least = keeps
        .min(witnessed.was)
        .saturating_sub(available)
        .min(super::gain::backed(guest).unwrap_or(Bytes::MAX));
    let made = made_at(&guest.told.stats, now);
    let is_same = witnessed.made_at.is_some_and(|at| made.since(at) <= SAME);
    let rise = used.saturating_sub(witnessed.used);
    witnessed.grew = match witnessed.told_since {
        None => Bytes::ZERO,
        Some(_) if is_same => witnessed.grew.max(rise),
        Some(_) => fallen(witnessed.grew, elapsed, LONGEST).saturating_add(rise),
    };
    // The same statistics tell nothing new of a balloon that has moved.
    witnessed.used = if is_same { least.min(witnessed.used) } else { least };
    witnessed.made_at = Some(made);
    let moves = witnessed.moved_at.is_some_and(|at| at.after(AGE_ERROR) >= made);
    let most = keeps.max(witnessed.was).saturating_sub(available);
    // The first statistics are of another kernel than what was known.
    (witnessed.uses_at_least, witnessed.uses_at_most) = match moves && witnessed.told_since.is_some() {
        true => (least.min(witnessed.uses_at_least), most.max(witnessed.uses_at_most)),
        false => (least, most),
    };
    witnessed.told_since = witnessed.told_since.or(Some(now));
    let is_new = witnessed.told_since == Some(now);
    let agent = guest.told.agent.fresh().map(|agent| agent.counters);
    let hardships =
        [Some(BalloonCounters::from(stats).hardships()), agent.as_ref().map(AgentCounters::hardships)];
    // They fall only if somebody lies: the policy hears the lie counter by counter.
    let stalls = differs(hardships, &mut witnessed.hardships, |now, before| now != before) && !is_new;
    if stalls {
        stall(witnessed, now);
    }
    let full = guest.told.full;
    let left = available.saturating_add(asked.saturating_sub(keeps));
    let growth = full.mul_div(1, 32).clamp(Bytes::from_mib(16), Bytes::from_mib(512));
    let has_plenty = stats.free.is_some_and(|free| free > keeps.mul_div(1, 4).max(full.mul_div(1, 8)))
        && left > growth.saturating_add(full.mul_div(1, 4))
        && !(stalls || deflated_itself);
    let kills = [stats.oom_kills, agent.map(|agent| agent.oom_kills)];
    if differs(kills, &mut witnessed.killed, |now, before| now > before) && !is_new {
        witnessed.killed_at = Some(now);
    }
    witnessed.content_since = witnessed.content_since.or(Some(now)).filter(|_| has_plenty);
}

/// A stall may raise what a guest needs, for a while.
fn stall(witnessed: &mut Witnessed, now: Moment) {
    let held = witnessed.target.unwrap_or_default().max(witnessed.actual);
    let size = held.saturating_add(held.mul_div(1, 4).max(LEAST_RAISE));
    let before = witnessed.raised.filter(|(_, at)| now.since(*at) < STALL_LASTS);
    witnessed.raised = Some((before.map_or(size, |(before, _)| before.max(size)), now));
}

/// Whether a counter is not what it was `before`, which is then as now. One that is not told stays as it was.
fn differs(now: [Option<u64>; 2], before: &mut [Option<u64>; 2], counts: impl Fn(u64, u64) -> bool) -> bool {
    let mut any = false;
    for (now, before) in now.into_iter().zip(before) {
        any |= now.zip(*before).is_some_and(|(now, before)| counts(now, before));
        *before = now.or(*before);
    }
    any
}

/// When statistics were made.
fn made_at(stats: &Reading<GuestStats>, now: Moment) -> Moment {
    let age = if let Reading::Fresh { age, .. } = stats { *age } else { Span::ZERO };
    now.before(age)
}

/// Follows a guest's progress towards its target. A guest that moves away from it obeys somebody else, or itself.
fn follow(witnessed: &mut Witnessed, distance: Bytes, is_fenced: bool, now: Moment) {
    let Some(since) = witnessed.tries_since else { return };
    if distance <= STEP {
        // It was drawn back if it had no distance before either.
        let was_drawn_back = witnessed.distance.is_zero() && now.since(since) < DRAWN_BACK;
        witnessed.tries_since = Some(since).filter(|_| was_drawn_back);
        witnessed.distance = Bytes::ZERO;
    } else if distance > witnessed.distance.saturating_add(STEP) {
        witnessed.tries_since = None;
    } else if is_fenced {
        witnessed.tries_since = Some(now);
    } else if distance.saturating_add(STEP) <= witnessed.distance {
        (witnessed.tries_since, witnessed.distance) = (Some(now), distance);
    } else if now.since(since) >= DOES_NOT_FOLLOW {
        witnessed.stuck_at = Some(now);
    }
}

/// An accepted write.
fn write(witnessed: &mut Witnessed, guest: &GuestSeen, target: Bytes, now: Moment) {
    let keeps = witnessed.actual;
    let distance = keeps.abs_diff(target);
    if distance <= STEP.max(guest.capabilities.step.bytes()) {
        // A target that follows a guest which has just moved is no lack of progress.
        witnessed.tries_since = witnessed.tries_since.filter(|since| now.since(*since) >= DOES_NOT_FOLLOW);
        witnessed.distance = Bytes::ZERO;
    } else if witnessed.target != Some(target) {
        let asked = witnessed.target.unwrap_or(keeps);
        let same_way = (target > keeps) == (asked > keeps);
        let goes_on = !witnessed.distance.is_zero() && same_way;
        // One that has moved away from its last target is not judged before it has arrived.
        let is_away = witnessed.tries_since.is_none() && keeps.abs_diff(asked) > STEP && same_way;
        let since = witnessed.tries_since.filter(|_| goes_on);
        witnessed.tries_since = since.or((!is_away).then_some(now));
        witnessed.distance = distance;
    }
    (witnessed.target, witnessed.written_at) = (Some(target), Some(now));
    end_foreign(witnessed);
}

/// The check let a target be written: a hold for a foreign movement has ended.
fn end_foreign(witnessed: &mut Witnessed) {
    witnessed.hold = witnessed.hold.filter(|hold| !matches!(hold.keeps, Keeps::Foreign { .. }));
}

/// What a guest took by deflating its own balloon since the last snapshot. A size that was not told before is no deflation.
fn deflated_itself_by(witnessed: &Witnessed, guest: &GuestSeen, now: Moment) -> Bytes {
    let asked = witnessed.target.unwrap_or(witnessed.was).max(witnessed.was);
    let is_new = witnessed.told_since.is_none_or(|since| since == now);
    let is_same = witnessed.gain.full == guest.told.full && !guest.told.reset;
    let is_known = guest.deflates_itself() && !is_new && is_same;
    if is_known { witnessed.actual.saturating_sub(asked) } else { Bytes::ZERO }
}

/// Whether somebody else must have moved the guest's balloon since the last snapshot.
fn is_foreign(config: &Config, guest: &GuestSeen, witnessed: &Witnessed, now: Moment) -> bool {
    let Some(balloon) = guest.told.balloon.fresh() else { return false };
    let band = guest.told.full.mul_div(1, 64).clamp(Bytes::from_mib(8), Bytes::from_mib(256));
    let (keeps, was) = (witnessed.actual, witnessed.was);
    let asked = witnessed.target.unwrap_or(was);
    let inflated = keeps.saturating_add(band) < asked.min(was);
    let deflated = keeps > asked.max(was).saturating_add(band) && !balloon.deflate_on_oom;
    if !(inflated || deflated) {
        return false;
    }
    let lately = |at: Option<Moment>, within: Span| at.is_some_and(|at| now.since(at) < within);
    let is_ours = guest.capabilities.can_be_set
        && guest.told.fence.is_none()
        && !guest.told.reset
        && config.class_of_seen(guest).1.manage;
    let is_explained = witnessed.told_since.is_none_or(|since| since == now)
        || lately(witnessed.written_at, FOLLOWS)
        || lately(witnessed.doubted_at, DOUBT)
        || lately(witnessed.reset_at, RESET)
        || witnessed.plugged != guest.told.hotplug.latest().map(|plug| plug.plugged);
    is_ours && !is_explained
}

/// `bytes` after falling for `elapsed`, with the time constant `constant`.
fn fallen(bytes: Bytes, elapsed: Span, constant: Span) -> Bytes {
    let (constant, elapsed) = (constant.as_millis(), elapsed.as_millis());
    bytes.mul_div(constant.saturating_sub(elapsed), constant)
}
