//! Stage 3: the step towards the entitlement now.
//!
//! **Terms.** *Wanted* memory is the commitment's lack plus the guests' lack beyond spare memory. It is *urgent* if a guest in
//! want (it stalls, or takes memory that it does not have), or a guest that cannot report stalls, cannot be granted it now; or if
//! the host is hard or low and not covered. *Pressing* memory (GLOSSARY.md) is worth page cache; the rest of the wanted memory is
//! worth idle memory only. Headroom of a quiet guest can wait. Both are judged for each guest over the others: no guest gives
//! for its own lack.
//!
//! **Rule.**
//! - A guest grows to its demand and its reservation at once, within its entitlement; on an ample host to its limit.
//! - A guest shrinks only while memory is wanted or while it is over its limit. Except in the cases below, it never shrinks below
//!   its entitlement. The guest that holds most beyond it gives first. Memory under way already counts. Without urgency, a guest
//!   gives at most 1/8 of its size a second.
//! - A guest that grows, and will soon need all that it holds, is asked for nothing without urgency. The rest of an earlier
//!   request is left to it: inflation takes its CPU time while it works, and the memory would have to be granted again. A guest
//!   whose statistics have just begun is not asked without urgency either.
//! - Memory wanted ahead (before the tide comes, or for kept room) comes without haste. In an elastic commitment, guests give no
//!   more than they have touched and do not need.
//! - A lack beyond used memory and headroom is comfort: it waits 5 s after the guest's last change.
//! - Every step starts from the pending target, not from the lagging actual. A difference within the dead band is left alone,
//!   unless a strict commitment is not kept or a guest waits for memory.
//! - If a guest was reset, or deflated its own balloon and no longer uses the memory, its target is written again: drivers look
//!   at it only then. If the guest uses the memory, an elastic target follows.
//! - In an emergency (host low and not covered), memory comes at full speed: down to used memory, and page cache as far as it is
//!   pressing. Guests with the fewest shares per byte held give first. Guests that lack memory or will use all that they
//!   hold give only once the others have nothing left. A guest that is growing keeps its touched memory. Meanwhile no demand is
//!   granted.
//!
//! **Property.** If nothing is wanted and no demand is above its target, nothing is changed.

use memtide_model::{Bytes, Commitment, Hold, HostState, Keeps, Moment, PAGE_4K, Reason, Span, Verdict};

use crate::demand::{RESET_SETTLES, dead_band};
use crate::guest::Guest;
use crate::ledger::Entry;
use crate::scene::Scene;
use crate::stuck::{self, TOLERANCE};

/// Without urgency, a guest gives at most one part in this many of its size a second.
const GENTLE_PART: u64 = 8;
/// In an emergency, a guest keeps this much beyond its used memory.
const EMERGENCY_HEADROOM: Bytes = Bytes::from_mib(16);
/// Comfort (page cache) is granted at the earliest this long after a change, so that guests do not take turns.
const COMFORT_WAITS: Span = Span::from_secs(5);
/// If a guest that deflated its own balloon does not follow its target, the target is written again after this time.
const WRITTEN_AGAIN: Span = Span::from_secs(2);

/// A target that a guest should get, if there is memory for it.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The index of the guest.
    pub index: usize,
    /// The size that it should keep.
    pub target: Bytes,
    /// The reason.
    pub reason: Reason,
    /// It cannot wait.
    pub urgent: bool,
}

