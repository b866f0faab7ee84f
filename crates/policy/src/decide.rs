//! The decision, in numbered steps.

use memtide_model::{Config, Decision, GuestId, GuestState, KsmState, Mode, Moment, Plan, Snapshot, State};

use crate::constants::SCANS_SETTLE;
use crate::entitlement::{by_shares, entitle};
use crate::envelope::{self, Growth};
use crate::guest::Guest;
use crate::ladder::{agent, fetch, probe, splits};
use crate::report::report;
use crate::scene::Scene;
use crate::search::{Arrived, Listening};
use crate::tmpfs::Bound;
use crate::{activity, hold, ksm, need, pacing, phases, search, sharing, stuck, tmpfs};

/// Chooses the next changes. Reads no clock, file, environment or randomness.
#[must_use]
pub fn decide(config: &Config, state: &State, seen: &Snapshot) -> Decision {
    let now = seen.taken_at;
    let blank = GuestState::default();
    // 1. Gather the guests, and each guest's need.
    let mut guests = gather(config, state, seen, &blank);
    let elapsed = envelope::observed(state, now);
    let reacted = guests.iter().filter_map(|guest| guest.reacts_after(now)).max();
    let reaction = envelope::reaction(state, reacted, elapsed);
    let growth = envelope::remember(config, state, seen, &mut guests, (elapsed, reaction));
    by_shares(&seen.host, config.reserve_of(seen.host.capacity), &mut guests);
    for guest in &mut guests {
        guest.next.inflating_at = if guest.inflates() { Some(now) } else { guest.before.inflating_at };
        let works_for_us = guest.before.agent.asked.map(|_| now).or(guest.next.inflating_at);
        let cpu_time = &guest.seen.cost.cpu_time;
        guest.next.activity = activity::observe(guest.before.activity, cpu_time, works_for_us, now);
        let size = (&guest.entry, guest.by_shares);
        guest.need = need::estimate(guest.seen, size, guest.before, &mut guest.next, now, reaction);
        guest.need.cache_kept = guest.class.cache.of(guest.full);
        guest.next.stuck = match guest.seen.told.fence {
            Some(_) => stuck::wait(guest.before, now),
            None => stuck::judge(&guest.entry, guest.before, now),
        };
        // 2. Hear what became of its last step, and whether somebody else moved its balloon.
        agent::watch(guest, now);
        hear(guest, now);
        hold::notice(config.mode, guest, elapsed, now);
    }
    // 3. The ledger: what is promised, what is expected, how short the host is.
    let mut scene = Scene::new(config, state, seen, &guests, growth);
    // Without a reading of the host's memory, nobody knows what is short: no target changes.
    let is_host_read = seen.host.missed.is_none();
    if is_host_read {
        hold::end_foreign(config, state, &scene, seen, &mut guests);
    }
    // 4. The fair shares, and what guests lack of them. A tmpfs that has less left than the host bounds those of its guests.
    let mut bound = tmpfs::bound(config, state, (seen, &scene), &mut guests, growth);
    entitle(config, &scene, &mut guests);
    for tmpfs in &mut bound {
        tmpfs.entitle(config, &mut guests);
    }
    scene.count(&guests);
    // 5. Who gives, who grows. 6. In which order, and paid by what.
    let mut plan = match config.mode {
        Mode::Observe => Plan::default(),
        Mode::Manage => {
            let (mut cheap, mut wishes) = (Vec::new(), Vec::new());
            if is_host_read {
                cheap = splits::ask(&mut scene, seen, &mut guests);
                let given = pacing::wishes(&scene, &bound, &mut guests);
                wishes = given.wishes;
                fetch::fetch(&scene, seen, &guests, &mut wishes);
                probe::hold_back(&guests, &mut wishes);
                cheap.extend(agent::ask(&scene, seen, &guests, &given.trims));
            }
            phases::order(&scene, seen, (&guests, &bound), (cheap, wishes))
        }
    };
    // 7. Say why. What became of the plan is remembered once its answers are known ([`crate::hears`]).
    // KSM serves the whole host, and no guest's size depends on it.
    let (ksm, ksm_report) =
        ksm::decide(config, &state.ksm, (&seen.host.ksm, sharing::awaits(&guests, now)), (now, &mut plan));
    sharing::order((config, &ksm), (&scene, seen), &guests, &mut plan);
    let report = report(config, (&scene, &bound), seen, (&guests, &plan), ksm_report);
    let state = next_state(state, seen, (&scene, &bound), (growth, ksm), guests);
    Decision { plan, state, report }
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
        .map(|guest| Guest::new(config, (guest, &seen.orders), before(&guest.id), blank, seen.taken_at))
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

fn next_state(
    before: &State,
    seen: &Snapshot,
    (scene, bound): (&Scene, &[Bound]),
    (growth, ksm): (Growth, KsmState),
    guests: Vec<Guest<'_>>,
) -> State {
    State {
        decided_at: Some(seen.taken_at),
        host: scene.host,
        swap: seen.host.swap.fresh().copied().or(before.swap),
        pressure: seen.host.pressure.fresh().copied().or(before.pressure),
        other: seen.host.lasting_other(),
        growth: growth.joint,
        self_deflation: growth.self_deflation,
        high_water: growth.high_water,
        reaction: Some(growth.reaction),
        tmpfs: Box::new(tmpfs::remember(&before.tmpfs, &seen.tmpfs, bound)),
        ksm: Box::new(ksm),
        guests: guests.into_iter().map(|guest| (guest.seen.id.clone(), guest.next)).collect(),
    }
}
