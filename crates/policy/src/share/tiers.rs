//! One water-fill over the tiers of all guests' needs.
//!
//! **Terms.** The pool is the memory that guests may keep. A bid is one guest's tiers and shares: rising sizes, each of which meets
//! one more kind of need. The level λ is memory per share.
//!
//! **Rule.** The tiers are filled in their order, each for all guests before the next: reservation, memory in use, cache that was seen
//! to be needed, growth ahead, limit. Within a tier, a guest gets λ × shares, at least what the tier before gave it and at most what
//! this one asks for. So memory in use is never short for anybody's cache, and scarce memory evens out the sizes, not the additions.
//!
//! In a strict commitment, the k largest self-deflations (full size − share) must also fit into the pool. The sum of shares and
//! self-deflations never falls while the fill goes on, so there is a highest fill that fits. It is found in integers, to a page of each
//! share. Fewer pages than guests remain; they go to the largest remainders. Room for the k largest is kept anyway, so these guests get
//! from it what takes nothing from others. Self-deflations take no memory in use: if it fits only without them, they are ignored. The
//! commitment is not kept then, and no guest gives in vain for it.
//!
//! **Properties.** reservation ≤ share ≤ limit. The shares fit into the pool, unless the reservations alone do not. More shares never
//! mean less memory (except for the one page of rounding). A guest that asks for more in a tier gets at most what its shares give it there.

use memtide_model::{Bytes, PAGE_4K};

use crate::belief::guest::{TIERS, Tier};
use crate::belief::ledger::largest;

/// One guest's part in the water-fill.
#[derive(Clone, Copy, Debug)]
pub struct Bid {
    /// The size that meets each tier, in the order of [`Tier`]. A size below the one before counts as equal to it.
    pub sizes: [Bytes; TIERS],
    /// Its weight; zero counts as one.
    pub shares: u32,
    /// Its full size if it may deflate its own balloon, otherwise zero.
    pub self_full: Bytes,
}

/// The self-deflations that must also fit (strict), including those of guests outside the fill.
#[derive(Clone, Copy, Debug, Default)]
pub struct SelfDeflations<'a> {
    /// The number of simultaneous self-deflations.
    pub k: u32,
    /// Self-deflations of guests that take no part in the fill.
    pub outside: &'a [Bytes],
    /// The most of each that counts.
    pub within: Bytes,
}

/// λ counts in 2⁻²⁰ pages per share.
const FRACTION: u32 = 20;
/// After this many steps of regula falsi, halving finds the level.
const PATIENCE: u32 = 24;

/// A bid within one tier, in pages.
#[derive(Clone, Copy)]
struct Flow {
    low: u64,
    high: u64,
    shares: u64,
    self_full: u64,
}

impl Flow {
    /// The level at which it is full, rounded up.
    fn full_at(&self) -> u64 {
        clip((u128::from(self.high) << FRACTION).div_ceil(u128::from(self.shares)))
    }

    /// The share at a level in 2⁻²⁰ pages, before the tier bounds it.
    fn exact(&self, level: u64) -> u128 {
        u128::from(level) * u128::from(self.shares)
    }

    fn at(&self, level: u64) -> u64 {
        clip(self.exact(level) >> FRACTION).clamp(self.low, self.high)
    }
}

/// Larger sizes count as this many pages, 32 PiB: the level of a larger share would not fit into its 64 bits.
const MOST: u64 = 1 << (63 - FRACTION);

fn pages(bytes: Bytes) -> u64 {
    (bytes.get() / PAGE_4K.bytes().get()).min(MOST)
}

fn pages_up(bytes: Bytes) -> u64 {
    bytes.get().div_ceil(PAGE_4K.bytes().get())
}

