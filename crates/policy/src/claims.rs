//! Stage 2 for all guests: the pool that they share, what each claims of it, and who is spared.

use memtide_model::{Bounds, Bytes, Commitment, Config, Moment, PAGE_4K};

use crate::entitlement::{Claim, Fill, Idle, SelfDeflations, fill};
use crate::guest::Guest;
use crate::ledger::Ledger;
use crate::scene::Scene;

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
    let mut claims: Vec<Claim> = inside.iter().map(|&i| claim(&guests[i])).collect();
    let mut fill = Fill::new(pool, &claims, selfs);
    if !fill.meets_all() {
        for (claim, &i) in claims.iter_mut().zip(&inside) {
            claim.demand = guests[i].demand.lean();
            if guests[i].class.squeeze {
                claim.idle = Idle::Last;
            }
        }
        fill = Fill::new(pool, &claims, selfs);
    }
    let shares = fill.shares();
    scene.ample =
        inside.iter().zip(&shares).all(|(&i, share)| *share >= claims_limit(&guests[i]).round_down(PAGE_4K));
    for (&i, share) in inside.iter().zip(&shares) {
        guests[i].entitlement = *share;
    }
    if guests.iter().any(|guest| guest.is_managed() && guest.entitlement < guest.modest()) {
        spare_the_modest(scene, guests);
    }
    // On top of all shares: what a guest would take by itself takes nothing of theirs.
    for guest in guests.iter_mut().filter(|guest| guest.next.helped.is_some()) {
        let needs = guest.bounds.clamp(guest.demand.lean()).round_down(PAGE_4K);
        guest.entitlement = guest.entitlement.max(needs);
    }
}

/// A guest that uses no more than the shares alone would give it is never asked for what it uses: guests that are stuck,
/// were reset, cannot be resized or hold more than their share must not take it out on their neighbours. Where that
/// leaves too little, the commitment waits: breaking it later is better than killing in a guest now. Self-deflations
/// that might come take nothing that a guest uses either: one guest larger than the pool would leave nothing to others.
fn spare_the_modest(scene: &Scene, guests: &mut [Guest<'_>]) {
    let pool = scene.ledger.for_guests().saturating_sub(fixed_costs(guests, &vec![false; guests.len()]));
    let equal_need: Vec<Claim> =
        guests.iter().map(|guest| Claim { demand: guest.bounds.limit(), ..claim(guest) }).collect();
    let fair = fill(pool, &equal_need, SelfDeflations::default());
    for (guest, fair) in guests.iter_mut().zip(fair).filter(|(guest, _)| guest.is_managed()) {
        guest.entitlement = guest.entitlement.max(guest.modest().min(fair)).round_down(PAGE_4K);
    }
}

fn self_deflations<'a>(config: &Config, outside: &'a [Bytes]) -> SelfDeflations<'a> {
    let k = if config.commitment == Commitment::Strict { config.self_deflations } else { 0 };
    SelfDeflations { k, outside }
}

/// Whether a guest's size follows from the water-fill; the others keep what they hold.
fn takes_part(guest: &Guest<'_>, now: Moment) -> bool {
    guest.is_managed() && !guest.is_stuck(now)
}

/// A guest without fresh statistics is offered no more than it holds.
fn claims_limit(guest: &Guest<'_>) -> Bytes {
    if guest.demand.used.is_some() {
        guest.bounds.limit()
    } else {
        guest.bounds.limit().min(guest.entry.held)
    }
}

fn claim(guest: &Guest<'_>) -> Claim {
    let limit = claims_limit(guest);
    let bounds =
        Bounds::new(guest.bounds.reservation().min(limit), limit).expect("the smaller of both is no larger");
    Claim {
        bounds,
        demand: guest.demand.total(),
        shares: guest.class.shares,
        idle: Idle::Taxed(guest.class.idle_tax),
        self_full: if guest.deflates_itself() { guest.seen.full } else { Bytes::ZERO },
    }
}

/// What the guests that take part may keep together.
///
/// Strict: what is left for guests, less all overheads and what the others hold. Elastic: what they hold now and the room
/// beside it; where the room is short, less what is short, twice as much while the strict measure is not reached: memory
/// that a guest holds without using it frees nothing when it is taken away.
fn pool(scene: &Scene, guests: &[Guest<'_>], outside: &[bool]) -> Bytes {
    let strict = scene.ledger.for_guests().saturating_sub(fixed_costs(guests, outside));
    if scene.commitment == Commitment::Strict {
        return strict;
    }
    let held =
        Bytes::sum(guests.iter().zip(outside).filter(|(_, out)| !**out).map(|(guest, _)| guest.entry.held));
    let Ledger { room, keep_free, .. } = scene.ledger;
    let least = strict.saturating_sub(keep_free);
    if room.short.is_zero() {
        return held.saturating_add(room.spare).max(least);
    }
    let once = held.saturating_sub(room.short);
    once.saturating_sub(room.short).max(least.min(once))
}

/// What the water-fill cannot change: all that comes on top of what guests hold, and what those outside it hold.
fn fixed_costs(guests: &[Guest<'_>], outside: &[bool]) -> Bytes {
    Bytes::sum(guests.iter().zip(outside).map(|(guest, out)| {
        let cost = guest.entry.strict_cost();
        if *out { cost } else { cost.saturating_sub(guest.entry.held) }
    }))
}
