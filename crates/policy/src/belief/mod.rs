//! What is believed of each guest and of the host. It orders nothing.
//!
//! **Rule.** Each guest's need is estimated from what it, its agent and the host tell ([`need`]); its search hears what became of the last step
//! ([`search`]); a balloon that somebody else moved is noticed ([`hold`]). Then the ledger says what is promised, what is expected, and how short
//! the host is ([`scene`]).

pub mod activity;
mod by_shares;
mod deed;
pub mod envelope;
pub mod evidence;
pub mod gain;
pub mod guest;
pub mod hold;
pub mod host_state;
pub mod ledger;
pub mod need;
pub mod scene;
pub mod search;
pub mod stuck;
pub mod surge;

use memtide_model::{Config, GuestId, GuestState, Moment, Snapshot, State};

use crate::constants::SCANS_SETTLE;

pub use by_shares::by_shares;
use envelope::Growth;
use guest::Guest;
use scene::Scene;
use search::{Arrived, Listening};

/// What is believed at a decision.
pub struct Beliefs<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// What was remembered.
    pub state: &'a State,
    /// What was seen.
    pub seen: &'a Snapshot,
    /// The guests, in the order of the snapshot.
    pub guests: Vec<Guest<'a>>,
    /// The host. Its guests' lack is counted once their shares are known.
    pub scene: Scene,
    /// The growth of the guests.
    pub growth: Growth,
}

/// Looks at what was seen.
#[must_use]
pub fn looks<'a>(
    config: &'a Config,
    state: &'a State,
    seen: &'a Snapshot,
    blank: &'a GuestState,
) -> Beliefs<'a> {
    let now = seen.taken_at;
    let mut guests = gather(config, state, seen, blank);
    let elapsed = envelope::observed(state, now);
    let reacted = guests.iter().filter_map(|guest| guest.reacts_after(now)).max();
    let reaction = envelope::reaction(state, reacted, elapsed);
    let growth = envelope::remember(config, state, seen, &mut guests, elapsed, reaction);
    by_shares(&seen.host, config.reserve_of(seen.host.capacity), &mut guests);
    for guest in &mut guests {
        guest.next.inflating_at = if guest.inflates() { Some(now) } else { guest.before.inflating_at };
        let works_for_us = guest.before.agent.asked.map(|_| now).or(guest.next.inflating_at);
        let cpu_time = &guest.seen.cost.cpu_time;
        guest.next.activity = activity::observe(guest.before.activity, cpu_time, works_for_us, now);
        guest.swaps = guest.swaps_in_use(now);
        let (by_shares, swaps) = (guest.by_shares, !guest.swaps.is_zero());
        let around = need::Around { by_shares, reaction, swaps, now };
        let Guest { seen, entry, before, next, .. } = guest;
        let need = need::estimate(seen, entry, around, before, next);
        guest.need = need.and_in_tier(guest.used_in_tier(now));
        guest.need.cache_kept = guest.class.cache.of(guest.full);
        guest.next.stuck = match guest.seen.told.fence {
            Some(_) => stuck::wait(guest.before, now),
            None => stuck::judge(&guest.entry, guest.before, now),
        };
        deed::watch(guest, now);
        hear(guest, now);
        hold::notice(config.mode, guest, elapsed, now);
    }
    let scene = Scene::new(config, state, seen, &guests, growth);
    if seen.host.missed.is_none() {
        hold::end_foreign(config, state, &scene, seen, &mut guests);
    }
    Beliefs { config, state, seen, guests, scene, growth }
}

impl Beliefs<'_> {
    /// Whether the host's memory was read. Otherwise nobody knows what is short: no target changes.
    #[must_use]
    pub fn is_host_read(&self) -> bool {
        self.seen.host.missed.is_none()
    }
}

/// The guests with their remembered states.
fn gather<'a>(
    config: &'a Config,
    state: &'a State,
    seen: &'a Snapshot,
    blank: &'a GuestState,
) -> Vec<Guest<'a>> {
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
    seen.guests
        .iter()
        .map(|guest| Guest::new(config, guest, &seen.orders, before(&guest.id), blank, seen.taken_at))
        .collect()
}

/// Hears the search of a guest.
fn hear(guest: &mut Guest<'_>, now: Moment) {
    let arrived = match stuck::at_target(&guest.entry) {
        false => Arrived::No,
        true if guest.entry.held >= guest.need.with(guest.before.search.needs) => Arrived::Size,
        true => Arrived::Balloon,
    };
    let excused = guest.next.inflating_at.is_some_and(|at| now.since(at) < SCANS_SETTLE);
    let fair = guest.by_shares.saturating_sub(guest.need.in_use());
    if guest.is_stuck(now) {
        guest.next.search = search::interrupted(guest.before.search, now);
        guest.need.cache = guest.next.search.needs;
        return;
    }
    let seen = Listening { arrived, is_full: guest.is_full(), is_excused: excused, fair };
    (guest.next.search, guest.heard) = search::listen(guest.before, &guest.next, &guest.need, seen, now);
    guest.need.cache = guest.next.search.needs;
    guest.next.cache = guest.need.cache_held;
}
