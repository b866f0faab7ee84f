//! Compressed tiers: the coldest memory of programs is kept compressed by the host.
//!
//! **Problem.** A balloon ends at the memory that programs hold, however long they have not used it. The guest's kernel knows which of it is
//! cold, and can swap it; on the host it is a third or half as large ([`memtide_model::Tier`]).
//!
//! **Rule.** Only where the guest's class allows it, and its agent can. The VMM attaches a tier, and its agent swaps to it, before anybody needs it: growth
//! does not wait for a device. If more is wanted than
//! idle memory and free pieces bring, the guests that lose least work write a piece of their programs' memory to their tiers. What becomes free is idle memory,
//! and goes like all idle memory. Each piece is watched: if more than a sixteenth of it was read back within [`TIER_WATCHED`] (or
//! [`TIER_WATCHED_URGENTLY`]), a pause follows that
//! doubles each time. A tier whose contents do not compress is let go. One that nobody has needed for [`TIER_UNWANTED`] is read
//! back if guest and host have room for it, and stays attached.
//!
//! A tier may take no more of the host's memory than its limit, and the limit counts in the guest's reach. It grows by a piece at a time, from memory that is there.
//!
//! **Property.** A guest that lacks memory writes nothing. Reading back is no stall by itself: what waits shows as a stall like any other.

use std::collections::BTreeMap;

use memtide_model::{
    Action, Agent, BackOff, Bytes, Commitment, Deed, Moment, PAGE_4K, Reason, Request, Span, Tier, TierOrder,
};

use super::agent;
use crate::belief::activity;
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::{
    FIRST_PAUSE, LEAST_STEP, LONGEST_PAUSE, READ_BACK, TIER_EVERY, TIER_LEAST, TIER_PIECE, TIER_UNWANTED,
    TIER_WATCHED, TIER_WATCHED_URGENTLY, VAIN_TIER,
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
    let Some(written) = state.watched else { return };
    let back = tier.read.saturating_sub(written.read);
    let is_hot = back > READ_BACK.of(written.bytes);
    if is_hot {
        state.back_off = state.back_off.again(now, FIRST_PAUSE, LONGEST_PAUSE);
    } else if now.since(written.since) >= if is_urgent { TIER_WATCHED_URGENTLY } else { TIER_WATCHED } {
        state.back_off = BackOff::default();
    } else {
        return;
    }
    state.watched = None;
}

/// What VMMs are asked for: tiers, their limits and their end. New limits are taken from the room that the commitment leaves.
#[must_use]
pub fn orders(scene: &mut Scene, makes_tiers: bool, guests: &mut [Guest<'_>]) -> Vec<Action> {
    let (is_wanted, is_urgent) = (!scene.wanted().is_zero(), !scene.urgent().is_zero());
    let mut room = match scene.commitment {
        Commitment::Strict => scene.ledger.room.spare,
        Commitment::Elastic => scene.ledger.free(),
    };
    let mut actions = Vec::new();
    for guest in guests.iter_mut() {
        watch(guest, is_urgent, scene.now);
        if is_wanted && guest.class.tier.is_some() {
            guest.next.tier.wanted_at = Some(scene.now);
        }
        let Some((order, reason)) = order(guest, is_wanted, makes_tiers, scene.now) else { continue };
        let before = guest.seen.cost.tier.latest().map_or(Bytes::ZERO, |tier| tier.limit);
        let more = order.limit().saturating_sub(before);
        if more > room {
            continue;
        }
        room = room.saturating_sub(more);
        if scene.commitment == Commitment::Strict {
            scene.ledger.strict_costs = scene.ledger.strict_costs.saturating_add(more);
            scene.ledger.room.spare = room;
            scene.ledger.in_need = scene.ledger.in_need.saturating_sub(more);
        }
        actions.push(Action::of(guest.seen.id.clone(), Request::Tier(order), reason));
    }
    actions
}

fn order(guest: &Guest<'_>, is_wanted: bool, makes_tiers: bool, now: Moment) -> Option<(TierOrder, Reason)> {
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
        let allowed = allowance(guest);
        let is_worth_it = agent.memory.anon >= TIER_PIECE && allowed >= TIER_LEAST;
        let reason = Reason::ToTier { anon: agent.memory.anon, wanted: TIER_LEAST };
        return (may && is_worth_it)
            .then_some((TierOrder::Attach { size: allowed, limit: TIER_LEAST }, reason));
    };
    if agent.memory.tier_total.is_zero() {
        return ends(guest, tier, now).map(|reason| (TierOrder::Detach, reason));
    }
    let room = tier.limit.saturating_sub(tier.held);
    let next = next_piece(guest, agent, tier);
    let grows = is_wanted && may_write(guest, now) && next > room && next >= LEAST_STEP;
    if grows {
        let reason = Reason::ToTier { anon: agent.memory.anon, wanted: next };
        return Some((TierOrder::Limit(tier.held.saturating_add(next)), reason));
    }
    // What it is not about to take is not kept for it.
    let is_calm = state.watched.is_none() && !is_wanted;
    (is_calm && room >= TIER_PIECE)
        .then_some((TierOrder::Limit(tier.held.saturating_add(TIER_LEAST)), Reason::TierUnwanted))
}

