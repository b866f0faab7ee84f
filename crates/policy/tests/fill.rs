//! The water-fill against a naive oracle that hands out one page after the other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use memtide_model::{Bytes, PAGE_4K};
use memtide_policy::belief::guest::TIERS;
use memtide_policy::share::tiers::{Bid, SelfDeflations, fill};
use proptest::collection::vec;
use proptest::prelude::*;

/// A bid in pages: the oracle knows only these numbers.
#[derive(Clone, Copy, Debug)]
struct Wish {
    sizes: [u64; TIERS],
    shares: u32,
    deflates: bool,
}

fn bytes(pages: u64) -> Bytes {
    Bytes::new(pages * PAGE_4K.bytes().get())
}

impl Wish {
    fn full(self) -> u64 {
        self.sizes[TIERS - 1]
    }

    fn bid(self) -> Bid {
        let self_full = if self.deflates { bytes(self.full()) } else { Bytes::ZERO };
        Bid { sizes: self.sizes.map(bytes), shares: self.shares, self_full }
    }
}

/// The pages that these shares need: themselves and the `k` largest self-deflations, of which at most `within` each count.
fn need(wishes: &[Wish], shares: &[u64], (k, within): (usize, u64), outside: &[u64]) -> u64 {
    let inside = wishes
        .iter()
        .zip(shares)
        .map(|(wish, share)| if wish.deflates { wish.full().saturating_sub(*share) } else { 0 });
    let mut own: Vec<u64> = inside.chain(outside.iter().copied()).collect();
    own.sort_unstable();
    shares.iter().sum::<u64>() + own.iter().rev().take(k).map(|own| own.min(&within)).sum::<u64>()
}

/// Everybody begins with its reservation. Tier by tier, the next page goes to the guest that would have it at the lowest level of memory
/// per share, as long as the need fits into the pool. `None` if not even the reservations fit.
fn hand_out(pool: u64, wishes: &[Wish], tiers: usize, k: usize, outside: &[u64]) -> Option<Vec<u64>> {
    let mut shares: Vec<u64> = wishes.iter().map(|wish| wish.sizes[0]).collect();
    if need(wishes, &shares, (k, u64::MAX), outside) > pool {
        return None;
    }
    for tier in 1..tiers {
        loop {
            let next = (0..wishes.len()).filter(|&i| shares[i] < wishes[i].sizes[tier]).min_by(|&a, &b| {
                // (a + 1) / shares of a < (b + 1) / shares of b, multiplied out.
                let level = |i: usize, j: usize| (shares[i] + 1) * u64::from(wishes[j].shares);
                level(a, b).cmp(&level(b, a)).then(a.cmp(&b))
            });
            let Some(next) = next else { break };
            shares[next] += 1;
            if need(wishes, &shares, (k, u64::MAX), outside) > pool {
                shares[next] -= 1;
                return Some(shares);
            }
        }
    }
    Some(shares)
}

/// Self-deflations take no memory in use: if that does not fit beside them, they do not count.
fn oracle(pool: u64, wishes: &[Wish], k: usize, outside: &[u64]) -> Vec<u64> {
    let meets = |shares: &Vec<u64>| shares.iter().zip(wishes).all(|(share, wish)| *share >= wish.sizes[1]);
    match hand_out(pool, wishes, TIERS, k, outside) {
        Some(shares) if k == 0 || meets(&shares) => shares,
        _ => hand_out(pool, wishes, TIERS, 0, &[])
            .unwrap_or_else(|| wishes.iter().map(|wish| wish.sizes[0]).collect()),
    }
}

fn a_wish() -> impl Strategy<Value = Wish> {
    let shares = prop_oneof![Just(1_u32), Just(7), Just(1000), Just(4000), 1..10_000_u32];
    ([0..30_u64, 0..40, 0..40, 0..20, 0..60], shares, any::<bool>()).prop_map(|(steps, shares, deflates)| {
        let mut size = 0;
        let sizes = steps.map(|step| {
            size += step;
            size
        });
        Wish { sizes, shares, deflates }
    })
}

fn filled(pool: u64, wishes: &[Wish], (k, within): (u32, u64), outside: &[u64]) -> Vec<u64> {
    let bids: Vec<Bid> = wishes.iter().map(|wish| wish.bid()).collect();
    let others: Vec<Bytes> = outside.iter().map(|pages| bytes(*pages)).collect();
    let shares = fill(bytes(pool), &bids, SelfDeflations { k, outside: &others, within: bytes(within) });
    shares.iter().map(|share| share.get() / PAGE_4K.bytes().get()).collect()
}

