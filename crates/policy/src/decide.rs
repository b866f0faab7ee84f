//! The decision: what is believed, what each guest should have of it, and the way there.

use memtide_model::{Config, Decision, GuestId, GuestState, KsmState, Mode, Offers, Plan, Snapshot, State};

use crate::belief::{Beliefs, looks};
use crate::ksm::{self, sharing};
use crate::ladder;
use crate::report::report;
use crate::share::{Sharing, WaterFill, shares, tmpfs};

/// Chooses the next changes. Reads no clock, file, environment or randomness.
#[must_use]
pub fn decide(config: &Config, state: &State, seen: &Snapshot) -> Decision {
    decide_by(&WaterFill, config, state, seen)
}

/// The same with another division of the memory.
#[must_use]
pub fn decide_by(sharing: &dyn Sharing, config: &Config, state: &State, seen: &Snapshot) -> Decision {
    let blank = GuestState::default();
    let mut beliefs = looks(config, state, seen, &blank);
    let bound = shares(sharing, &mut beliefs);
    let mut plan = match config.mode {
        Mode::Observe => Plan::default(),
        Mode::Manage => ladder::plan(&mut beliefs, &bound),
    };
    // KSM serves the whole host, and no guest's size depends on it.
    let awaits = sharing::awaits(&beliefs.guests, seen.taken_at);
    let (ksm, ksm_report) = ksm::decide(config, &state.ksm, &seen.host.ksm, awaits, seen.taken_at, &mut plan);
    sharing::order(&beliefs, &ksm, &mut plan);
    let report = report(&beliefs, &bound, &plan, ksm_report);
    let tmpfs = tmpfs::remember(&state.tmpfs, &seen.tmpfs, &bound);
    let state = State { tmpfs: Box::new(tmpfs), ksm: Box::new(ksm), ..remember(beliefs) };
    Decision { plan, state, report }
}

/// What a guest could give, as beliefs about `seen` are now, and why it is not taken. `None` if it was not seen.
#[must_use]
pub fn offers(config: &Config, state: &State, seen: &Snapshot, guest: &GuestId) -> Option<Offers> {
    let blank = GuestState::default();
    let mut beliefs = looks(config, state, seen, &blank);
    let bound = shares(&WaterFill, &mut beliefs);
    let index = beliefs.guests.iter().position(|known| known.seen.id == *guest)?;
    Some(ladder::offers(&mut beliefs, &bound, index))
}

/// What was seen, for the next decision. What became of its plan is remembered once the answers are known ([`crate::hears`]).
fn remember(beliefs: Beliefs<'_>) -> State {
    let Beliefs { state: before, seen, guests, scene, growth, .. } = beliefs;
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
        tmpfs: Box::default(),
        ksm: Box::new(KsmState::default()),
        guests: guests.into_iter().map(|guest| (guest.seen.id.clone(), guest.next)).collect(),
    }
}
