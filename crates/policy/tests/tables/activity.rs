//! Page cache comes from guests that do little.

use memtide_model::{Amount, Decision, GuestSeen, HostState, Reading, Span};

use super::{known, targets, tick, told};
use crate::common::{OVERHEAD, but, elastic, guest, mib, snapshot, stats};

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
    assert_eq!(asked(180, 180), ["cold", "hot"], "nobody can tell them apart");
    assert_eq!(asked(59_000, 59_000), ["cold", "hot"]);
}
