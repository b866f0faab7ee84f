//! Compressed tiers: the coldest memory of programs is kept compressed by the host.
//!
//! **Problem.** A balloon ends at the memory that programs hold, however long they have not used it. The guest's kernel knows which of it is
//! cold, and can swap it; compressed, it takes a quarter to 40 % of its size ([`memtide_model::Tier`]).
//!
//! **Rule.** Only where the guest's class allows it, its agent can, and the commitment is elastic ([`memtide_model::Config::tier_of`]).
//!
//! - The VMM attaches a tier, and the guest's agent turns it on as swap, as soon as the guest is known: a guest that fills its memory within
//!   seconds has no time to turn it on. An empty one takes 1/256 of its size.
//! - If more is wanted than idle memory and free memory in small pieces bring, the guests that lose least work write a batch of their programs'
//!   memory each. What becomes free is idle memory, and goes like all idle memory.
//! - The first batch is small. One that stayed there is followed by one twice as large. What is written takes the host's memory first, so all batches must fit into what is
//!   free; as long as nobody knows whether a guest's memory compresses, into what is left for grants.
//! - Each batch is watched: if more than a sixteenth of it was read back within [`TIER_WATCHED`] (or [`TIER_WATCHED_URGENTLY`]), a pause
//!   follows that doubles each time.
//! - What the guest's kernel has written without being asked is watched in the same way. Until it has proved to be cold, it counts as memory that the guest uses:
//!   otherwise memory that was squeezed out of a guest would look like memory that it does not need.
//! - A tier whose contents do not compress is emptied and detached. One that nobody has needed for [`TIER_UNWANTED`] is emptied if guest and host have room for
//!   it, and stays attached. One that the guest cannot turn on is detached: somebody may have taken the device away.
//!
//! A tier has room for all of its size even if nothing in it compresses: under pressure, the guest's kernel writes to it without being asked. So its
//! limit is a part of the guest's reach from the beginning, like the memory that a balloon leaves.
//!
//! **Property.** A guest that lacks memory is not asked to write. (Its own kernel may.) Reading back is no stall by itself: what waits shows
//! as a stall like any other.

use std::collections::BTreeMap;

use memtide_model::{
    Action, Agent, BackOff, Bytes, Deed, Moment, PagedOut, Reason, Request, Tier, TierOrder,
};

use super::agent;
use crate::belief::activity;
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::{
    FIRST_PAUSE, LEAST_STEP, LONGEST_PAUSE, READ_BACK, TIER_COLD, TIER_EVERY, TIER_LEAST, TIER_LOST,
    TIER_MOST, TIER_UNWANTED, TIER_WATCHED, TIER_WATCHED_URGENTLY, VAIN_TIER,
};

/// Watches the memory that guests have written to their tiers, and what the VMM was asked for.
fn watch(guest: &mut Guest<'_>, is_urgent: bool, now: Moment) {
    let Some(tier) = guest.seen.cost.tier.fresh() else {
        guest.next.tier.watched = None;
        return;
    };
    let state = &mut guest.next.tier;
    if tier.stored >= TIER_LEAST && tier.compresses_badly() && !state.vain.lasts(now) {
        state.vain = state.vain.again(now, VAIN_TIER, VAIN_TIER);
    }
    state.trusted = state.trusted.min(tier.stored);
    let by_itself = tier.stored.saturating_sub(state.trusted);
    state.seen = Some((by_itself, tier.read));
    if state.watched.is_none() && by_itself >= TIER_LEAST {
        state.watched = Some(PagedOut { bytes: by_itself, since: now, read: tier.read });
    }
    let Some(written) = state.watched else { return };
    let back = tier.read.saturating_sub(written.read);
    let is_hot = back > READ_BACK.of(written.bytes);
    if is_hot {
        state.back_off = state.back_off.again(now, FIRST_PAUSE, LONGEST_PAUSE);
        state.cold = None;
        // Most of what lies there is in use: without a tier, the guest would take memory in its place.
        if by_itself > state.trusted && !state.vain.lasts(now) {
            state.vain = state.vain.again(now, FIRST_PAUSE, LONGEST_PAUSE);
        }
    } else if now.since(written.since) >= if is_urgent { TIER_WATCHED_URGENTLY } else { TIER_WATCHED } {
        state.back_off = BackOff::default();
        (state.cold, state.trusted) = (Some((written.bytes, now)), tier.stored);
    } else {
        return;
    }
    state.watched = None;
}