/// The changes that would be right now, at most one for each guest.
#[must_use]
pub fn wishes(scene: &Scene, guests: &[Guest<'_>]) -> Vec<Wish> {
    let mut wishes = shrinks(scene, guests);
    let mut shrinking = vec![false; guests.len()];
    for wish in &wishes {
        shrinking[wish.index] = true;
    }
    let others = (0..guests.len()).filter(|i| !shrinking[*i]);
    wishes.extend(others.filter(|i| guests[*i].hold_ends.is_none()).filter_map(|index| {
        let guest = &guests[index];
        let wish = if guest.is_managed() { grow_or_repeat(scene, guest, index) } else { stop(guest, index) };
        // A guest that keeps more than its target, perhaps at somebody else's request, is asked for nothing: a new target would
        // look like the cause.
        wish.filter(|_| guest.next.lifted_at.is_none())
    }));
    holds_end(guests, &mut wishes);
    wishes
}

/// If a guest's hold ends, its target is written from its present size. The guest grows at the next decision at the earliest.
fn holds_end(guests: &[Guest<'_>], wishes: &mut Vec<Wish>) {
    for (index, guest) in guests.iter().enumerate() {
        let Some((_, lacks)) = guest.hold_ends else { continue };
        let reason = Reason::HoldEnds { lacks };
        match wishes.iter_mut().find(|wish| wish.index == index) {
            Some(wish) => wish.reason = reason,
            None => {
                let target = guest.entry.actual.round_down(guest.step());
                wishes.push(Wish { index, target, reason, urgent: false });
            }
        }
    }
}

/// A held guest stops giving at its present size.
fn stop(guest: &Guest<'_>, index: usize) -> Option<Wish> {
    let Some(Verdict::Held(Hold { keeps: Keeps::Size, .. })) = guest.left_alone else { return None };
    let Entry { target, actual, .. } = guest.entry;
    let keeps = actual.round_down(guest.step());
    let wish = Wish { index, target: keeps, reason: Reason::Held { target }, urgent: false };
    (target.saturating_add(TOLERANCE) < keeps).then_some(wish)
}

fn grow_or_repeat(scene: &Scene, guest: &Guest<'_>, index: usize) -> Option<Wish> {
    let entry = &guest.entry;
    let wish = |target, reason, urgent| Some(Wish { index, target, reason, urgent });
    if entry.target > entry.actual && stuck::is_stuck(&guest.next.stuck, scene.now) {
        let since = guest.next.stuck.progress_at.map_or(Span::ZERO, |at| scene.now.since(at));
        let reason = Reason::StuckAt { target: entry.target, actual: entry.actual, since };
        return wish(entry.actual, reason, false);
    }
    let limit = guest.bounds.limit();
    let over = entry.target.saturating_sub(limit).min(gentle(guest, scene.now));
    if over > TOLERANCE && guest.is_donor(scene.now) {
        let target = entry.target.saturating_sub(over);
        return wish(target.round_down(guest.step()), Reason::OverLimit { limit }, false);
    }
    let keeps = entry.actual.round_down(guest.step());
    let reset_lately = guest.before.reset_at.is_some_and(|at| scene.now.since(at) < RESET_SETTLES);
    let demand = guest.bounds.clamp(guest.demand.total());
    let ahead = guest.granted_ahead();
    let goal =
        if scene.ample { guest.entitlement } else { guest.entitlement.min(demand.saturating_add(ahead)) };
    let below = entry.target.saturating_add(dead_band(guest.seen.told.full)) < goal;
    let is_asked = entry.target.saturating_add(TOLERANCE) < keeps && entry.actual <= guest.before.actual;
    let will_get_more = below && guest.starves();
    let hurry = scene.is_urgent_for(guest) || will_get_more;
    if is_asked && keeps <= limit && !reset_lately && !hurry && guest.needs_all_soon {
        let reason = Reason::Grows { target: entry.target, growth: guest.next.surge.recent };
        return wish(keeps, reason, false);
    }
    let firm = guest.lacks_firmly() || guest.squeal.is_some();
    let waited = guest.before.target_set_at.is_none_or(|at| scene.now.since(at) >= COMFORT_WAITS);
    let patient = (firm || waited) && !scene.emergency;
    if guest.is_released() && below && !guest.is_stuck(scene.now) {
        return wish(goal.round_down(guest.step()), Reason::Release, false);
    }
    if guest.demand.used.is_some() && below && patient && !guest.is_stuck(scene.now) {
        let entitlement = guest.entitlement;
        let reason = match (scene.ample, guest.demand.stalls, guest.squeal) {
            (_, _, Some((cache, back_off))) => Reason::Squeal { cache, back_off },
            (_, true, _) => Reason::Stall { had: entry.held, demand, entitlement },
            (true, ..) => Reason::Ample { room: scene.ledger.room.spare },
            _ => Reason::Demand { used: guest.demand.used.unwrap_or_default(), demand, entitlement },
        };
        return wish(goal.round_down(guest.step()), reason, guest.cannot_wait());
    }
    guest.before.target?;
    let target = entry.target;
    let away = entry.actual > target.saturating_add(TOLERANCE);
    let lately = guest.before.target_set_at.is_some_and(|at| scene.now.since(at) < WRITTEN_AGAIN);
    let moving = entry.actual < guest.before.actual;
    if away && reset_lately && !moving && !lately {
        return wish(target, Reason::Reset { actual: entry.actual }, false);
    }
    // Memory that the guest took and uses cannot come back: a new write of the target would only make it thrash, and the old
    // target in its driver does so already. A strict commitment did not grant this memory, so its target does not follow.
    let needs_it = guest.demand.stalls || guest.demand.firm() > target;
    let uses_it = guest.demand.used.is_some_and(|used| used > target);
    let far = target.saturating_add(dead_band(guest.seen.told.full)) < keeps && keeps <= limit;
    if scene.commitment == Commitment::Elastic && far && uses_it && guest.deflates_itself() {
        return wish(keeps, Reason::SelfDeflation { target, actual: entry.actual }, false);
    }
    if away && guest.deflates_itself() && !moving && !lately && !needs_it {
        return wish(target, Reason::SelfDeflation { target, actual: entry.actual }, false);
    }
    None
}

fn shrinks(scene: &Scene, guests: &[Guest<'_>]) -> Vec<Wish> {
    if scene.emergency {
        return emergency(scene, guests);
    }
    let under_way = Bytes::sum(
        guests
            .iter()
            .filter(|guest| {
                guest.is_donor(scene.now) && (scene.is_urgent_for(guest) || !guest.needs_all_soon)
            })
            .map(|guest| guest.entry.held.saturating_sub(guest.entry.target)),
    );
    let left = scene.wanted.saturating_sub(under_way);
    let ahead = scene.ledger.ahead.saturating_sub(under_way.saturating_sub(scene.wanted));
    if left.is_zero() {
        return shrinks_ahead(scene, guests, ahead);
    }
    let donors = (0..guests.len()).filter(|i| scene.may_ask(&guests[*i]));
    let floors = donors.map(|i| (i, guests[i].entitlement));
    shrink_to(floors, scene, guests, left, Asked::Now)
}

/// If nothing is wanted now, memory wanted ahead comes without haste, down to the guests' need.
fn shrinks_ahead(scene: &Scene, guests: &[Guest<'_>], left: Bytes) -> Vec<Wish> {
    let donors = (0..guests.len()).filter(|i| gives_ahead(scene, &guests[*i]));
    let floors = donors.map(|i| {
        let guest = &guests[i];
        match scene.commitment {
            Commitment::Strict => (i, guest.entitlement),
            Commitment::Elastic => {
                (i, guest.keeps_to_give(Bytes::MAX, guest.bounds.clamp(guest.demand.lean())))
            }
        }
    });
    shrink_to(floors, scene, guests, left, Asked::Ahead)
}

/// The kind of memory that guests are asked for.
#[derive(Clone, Copy)]
enum Asked {
    /// Memory that is wanted now.
    Now,
    /// Memory that is wanted ahead.
    Ahead,
}

impl Asked {
    /// All memory wanted of `guest`, and whether it is urgent.
    fn of(self, scene: &Scene, guest: &Guest<'_>) -> (Bytes, bool) {
        match self {
            Self::Now => (scene.wanted_of(guest), scene.is_urgent_for(guest)),
            Self::Ahead => (scene.ledger.ahead, false),
        }
    }
}

/// The next step of each guest down to its floor, until nothing is `left` to find. The guest that holds most beyond its floor
/// comes first.
fn shrink_to(
    floors: impl Iterator<Item = (usize, Bytes)>,
    scene: &Scene,
    guests: &[Guest<'_>],
    mut left: Bytes,
    asked: Asked,
) -> Vec<Wish> {
    if left.is_zero() {
        return Vec::new();
    }
    let all = floors.map(|(i, floor)| (guests[i].entry.target.saturating_sub(floor), i));
    let (mut donors, slivers): (Vec<(Bytes, usize)>, Vec<_>) =
        all.partition(|(gives, i)| *gives >= least_worth(scene, &guests[*i]));
    let sum = |donors: &[(Bytes, usize)]| Bytes::sum(donors.iter().map(|(gives, _)| *gives));
    let to_the_sliver = needs_slivers(scene, left, sum(&donors), sum(&slivers));
    if to_the_sliver {
        donors.extend(slivers.into_iter().filter(|(gives, _)| *gives > TOLERANCE));
    }
    donors.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut wishes = Vec::new();
    for (gives, index) in donors {
        if left.is_zero() {
            break;
        }
        let guest = &guests[index];
        // At least the dead band: a sliver is not worth a change, and the wanted memory must be found.
        let (wanted, urgent) = asked.of(scene, guest);
        let gives = gives.min(left.min(wanted).max(dead_band(guest.seen.told.full)));
        let paced = if urgent { gives } else { gives.min(gentle(guest, scene.now)) };
        left = left.saturating_sub(gives);
        if to_the_sliver || paced >= least_worth(scene, guest) {
            let target = guest.entry.target.saturating_sub(paced).round_down(guest.step());
            let target = target.max(guest.bounds.reservation());
            wishes.push(Wish { index, target, reason: why_shrink(guest, wanted), urgent });
        }
    }
    wishes
}

/// Whether a guest gives memory that is wanted ahead.
fn gives_ahead(scene: &Scene, guest: &Guest<'_>) -> bool {
    guest.may_give(scene.now, false) && guest.demand.used.is_some()
}

/// The smallest change of a guest that is worth making: a page while a strict commitment is not kept.
fn least_worth(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    let broken = scene.commitment == Commitment::Strict && !scene.ledger.room.short.is_zero();
    if broken { PAGE_4K.bytes() } else { dead_band(guest.seen.told.full) }
}

/// Whether slivers (less than is worth a change) are needed, and suffice, for guests that wait for memory: `others` give too
/// little of the memory that is `left` to find.
fn needs_slivers(scene: &Scene, left: Bytes, others: Bytes, slivers: Bytes) -> bool {
    let gap = left.saturating_sub(others);
    scene.waits_beyond.is_some_and(|beyond| gap > beyond && gap <= slivers.saturating_add(beyond))
}

fn why_shrink(guest: &Guest<'_>, wanted: Bytes) -> Reason {
    let demand = guest.demand.lean();
    let idle = guest.entry.target.saturating_sub(demand);
    if guest.squeezed {
        return Reason::SqueezeStep { cache: guest.demand.cache, demand, wanted };
    }
    if guest.demand.used.is_none() {
        return Reason::OverShare { entitlement: guest.entitlement, short: wanted };
    }
    if idle.is_zero() {
        return Reason::OverEntitlement { entitlement: guest.entitlement, demand, short: wanted };
    }
    Reason::IdleMemory { idle, demand, wanted }
}

/// The memory that a guest may give without urgency since its target was last written.
fn gentle(guest: &Guest<'_>, now: Moment) -> Bytes {
    let second = Span::from_secs(1).as_millis();
    let waited = guest.before.target_set_at.map_or(second, |at| now.since(at).as_millis().min(second));
    guest.seen.told.full.mul_div(waited, second * GENTLE_PART)
}

fn emergency(scene: &Scene, guests: &[Guest<'_>]) -> Vec<Wish> {
    let mut donors: Vec<usize> = (0..guests.len()).filter(|i| guests[*i].is_donor(scene.now)).collect();
    // The fewest shares per byte first: a.shares / a.held < b.shares / b.held, multiplied out.
    let weight =
        |i: usize, j: usize| u128::from(guests[i].class.shares) * u128::from(guests[j].entry.held.get());
    donors.sort_by(|&a, &b| weight(a, b).cmp(&weight(b, a)).then(a.cmp(&b)));
    // Guests that will use all that they hold come last: taking it would hurt, and their own deflation would undo it.
    donors.sort_by_key(|&i| guests[i].demand.firm() > guests[i].entry.held);
    // All wanted memory is worth idle memory; only the pressing rest is worth page cache.
    let idle =
        |guest: &Guest<'_>| guest.idle_touched(emergency_floor(guest).saturating_add(guest.demand.cache));
    let mut left = scene.wanted;
    let mut presses = scene.pressing().saturating_sub(Bytes::sum(donors.iter().map(|&i| idle(&guests[i]))));
    // The index of each donor, its new size, and its smallest possible size.
    let mut sizes: Vec<(usize, Bytes, Bytes)> = Vec::new();
    for index in donors {
        let guest = &guests[index];
        let floor = emergency_floor(guest);
        // Taking untouched memory frees nothing.
        let wanted = left.min(scene.wanted_of(guest));
        let beyond = guest.idle_touched(floor).saturating_sub(idle(guest));
        let cache = beyond.min(presses).min(wanted.saturating_sub(idle(guest)));
        let gives = idle(guest).min(wanted).saturating_add(cache);
        let mut target = guest.keeps_to_give(gives, floor);
        left = left.saturating_sub(gives);
        presses = presses.saturating_sub(cache);
        if guest.next.surge.recent > TOLERANCE {
            // A growing guest would take the memory that others give.
            target = target.min(guest.entry.touched());
        }
        sizes.push((index, target.max(floor), floor));
    }
    if scene.commitment == Commitment::Strict {
        take_untouched(scene.wanted, guests, &mut sizes);
    }
    let wishes = sizes.into_iter().filter_map(|(index, size, floor)| {
        let target = size.round_down(guests[index].step());
        let reason = Reason::Emergency { state: HostState::Low, free: scene.ledger.free(), floor };
        let less = target.saturating_add(TOLERANCE) < guests[index].entry.target;
        less.then_some(Wish { index, target, reason, urgent: true })
    });
    wishes.collect()
}

/// The smallest size of a guest in an emergency.
fn emergency_floor(guest: &Guest<'_>) -> Bytes {
    match guest.demand.used {
        Some(used) => used.saturating_add(EMERGENCY_HEADROOM).max(guest.bounds.reservation()),
        None => guest.entitlement,
    }
}

/// If the guests do not give enough for a strict commitment, shrinks them down to their entitlement: they can still take their
/// untouched memory without asking.
fn take_untouched(wanted: Bytes, guests: &[Guest<'_>], sizes: &mut [(usize, Bytes, Bytes)]) {
    let gives = |index: usize, size: Bytes| guests[index].entry.held.saturating_sub(size);
    let given = Bytes::sum(sizes.iter().map(|(index, size, _)| gives(*index, *size)));
    let mut left = wanted.saturating_sub(given);
    for (index, size, floor) in sizes {
        let more = size.saturating_sub(guests[*index].entitlement.max(*floor)).min(left);
        *size = size.saturating_sub(more);
        left = left.saturating_sub(more);
    }
}