fn clip(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The shares of `pool` in the order of the bids.
#[must_use]
pub fn fill(pool: Bytes, bids: &[Bid], selfs: SelfDeflations<'_>) -> Vec<Bytes> {
    let plain = SelfDeflations::default();
    let with_selfs = fill_from(Tier::InUse, pool, bids, selfs);
    match with_selfs {
        Some(shares) if selfs.k == 0 || meets(&shares, bids) => shares,
        _ => fill_from(Tier::InUse, pool, bids, plain)
            .unwrap_or_else(|| bids.iter().map(|bid| round(bid.sizes[0])).collect()),
    }
}

/// Whether every guest's memory in use is met.
fn meets(shares: &[Bytes], bids: &[Bid]) -> bool {
    shares.iter().zip(bids).all(|(share, bid)| *share >= round(bid.sizes[0].max(bid.sizes[1])))
}

fn round(bytes: Bytes) -> Bytes {
    bytes.round_down(PAGE_4K)
}

/// The fill from `first` on; `None` if not even the tier before it fits.
fn fill_from(first: Tier, pool: Bytes, bids: &[Bid], selfs: SelfDeflations<'_>) -> Option<Vec<Bytes>> {
    let pool = u128::from(pages(pool));
    let mut flows: Vec<Flow> = bids
        .iter()
        .map(|bid| {
            let least = pages(bid.sizes[0]);
            Flow {
                low: least,
                high: least,
                shares: u64::from(bid.shares.max(1)),
                self_full: pages(bid.self_full),
            }
        })
        .collect();
    if total(&flows, 0, selfs) > pool {
        return None;
    }
    for tier in first as usize..TIERS {
        for (flow, bid) in flows.iter_mut().zip(bids) {
            (flow.low, flow.high) = (flow.high, flow.high.max(pages(bid.sizes[tier])));
        }
        let top = flows.iter().map(Flow::full_at).max().unwrap_or(0);
        let need = total(&flows, top, selfs);
        if need > pool {
            let (level, left) = level(&flows, top, need, pool, selfs);
            let mut counts = shares(&flows, level, left);
            leave_to_the_largest(&mut counts, &flows, bids, selfs);
            let handed_out: u128 = counts.iter().map(|count| u128::from(*count)).sum();
            assert!(handed_out <= pool, "a fill never hands out more than the pool");
            return Some(counts.into_iter().map(|count| Bytes::new(count * PAGE_4K.bytes().get())).collect());
        }
    }
    Some(flows.iter().map(|flow| Bytes::new(flow.high * PAGE_4K.bytes().get())).collect())
}

fn shares(flows: &[Flow], level: u64, left: u64) -> Vec<u64> {
    let mut counts: Vec<u64> = flows.iter().map(|flow| flow.at(level)).collect();
    hand_out(left, flows, level, &mut counts);
    counts
}

/// Raises each guest among the `k` with the largest self-deflations until its own is no larger than the largest one outside
/// the `k`. That takes nothing from others: its share and its self-deflation add up to the same.
fn leave_to_the_largest(counts: &mut [u64], flows: &[Flow], bids: &[Bid], selfs: SelfDeflations<'_>) {
    if selfs.k == 0 {
        return;
    }
    let inside = flows.iter().zip(&*counts).map(|(flow, count)| flow.self_full.saturating_sub(*count));
    let mut own: Vec<u64> = inside.chain(selfs.outside.iter().map(|bytes| pages_up(*bytes))).collect();
    own.sort_unstable_by(|a, b| b.cmp(a));
    let (next, within) = (own.get(usize::try_from(selfs.k).unwrap_or(usize::MAX)), pages_up(selfs.within));
    let next = next.copied().unwrap_or(0);
    for ((count, flow), bid) in counts.iter_mut().zip(flows).zip(bids) {
        // A self-deflation that counts only in part does not fall with a larger share.
        if flow.self_full.saturating_sub(*count) <= within {
            let limit = pages(bid.sizes[TIERS - 1]).min(flow.self_full.saturating_sub(next));
            *count = (*count).max(limit);
        }
    }
}

/// A level whose need fits into the pool, and the pages that it leaves. From there to the highest such level, no share rises by more
/// than a page. `top` is a level that does not fit, with its need.
///
/// The need is nearly linear between its bends and never falls. The search uses regula falsi in which an unchanged end
/// counts half each time (the Illinois rule), and halving after [`PATIENCE`] steps.
fn level(flows: &[Flow], top: u64, need_top: u128, pool: u128, selfs: SelfDeflations<'_>) -> (u64, u64) {
    let most_shares = flows.iter().map(|flow| flow.shares).max().unwrap_or(1);
    let close = ((1 << FRACTION) / most_shares).max(1);
    let (mut low, mut high) = (0, top);
    let mut left = pool.saturating_sub(total(flows, 0, selfs));
    let (mut spare, mut short) = (left, need_top - pool);
    let mut fitted_before = None;
    for step in 0_u32.. {
        if high - low <= close || left == 0 {
            break;
        }
        let part = if step < PATIENCE { u128::from(high - low) * spare / (spare + short) } else { 0 };
        let middle =
            if part == 0 { low + (high - low) / 2 } else { (low + clip(part)).clamp(low + 1, high - 1) };
        let need = total(flows, middle, selfs);
        let fits = need <= pool;
        if fits {
            (low, left, spare) = (middle, pool - need, pool - need);
        } else {
            (high, short) = (middle, need - pool);
        }
        match (fitted_before, fits) {
            (Some(true), true) => short = short.div_ceil(2),
            (Some(false), false) => spare = spare.div_ceil(2),
            _ => {}
        }
        fitted_before = Some(fits);
    }
    (low, clip(left))
}

/// The pages that the shares at a level need, including self-deflations.
fn total(flows: &[Flow], level: u64, selfs: SelfDeflations<'_>) -> u128 {
    let (mut shares, within) = (0, pages_up(selfs.within));
    let inside = flows.iter().map(|flow| {
        let share = flow.at(level);
        shares += u128::from(share);
        Bytes::new(flow.self_full.saturating_sub(share).min(within))
    });
    let outside = selfs.outside.iter().map(|bytes| Bytes::new(pages_up(*bytes).min(within)));
    // Every share is visited once, whatever `k` is.
    let own = match selfs.k {
        0 => {
            inside.for_each(drop);
            Bytes::ZERO
        }
        k => largest(inside.chain(outside), k),
    };
    shares + u128::from(own.get())
}

/// Gives one page each to the bids with the largest remainders; ties go in the order of the bids.
fn hand_out(left: u64, flows: &[Flow], level: u64, counts: &mut [u64]) {
    if left == 0 {
        return;
    }
    let mut order: Vec<(u128, usize)> = flows
        .iter()
        .enumerate()
        .filter(|(i, flow)| counts[*i] < flow.high && counts[*i] > flow.low)
        .map(|(i, flow)| (flow.exact(level) & ((1 << FRACTION) - 1), i))
        .collect();
    order.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, i) in order.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        counts[i] += 1;
    }
}
