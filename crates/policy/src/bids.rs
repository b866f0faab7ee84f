//! Stage 2 for all guests: the pool that they share, each guest's bid for it, and the guests that are spared.

use memtide_model::{Bounds, Bytes, Commitment, Config, Moment};

use crate::demand::Demand;
use crate::entitlement::{Bid, Fill, Idle, SelfDeflations, fill};
use crate::guest::Guest;
use crate::ledger::{Entry, Ledger};
use crate::scene::Scene;

/// The part of a demand that counts.
type Need = fn(&Demand) -> Bytes;

/// Stage 2 for all guests that take part in it.
pub fn entitle(config: &Config, scene: &mut Scene, guests: &mut [Guest<'_>]) {
    let inside: Vec<usize> = (0..guests.len()).filter(|i| takes_part(&guests[*i], scene.now)).collect();
    let mut outside = vec![true; guests.len()];
    for &i in &inside {
        outside[i] = false;
    }
    let selfs_outside: Vec<Bytes> = guests
        .iter()
        .zip(&outside)
        .filter(|(_, out)| **out)
        .map(|(guest, _)| guest.entry.self_deflation)
        .collect();
    let selfs = self_deflations(config, &selfs_outside);
    let pool = pool(scene, guests, &outside);
    let bids = |need: Need| -> Vec<Bid> { inside.iter().map(|&i| bid(scene, &guests[i], need)).collect() };
    let mut fill = Fill::new(pool, &bids(Demand::total), selfs);
    if !fill.meets_all() {
        let mut lean = bids(Demand::lean);
        for (bid, &i) in lean.iter_mut().zip(&inside) {
            if guests[i].class.squeeze {
                bid.idle = Idle::Last;
            }
        }
        fill = Fill::new(pool, &lean, selfs);
    }
    let shares = fill.shares();
    scene.ample = inside
        .iter()
        .zip(&shares)
        .all(|(&i, share)| *share >= bid_limit(&guests[i]).round_down(guests[i].step()));
    for (&i, share) in inside.iter().zip(&shares) {
        guests[i].entitlement = entitlement(scene, &guests[i], *share);
    }
    if guests.iter().any(|guest| guest.is_managed() && guest.entitlement < guest.modest()) {
        spare_the_modest(scene, guests);
    }
    // On top of all shares: memory that a helped guest would take by itself takes nothing from the shares of others.
    for guest in guests.iter_mut().filter(|guest| guest.next.helped.is_some()) {
        let needs = guest.bounds.clamp(guest.demand.lean_and(guest.granted_ahead())).round_down(guest.step());
        guest.entitlement = guest.entitlement.max(needs);
    }
}

/// A guest that uses no more than the shares alone would give it is never asked for used memory. Guests that are stuck, were
/// reset, cannot be resized or hold more than their share must not harm their neighbours. If too little is left then, the
/// commitment waits: breaking it later is better than an OOM kill in a guest now. Possible self-deflations take no used memory
/// either: one guest larger than the pool would leave nothing to the others.
fn spare_the_modest(scene: &Scene, guests: &mut [Guest<'_>]) {
    let pool = scene.ledger.for_guests().saturating_sub(fixed_costs(guests, &vec![false; guests.len()]));
    let equal_need: Vec<Bid> =
        guests.iter().map(|guest| bid_of(guest, guest.bounds.limit(), bid_limit(guest))).collect();
    let fair = fill(pool, &equal_need, SelfDeflations::default());
    for (guest, fair) in guests.iter_mut().zip(fair).filter(|(guest, _)| guest.is_managed()) {
        guest.entitlement = guest.entitlement.max(guest.modest().min(fair)).round_down(guest.step());
    }
}

fn self_deflations<'a>(config: &Config, outside: &'a [Bytes]) -> SelfDeflations<'a> {
    let k = if config.commitment == Commitment::Strict { config.self_deflations } else { 0 };
    SelfDeflations { k, outside }
}

/// Whether a guest's size follows from the water-fill; other guests keep the memory that they hold.
fn takes_part(guest: &Guest<'_>, now: Moment) -> bool {
    guest.is_managed() && !guest.is_stuck(now)
}

/// A guest without fresh statistics is offered no more than it holds, unless the operator released it.
fn bid_limit(guest: &Guest<'_>) -> Bytes {
    if guest.demand.used.is_some() || guest.is_released() {
        guest.bounds.limit()
    } else {
        guest.bounds.limit().min(guest.entry.held)
    }
}

