//! The water-fill against a naive oracle that hands out one page after the other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use memtide_model::{Bounds, Bytes, PAGE_4K, Share};
use memtide_policy::entitlement::{Bid, Idle, SelfDeflations, fill};
use proptest::collection::vec;
use proptest::prelude::*;

/// A bid in pages: the oracle knows only these numbers.
#[derive(Clone, Copy, Debug)]
struct Wish {
    reservation: u64,
    limit: u64,
    demand: u64,
    shares: u32,
    /// `None`: memory beyond the demand comes last.
    tax: Option<u8>,
    deflates: bool,
}

/// A level of the water, as a fraction.
#[derive(Clone, Copy, Debug)]
struct Level(u128, u128);

impl Level {
    fn is_below(self, other: Self) -> bool {
        self.0 * other.1 < other.0 * self.1
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0 * other.1 + other.0 * self.1, self.1 * other.1)
    }
}

fn bytes(pages: u64) -> Bytes {
    Bytes::new(pages * PAGE_4K.bytes().get())
}

impl Wish {
    fn bid(self) -> Bid {
        Bid {
            bounds: Bounds::new(bytes(self.reservation), bytes(self.limit)).unwrap(),
            demand: bytes(self.demand),
            shares: self.shares,
            idle: self.tax.map_or(Idle::Last, |tax| Idle::Taxed(Share::percent(tax).unwrap())),
            self_full: if self.deflates { bytes(self.limit) } else { Bytes::ZERO },
        }
    }

    fn demand(self) -> u64 {
        self.demand.clamp(self.reservation, self.limit)
    }

    /// The level at which the demand is met.
    fn met_at(self) -> Level {
        Level(u128::from(self.demand()), u128::from(self.shares))
    }

    /// The lowest level at which the guest has this many pages. Below the demand, the level times the shares is the guest's memory.
    /// Beyond it, the memory rises by only `1 − tax` as much; a tax of all lets it rise only after every demand is met.
    fn reaches(self, pages: u64, all_met: Level) -> Level {
        let shares = u128::from(self.shares);
        if pages <= self.demand() {
            return Level(u128::from(pages), shares);
        }
        let idle = u128::from(pages - self.demand());
        match self.tax {
            Some(tax @ 0..=99) => self.met_at().plus(Level(idle * 100, shares * u128::from(100 - tax))),
            _ => all_met.plus(Level(idle, shares)),
        }
    }
}

/// The pages that these shares need: themselves and the `k` largest self-deflations.
fn need(wishes: &[Wish], shares: &[u64], k: usize, outside: &[u64]) -> u64 {
    let inside = wishes
        .iter()
        .zip(shares)
        .map(|(wish, share)| if wish.deflates { wish.limit.saturating_sub(*share) } else { 0 });
    let mut own: Vec<u64> = inside.chain(outside.iter().copied()).collect();
    own.sort_unstable();
    shares.iter().sum::<u64>() + own.iter().rev().take(k).sum::<u64>()
}

/// Everybody begins with its reservation. The next page goes to the guest that would have it at the lowest level, as long as the need
/// fits into the pool.
fn oracle(pool: u64, wishes: &[Wish], k: usize, outside: &[u64]) -> Vec<u64> {
    let mut shares: Vec<u64> = wishes.iter().map(|wish| wish.reservation).collect();
    let least = need(wishes, &shares, k, outside);
    let k = if least > pool { 0 } else { k };
    let all_met =
        wishes.iter().map(|wish| wish.met_at()).fold(Level(0, 1), |a, b| if a.is_below(b) { b } else { a });
    loop {
        let next = (0..wishes.len()).filter(|&i| shares[i] < wishes[i].limit).reduce(|best, i| {
            let level = |i: usize| wishes[i].reaches(shares[i] + 1, all_met);
            if level(i).is_below(level(best)) { i } else { best }
        });
        let Some(next) = next else { return shares };
        shares[next] += 1;
        if need(wishes, &shares, k, outside) > pool {
            shares[next] -= 1;
            return shares;
        }
    }
}

fn a_wish() -> impl Strategy<Value = Wish> {
    let shares = prop_oneof![Just(1_u32), Just(7), Just(1000), Just(4000), 1..10_000_u32];
    let tax =
        prop_oneof![Just(None), Just(Some(0)), Just(Some(75)), Just(Some(100)), (0..=100_u8).prop_map(Some)];
    let sizes = (0..60_u64, 0..120_u64, 0..150_u64);
    (sizes, shares, tax, any::<bool>()).prop_map(|((reservation, more, demand), shares, tax, deflates)| {
        Wish { reservation, limit: reservation + more, demand, shares, tax, deflates }
    })
}

/// A case whose fill and oracle can differ by rounding only.
fn differs_by_rounding_only(
    pool: u64,
    wishes: &[Wish],
    k: u32,
    outside: &[u64],
) -> Result<(), TestCaseError> {
    let bids: Vec<Bid> = wishes.iter().map(|wish| wish.bid()).collect();
    let others: Vec<Bytes> = outside.iter().map(|pages| bytes(*pages)).collect();
    let filled = fill(bytes(pool), &bids, SelfDeflations { k, outside: &others });
    let filled: Vec<u64> = filled.iter().map(|share| share.get() / PAGE_4K.bytes().get()).collect();
    let expected = oracle(pool, wishes, usize::try_from(k).unwrap(), outside);
    for (share, expected) in filled.iter().zip(&expected) {
        prop_assert!(share.abs_diff(*expected) <= 1, "{filled:?} instead of {expected:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn the_fill_is_that_of_the_oracle(pool in 0..700_u64, wishes in vec(a_wish(), 1..7)) {
        differs_by_rounding_only(pool, &wishes, 0, &[])?;
    }

    #[test]
    fn equal_guests_are_filled_like_the_oracle(pool in 0..700_u64, wish in a_wish(), count in 1..7_usize) {
        differs_by_rounding_only(pool, &vec![wish; count], 0, &[])?;
    }
}