/// What VMMs are asked for: tiers, and their end.
#[must_use]
pub fn orders(scene: &Scene, makes_tiers: bool, guests: &mut [Guest<'_>]) -> Vec<Action> {
    let (is_wanted, is_urgent) = (!scene.wanted().is_zero(), !scene.urgent().is_zero());
    let mut actions = Vec::new();
    for guest in guests.iter_mut() {
        watch(guest, is_urgent, scene.now);
        if is_wanted && !guest.tier_allowed.is_zero() {
            guest.next.tier.wanted_at = Some(scene.now);
        }
        let Some((order, reason)) = order(guest, makes_tiers, scene.now) else { continue };
        actions.push(Action::of(guest.seen.id.clone(), Request::Tier(order), reason));
    }
    actions
}

fn order(guest: &Guest<'_>, makes_tiers: bool, now: Moment) -> Option<(TierOrder, Reason)> {
    let state = &guest.next.tier;
    if !makes_tiers || !guest.is_free() || state.asked_at.is_some_and(|at| now.since(at) < TIER_EVERY) {
        return None;
    }
    let agent = guest.seen.told.agent.fresh()?;
    let Some(tier) = guest.seen.cost.tier.fresh() else {
        let may = guest.seen.cost.tier.is_unsupported()
            && agent.tiers
            && !guest.is_withheld()
            && !state.vain.lasts(now);
        let size = guest.tier_allowed;
        let reason = Reason::ToTier { anon: agent.memory.anon, wanted: Bytes::ZERO };
        return (may && size >= TIER_LEAST).then_some((TierOrder::Attach(size), reason));
    };
    if !agent.memory.tier_total.is_zero() {
        return None;
    }
    let lost = (state.back_off.span >= TIER_LOST).then_some(Reason::TierLost);
    // One that was in use is used again soon.
    let stays = state.vain.lasts(now) && state.vain.span < VAIN_TIER && !guest.tier_allowed.is_zero();
    ends(guest, tier, now).filter(|_| !stays).or(lost).map(|why| (TierOrder::Detach, why))
}

/// What a guest's agent is asked for: the deed, the bytes that should come of it, and why.
pub type Asked = (Deed, Bytes, Reason);

/// What agents do with their guests' tiers now. Some write a batch, of what is `wanted` beyond idle memory; the cheapest first.
#[must_use]
pub fn choose(scene: &Scene, guests: &[Guest<'_>], wanted: Bytes) -> BTreeMap<usize, Asked> {
    let promised = Bytes::sum(guests.iter().map(|guest| agent::returning(guest, scene.now)));
    let mut wanted = wanted.saturating_sub(promised);
    let mut able: Vec<(u64, usize, Bytes, Bytes)> = Vec::new();
    for (index, guest) in guests.iter().enumerate().filter(|(_, guest)| may_write(guest, scene.now)) {
        let (Some(agent), Some(tier)) = (guest.seen.told.agent.fresh(), guest.seen.cost.tier.fresh()) else {
            continue;
        };
        let batch = next_batch(guest, agent, tier, scene.now);
        if batch >= LEAST_STEP && !agent.memory.tier_total.is_zero() {
            able.push((activity::loses(&guest.next.activity), index, batch, agent.memory.anon));
        }
    }
    able.sort_unstable();
    let mut chosen = BTreeMap::new();
    // What is written takes the host's memory first, and then gives more back.
    let (mut room, mut unproved_room) = (scene.ledger.really_free(), scene.ledger.in_need);
    for (_, index, batch, anon) in able {
        if wanted.is_zero() {
            break;
        }
        let tier = guests[index].seen.cost.tier.fresh().copied().unwrap_or_default();
        let room = if tier.is_proved() { &mut room } else { &mut unproved_room };
        let Some(rest) = room.checked_sub(tier.takes(batch)) else { continue };
        *room = rest;
        chosen.insert(index, (Deed::PageOut(batch), batch, Reason::ToTier { anon, wanted: scene.wanted() }));
        wanted = wanted.saturating_sub(batch);
    }
    let mut room = scene.ledger.calm;
    for (index, guest) in guests.iter().enumerate().filter(|(_, guest)| guest.is_free()) {
        if let Some(asked) =
            guest.seen.told.agent.fresh().and_then(|agent| setting(guest, agent, &mut room, scene.now))
        {
            chosen.insert(index, asked);
        }
    }
    chosen
}

/// What a guest's agent does with its tier, besides writing to it. The memory that the host spends on what is read back is taken from `room`.
fn setting(guest: &Guest<'_>, agent: &Agent, room: &mut Bytes, now: Moment) -> Option<Asked> {
    let tier = guest.seen.cost.tier.fresh()?;
    if guest.next.tier.back_off.lasts(now) {
        return None;
    }
    let ends = ends(guest, tier, now);
    if agent.memory.tier_total.is_zero() {
        let reason = Reason::ToTier { anon: agent.memory.anon, wanted: Bytes::ZERO };
        return (ends.is_none() && agent.tiers).then_some((Deed::UseTier(true), Bytes::ZERO, reason));
    }
    // All of it must fit into the guest. What counts as used there is counted already.
    let more = tier.stored.saturating_sub(guest.used_in_tier(now));
    let has_room = guest.need.used.is_some_and(|used| {
        guest.entry.actual.saturating_sub(used) >= more.saturating_add(guest.need.headroom)
    });
    let rest = room.checked_sub(tier.gained());
    let ends = ends.filter(|_| has_room && rest.is_some())?;
    *room = rest.unwrap_or_default();
    Some((Deed::UseTier(false), Bytes::ZERO, ends))
}

/// Why a tier is let go; `None` if it is not.
fn ends(guest: &Guest<'_>, tier: &Tier, now: Moment) -> Option<Reason> {
    let state = &guest.next.tier;
    // An empty one stays, ready for the next who needs it.
    let is_unwanted =
        tier.stored >= TIER_LEAST && state.wanted_at.is_none_or(|at| now.since(at) >= TIER_UNWANTED);
    // Also once it is empty: it is not used again before the pause is over.
    if state.vain.lasts(now) {
        return Some(match tier.compresses_badly() {
            true => Reason::CompressesBadly { stored: tier.stored, held: tier.held },
            false => Reason::TierInVain,
        });
    }
    (is_unwanted || guest.tier_allowed.is_zero()).then_some(Reason::TierUnwanted)
}

/// Whether a guest may write memory to its tier.
fn may_write(guest: &Guest<'_>, now: Moment) -> bool {
    let state = &guest.next.tier;
    guest.is_free()
        && !guest.tier_allowed.is_zero()
        && !guest.is_withheld()
        && state.watched.is_none()
        && !state.back_off.lasts(now)
        && !state.vain.lasts(now)
        && guest.lacks_in_use().is_zero()
        && guest.lacks_cache().is_zero()
        && !agent::is_busy(guest)
}

/// The next batch that a guest could write: a small one; after one that was cold, twice as much, and at most a sixth of what its programs hold: the last of it is in use.
fn next_batch(guest: &Guest<'_>, agent: &Agent, tier: &Tier, now: Moment) -> Bytes {
    let anon = agent.memory.anon;
    let cold = guest.next.tier.cold.filter(|(_, at)| now.since(*at) < TIER_COLD);
    let twice = cold.map_or(Bytes::ZERO, |(bytes, _)| bytes.saturating_add(bytes));
    let most = anon.saturating_sub(TIER_LEAST);
    let allowed = guest.tier_allowed.min(tier.size).saturating_sub(tier.stored).min(agent.memory.tier_free);
    twice.min(anon.mul_div(1, 6)).max(TIER_LEAST).min(TIER_MOST).min(most).min(allowed)
}