/// A fill and its oracle can differ by rounding only.
fn is_that_of_the_oracle(pool: u64, wishes: &[Wish]) -> Result<(), TestCaseError> {
    let filled = filled(pool, wishes, (0, 0), &[]);
    let expected = oracle(pool, wishes, 0, &[]);
    for (share, expected) in filled.iter().zip(&expected) {
        prop_assert!(share.abs_diff(*expected) <= 1, "{filled:?} instead of {expected:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_fill_is_that_of_the_oracle(pool in 0..900_u64, wishes in vec(a_wish(), 1..7)) {
        is_that_of_the_oracle(pool, &wishes)?;
    }

    #[test]
    fn equal_guests_are_filled_like_the_oracle(pool in 0..900_u64, wish in a_wish(), count in 1..7_usize) {
        is_that_of_the_oracle(pool, &vec![wish; count])?;
    }

    /// With self-deflations, pages leave in lumps, so a naive order of pages is no measure; what must hold is.
    #[test]
    fn self_deflations_fit_or_do_not_count(
        pool in 0..900_u64, wishes in vec(a_wish(), 1..7), k in 1..4_u32, outside in vec(0..60_u64, 0..3),
        within in prop_oneof![Just(u64::MAX >> 20), 0..90_u64],
    ) {
        let shares = filled(pool, &wishes, (k, within), &outside);
        let least: u64 = wishes.iter().map(|wish| wish.sizes[0]).sum();
        prop_assert!(shares.iter().sum::<u64>() <= pool.max(least), "{shares:?}");
        let k = usize::try_from(k).unwrap();
        // Nobody's memory in use is short because of them.
        let alone = filled(pool, &wishes, (0, 0), &[]);
        if shares != alone {
            let now = need(&wishes, &shares, (k, within), &outside);
            prop_assert!(now <= pool, "{shares:?}");
            // A guest has all that it can have at no cost to others.
            for i in (0..wishes.len()).filter(|i| shares[*i] < wishes[*i].full()) {
                let mut raised = shares.clone();
                raised[i] += 1;
                prop_assert!(need(&wishes, &raised, (k, within), &outside) > now, "{shares:?}, and one more for {i}");
            }
        }
        for ((share, alone), wish) in shares.iter().zip(alone).zip(&wishes) {
            prop_assert!(share + 1 >= alone.min(wish.sizes[1]), "{shares:?} instead of {alone:?}");
        }
    }

    #[test]
    fn more_shares_never_mean_less(pool in 0..900_u64, wishes in vec(a_wish(), 1..7), more in 1..5_000_u32) {
        let few = filled(pool, &wishes, (0, 0), &[]);
        let mut richer = wishes;
        richer[0].shares += more;
        let many = filled(pool, &richer, (0, 0), &[]);
        prop_assert!(many[0] + 1 >= few[0], "{many:?} instead of {few:?}");
    }

    /// Asking for more in one tier never takes from what the tiers before it gave to others.
    #[test]
    fn a_wish_takes_nothing_from_earlier_tiers(
        pool in 0..900_u64, wishes in vec(a_wish(), 2..7), tier in 1..TIERS, more in 1..60_u64,
    ) {
        let plain = filled(pool, &wishes, (0, 0), &[]);
        let mut greedy = wishes.clone();
        for size in &mut greedy[0].sizes[tier..] {
            *size += more;
        }
        let shares = filled(pool, &greedy, (0, 0), &[]);
        for i in 1..wishes.len() {
            let before = plain[i].min(wishes[i].sizes[tier - 1]);
            prop_assert!(shares[i] + 1 >= before, "{shares:?} instead of {plain:?}");
        }
    }
}

#[test]
fn memory_in_use_comes_before_anybodys_cache() {
    let wish = |in_use, cache| Wish {
        sizes: [0, in_use, in_use + cache, in_use + cache, 1024],
        shares: 1000,
        deflates: false,
    };
    // 300 + 900 in use of 1300: 100 are left for 200 + 0 of cache.
    assert_eq!(filled(1300, &[wish(300, 200), wish(900, 0)], (0, 0), &[]), [400, 900]);
    // 300 + 900 of 1000: the larger one gives.
    assert_eq!(filled(1000, &[wish(300, 200), wish(900, 0)], (0, 0), &[]), [300, 700]);
}

#[test]
fn sizes_at_the_edge_of_64_bits_fit_into_the_pool() {
    let bid = |size| Bid { sizes: [Bytes::ZERO, size, size, size, size], shares: 1, self_full: Bytes::ZERO };
    let bids = [bid(Bytes::MAX), bid(Bytes::from_mib(1 << 40)), bid(bytes(7))];
    for pool in [bytes(10), Bytes::from_mib(1 << 36), Bytes::MAX] {
        let shares = fill(pool, &bids, SelfDeflations::default());
        assert!(Bytes::sum(shares.iter().copied()) <= pool, "{shares:?} of {pool}");
    }
}