/// A guest's bid for its `need`. By touch, a guest that lacks nothing bids for no more than its touched memory, and nobody gains
/// beyond its need.
fn bid(scene: &Scene, guest: &Guest<'_>, need: Need) -> Bid {
    let (demand, limit) = (need(&guest.demand), bid_limit(guest));
    if !scene.by_touch {
        return bid_of(guest, demand, limit);
    }
    let touched = guest.entry.touched();
    let demand = match guest.lacks().is_zero() {
        true => touched.saturating_sub(guest.idle_touched(demand)),
        false => demand,
    };
    bid_of(guest, demand, limit.min(demand.max(touched).max(guest.bounds.reservation())))
}

/// The size that a guest may keep for its `share`: at least its floor, plus lacking used memory that can be granted now and that
/// no other guest lacks.
fn entitlement(scene: &Scene, guest: &Guest<'_>, share: Bytes) -> Bytes {
    let held = guest.entry.held;
    let entitlement = match scene.by_touch {
        true => by_share_of_touched(scene, guest, share),
        false => {
            share.max(floor(scene, guest, share).min(held.min(bid_limit(guest))).round_down(guest.step()))
        }
    };
    let served = scene.granted_now(guest);
    if served.is_zero() {
        entitlement
    } else {
        entitlement.max(held.saturating_add(served).round_down(guest.step()))
    }
}

/// The entitlement of a guest whose share of all touched memory is `share`. A guest that has touched no more than its share keeps
/// all that it holds.
fn by_share_of_touched(scene: &Scene, guest: &Guest<'_>, share: Bytes) -> Bytes {
    let held = guest.entry.held.min(bid_limit(guest));
    let above = guest.entry.touched().saturating_sub(share);
    if above.is_zero() {
        return held.max(share);
    }
    guest.keeps_to_give(above, floor(scene, guest, share)).min(held).round_down(guest.step())
}

/// The size that a guest keeps whatever its `share` is. Memory kept free, and page cache of others, are worth idle memory only.
/// While something is pressing, a guest also gives page cache, as far as a search went; while the host is in danger, also
/// headroom. Used memory is taken only for other guests that use more than they hold. A guest without fresh statistics has no
/// floor.
fn floor(scene: &Scene, guest: &Guest<'_>, share: Bytes) -> Bytes {
    let lean = guest.bounds.clamp(guest.demand.lean());
    match guest.demand.used {
        None => lean.min(share),
        Some(_) if scene.others_starve_for_use(guest) => lean.min(share),
        Some(used) if !scene.danger.is_zero() => lean.min(guest.bounds.clamp(used).max(share)),
        Some(_) if !scene.pressing_for(guest).is_zero() => lean.min(guest.firm().max(share)),
        Some(_) => lean,
    }
}

fn bid_of(guest: &Guest<'_>, demand: Bytes, limit: Bytes) -> Bid {
    let bounds =
        Bounds::new(guest.bounds.reservation().min(limit), limit).expect("the smaller of both is no larger");
    Bid {
        bounds,
        demand,
        shares: guest.class.shares,
        idle: Idle::Taxed(guest.class.idle_tax),
        self_full: if guest.deflates_itself() { guest.seen.told.full } else { Bytes::ZERO },
    }
}

/// The memory that the guests in the water-fill may keep together.
///
/// Strict: the memory left for guests, less all overheads and the memory held by the others. Elastic: their held memory plus the
/// room, and at least the strict measure less the memory kept free. If memory is wanted: their touched memory plus the room, or
/// less the shortage.
fn pool(scene: &Scene, guests: &[Guest<'_>], outside: &[bool]) -> Bytes {
    let strict = scene.ledger.for_guests().saturating_sub(fixed_costs(guests, outside));
    if scene.commitment == Commitment::Strict {
        return strict;
    }
    let inside = guests.iter().zip(outside).filter(|(_, out)| !**out).map(|(guest, _)| &guest.entry);
    let Ledger { room, keep_free, .. } = scene.ledger;
    if scene.by_touch {
        return Bytes::sum(inside.map(Entry::touched)).saturating_add(room.spare).saturating_sub(room.short);
    }
    let held = Bytes::sum(inside.map(|entry| entry.held));
    held.saturating_add(room.spare).max(strict.saturating_sub(keep_free))
}

/// The cost that the water-fill cannot change: everything beyond the guests' held memory, and the memory held outside it.
fn fixed_costs(guests: &[Guest<'_>], outside: &[bool]) -> Bytes {
    Bytes::sum(guests.iter().zip(outside).map(|(guest, out)| {
        let cost = guest.entry.strict_cost();
        if *out { cost } else { cost.saturating_sub(guest.entry.held) }
    }))
}
