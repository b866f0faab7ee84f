//! The decision: gathers the guests, runs the four stages and records the result.

use std::cmp::Reverse;

use memtide_model::{
    Bytes, Commitment, Config, Decision, GuestId, GuestState, Mode, Moment, Plan, Request, Snapshot, Span,
    State, Surge,
};

use crate::bids::entitle;
use crate::demand;
use crate::guest::Guest;
use crate::report::report;
use crate::scene::{self, Scene, survey};
use crate::{help, hold, pacing, phases, squeeze, stuck, surge, tide};

/// The reaction time before the first measurement, and its bounds.
const FIRST_REACTION: Span = Span::from_secs(1);
const SHORTEST_REACTION: Span = Span::from_millis(500);
const LONGEST_REACTION: Span = Span::from_secs(3);
/// The time constant of remembered surges and reaction times.
const SURGE_MEMORY: Span = Span::from_secs(600);

/// Chooses the next changes. Reads no clock, file, environment or randomness.
#[must_use]
pub fn decide(config: &Config, state: &State, seen: &Snapshot) -> Decision {
    let now = seen.taken_at;
    let blank = GuestState::default();
    let mut remembered = state.guests.iter().peekable();
    let mut before = |id: &GuestId| {
        // Both are in order, so this is a merge: a search for each guest would cost more than the rest of its gathering. Equality
        // is tested first because it is usually one comparison of pointers.
        while remembered.next_if(|(other, _)| *other != id && *other < id).is_some() {}
        match remembered.peek() {
            Some((other, guest)) if *other == id => Some(&***guest),
            _ => state.guests.get(id).map(|guest| &**guest),
        }
    };
    // One pass over all guests if possible: ten thousand do not fit into a CPU cache.
    let mut arrived = None;
    let gathered = seen.guests.iter().map(|guest| {
        let guest = Guest::new(config, (guest, &seen.orders), before(&guest.id), &blank, now);
        arrived = arrived.max(guest.arrived_after(now));
        guest
    });
    let mut guests: Vec<Guest<'_>> = gathered.collect();
    let elapsed = state.decided_at.map_or(Span::ZERO, |at| now.since(at));
    let reaction = reaction(state, arrived, elapsed);
    let (mut joint_growth, mut tide, mut returned) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
    for guest in &mut guests {
        let growth = guest.growth();
        joint_growth = joint_growth.saturating_add(growth);
        guest.next.surge = surge::observe(guest.before.surge, growth, elapsed, reaction, SURGE_MEMORY);
        demand_of(guest, now, reaction);
        hold::notice(config.mode, guest, elapsed, now);
        tide = tide.saturating_add(guest.rise(elapsed, SURGE_MEMORY));
        guest.press();
        guest.look_ahead();
        returned = returned.saturating_add(guest.returned());
        guest.next.stuck = match guest.seen.told.fence {
            Some(_) => stuck::wait(guest.before, now),
            None => stuck::judge(&guest.entry, guest.before, now),
        };
    }
    let joint_surge = surge::observe(state.joint_surge, joint_growth, elapsed, reaction, SURGE_MEMORY);
    let high_tide = tide::high(state.high_tide.saturating_sub(returned), tide, elapsed, SURGE_MEMORY);
    let recent = joint_surge.recent.max(state.joint_surge.recent);
    let surge = Surge { peak: joint_surge.peak.max(recent), recent };
    let mut ledger = scene::ledger(config, seen, &guests, surge, high_tide.saturating_sub(tide));
    help::choose(config, &mut ledger, &mut guests);
    hold::end_foreign(config, state, &ledger, &mut guests, now);
    let mut scene = survey(config, state, seen, &mut guests, ledger);
    squeeze_caches(&mut scene, &mut guests);
    entitle(config, &mut scene, &mut guests);
    let (plan, about) = match config.mode {
        Mode::Observe => (Plan::default(), Vec::new()),
        Mode::Manage => phases::order(&scene, seen, &guests, pacing::wishes(&scene, &guests)),
    };
    remember(&mut guests, &plan, &about, now);
    let report = report(config, &scene, &guests);
    let state = State {
        decided_at: Some(now),
        host: scene.host,
        swap: seen.host.swap.fresh().copied().or(state.swap),
        pressure: seen.host.pressure.fresh().copied().or(state.pressure),
        joint_surge,
        high_tide,
        reaction: Some(reaction),
        guests: guests.into_iter().map(|guest| (guest.seen.id.clone(), guest.next)).collect(),
    };
    Decision { plan, state, report }
}

