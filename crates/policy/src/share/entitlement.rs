//! The pool that they share, each guest's bid for it, and its fair share.
//!
//! **Strict**: guests share the memory that they may hold. **Elastic**: they share the memory that they have touched, and the room. A
//! guest that has touched no more than its share keeps all that it holds: taking untouched memory frees nothing.

use memtide_model::{Bytes, Commitment, Config, Moment};

use crate::belief::guest::{Guest, TIERS, Tier};
use crate::belief::scene::Scene;
use crate::share::tiers::{Bid, SelfDeflations, fill};

/// Notes the fair share of each guest.
pub fn entitle(config: &Config, scene: &Scene, guests: &mut [Guest<'_>]) {
    let inside: Vec<usize> = (0..guests.len()).filter(|i| takes_part(&guests[*i], scene.now)).collect();
    let mut outside = vec![true; guests.len()];
    for &i in &inside {
        outside[i] = false;
    }
    match scene.commitment {
        Commitment::Strict => strict(config, scene, guests, &inside, &outside),
        Commitment::Elastic => elastic(scene, guests, &inside),
    }
    // A guest that uses no more than its shares alone would give it is not asked for it: guests that are stuck, cannot be resized or hold
    // more than their share must not harm their neighbours. The commitment waits. Nobody knows what a silent guest uses: all that it holds counts.
    for &i in &inside {
        let guest = &mut guests[i];
        guest.entitlement =
            guest.entitlement.max(in_use_held(guest).min(guest.by_shares)).round_down(guest.step());
    }
}

/// Whether a guest's size follows from the water-fill; other guests keep the memory that they hold.
fn takes_part(guest: &Guest<'_>, now: Moment) -> bool {
    guest.is_managed() && !guest.is_stuck_taking(now)
}

fn strict(config: &Config, scene: &Scene, guests: &mut [Guest<'_>], inside: &[usize], outside: &[bool]) {
    let out = || guests.iter().zip(outside).filter(|(_, out)| **out).map(|(guest, _)| guest);
    let selfs_outside: Vec<Bytes> = out().map(|guest| guest.entry.self_deflation).collect();
    let beyond = inside.iter().map(|&i| {
        let entry = &guests[i].entry;
        entry.strict_cost().saturating_sub(entry.held)
    });
    let fixed = Bytes::sum(beyond.chain(out().map(|guest| guest.entry.strict_cost())));
    let pool = scene.ledger.for_guests().saturating_sub(fixed);
    let bids: Vec<Bid> =
        inside.iter().map(|&i| bid(&guests[i], guests[i].tiers(), guests[i].entry.held, scene.now)).collect();
    let within = scene.ledger.within;
    let selfs = SelfDeflations { k: config.self_deflations, outside: &selfs_outside, within };
    // Memory in use may also take the memory that is kept free.
    let in_use: Vec<Bid> = bids.iter().map(|bid| only(*bid, Tier::InUse)).collect();
    let held = Bytes::sum(inside.iter().map(|&i| guests[i].entry.held));
    let all = pool.max(held.saturating_add(scene.ledger.in_need));
    let least = fill(all, &in_use, SelfDeflations::default());
    for ((&i, share), least) in inside.iter().zip(fill(pool, &bids, selfs)).zip(least) {
        // Silence opens no reserve.
        let least = if guests[i].need.used.is_some() { least } else { Bytes::ZERO };
        guests[i].entitlement = share.max(least).round_down(guests[i].step());
    }
}

/// Memory in use that a guest holds; without statistics, all that it holds.
fn in_use_held(guest: &Guest<'_>) -> Bytes {
    guest.in_use().min(guest.entry.held).round_down(guest.step())
}

fn elastic(scene: &Scene, guests: &mut [Guest<'_>], inside: &[usize]) {
    let touched = Bytes::sum(inside.iter().map(|&i| guests[i].entry.touched()));
    let room = scene.ledger.room;
    let bids: Vec<Bid> = inside
        .iter()
        .map(|&i| bid(&guests[i], by_touch(&guests[i]), guests[i].entry.touched(), scene.now))
        .collect();
    let pool = touched.saturating_add(room.spare).saturating_sub(room.short);
    let mut shares = fill(pool, &bids, SelfDeflations::default());
    // Memory in use may also take the memory that is kept free.
    let in_use: Vec<Bid> = bids.iter().map(|bid| only(*bid, Tier::InUse)).collect();
    let over = if scene.emergency { scene.overrun } else { Bytes::ZERO };
    let pool = touched.saturating_add(scene.ledger.in_need).saturating_sub(over);
    let least = fill(pool, &in_use, SelfDeflations::default());
    for (share, least) in shares.iter_mut().zip(least) {
        *share = (*share).max(least);
    }
    for ((&i, share), bid) in inside.iter().zip(shares).zip(bids) {
        let guest = &mut guests[i];
        let whole = bid.sizes[TIERS - 1].round_down(guest.step());
        guest.entitlement = if share >= whole {
            guest.bounds.limit()
        } else if guest.entry.touched() > share || scene.emergency {
            // In an emergency, untouched memory is a danger, too.
            share
        } else {
            share.max(guest.entry.held)
        }
        .max(guest.bounds.reservation())
        .round_down(guest.step());
    }
}

/// The tiers of a guest as far as it has touched them, or lacks them.
fn by_touch(guest: &Guest<'_>) -> [Bytes; TIERS] {
    let (held, touched) = (guest.entry.held, guest.entry.touched());
    let mut sizes = guest.tiers().map(|size| if size > held { size } else { size.min(touched) });
    sizes[TIERS - 1] = sizes[TIERS - 2].max(touched.min(guest.bounds.limit()));
    sizes
}

fn only(bid: Bid, last: Tier) -> Bid {
    let mut sizes = bid.sizes;
    for tier in last as usize + 1..TIERS {
        sizes[tier] = sizes[last as usize];
    }
    Bid { sizes, ..bid }
}

/// The bid of a guest that holds `held`; elastic: that has touched as much.
fn bid(guest: &Guest<'_>, mut sizes: [Bytes; TIERS], held: Bytes, now: Moment) -> Bid {
    let self_full = if guest.deflates_itself() { guest.full } else { Bytes::ZERO };
    if guest.is_stuck(now) {
        // It gives nothing before its pause has passed.
        let has = sizes[Tier::Limit as usize].min(held);
        sizes[Tier::Reservation as usize] = sizes[Tier::Reservation as usize].max(has);
    }
    Bid { sizes, shares: guest.class.shares, self_full }
}
