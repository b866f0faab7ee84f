//! First, do no harm: page cache and used memory are taken only for guests that lack used memory, or for a host in danger.

use memtide_model::{Amount, Bytes, Config, Decision, GuestSeen, HostState, Reading, Span, State};

use super::{known, line, memory, targets, tick, told};
use crate::common::{OVERHEAD, but, config, elastic, guest, mib, snapshot, stats};

/// It holds all of its 1024, uses `used` and has `cache` of page cache. It has touched no more, and was pressed down to that.
fn cached(name: &str, used: u64, cache: u64) -> GuestSeen {
    let seen = told(guest(name, 1024, used), |s| *s = stats(mib(1024), mib(used), mib(cache)));
    but(seen, |guest| guest.cost.footprint = Reading::now(mib(used + cache).saturating_add(OVERHEAD)))
}

/// The state of guests that have nothing idle.
fn pressed(config: &Config, capacity: u64, guests: &[GuestSeen]) -> State {
    let mut state = known(config, &snapshot(1000, capacity, guests.to_vec()));
    for guest in guests {
        memory(&mut state, guest.id.name()).pressed = guest.cost.footprint.latest().copied();
    }
    state
}

/// A host of 2048 with a reserve of 5 %, 102. Nobody lacks memory, and `free` is really free.
fn with_free(config: Config, free: u64) -> Decision {
    let config = Config { reserve: Amount::Bytes(mib(102)), ..config };
    // 560 + 660 + the third guest's used memory and overhead, of 2048 less `free`.
    let guests = [cached("hot", 100, 400), cached("cold", 100, 500), cached("work", 768 - free, 0)];
    let state = pressed(&config, 2048, &guests);
    tick(&config, &state, &snapshot(60_000, 2048, guests.to_vec()))
}

#[test]
fn no_page_cache_is_taken_for_what_is_kept_free() {
    // 81 are really free, and none besides the reserve: the host is hard, and 102 + 154 − 81 = 175 are wanted.
    let decision = with_free(elastic(), 81);
    assert_eq!(decision.report.host.state, HostState::Hard);
    assert_eq!(decision.report.host.free, Bytes::ZERO);
    assert_eq!(targets(&decision), []);
    assert_eq!((line(&decision, "hot").cache, line(&decision, "cold").cache), (mib(400), mib(500)));
}

#[test]
fn a_host_in_danger_takes_page_cache() {
    // 2 % of 2048 is 40.96: with 40 the host is low. It is safe with 4 %, 81.92: 41.92 are pressing. The search takes 500 / 900
    // and 400 / 900 of that, 23.3 and 18.6, but 16 stay free in each guest: 7.3 and 2.6. The other 32 come from the guest with
    // the fewest shares a byte: all hold the same, and "cold" comes first. Each also gives as much untouched memory again: 1024 −
    // 2 × 39.3 and 1024 − 2 × 2.6.
    let decision = with_free(elastic(), 40);
    assert_eq!(decision.report.host.state, HostState::Low);
    assert_eq!(targets(&decision), [("cold", 945), ("hot", 1018)]);
    let decision = with_free(elastic(), 41);
    assert_eq!((decision.report.host.state, targets(&decision)), (HostState::Hard, vec![]));
}

#[test]
fn a_lack_is_granted_from_what_is_kept_free_first() {
    // "work" holds and uses 600 and stalls, so it lacks 150. 180 are free besides the reserve, 154 of them for the soft line: 26
    // are spare, and all 150 are granted. "hot" and "cold" keep their cache.
    let config = Config { reserve: Amount::Bytes(mib(102)), ..elastic() };
    let seen = |millis, stalls| {
        let work = told(guest("work", 600, 600), |s| s.alloc_stalls = Some(stalls));
        let guests = vec![cached("hot", 100, 400), cached("cold", 100, 386), work];
        snapshot(millis, 2048, guests)
    };
    let state = pressed(&config, 2048, &seen(1000, 0).guests);
    let decision = tick(&config, &state, &seen(60_000, 10_000));
    assert_eq!(decision.report.host.free, mib(180));
    assert_eq!(targets(&decision), [("work", 750)]);
}

#[test]
fn used_memory_is_not_taken_for_page_cache_of_another() {
    // Strict, 770 + 810 + 120 of 1700: no room. "hot" uses 100 and has 665 of page cache, "work" uses 805: with headroom they
    // need 797 + 837, and equal shares of 1580 are 790. "work" keeps all that it holds, and gets its headroom from the cache of
    // "hot".
    let seen = |millis| {
        let hot = told(guest("hot", 770, 100), |s| *s = stats(mib(770), mib(100), mib(665)));
        snapshot(millis, 1700, vec![hot, guest("work", 810, 805)])
    };
    let state = known(&config(), &seen(1000));
    let decision = tick(&config(), &state, &seen(60_000));
    assert!(line(&decision, "work").entitlement >= mib(810), "{:?}", line(&decision, "work"));
    assert_eq!(targets(&decision), [("hot", 743)]);
}

#[test]
fn guests_that_squealed_give_page_cache_last() {
    // "work" stalls at 500 and lacks 125 at once, and nothing is free or idle: 532 + 632 + 500 + 180 of 1844. "cold", with less
    // page cache than "hot", gives all of it, because "hot" squealed once; its back-off is over.
    let seen = |millis, stalls| {
        let keeps = |name, cache: u64| {
            told(guest(name, 132 + cache, 100), |s| *s = stats(mib(132 + cache), mib(100), mib(cache)))
        };
        let work = told(guest("work", 500, 490), |s| s.alloc_stalls = Some(stalls));
        snapshot(millis, 1844, vec![keeps("hot", 500), keeps("cold", 400), work])
    };
    let mut state = known(&config(), &seen(1000, 0));
    let both = tick(&config(), &state, &seen(60_000, 10_000));
    // In proportion to their caches: 125 × 500 / 900 and 125 × 400 / 900.
    assert_eq!(targets(&both), [("hot", 562), ("cold", 476)]);
    memory(&mut state, "hot").squeeze.back_off = Span::from_secs(60);
    let decision = tick(&config(), &state, &seen(60_000, 10_000));
    assert_eq!(targets(&decision), [("cold", 407)]);
}
