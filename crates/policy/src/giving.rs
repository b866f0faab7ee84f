//! Who gives wanted memory, and which.
//!
//! **Rule.** Memory comes in this order:
//! 1. *idle* memory: the guest that holds most gives first. Elastic, urgently: also free memory in small pieces, which free page reporting never
//!    returns, from as many guests as it takes. It is not counted on: others give as if it did not come;
//! 2. page cache that its guest was not seen to need. Urgently: from all guests at once, in proportion to what is likely to be cold
//!    ([`crate::activity`]), except shares that are not worth a step; then needed cache, too, for
//!    used memory that others lack, or in an emergency. Else: from one guest at a time, in steps that are watched ([`crate::search`]); as long as
//!    others lack only page cache, and the commitment is kept, not from its fair share;
//! 3. for used memory that others lack: the page cache that its kernel does not call available, once no other is left; then
//!    memory beyond the fair share.
//!
//! Memory under way already counts. Memory that splits of torn huge pages should return counts, too, but not against idle memory
//! ([`crate::split`]). A guest that lacks memory itself gives nothing. Without urgency, a guest gives at most 1/8 of its size
//! a second, in one step: inflation takes its CPU time, and each target is work. In an emergency, headroom shrinks to 16 MiB, and no share
//! keeps page cache. If no guest lacks memory in use, memtide waits for the first statistics of all guests: otherwise those that report first
//! would give for the others, too. Guests that report freed memory are asked for idle memory only as far as it is urgent. Growing guests are
//! not asked if nothing is urgent.
//!
//! **Property.** If nothing is wanted, nobody gives.

use std::cmp::Reverse;

use memtide_model::{Bytes, Commitment, HostState, Moment, Reason, Taken};

use crate::constants::{GENTLE, GENTLE_EVERY, HURT_PAUSE, LEAST_HEADROOM, LEAST_STEP, PIECES, TOLERANCE};
use crate::guest::Guest;
use crate::scene::Scene;
use crate::wish::Wish;
use crate::{activity, agent, probe, search};

/// A guest that can give.
struct Donor {
    index: usize,
    /// The size that it was asked to keep so far.
    from: Bytes,
    /// The size that it should keep.
    size: Bytes,
    /// The cache that it keeps.
    cache: Bytes,
    /// Its idle memory.
    idle: Bytes,
    /// Free memory in small pieces that it gives.
    pieces: Bytes,
    /// The most that it can be counted on to give now.
    counts: Bytes,
    urgent: bool,
}