/// What a guest's agent is asked for: the deed, the bytes that should come of it, and why.
pub type Asked = (Deed, Bytes, Reason);

/// What agents do with their guests' tiers now. Some write a piece, of what is `wanted` beyond idle memory; the cheapest first. A guest whose limit grows with one of the
/// `orders` of this plan waits for it: it would be watched for a small piece.
#[must_use]
pub fn choose(
    scene: &Scene,
    guests: &[Guest<'_>],
    wanted: Bytes,
    orders: &[Action],
) -> BTreeMap<usize, Asked> {
    let promised = Bytes::sum(guests.iter().map(|guest| agent::returning(guest, scene.now)));
    let mut wanted = wanted.saturating_sub(promised);
    let mut able: Vec<(u64, usize, Bytes, Bytes)> = Vec::new();
    for (index, guest) in guests.iter().enumerate().filter(|(_, guest)| may_write(guest, scene.now)) {
        let (Some(agent), Some(tier)) = (guest.seen.told.agent.fresh(), guest.seen.cost.tier.fresh()) else {
            continue;
        };
        let piece = next_piece(guest, agent, tier).min(tier.limit.saturating_sub(tier.held));
        let waits = orders.iter().any(|action| {
            action.guest() == Some(&guest.seen.id) && matches!(action.request, Request::Tier(_))
        });
        if piece >= LEAST_STEP && !waits && !agent.memory.tier_total.is_zero() {
            able.push((activity::loses(&guest.next.activity), index, piece, agent.memory.anon));
        }
    }
    able.sort_unstable();
    let mut chosen = BTreeMap::new();
    for (_, index, piece, anon) in able {
        if wanted.is_zero() {
            break;
        }
        chosen.insert(index, (Deed::PageOut(piece), piece, Reason::ToTier { anon, wanted: scene.wanted() }));
        wanted = wanted.saturating_sub(piece);
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
        let reason = Reason::ToTier { anon: agent.memory.anon, wanted: tier.limit };
        return (ends.is_none() && agent.tiers).then_some((Deed::UseTier(true), Bytes::ZERO, reason));
    }
    // All of it must fit into the guest.
    let has_room = guest.need.used.is_some_and(|used| {
        guest.entry.actual.saturating_sub(used) > tier.stored.saturating_add(guest.need.headroom)
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
    if state.vain.lasts(now) && tier.compresses_badly() {
        return Some(Reason::CompressesBadly { stored: tier.stored, held: tier.held });
    }
    (is_unwanted || guest.class.tier.is_none()).then_some(Reason::TierUnwanted)
}

/// Whether a guest may write memory to its tier.
fn may_write(guest: &Guest<'_>, now: Moment) -> bool {
    let state = &guest.next.tier;
    guest.is_free()
        && guest.class.tier.is_some()
        && !guest.is_withheld()
        && state.watched.is_none()
        && !state.back_off.lasts(now)
        && !state.vain.lasts(now)
        && guest.lacks_in_use().is_zero()
        && guest.lacks_cache().is_zero()
        && !agent::is_busy(guest)
}

/// The next piece that a guest could write: an eighth of what its programs hold.
fn next_piece(guest: &Guest<'_>, agent: &Agent, tier: &Tier) -> Bytes {
    let part = agent.memory.anon.mul_div(1, 8).max(TIER_LEAST);
    // After memory in use was written, the next piece is small.
    let most_of_all = if guest.next.tier.back_off.span == Span::ZERO { TIER_PIECE } else { TIER_LEAST };
    let most = agent.memory.anon.saturating_sub(TIER_LEAST);
    let allowed = allowance(guest).saturating_sub(tier.stored).min(agent.memory.tier_free);
    most_of_all.min(part).min(most).min(allowed)
}

/// The most of a guest's memory that may lie in its tier.
fn allowance(guest: &Guest<'_>) -> Bytes {
    guest.class.tier.map_or(Bytes::ZERO, |tier| tier.of(guest.full)).round_down(PAGE_4K)
}
