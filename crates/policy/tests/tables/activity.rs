//! Page cache comes from guests that do little.

use memtide_model::{Amount, Decision, GuestSeen, HostState, Proof, Reading, Span};

use super::{known, targets, tick, told};
use crate::common::{OVERHEAD, but, config, deflating, elastic, guest, mib, snapshot, stats};

/// It uses 100 and has `cache` of page cache; its VMM has used this much CPU time.
fn cached(name: &str, cache: u64, cpu_ms: u64) -> GuestSeen {
    let seen = told(guest(name, 1024, 100), |s| *s = stats(mib(1024), mib(100), mib(cache)));
    but(seen, |guest| {
        guest.cost.footprint = Reading::now(mib(100 + cache).saturating_add(OVERHEAD));
        guest.cost.cpu_time = Reading::now(Span::from_millis(cpu_ms));
    })
}

/// A host of 2048 that is low: 40 are free, and 42 are missing until it is safe. Two guests have 400 and 500 of page cache. Within a minute, they have
/// used this much CPU time.
fn low(hot_ms: u64, cold_ms: u64) -> Decision {
    let config = memtide_model::Config { reserve: Amount::Bytes(mib(102)), ..elastic() };
    let seen = |millis, hot_ms, cold_ms| {
        let work = told(guest("work", 1024, 728), |s| *s = stats(mib(1024), mib(728), mib(0)));
        let work = but(work, |guest| guest.cost.footprint = Reading::now(mib(788)));
        snapshot(millis, 2048, vec![cached("hot", 400, hot_ms), cached("cold", 500, cold_ms), work])
    };
    let decision = tick(&config, &known(&config, &seen(1_000, 0, 0)), &seen(60_000, hot_ms, cold_ms));
    assert_eq!(decision.report.host.state, HostState::Low);
    decision
}

#[test]
fn a_host_in_danger_takes_page_cache_from_the_guest_that_rests() {
    let asked = |hot_ms, cold_ms| {
        let decision = low(hot_ms, cold_ms);
        let mut asked: Vec<String> = targets(&decision).iter().map(|(name, _)| (*name).to_owned()).collect();
        asked.sort_unstable();
        asked
    };
    assert_eq!(asked(59_000, 180), ["cold"]);
    assert_eq!(asked(180, 59_000), ["hot"], "{:#?}", low(180, 59_000).plan);
    assert_eq!(asked(180, 180), ["cold"], "nobody can tell them apart: the one with more cache");
    assert_eq!(asked(59_000, 59_000), ["cold"]);
}

#[test]
fn a_share_that_is_not_worth_a_step_is_left_to_the_guest_that_rests() {
    let config = memtide_model::Config { reserve: Amount::Bytes(mib(102)), ..elastic() };
    let seen = |millis, hot_ms, cold_ms| {
        let work = told(guest("work", 1024, 728), |s| *s = stats(mib(1024), mib(728), mib(0)));
        let work = but(work, |guest| guest.cost.footprint = Reading::now(mib(788)));
        let hot = ["hot-1", "hot-2", "hot-3"].map(|name| cached(name, 400, hot_ms));
        let guests = hot.into_iter().chain([cached("cold", 500, cold_ms), work]);
        snapshot(millis, 3168, guests.collect())
    };
    let mut last = known(&config, &seen(1_000, 0, 0));
    last.guests.values_mut().for_each(|guest| guest.gain.proof = Proof::Gained);
    let decision = tick(&config, &last, &seen(60_000, 1_000, 180));
    assert_eq!(decision.report.host.state, HostState::Low);
    let asked: Vec<&str> = targets(&decision).iter().map(|(name, _)| *name).collect();
    // 87 MiB are wanted, and each of the others has 80 of 526 MiB that are likely to be cold: 13 MiB, less than the least step.
    assert_eq!(asked, ["cold"]);
}

/// A host on which a guest grows by 100 MiB a second, beside two guests that have 500 of page cache each, and as much that they never touched. Within a
/// minute, these have used this much CPU time. The guests that are asked for memory then.
fn beside_growth(hot_ms: u64, cold_ms: u64) -> Vec<String> {
    let config = elastic();
    let seen = |millis: u64, used: u64, [hot_ms, cold_ms]: [u64; 2]| {
        let work = told(guest("work", 2048, used), |s| *s = stats(mib(2048), mib(used), mib(0)));
        let work = but(work, |guest| guest.cost.footprint = Reading::now(mib(used).saturating_add(OVERHEAD)));
        snapshot(millis, 2200, vec![cached("hot", 500, hot_ms), cached("cold", 500, cold_ms), work])
    };
    let last = known(&config, &seen(1_000, 100, [0, 0]));
    let last = tick(&config, &last, &seen(60_000, 100, [hot_ms, cold_ms])).state;
    let decision = tick(&config, &last, &seen(61_000, 200, [hot_ms, cold_ms]));
    targets(&decision).iter().map(|(name, _)| (*name).to_owned()).collect()
}

#[test]
fn untouched_memory_is_taken_first_where_page_cache_is_likely_to_be_cold() {
    assert_eq!(beside_growth(59_000, 180), ["cold"]);
    assert_eq!(beside_growth(180, 59_000), ["hot"]);
}

/// What a guest with 400 of page cache, which works as much as it can, is asked to keep on a full host, while its neighbour grows by 100 a second and holds 40
/// more than it uses.
fn keeps_beside(deflates: bool) -> Option<u64> {
    let seen = |millis: u64, used: u64| {
        let grows = told(guest("grows", 560, used), |s| *s = stats(mib(560), mib(used), mib(0)));
        let grows = if deflates { deflating(grows) } else { grows };
        let works = told(guest("works", 560, 100), |s| *s = stats(mib(560), mib(100), mib(400)));
        let works = but(works, |guest| guest.cost.cpu_time = Reading::now(Span::from_millis(millis)));
        snapshot(millis, 2 * (560 + 60), vec![grows, works])
    };
    let last = known(&config(), &seen(1_000, 420));
    let decision = tick(&config(), &last, &seen(2_000, 520));
    targets(&decision).iter().find(|(name, _)| *name == "works").map(|(_, size)| *size)
}

/// Where the other one would wait, a guest that cannot deflate its own balloon kills a program.
#[test]
fn a_guest_that_would_kill_a_program_gets_page_cache_that_nobody_was_seen_to_need() {
    let (waits, kills) = (keeps_beside(true), keeps_beside(false));
    assert!(kills.is_some_and(|kills| kills + 50 <= waits.unwrap_or(560)), "{waits:?} {kills:?}");
}
