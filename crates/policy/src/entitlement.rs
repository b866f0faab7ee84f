//! Stage 2: the fair share of each guest.
//!
//! **Terms.** The pool is the memory that guests may keep. A bid is one guest's demand, bounds and shares. The level λ is
//! memory per share.
//!
//! **Rule.** A weighted water-fill between reservation and limit: each guest gets λ × shares up to its demand, and the level
//! rises until the pool is used up. Memory beyond the demand would be idle. It counts in one of two ways:
//!
//! - [`Idle::Taxed`]: an idle page costs as much as `1 / (1 − tax)` used pages (ESX's rule), so the guest's share beyond its
//!   demand grows by only `1 − tax` as much;
//! - [`Idle::Last`]: no guest gets memory beyond its demand until every demand is met.
//!
//! In a strict commitment, the k largest self-deflations (full size − share) must also fit into the pool. The sum of shares
//! and self-deflations rises with λ, so there is a highest level that fits. It is found in integers, to a page of each
//! share. Fewer pages than guests remain; they go to the largest remainders. If even the smallest shares leave no room for
//! the self-deflations, no share can. The fill then ignores them, so that guests do not give in vain.
//!
//! **Properties.** reservation ≤ share ≤ limit. The shares fit into the pool, unless the reservations alone do not. In one
//! fill, more shares never mean less memory (except for the one page of rounding). A guest that lies about its demand gets
//! at most the memory that its shares give it against the true demands of the others.

use memtide_model::{Bounds, Bytes, PAGE_4K, Share};

use crate::ledger::largest;

/// How memory beyond the demand counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// An idle page costs as much as `1 / (1 − tax)` used pages.
    Taxed(Share),
    /// Only after every demand is met.
    Last,
}

/// One guest's part in the water-fill.
#[derive(Clone, Copy, Debug)]
pub struct Bid {
    /// The least and the most it may get.
    pub bounds: Bounds,
    /// The memory that it needs.
    pub demand: Bytes,
    /// Its weight; zero counts as one.
    pub shares: u32,
    /// How memory beyond its demand counts.
    pub idle: Idle,
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
}

/// λ counts in 2⁻²⁰ pages per share.
const FRACTION: u32 = 20;
const UNTAXED: u64 = 10_000;
/// After this many steps of regula falsi, halving finds the level.
const PATIENCE: u32 = 24;

/// A bid in pages.
struct Flow {
    reservation: u64,
    limit: u64,
    demand: u64,
    shares: u64,
    untaxed: u64,
    last: bool,
    self_full: u64,
}

impl Flow {
    fn new(bid: &Bid) -> Self {
        let pages = |bytes: Bytes| bytes.get() / PAGE_4K.bytes().get();
        let (untaxed, last) = match bid.idle {
            Idle::Taxed(tax) => (UNTAXED - u64::from(tax.basis_points()), tax.basis_points() == 10_000),
            Idle::Last => (UNTAXED, true),
        };
        let (reservation, limit) = (pages(bid.bounds.reservation()), pages(bid.bounds.limit()));
        Self {
            reservation,
            limit,
            demand: pages(bid.demand).clamp(reservation, limit),
            shares: u64::from(bid.shares.max(1)),
            untaxed: if last { UNTAXED } else { untaxed },
            last,
            self_full: pages(bid.self_full),
        }
    }

    /// The level at which the demand is met, rounded up.
    fn met_at(&self) -> u64 {
        clip((u128::from(self.demand) << FRACTION).div_ceil(u128::from(self.shares)))
    }

    /// The level at which the limit is reached, rounded up. `all_met` is the level that meets every demand.
    fn full_at(&self, all_met: u64) -> u64 {
        let start = if self.last { all_met } else { self.met_at() };
        let idle = (u128::from(self.limit - self.demand) << FRACTION) * u128::from(UNTAXED);
        let rise = idle.div_ceil(u128::from(self.shares) * u128::from(self.untaxed.max(1)));
        start.saturating_add(clip(rise)).saturating_add(1)
    }

    /// The share at a level in 2⁻²⁰ pages, before reservation and limit bound it.
    fn exact(&self, level: u64, all_met: u64) -> u128 {
        let flat = u128::from(level) * u128::from(self.shares);
        let demand = u128::from(self.demand) << FRACTION;
        if flat <= demand {
            return flat;
        }
        if self.last {
            return demand + u128::from(level.saturating_sub(all_met)) * u128::from(self.shares);
        }
        demand + untaxed_part(flat - demand, self.untaxed)
    }

    fn at(&self, level: u64, all_met: u64) -> u64 {
        clip(self.exact(level, all_met) >> FRACTION).clamp(self.reservation, self.limit)
    }
}

/// `idle × untaxed / UNTAXED`, in 64 bits if possible: a division of 128 bits takes several times as long.
fn untaxed_part(idle: u128, untaxed: u64) -> u128 {
    match u64::try_from(idle).ok().and_then(|idle| idle.checked_mul(untaxed)) {
        Some(product) => u128::from(product / UNTAXED),
        None => idle * u128::from(untaxed) / u128::from(UNTAXED),
    }
}