/// The shrinks that are right now. Notes the steps of the search in the guests.
pub fn give(scene: &Scene, guests: &mut [Guest<'_>]) -> Vec<Wish> {
    let wanted = scene.wanted();
    let can_wait = scene.wanted_for_use().is_zero() && !scene.emergency;
    if wanted.is_zero() || (can_wait && guests.iter().any(|guest| guest.is_awaited(scene.now))) {
        return Vec::new();
    }
    let under_way = Bytes::sum(
        guests.iter().filter(|guest| guest.is_donor(scene.now)).map(|guest| under_way(scene, guest)),
    );
    let mut left = Left {
        all: wanted.saturating_sub(under_way),
        for_use: scene.wanted_for_use().saturating_sub(under_way),
        for_used: scene.wanted_for_used().saturating_sub(under_way),
        urgent: scene.urgent().saturating_sub(under_way),
        over: scene.over().saturating_sub(under_way),
    };
    if left.all.is_zero() {
        return Vec::new();
    }
    // An inflation slows a guest down while it grows.
    let may_grow = |guest: &Guest<'_>| can_wait && scene.urgent().is_zero() && guest.takes_more();
    let gives =
        |guest: &Guest<'_>| guest.may_give(scene.now) && guest.lacks_cache().is_zero() && !may_grow(guest);
    let mut donors: Vec<Donor> =
        (0..guests.len()).filter(|i| gives(&guests[*i])).map(|i| donor(scene, &guests[i], i, left)).collect();
    donors.sort_by_key(|donor| (Reverse(donor.idle), donor.index));
    for donor in &mut donors {
        let guest = &guests[donor.index];
        // Freed memory comes back without asking. What an agent has dropped on request is taken at once: that fixes the size.
        let comes_back = scene.commitment == Commitment::Elastic
            && guest.reports_freed()
            && agent::returning(guest, scene.now).is_zero();
        let wanted = if comes_back { left.urgent } else { left.all };
        if wanted.is_zero() || donor.idle < least_worth(scene, guest) {
            continue;
        }
        let gives = donor.idle.min(wanted.max(guest.dead_band()));
        donor.urgent = !left.urgent.is_zero() || !left.over.is_zero();
        donor.size = donor.size.min(size_without(scene, guest, donor, gives));
        left.less(gives.min(donor.counts));
    }
    give_pieces(scene, guests, &mut donors, left);
    left.less(scene.returning);
    if !left.urgent.is_zero() {
        squeeze_all(scene, guests, &mut donors, &mut left);
    } else if !left.all.is_zero() {
        squeeze_one(scene, guests, &mut donors, left);
    }
    last_of_cache(scene, guests, &mut donors, &mut left);
    over_share(scene, guests, &mut donors, left);
    if scene.commitment == Commitment::Elastic && scene.emergency {
        freeze(guests, &mut donors);
    }
    donors.iter().filter_map(|donor| wish(scene, guests, donor, wanted)).collect()
}

/// Wanted memory that is still to be found.
#[derive(Clone, Copy)]
struct Left {
    all: Bytes,
    for_use: Bytes,
    /// The part of it without headroom for growth.
    for_used: Bytes,
    urgent: Bytes,
    /// Memory that the guests can take beyond all that there is: idle memory comes back at once for it.
    over: Bytes,
}

impl Left {
    fn less(&mut self, found: Bytes) {
        for left in [&mut self.all, &mut self.for_use, &mut self.for_used, &mut self.urgent, &mut self.over] {
            *left = left.saturating_sub(found);
        }
    }
}

/// Elastic, urgently: free memory in small pieces, of guests that do not grow and may deflate their own balloons. A balloon takes it before any
/// other, so the target is that much lower.
fn give_pieces(scene: &Scene, guests: &[Guest<'_>], donors: &mut [Donor], left: Left) {
    if scene.commitment == Commitment::Strict || left.urgent.is_zero() {
        return;
    }
    let mut wanted = left.urgent;
    for donor in donors.iter_mut().filter(|donor| donor.size == donor.from) {
        let guest = &guests[donor.index];
        let most = pieces(scene, guest);
        if wanted.is_zero() {
            return;
        }
        if guest.takes_more() || !guest.deflates_itself() || most < least_worth(scene, guest) {
            continue;
        }
        donor.pieces = most;
        donor.urgent = true;
        donor.size = donor.from.saturating_sub(most);
        wanted = wanted.saturating_sub(guest.need.pieces.min(donor.counts));
    }
}

/// The inflation that fetches a guest's free memory in small pieces. There can be more of it than was counted: memory that its kernel reserved at
/// boot counts as touched.
fn pieces(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    if guest.need.pieces < guest.dead_band() {
        return Bytes::ZERO;
    }
    let from = guest.entry.target.min(guest.entry.actual);
    PIECES.of(guest.full).min(from.saturating_sub(floor(scene, guest, guest.need.cache_held)))
}

/// Elastic: a guest that grows faster than others can give keeps no untouched memory beyond its fair share. One that can deflate its own
/// balloon would take it anyway.
fn freeze(guests: &[Guest<'_>], donors: &mut [Donor]) {
    for donor in donors {
        let guest = &guests[donor.index];
        if guest.takes_more() && !guest.deflates_itself() {
            donor.size = donor.size.min(guest.entitlement.max(guest.entry.touched()));
            donor.urgent = true;
        }
    }
}

/// Memory that a guest has yet to bring back.
fn under_way(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    let entry = &guest.entry;
    let gives = match scene.commitment {
        Commitment::Strict => entry.held.saturating_sub(entry.target),
        Commitment::Elastic if entry.actual > entry.target => entry.touched().saturating_sub(entry.target),
        Commitment::Elastic => Bytes::ZERO,
    };
    gives.max(guest.given)
}

fn donor(scene: &Scene, guest: &Guest<'_>, index: usize, left: Left) -> Donor {
    let (from, cache) = (guest.entry.target, guest.need.cache_held);
    // Memory that was granted for needed cache, and is not filled yet, is idle only for others' memory in use.
    let keeps = if left.for_use.is_zero() { cache.max(guest.need.cache) } else { cache };
    let idle = match guest.need.used {
        Some(_) => from.saturating_sub(floor(scene, guest, keeps)),
        None => Bytes::ZERO,
    };
    let idle = match scene.commitment {
        Commitment::Strict => idle,
        Commitment::Elastic => idle.min(guest.entry.touched().saturating_sub(floor(scene, guest, cache))),
    };
    let counts = probe::may_give(guest, has(scene, guest));
    Donor { index, from, size: from, cache, idle, pieces: Bytes::ZERO, counts, urgent: false }
}

/// The size of a guest that keeps `cache`.
pub(crate) fn floor(scene: &Scene, guest: &Guest<'_>, cache: Bytes) -> Bytes {
    let keeps = match guest.need.used {
        Some(used) if scene.emergency => {
            let beyond = if guest.class.squeeze { guest.need.cache_beyond } else { Bytes::ZERO };
            Bytes::sum([used.saturating_sub(beyond), LEAST_HEADROOM, cache])
        }
        _ => guest.need.with(cache),
    };
    // Strict: a guest lacks cache only within its fair share, so others hold as much beyond theirs. Memory in use cannot wait.
    let share = match scene.commitment {
        Commitment::Strict if scene.wanted_for_use().is_zero() && !scene.emergency => guest.entitlement,
        _ => Bytes::ZERO,
    };
    guest.bounds.clamp(keeps).max(share)
}

/// The size of a guest that gives this much of its idle memory. Elastic: untouched memory goes first, and brings nothing back.
fn size_without(scene: &Scene, guest: &Guest<'_>, donor: &Donor, gives: Bytes) -> Bytes {
    match scene.commitment {
        Commitment::Strict => donor.from.saturating_sub(gives),
        Commitment::Elastic => {
            let least = floor(scene, guest, guest.need.cache_held);
            guest.entry.touched().saturating_sub(gives).max(least)
        }
    }
}

/// Urgently: page cache that is likely to be cold ([`crate::activity`]), then the rest that nobody was seen to need, then needed cache. The
/// idlest guest gives first.
fn squeeze_all(scene: &Scene, guests: &mut [Guest<'_>], donors: &mut [Donor], left: &mut Left) {
    let mut order: Vec<&mut Donor> = donors.iter_mut().collect();
    order.sort_by_key(|donor| (activity::uses(&guests[donor.index].next.activity), donor.index));
    for part in [Cache::Cold, Cache::Unproven, Cache::Needed] {
        let needed = part == Cache::Needed;
        for donor in &mut order {
            let wanted = if needed { left.urgent.min(left.for_used) } else { left.urgent };
            let guest = &guests[donor.index];
            let most = may_take(guest, donor, part);
            let can = most.min(probe::may_give(guest, floor(scene, guest, donor.cache)));
            if wanted.is_zero() || can < least_step(guest) || donor.counts.is_zero() {
                continue;
            }
            let step = wanted.max(least_step(guest)).min(can);
            // An agent takes its time: it is asked for all that is wanted, not only for what cannot wait.
            let trim = if needed { step } else { left.all.clamp(step, most) };
            squeeze(scene, &mut guests[donor.index], donor, step, trim, false);
            donor.urgent = true;
            left.less(step.min(donor.counts));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cache { Cold, Unproven, Needed }

fn may_take(guest: &Guest<'_>, donor: &Donor, part: Cache) -> Bytes {
    if !guest.class.squeeze || guest.need.used.is_none() {
        return Bytes::ZERO;
    }
    let taken = guest.need.cache_held.saturating_sub(donor.cache);
    let unproven = search::unproven(&guest.next.search, &guest.need, guest.full);
    match part {
        Cache::Cold => activity::likely_cold(unproven, &guest.next.activity).saturating_sub(taken),
        Cache::Unproven => unproven.saturating_sub(taken),
        Cache::Needed => donor.cache.saturating_sub(guest.need.cache_kept),
    }
}

/// The least page cache that is worth a change.
fn least_step(guest: &Guest<'_>) -> Bytes {
    LEAST_STEP.max(guest.dead_band())
}

/// Without urgency: one step of one guest, if no other step is being watched.
fn squeeze_one(scene: &Scene, guests: &mut [Guest<'_>], donors: &mut [Donor], left: Left) {
    if guests.iter().any(|guest| search::is_taken(&guest.next.search) || guest.taken.is_some()) {
        return;
    }
    let may_take = |guest: &Guest<'_>| {
        let blind = !guest.need.shows_squeals();
        if !guest.class.squeeze
            || guest.need.used.is_none()
            || guest.next.search.trial.is_some()
            || agent::is_busy(guest)
            || probe::may_give(guest, guest.entry.target).is_zero()
            || (blind && left.for_use.is_zero())
        {
            return Bytes::ZERO;
        }
        let all = search::may_try(&guest.next.search, &guest.need, guest.full, scene.now);
        all.min(has(scene, guest).saturating_sub(share_beside_cache(scene, guest)))
    };
    // Guests whose scans prove nothing come first, and those that were hurt before last; of the others, those whose cache is likely to be cold.
    let key = |guest: &Guest<'_>| {
        let search = &guest.next.search;
        let cold = activity::likely_cold(may_take(guest), &guest.next.activity);
        (!search.deaf.lasts(scene.now), search.back_off.span, Reverse(cold))
    };
    let able = donors.iter_mut().filter(|donor| may_take(&guests[donor.index]) >= LEAST_STEP);
    let Some(donor) = able.min_by_key(|donor| (key(&guests[donor.index]), donor.index)) else { return };
    let guest = &mut guests[donor.index];
    let able = may_take(guest);
    let step = search::gentle_step(able);
    let step = step.max(scene.unmet.min(able)).min(left.all.max(LEAST_STEP)).max(guest.dead_band()).min(able);
    let step = step.min(probe::may_give(guest, floor(scene, guest, donor.cache)));
    squeeze(scene, guest, donor, step, step, true);
}

/// What a guest has to give: strict, the size that it was asked to keep; elastic, what it has touched of it.
fn has(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    match scene.commitment {
        Commitment::Strict => guest.entry.target,
        Commitment::Elastic => guest.entry.target.min(guest.entry.touched()),
    }
}

/// What a guest keeps in any case while others lack only page cache: its fair share.
fn share_beside_cache(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    if !scene.wanted_for_use().is_zero() || scene.emergency {
        return Bytes::ZERO;
    }
    // What the commitment lacks is not only for cache.
    if scene.ledger.room.short.is_zero() { guest.entitlement } else { Bytes::ZERO }
}

/// Takes a step of page cache: its agent is asked for `trim`.
fn squeeze(
    scene: &Scene,
    guest: &mut Guest<'_>,
    donor: &mut Donor,
    step: Bytes,
    trim: Bytes,
    is_gentle: bool,
) {
    if let Some(droppable) = agent::droppable(guest, scene.now) {
        let trim = trim.min(droppable);
        guest.trim = Some(trim);
        if is_gentle {
            // What the agent drops is free memory, and the guest gives it as such.
            donor.cache = donor.cache.saturating_sub(trim);
            guest.taken = Some(Taken { has: guest.need.cache_held, keeps: donor.cache, gently: true });
            return;
        }
    }
    donor.cache = donor.cache.saturating_sub(step);
    let size = floor(scene, guest, donor.cache);
    // Its kernel may keep less free than was assumed. In need, the step counts.
    let in_need = donor.from.saturating_sub(step).max(floor(scene, guest, Bytes::ZERO));
    let size = match scene.commitment {
        // Room for needed cache that is not filled is no part of the step.
        Commitment::Strict if is_gentle => {
            size.max(donor.size.saturating_sub(step)).max(share_beside_cache(scene, guest))
        }
        Commitment::Elastic if is_gentle => size.max(share_beside_cache(scene, guest)),
        // No share bounds what is taken in an emergency: no more than the step beside the idle memory.
        Commitment::Strict if scene.emergency => {
            donor.size.saturating_sub(step).max(floor(scene, guest, Bytes::ZERO))
        }
        _ => size.min(in_need),
    };
    donor.size = donor.size.min(size);
    guest.taken = Some(Taken { has: guest.need.cache_held, keeps: donor.cache, gently: is_gentle });
    guest.is_squeezed = true;
}

/// Page cache that kernels do not call available, of guests that have no other worth a step.
fn last_of_cache(scene: &Scene, guests: &[Guest<'_>], donors: &mut [Donor], left: &mut Left) {
    if scene.emergency {
        return;
    }
    for donor in donors.iter_mut().filter(|donor| donor.cache < LEAST_STEP) {
        let guest = &guests[donor.index];
        let most = if guest.class.squeeze { guest.need.cache_beyond } else { Bytes::ZERO };
        // What is under way takes it already.
        let least = guest.need.used.unwrap_or_default().saturating_sub(most);
        let most = most.min(donor.size.saturating_sub(least));
        let gives = most.min(left.for_used.max(guest.dead_band()));
        if left.for_used.is_zero() || gives < least_worth(scene, guest) {
            continue;
        }
        let base = match scene.commitment {
            Commitment::Strict => donor.size,
            Commitment::Elastic => donor.size.min(guest.entry.touched()),
        };
        donor.size = base.min(floor(scene, guest, Bytes::ZERO)).saturating_sub(gives);
        donor.urgent = true;
        left.less(gives.min(donor.counts));
    }
}

/// Memory beyond the fair shares.
fn over_share(scene: &Scene, guests: &[Guest<'_>], donors: &mut [Donor], left: Left) {
    if left.for_used.is_zero() {
        return;
    }
    // Memory in use is taken only for others' memory in use.
    // A guest that deflated its own balloon a moment ago would do so again.
    let takes_it_back = |guest: &Guest<'_>| {
        let deflated =
            |(at, reason)| matches!(reason, Reason::SelfDeflation { .. }) && scene.now.since(at) < HURT_PAUSE;
        guest.next.stalled.is_some() && guest.deflates_itself()
            || guest.before.last_reason.is_some_and(deflated)
    };
    let share = |guest: &Guest<'_>| match guest.need.used {
        Some(_) if takes_it_back(guest) => guest.entitlement.max(guest.in_use()),
        _ => guest.entitlement,
    };
    // A silent guest keeps what it has not touched: nobody knows what it needs.
    let base = |donor: &Donor| match (scene.commitment, guests[donor.index].need.used) {
        (Commitment::Elastic, Some(_)) => donor.size.min(guests[donor.index].entry.touched()),
        _ => donor.size,
    };
    // What a silent guest has not touched counts for it.
    let from = |donor: &Donor| match guests[donor.index].need.used {
        Some(_) => base(donor),
        None => donor.size,
    };
    let mut over: Vec<(Bytes, &mut Donor)> = donors
        .iter_mut()
        .map(|donor| (from(donor).saturating_sub(share(&guests[donor.index])), donor))
        .filter(|(over, donor)| *over >= least_worth(scene, &guests[donor.index]))
        .collect();
    over.sort_by_key(|(over, donor)| (Reverse(*over), donor.index));
    let mut wanted = left.for_used;
    for (over, donor) in over {
        if wanted.is_zero() {
            break;
        }
        let gives = over.min(wanted.max(guests[donor.index].dead_band()));
        let base = base(donor);
        // A silent guest keeps its fair share in any case.
        let guest = &guests[donor.index];
        let least = guest.need.used.map_or(guest.entitlement, |_| Bytes::ZERO);
        donor.size = base.saturating_sub(gives).max(least.min(base));
        donor.urgent = true;
        wanted = wanted.saturating_sub(gives.min(donor.counts));
    }
}

/// The smallest change of a guest that is worth making. While a strict commitment is not kept, it is 1 MiB, or less if an even part of what is
/// missing is less.
fn least_worth(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    match scene.commitment {
        Commitment::Strict if !scene.short_each.is_zero() => scene.short_each.min(TOLERANCE),
        _ => guest.dead_band(),
    }
}

fn wish(scene: &Scene, guests: &[Guest<'_>], donor: &Donor, wanted: Bytes) -> Option<Wish> {
    let guest = &guests[donor.index];
    let size = if donor.urgent || guest.is_squeezed {
        donor.size
    } else {
        let gentle = donor.from.saturating_sub(gentle(guest, scene.now));
        let lately = guest.before.target_set_at.is_some_and(|at| scene.now.since(at) < GENTLE_EVERY);
        // What is not given at once waits until a larger step is due: each new target is work for the guest.
        if lately && donor.size < gentle {
            return None;
        }
        donor.size.max(gentle)
    };
    let target = size.max(guest.bounds.reservation()).round_down(guest.step());
    let less = target.saturating_add(least_worth(scene, guest)) <= donor.from;
    less.then(|| Wish {
        index: donor.index,
        target,
        reason: why(scene, guest, donor, wanted),
        urgent: donor.urgent,
    })
}

fn why(scene: &Scene, guest: &Guest<'_>, donor: &Donor, wanted: Bytes) -> Reason {
    let demand = guest.need.with(donor.cache);
    if !donor.pieces.is_zero() && !guest.is_squeezed {
        return Reason::FreePieces { pieces: donor.pieces, wanted };
    }
    if guest.need.used.is_none() {
        return Reason::OverShare { entitlement: guest.entitlement, short: wanted };
    }
    if scene.emergency {
        let floor = floor(scene, guest, donor.cache);
        return Reason::Emergency { state: HostState::Low, free: scene.ledger.free(), floor };
    }
    if guest.is_squeezed {
        return Reason::SqueezeStep { cache: donor.cache, demand, wanted };
    }
    if donor.idle.is_zero() {
        return Reason::OverEntitlement { entitlement: guest.entitlement, demand, short: wanted };
    }
    Reason::IdleMemory { idle: donor.idle, demand, wanted }
}

/// The memory that a guest may give without urgency since its target was last written.
pub(crate) fn gentle(guest: &Guest<'_>, now: Moment) -> Bytes {
    let every = GENTLE_EVERY.as_millis();
    let waited = guest.before.target_set_at.map_or(every, |at| now.since(at).as_millis().min(every));
    GENTLE.of(guest.full).mul_div(waited, every)
}
