//! The envelope of growth: how far guests can grow together before memtide has reacted, and how far their use rises over minutes.
//!
//! **Terms.** *Growth* is the rise of a cost within one reaction time. Steps of growth arrive at uneven ticks. A leaky sum with the
//! reaction time as its time constant turns a steady rate `r` into `r × reaction`; a single burst counts as itself. The *high-water mark*
//! is the most memory that was in use on the host. Both are remembered as maxima that fall exponentially, to about a third after one
//! memory span. Only observed time counts: a suspended host or a stopped daemon forgets nothing.
//!
//! **Rule.** The envelope is the larger of
//! - the remembered joint growth of all guests, and of everything else on the host;
//! - the prior: of the guests that nobody has seen grow, [`Config::growth_prior`] grow together by [`GROWS_BY`] a second.
//!
//! The rise to the high-water mark is expected to come again: that memory is not given away as comfort.

use memtide_model::{Bytes, Commitment, Config, Moment, Snapshot, Span, State, Surge};

use crate::belief::guest::Guest;
use crate::belief::ledger::Expected;
use crate::belief::surge::{decayed, observe};
use crate::constants::{FIRST_REACTION, GROWS_BY, LONGEST_REACTION, MEMORY, OBSERVED, SHORTEST_REACTION};

/// Growth as remembered after this decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// The joint growth of all guests.
    pub joint: Surge,
    /// Their present joint growth, at this decision or the one before, as far as it needs no grant.
    pub present: Bytes,
    /// The high-water mark.
    pub high_water: Bytes,
    /// The rise of the memory in use to it.
    pub rise: Bytes,
    /// The reaction time.
    pub reaction: Span,
    /// What guests took together by deflating their own balloons.
    pub self_deflation: Surge,
}

/// The time since the last decision that counts as observed.
#[must_use]
pub fn observed(state: &State, now: Moment) -> Span {
    state.decided_at.map_or(Span::ZERO, |at| now.since(at)).min(OBSERVED)
}

/// The time from a decision to returned memory: the longest one that ended now or has lasted so far (`reacted`, [`Guest::reacts_after`]), and a
/// decaying memory of earlier ones.
#[must_use]
pub fn reaction(state: &State, reacted: Option<Span>, elapsed: Span) -> Span {
    let before = state.reaction.unwrap_or(FIRST_REACTION).as_millis();
    let forgotten = before.saturating_mul(elapsed.as_millis()) / MEMORY.as_millis();
    let remembered = Span::from_millis(before.saturating_sub(forgotten));
    remembered.max(reacted.unwrap_or_default()).clamp(SHORTEST_REACTION, LONGEST_REACTION)
}

/// Remembers the growth of all guests, and of each.
#[must_use]
pub fn remember(
    config: &Config,
    state: &State,
    seen: &Snapshot,
    guests: &mut [Guest<'_>],
    elapsed: Span,
    reaction: Span,
) -> Growth {
    let mut joint = match state.decided_at {
        Some(_) => seen.host.lasting_other().saturating_sub(state.other),
        None => Bytes::ZERO,
    };
    for guest in guests.iter_mut() {
        let growth = guest.growth();
        joint = joint.saturating_add(growth);
        guest.next.surge = observe(guest.before.surge, growth, elapsed, reaction, MEMORY);
    }
    let joint = observe(state.growth, joint, elapsed, reaction, MEMORY);
    let present = present(joint.recent, state.growth.recent, guests);
    let in_use = in_use(config, seen, guests);
    let high_water = decayed(state.high_water, elapsed, MEMORY).max(in_use);
    let deflated = Bytes::sum(guests.iter().map(Guest::deflated_itself_by));
    let self_deflation = observe(state.self_deflation, deflated, elapsed, reaction, MEMORY);
    let rise = high_water.saturating_sub(in_use);
    Growth { joint, present, high_water, rise, reaction, self_deflation }
}

/// The growth that is expected of some of the guests together, with the rise of the whole host.
#[must_use]
pub fn expected_of(config: &Config, guests: &[Guest<'_>], growth: Growth) -> Expected {
    let peaks = Bytes::sum(guests.iter().map(|guest| guest.next.surge.peak));
    let present = guests.iter().map(|guest| {
        let surge = guest.next.surge.recent.max(guest.before.surge.recent);
        let most = guest.entry.exposure().saturating_add(guest.entry.self_deflation);
        if guest.entry.footprint > guest.entry.reach() { surge } else { surge.min(most) }
    });
    Expected {
        envelope: growth.joint.peak.min(peaks).max(prior(config, guests, growth)),
        present: Bytes::sum(present),
        rise: growth.rise,
        self_deflation: config.self_deflation_within.most(growth.self_deflation.peak),
    }
}

/// The growth that is expected of guests that nobody has seen grow.
fn prior(config: &Config, guests: &[Guest<'_>], growth: Growth) -> Bytes {
    let each = config.growth_prior.of(GROWS_BY.mul_div(growth.reaction.as_millis(), 1000));
    let unseen = guests.iter().filter(|guest| !guest.has_shown_growth());
    Bytes::sum(unseen.map(|guest| each.min(guest.entry.exposure())))
}

/// The present growth without the part of each guest's that it can go on with only once it is granted more.
fn present(now: Bytes, before: Bytes, guests: &[Guest<'_>]) -> Bytes {
    let is_now = now >= before;
    let needs_a_grant = guests.iter().map(|guest| {
        let surge = if is_now { guest.next.surge } else { guest.before.surge };
        // A VMM that costs more than its bound grows without a grant.
        if guest.entry.footprint > guest.entry.reach() {
            return Bytes::ZERO;
        }
        surge.recent.saturating_sub(guest.entry.exposure().saturating_add(guest.entry.self_deflation))
    });
    now.max(before).saturating_sub(Bytes::sum(needs_a_grant))
}

/// The memory in use that can rise without a grant. Strict: only what others use.
fn in_use(config: &Config, seen: &Snapshot, guests: &[Guest<'_>]) -> Bytes {
    match config.commitment {
        Commitment::Strict => seen.host.lasting_other(),
        Commitment::Elastic => {
            Bytes::sum(guests.iter().map(|guest| guest.entry.footprint)).saturating_add(seen.host.other)
        }
    }
}

/// The growth that is expected of the guests together.
#[must_use]
pub fn expected(config: &Config, guests: &[Guest<'_>], growth: Growth) -> Expected {
    Expected {
        envelope: growth.joint.peak.max(prior(config, guests, growth)),
        present: growth.present,
        rise: growth.rise,
        self_deflation: config.self_deflation_within.most(growth.self_deflation.peak),
    }
}
