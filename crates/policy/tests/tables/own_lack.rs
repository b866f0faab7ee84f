//! No guest gives memory for its own lack: a request to a guest is judged over the others.

use memtide_model::{Amount, Bytes, Config, Decision, GuestSeen, Reading};

use super::{known, line, targets, tick, told};
use crate::common::{OVERHEAD, but, config, elastic, guest, mib, snapshot};

fn stalled(guest: GuestSeen, stalls: u64) -> GuestSeen {
    told(guest, |stats| stats.alloc_stalls = Some(stalls))
}

/// "a" uses 900 of its 910 and stalls; "b" uses 300 of its 310, and stalls as well if `both` do. They cost 970 + 370 of 1400, and
/// the other 60 are the reserve. 5/4 of 2 % of the host stay free: 25 of the reserve can be granted.
fn used(both: bool) -> Decision {
    let config = Config { reserve: Amount::Bytes(mib(60)), ..elastic() };
    let seen = |millis, stalls: u64| {
        let b = stalled(guest("b", 310, 300), if both { stalls } else { 0 });
        snapshot(millis, 1400, vec![stalled(guest("a", 910, 900), stalls), b])
    };
    let state = known(&config, &seen(1000, 0));
    tick(&config, &state, &seen(60_000, 10_000))
}

/// Whether `name` is asked to keep less than `had`.
fn gives(decision: &Decision, name: &str, had: u64) -> bool {
    targets(decision).iter().any(|(asked, target)| *asked == name && *target < had)
}

#[test]
fn a_guest_that_lacks_memory_keeps_what_it_uses() {
    // "a" uses 900 and is the only guest whose lack cannot wait.
    let decision = used(false);
    assert!(!gives(&decision, "a", 910) && !gives(&decision, "b", 310), "{:?}", targets(&decision));
    assert!(line(&decision, "a").entitlement >= mib(910), "{:?}", line(&decision, "a"));
}

#[test]
fn the_reserve_serves_others_that_lack_memory_before_it_gives() {
    // "b" uses less than half of the host and lacks 22 of headroom: the reserve is enough.
    let decision = used(true);
    assert!(!gives(&decision, "a", 910), "{:?}", targets(&decision));
    assert_eq!(targets(&decision), [("b", 335)]);
}

#[test]
fn a_guest_with_page_cache_of_its_own_gives_none_of_it_for_its_own_lack() {
    // Strict, 400 + 600 + 120 of 1120: no room. "a" uses 150, has 230 of page cache and 20 free; it stalls, so it lacks 100 of its fair share of
    // 1120 / 2 - 60. "b" uses 500 and keeps 600: 68 idle, and no other guest can give anything.
    let seen = |millis, stalls| {
        let a = told(guest("a", 400, 150), |stats| {
            (stats.free, stats.disk_caches) = (Some(mib(20)), Some(mib(230)));
        });
        snapshot(millis, 1120, vec![stalled(a, stalls), guest("b", 600, 500)])
    };
    let state = known(&config(), &seen(1000, 0));
    let decision = tick(&config(), &state, &seen(60_000, 10_000));
    assert_eq!(targets(&decision), [("b", 532)]);
    assert_eq!(decision.report.host.room, Bytes::ZERO);
}

#[test]
fn a_guest_keeps_the_free_memory_that_its_kernel_cannot_use() {
    // Strict: "a" stalls, and nothing is left. "b" keeps 878 and has 43 available: 835 are in use for its kernel, which needs 69 of them free. The
    // host has seen only 769 touched. Real guests whose balloon took the rest killed a program.
    let seen = |millis, stalls| {
        let b = told(guest("b", 878, 835), |stats| stats.free = Some(mib(112)));
        let b = but(b, |b| b.cost.footprint = Reading::now(mib(769).saturating_add(OVERHEAD)));
        snapshot(millis, 1398, vec![stalled(guest("a", 400, 390), stalls), b])
    };
    let state = known(&config(), &seen(1000, 0));
    let decision = tick(&config(), &state, &seen(60_000, 10_000));
    assert!(!gives(&decision, "b", 835), "{:?}", targets(&decision));
}