/// Stage 1 for one guest.
fn demand_of(guest: &mut Guest<'_>, now: Moment, reaction: Span) {
    guest.next.inflating_at = if guest.inflates() { Some(now) } else { guest.before.inflating_at };
    guest.demand = demand::estimate(guest.seen, &guest.entry, guest.before, &mut guest.next, now, reaction);
    (guest.next.squeeze, guest.squeal) = squeeze::listen(guest.before, &mut guest.demand, now);
    if !(guest.class.squeeze && guest.demand.shows_squeals()) {
        guest.demand.cache = guest.demand.cache_held;
    }
}

/// The time from a decision to returned memory: the longest one that ended now, and a decaying memory of earlier ones.
fn reaction(state: &State, arrived: Option<Span>, elapsed: Span) -> Span {
    let before = state.reaction.unwrap_or(FIRST_REACTION).as_millis();
    let forgotten = before.saturating_mul(elapsed.as_millis()) / SURGE_MEMORY.as_millis();
    let remembered = Span::from_millis(before.saturating_sub(forgotten));
    remembered.max(arrived.unwrap_or_default()).clamp(SHORTEST_REACTION, LONGEST_REACTION)
}

/// Squeezes page caches if idle memory alone does not cover the pressing memory. Memory kept free for other reasons is not worth
/// page cache.
fn squeeze_caches(scene: &mut Scene, guests: &mut [Guest<'_>]) {
    let idle = |guest: &Guest<'_>| match scene.commitment {
        Commitment::Strict => guest.entry.held.saturating_sub(guest.demand.lean()),
        Commitment::Elastic => guest.idle_touched(guest.demand.lean()),
    };
    let covered = Bytes::sum(guests.iter().filter(|guest| scene.may_ask(guest)).map(idle));
    let mut left = scene.pressing().saturating_sub(covered);
    if left.is_zero() {
        return;
    }
    let mut squeezable: Vec<usize> =
        (0..guests.len()).filter(|i| may_be_squeezed(scene, &guests[*i])).collect();
    // Guests that squealed before come last: they need their cache; the others may not.
    let key = |guest: &Guest<'_>| (guest.next.squeeze.back_off, Reverse(guest.demand.cache));
    squeezable.sort_by_key(|&i| (key(&guests[i]), i));
    while let Some(&first) = squeezable.first().filter(|_| !left.is_zero()) {
        let back_off = guests[first].next.squeeze.back_off;
        let others = squeezable.iter().position(|&i| guests[i].next.squeeze.back_off != back_off);
        let later = squeezable.split_off(others.unwrap_or(squeezable.len()));
        squeeze_alike(scene, guests, &squeezable, &mut left);
        squeezable = later;
    }
    // Page cache that the search takes is no longer lacking.
    scene.count(guests);
}

fn may_be_squeezed(scene: &Scene, guest: &Guest<'_>) -> bool {
    let (at_target, urgent) = (stuck::at_target(&guest.entry), scene.is_urgent_for(guest));
    guest.class.squeeze
        && scene.may_ask(guest)
        && !scene.pressing_for(guest).is_zero()
        && guest.lacks_of_use().is_zero()
        && squeeze::may_step(&guest.next.squeeze, &guest.demand, scene.host, at_target, urgent, scene.now)
}

/// Takes the memory that is `left` to find from these guests, which squealed equally often. The largest cache comes first; urgent
/// memory comes from all of them in proportion.
fn squeeze_alike(scene: &Scene, guests: &mut [Guest<'_>], alike: &[usize], left: &mut Bytes) {
    let (gap, caches) = (*left, Bytes::sum(alike.iter().map(|&i| guests[i].demand.cache)));
    for &index in alike {
        if left.is_zero() {
            break;
        }
        let urgent = scene.is_urgent_for(&guests[index]);
        let Guest { demand, next, squeezed, .. } = &mut guests[index];
        let step = if urgent {
            demand.cache.mul_div(gap.min(caches).get(), caches.get())
        } else {
            squeeze::gentle_step(demand)
        };
        assert!(step <= demand.cache, "a squeeze takes no more cache than the guest has");
        *left = left.saturating_sub(step);
        squeeze::take(&mut next.squeeze, demand, step, scene.now);
        *squeezed = true;
    }
}

/// Records the state that the next decision needs.
fn remember(guests: &mut [Guest<'_>], plan: &Plan, about: &[usize], now: Moment) {
    assert_eq!(plan.actions.len(), about.len(), "each action is about a guest");
    for (action, &index) in plan.actions.iter().zip(about) {
        let guest = &mut guests[index];
        match action.request {
            Request::SetTarget(target) => guest.is_asked(target, action.reason, now),
            Request::PollStats(_) => {
                guest.polled_now = true;
                let found = guest.before.polled_before.unwrap_or(guest.seen.told.polling);
                guest.next.polled_before = Some(found);
                guest.next.polled_at = Some(now);
            }
            Request::Reclaim(_) => guest.next.last_reason = Some((now, action.reason)),
        }
    }
}