fn clip(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The shares of `pool` in the order of the bids.
#[must_use]
pub fn fill(pool: Bytes, bids: &[Bid], selfs: SelfDeflations<'_>) -> Vec<Bytes> {
    Fill::new(pool, bids, selfs).shares()
}

/// A pool and the bids for it, in pages.
pub struct Fill<'a> {
    flows: Vec<Flow>,
    pool: u128,
    selfs: SelfDeflations<'a>,
    /// The level that meets every demand.
    all_met: u64,
    /// The memory that the smallest shares need.
    least_need: u128,
}

impl<'a> Fill<'a> {
    /// Divides `pool` among `bids`, with room for `selfs` if that is possible.
    #[must_use]
    pub fn new(pool: Bytes, bids: &[Bid], selfs: SelfDeflations<'a>) -> Self {
        let flows: Vec<Flow> = bids.iter().map(Flow::new).collect();
        let all_met = flows.iter().map(Flow::met_at).max().unwrap_or(0);
        let pool = u128::from(pool.get() / PAGE_4K.bytes().get());
        let mut fill = Self { flows, pool, selfs, all_met, least_need: 0 };
        fill.least_need = fill.need(0);
        if fill.least_need > pool && selfs.k > 0 {
            fill.selfs = SelfDeflations::default();
            fill.least_need = fill.need(0);
        }
        fill
    }

    /// Whether everybody's demand is met.
    #[must_use]
    pub fn meets_all(&self) -> bool {
        self.need(self.all_met) <= self.pool
    }

    /// The shares in the order of the bids.
    #[must_use]
    pub fn shares(&self) -> Vec<Bytes> {
        let (level, left) = self.level();
        let mut pages: Vec<u64> = self.flows.iter().map(|flow| flow.at(level, self.all_met)).collect();
        hand_out(left, &self.flows, level, self.all_met, &mut pages);
        let handed_out: u128 = pages.iter().map(|count| u128::from(*count)).sum();
        assert!(handed_out <= self.pool.max(self.least_need), "a fill never hands out more than the pool");
        pages.into_iter().map(|count| Bytes::new(count * PAGE_4K.bytes().get())).collect()
    }

    fn need(&self, level: u64) -> u128 {
        total(&self.flows, level, self.all_met, self.selfs)
    }

