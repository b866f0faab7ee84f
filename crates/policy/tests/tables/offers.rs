//! What a guest could give, and why it is not taken: for people.

use super::*;
use crate::common::{guest, mib, snapshot};
use memtide_model::{Hold, Keeps, NotBought, Offers, Pays, Spared, Way};
use memtide_policy::offers;

/// The first guest has 500 MiB of page cache, and the second 480 MiB free. The host has this much memory.
fn seen(millis: u64, capacity: u64, stalls: u64) -> Snapshot {
    let caches = told(guest("caches", 1024, 500), |stats| {
        (stats.free, stats.disk_caches) = (Some(mib(20)), Some(mib(500)));
    });
    let idle = guest("idle", 1024, 500);
    let busy = told(guest("starves", 600, 590), |stats| stats.alloc_stalls = Some(stalls));
    snapshot(millis, capacity, vec![caches, idle, busy])
}

fn of(capacity: u64, stalls: u64, name: &str) -> Offers {
    let config = config();
    let state = known(&config, &seen(1_000, capacity, 0));
    let now = seen(6_000, capacity, stalls);
    offers(&config, &proved(&state, &now), &now, &id(name)).unwrap()
}

#[test]
fn while_nobody_wants_memory_each_way_says_so() {
    let offers = of(8_000, 0, "caches");
    assert!(offers.wanted.is_zero() && offers.spared.is_none());
    assert!(!offers.offers.is_empty(), "{offers:#?}");
    for offered in &offers.offers {
        assert_eq!((offered.bought, offered.why), (mib(0), Some(NotBought::NothingWanted)), "{offered:?}");
    }
    let given: u64 = offers.offers.iter().map(|offered| offered.frees.get()).sum();
    assert!(given <= mib(1024).get(), "no byte is offered twice: {offers:#?}");
}

#[test]
fn what_is_cheaper_is_bought_and_the_rest_says_what_it_is_for() {
    let idle = of(2_600, 100, "idle");
    assert!(!idle.wanted.is_zero(), "{idle:#?}");
    let first = idle.offers.first().unwrap();
    assert_eq!((first.way, first.price, first.why), (Way::Idle, 0, None), "{idle:#?}");
    assert!(!first.bought.is_zero());
    let caches = of(2_600, 100, "caches");
    let needed = caches.offers.iter().find(|offered| offered.way == Way::Unproven).unwrap();
    assert!(
        matches!(needed.why, Some(NotBought::Enough | NotBought::OnlyFor(Pays::Pressing)))
            && needed.price > 0,
        "{caches:#?}"
    );
}

#[test]
fn a_guest_that_is_left_alone_says_why() {
    let config = config();
    let mut state = known(&config, &seen(1_000, 2_600, 0));
    state.guests.entry(id("idle")).or_default().hold = Some(Hold { keeps: Keeps::Size, until: None });
    let offers = offers(&config, &state, &seen(6_000, 2_600, 100), &id("idle")).unwrap();
    assert_eq!(offers.spared, Some(Spared::LeftAlone));
}