    /// A level whose need fits into the pool (0 if none does), and the pages that it leaves. From there to the highest such
    /// level, no share rises by more than a page.
    ///
    /// The need is nearly linear between its bends and never falls. The search uses regula falsi in which an unchanged end
    /// counts half each time (the Illinois rule), and halving after [`PATIENCE`] steps.
    fn level(&self) -> (u64, u64) {
        let top = self.flows.iter().map(|flow| flow.full_at(self.all_met)).max().unwrap_or(0);
        let need_top = self.need(top);
        if need_top <= self.pool {
            return (top, clip(self.pool - need_top));
        }
        let most_shares = self.flows.iter().map(|flow| flow.shares).max().unwrap_or(1);
        let close = ((1 << FRACTION) / most_shares).max(1);
        let (mut low, mut high) = (0, top);
        let mut left = self.pool.saturating_sub(self.least_need);
        let (mut spare, mut short) = (left, need_top - self.pool);
        let mut fitted_before = None;
        for step in 0_u32.. {
            if high - low <= close || left == 0 {
                break;
            }
            let part = if step < PATIENCE { u128::from(high - low) * spare / (spare + short) } else { 0 };
            let middle =
                if part == 0 { low + (high - low) / 2 } else { (low + clip(part)).clamp(low + 1, high - 1) };
            let need = self.need(middle);
            let fits = need <= self.pool;
            if fits {
                (low, left, spare) = (middle, self.pool - need, self.pool - need);
            } else {
                (high, short) = (middle, need - self.pool);
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
}

/// The pages that the shares at a level need, including self-deflations.
fn total(flows: &[Flow], level: u64, all_met: u64, selfs: SelfDeflations<'_>) -> u128 {
    let mut shares = 0;
    let inside = flows.iter().map(|flow| {
        let share = flow.at(level, all_met);
        shares += u128::from(share);
        Bytes::new(flow.self_full.saturating_sub(share))
    });
    let outside = selfs.outside.iter().map(|bytes| Bytes::new(bytes.get().div_ceil(PAGE_4K.bytes().get())));
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
fn hand_out(left: u64, flows: &[Flow], level: u64, all_met: u64, pages: &mut [u64]) {
    if left == 0 {
        return;
    }
    let mut order: Vec<(u128, usize)> = flows
        .iter()
        .enumerate()
        .filter(|(i, flow)| pages[*i] < flow.limit && pages[*i] > flow.reservation)
        .map(|(i, flow)| (flow.exact(level, all_met) & ((1 << FRACTION) - 1), i))
        .collect();
    order.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, i) in order.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        pages[i] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bid(demand: u64, shares: u32) -> Bid {
        Bid {
            bounds: Bounds::new(Bytes::ZERO, Bytes::from_mib(1024)).unwrap(),
            demand: Bytes::from_mib(demand),
            shares,
            idle: Idle::Taxed(Share::percent(75).unwrap()),
            self_full: Bytes::ZERO,
        }
    }

    fn mib(shares: &[Bytes]) -> Vec<u64> {
        shares.iter().map(|bytes| bytes.whole_mib()).collect()
    }

    fn fill_mib(pool: u64, bids: &[Bid]) -> Vec<u64> {
        mib(&fill(Bytes::from_mib(pool), bids, SelfDeflations::default()))
    }

    #[test]
    fn scarce_memory_goes_by_shares_up_to_the_demand() {
        // 300 fits under the level; the other 900 are split 1:2.
        assert_eq!(fill_mib(1200, &[bid(300, 1000), bid(900, 1000), bid(1000, 2000)]), [300, 300, 600]);
    }

    #[test]
    fn idle_memory_is_taxed() {
        // λ per 1000 shares: 200 + (λ − 200)/4 = idle one's, min(λ, 800) = busy one's; 3 × idle + busy = 1400
        // ⇒ 3 × (150 + λ/4) + λ = 1400 ⇒ λ = 950 / 1.75 = 542.8; idle = 285.7
        assert_eq!(
            fill_mib(1400, &[bid(200, 1000), bid(200, 1000), bid(200, 1000), bid(800, 1000)]),
            [285, 285, 285, 542]
        );
    }

    #[test]
    fn where_idle_comes_last_every_demand_is_met_first() {
        let last = |demand| Bid { idle: Idle::Last, ..bid(demand, 1000) };
        // 200 + 200 + 800 = 1200 of 1260; the remaining 60 go by shares.
        assert_eq!(fill_mib(1260, &[last(200), last(200), last(800)]), [220, 220, 820]);
    }

    #[test]
    fn reservations_come_before_shares_and_limits_bound_them() {
        let bounds = |low, high| Bounds::new(Bytes::from_mib(low), Bytes::from_mib(high)).unwrap();
        let reserved = Bid { bounds: bounds(600, 1024), ..bid(0, 1000) };
        let limited = Bid { bounds: bounds(0, 100), ..bid(500, 1000) };
        // 1000 − 600 reserved − 100 limited = 300 for the third.
        assert_eq!(fill_mib(1000, &[reserved, limited, bid(900, 1000)]), [600, 100, 300]);
        // Reservations are kept even if they do not fit: the ledger reports the breach.
        assert_eq!(fill_mib(100, &[reserved, limited]), [600, 0]);
    }

    #[test]
    fn an_ample_pool_gives_everyone_its_limit() {
        assert_eq!(fill_mib(4096, &[bid(10, 1), bid(1000, 4000)]), [1024, 1024]);
    }

    #[test]
    fn the_largest_self_deflation_must_fit_besides() {
        let own = |demand| Bid { self_full: Bytes::from_mib(1024), ..bid(demand, 1000) };
        let selfs = SelfDeflations { k: 1, outside: &[] };
        // Equal shares t: 2 t + (1024 − t) = 1624 ⇒ t = 600.
        assert_eq!(mib(&fill(Bytes::from_mib(1624), &[own(1024), own(1024)], selfs)), [600, 600]);
        // 1024 is taken outside the fill already: 2 t + 1024 = 1624 ⇒ t = 300.
        let outside = [Bytes::from_mib(1024)];
        let selfs = SelfDeflations { k: 1, outside: &outside };
        assert_eq!(mib(&fill(Bytes::from_mib(1624), &[own(1024), own(1024)], selfs)), [300, 300]);
    }

    #[test]
    fn no_guest_gives_in_vain_for_self_deflations_that_can_never_fit() {
        let own = |demand| Bid { self_full: Bytes::from_mib(1024), ..bid(demand, 1000) };
        let selfs = SelfDeflations { k: 1, outside: &[] };
        // t + (1024 − t) = 1024 of 1000, whatever t is.
        assert_eq!(mib(&fill(Bytes::from_mib(1000), &[own(600)], selfs)), [1000]);
        // 2 t + (1024 − t) > 1000: equal shares of 1000.
        assert_eq!(mib(&fill(Bytes::from_mib(1000), &[own(600), own(600)], selfs)), [500, 500]);
    }

    #[test]
    fn pages_that_remain_go_to_the_largest_remainders() {
        // 10 pages over three equal bids: 3 each, and one more for the first (equal remainders, first in order).
        let pages =
            fill(Bytes::from_kib(40), &[bid(900, 7), bid(900, 7), bid(900, 7)], SelfDeflations::default());
        assert_eq!(pages.iter().map(|b| b.get() / 4096).collect::<Vec<_>>(), [4, 3, 3]);
    }
}
