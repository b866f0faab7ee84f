//! Squeeze until it squeals.

use memtide_model::{
    Amount, Bytes, Class, Config, GuestSeen, GuestState, HostState, Moment, Reason, Request, Span, Squeeze,
    State,
};
use memtide_policy::demand::Demand;
use memtide_policy::evidence::{Evidence, Source, Trust};
use memtide_policy::squeeze::{gentle_step, listen, may_step, take};

use super::{known, line, memory, targets, tick, told, with_classes};
use crate::common::{config, guest, mib, snapshot, stats};

fn at(secs: u64) -> Moment {
    Moment::from_millis(secs * 1000)
}

fn evidence(trust: Trust) -> Evidence {
    Evidence { source: Source::Balloon, trust, stalls: false, refaults: false, kills: false }
}

/// A guest with this much cache, whose driver shows squeals.
fn cached(mib_of_cache: u64) -> Demand {
    let cache = mib(mib_of_cache);
    Demand {
        used: Some(mib(100)),
        cache_held: cache,
        cache,
        evidence: Some(evidence(Trust::ShowsSqueals)),
        ..Demand::default()
    }
}

#[test]
fn a_gentle_step_is_a_quarter_and_at_least_16_mib() {
    for (cache, step) in [(480, 120), (64, 16), (40, 16), (10, 10), (0, 0)] {
        assert_eq!(gentle_step(&cached(cache)), mib(step), "of {cache}");
    }
}

#[test]
fn a_gentle_step_is_watched_for_4_s_and_waits_for_the_balloon() {
    let squeeze = Squeeze { stepped_at: Some(at(10)), ..Squeeze::default() };
    let may = |at_target, millis| {
        may_step(&squeeze, &cached(100), HostState::High, at_target, false, Moment::from_millis(millis))
    };
    assert!(!may(true, 13_999));
    assert!(may(true, 14_000));
    assert!(!may(false, 14_000));
}

#[test]
fn an_urgent_step_does_not_wait() {
    let squeeze = Squeeze { stepped_at: Some(at(10)), ..Squeeze::default() };
    assert!(may_step(&squeeze, &cached(100), HostState::Hard, false, true, Moment::from_millis(10_250)));
}

#[test]
fn who_backs_off_stalls_or_shows_no_signs_is_not_squeezed() {
    let backs_off = Squeeze { backs_off_until: Some(at(70)), ..Squeeze::default() };
    let may =
        |squeeze: &Squeeze, demand: &Demand, host, now| may_step(squeeze, demand, host, true, true, now);
    assert!(!may(&backs_off, &cached(100), HostState::Hard, at(69)));
    assert!(may(&backs_off, &cached(100), HostState::Hard, at(70)));
    assert!(may(&backs_off, &cached(100), HostState::Low, at(69)), "in an emergency a back-off ends");
    let none = Squeeze::default();
    assert!(!may(&none, &Demand { stalls: true, ..cached(100) }, HostState::Hard, at(1)));
    assert!(!may(
        &none,
        &Demand { evidence: Some(evidence(Trust::MissesSqueals)), ..cached(100) },
        HostState::Hard,
        at(1)
    ));
    assert!(!may(&none, &cached(0), HostState::Hard, at(1)));
}

/// The back-off of a squeal `after` seconds after a step from 400 to 300 of cache; `back_off` was the last one.
fn squeal(after: u64, back_off: Span) -> Option<(Bytes, Span)> {
    let mut before = GuestState::default();
    before.squeeze.back_off = back_off;
    take(&mut before.squeeze, &mut cached(400), mib(100), at(100));
    let mut demand = Demand { stalls: true, ..cached(300) };
    listen(&before, &mut demand, at(100 + after)).1
}

#[test]
fn a_squeal_gives_the_last_good_size_back_and_a_minute_of_back_off() {
    assert_eq!(squeal(3, Span::ZERO), Some((mib(400), Span::from_secs(60))));
}

#[test]
fn the_last_good_size_is_the_last_that_was_watched() {
    // 400, then 300, then 225 of cache; the squeal comes 2 s after the last step.
    let given_back = |first, second| {
        let mut before = GuestState::default();
        take(&mut before.squeeze, &mut cached(400), mib(100), at(first));
        take(&mut before.squeeze, &mut cached(300), mib(75), at(second));
        let mut demand = Demand { stalls: true, ..cached(225) };
        listen(&before, &mut demand, at(second + 2)).1.map(|(cache, _)| cache)
    };
    assert_eq!(given_back(100, 104), Some(mib(300)));
    assert_eq!(given_back(100, 101), Some(mib(400)), "nobody could tell whether 300 were enough");
}

#[test]
fn a_squeal_is_heard_within_20_s_of_a_step() {
    assert!(squeal(19, Span::ZERO).is_some());
    assert_eq!(squeal(20, Span::ZERO), None);
}

#[test]
fn back_offs_double_from_a_minute_to_an_hour() {
    let mut back_off = Span::ZERO;
    let mut minutes = Vec::new();
    for _ in 0..8 {
        back_off = squeal(3, back_off).unwrap().1;
        minutes.push(back_off.as_millis() / 60_000);
    }
    assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn a_search_is_forgotten_ten_minutes_after_its_last_step() {
    let mut before = GuestState::default();
    take(&mut before.squeeze, &mut cached(400), mib(100), at(100));
    let cache_left = |secs| {
        let mut demand = cached(400);
        let _ = listen(&before, &mut demand, at(secs));
        demand.cache
    };
    assert_eq!(cache_left(699), mib(300));
    assert_eq!(cache_left(700), mib(400));
}

/// 1024 MiB guests; "a" has 480 of cache, "b" wants more than its 500: it uses `used`, and the rest is cache.
fn wanting(used: u64) -> Vec<GuestSeen> {
    let a = told(guest("a", 600, 100), |s| *s = stats(mib(600), mib(100), mib(480)));
    let b = told(guest("b", 500, used), |s| *s = stats(mib(500), mib(used), mib(500 - used)));
    vec![a, b]
}

/// "b" wants headroom besides its cache: 300 + 200 + 32 of 500.
fn comfort() -> Vec<GuestSeen> {
    wanting(300)
}

/// "b" wants headroom besides its used memory: 490 + 10 + 32 of 500.
fn need() -> Vec<GuestSeen> {
    wanting(490)
}

#[test]
fn a_want_that_can_wait_is_met_by_a_gentle_step() {
    // 600 + 500 + 120 = 1220: no room. "b" lacks 32, 22 of them besides its used memory: more than a sliver, 16. "a" is squeezed
    // by a quarter, to 360 of cache: it needs 492, and gives the 32.
    let state = known(&config(), &snapshot(1000, 1220, need()));
    let decision = tick(&config(), &state, &snapshot(10_000, 1220, need()));
    assert_eq!(line(&decision, "a").cache, mib(360));
    assert_eq!(targets(&decision), [("a", 568)]);
    let reason =
        decision.plan.actions.iter().find(|a| a.request == Request::SetTarget(mib(568))).unwrap().reason;
    assert_eq!(reason, Reason::SqueezeStep { cache: mib(360), demand: mib(492), wanted: mib(32) });
}

#[test]
fn nobody_gives_page_cache_for_that_of_another() {
    // As above, but "b" has all its used memory. "a" lacks 612 − 600 = 12 and "b" 32: 44 are wanted, and no memory is idle.
    let state = known(&config(), &snapshot(1000, 1220, comfort()));
    let decision = tick(&config(), &state, &snapshot(10_000, 1220, comfort()));
    assert_eq!((line(&decision, "a").cache, line(&decision, "b").cache), (mib(480), mib(200)));
    assert_eq!(targets(&decision), []);
}

#[test]
fn what_was_squeezed_out_is_a_guests_own_again_once_nobody_needs_it() {
    // "a" was squeezed from 480 to 360 of cache and gave 32. Then "b" has freed 200: "a" needs 100 + 480 + 32 again and holds 568
    // of them, and "b" has 500 − 322 idle.
    let state = known(&config(), &snapshot(1000, 1220, need()));
    let first = tick(&config(), &state, &snapshot(10_000, 1220, need()));
    let a = told(guest("a", 568, 100), |s| *s = stats(mib(568), mib(100), mib(468)));
    let later = snapshot(20_000, 1220, vec![a, guest("b", 500, 290)]);
    let decision = tick(&config(), &first.state, &later);
    assert_eq!(line(&decision, "a").cache, mib(480));
    // 32 are spare, the rest comes from "b": 612 − 568 − 32 = 12, but at least a dead band, 16.
    assert_eq!(targets(&decision), [("b", 484), ("a", 600)]);
    // While the commitment is not kept, it has no right to the memory that it gave: 1188 and a reserve of 40 are 8 more than
    // there is.
    let reserved = Config { reserve: Amount::Bytes(mib(40)), ..config() };
    let decision = tick(&reserved, &first.state, &later);
    assert_eq!(line(&decision, "a").cache, mib(468));
}

#[test]
fn nothing_is_squeezed_while_nothing_is_wanted() {
    let decision = tick(&config(), &State::default(), &snapshot(1000, 8192, comfort()));
    assert_eq!(line(&decision, "a").cache, mib(480));
}

/// "new" and "old" keep 740 with 200 used and 500 of cache, "old" without the counters that show a squeal; "busy" keeps 520,
/// uses 510 and stalls.
fn scarce(stalls: u64) -> Vec<GuestSeen> {
    let cached = |name| told(guest(name, 740, 200), |s| *s = stats(mib(740), mib(200), mib(500)));
    let old = told(cached("old"), |s| (s.async_scans, s.alloc_stalls) = (None, None));
    let busy = told(guest("busy", 520, 510), |s| s.alloc_stalls = Some(stalls));
    vec![cached("new"), old, busy]
}

/// The decision when "busy" has stalled, on a host with exactly the memory of the three: 2000 + 180.
fn when_busy_stalls(config: &memtide_model::Config) -> memtide_model::Decision {
    let mut state = tick(config, &State::default(), &snapshot(1000, 2180, scarce(0))).state;
    for name in ["new", "old", "busy"] {
        let guest = memory(&mut state, name);
        (guest.target, guest.target_set_at, guest.squeeze) = (None, None, Squeeze::default());
    }
    tick(config, &state, &snapshot(2000, 2180, scarce(100)))
}

#[test]
fn a_driver_without_signs_of_want_keeps_its_cache() {
    // "busy" needs 520 + 130 = 650: 130 are wanted at once. "new" and "old" have 740 − 732 = 8 idle each: 114 more must come from
    // cache, all of it from "new": 500 − 114 = 386. It needs 200 + 386 + 32 = 618 and gives 740 − 618.
    let decision = when_busy_stalls(&config());
    assert_eq!((line(&decision, "new").cache, line(&decision, "old").cache), (mib(386), mib(500)));
    assert_eq!(line(&decision, "old").entitlement, mib(732));
    assert_eq!(targets(&decision), [("new", 618)]);
}

#[test]
fn a_class_that_forbids_squeezing_keeps_its_cache_within_its_share() {
    // Nobody is squeezed, and 732 + 732 + 650 = 2114 do not fit into 2000: "busy" is below the level, the others share the
    // remaining 1350.
    let config = with_classes(&[("new", Class { squeeze: false, ..Class::default() })]);
    let decision = when_busy_stalls(&config);
    assert_eq!((line(&decision, "new").cache, line(&decision, "old").cache), (mib(500), mib(500)));
    assert_eq!(
        (line(&decision, "new").entitlement, line(&decision, "old").entitlement),
        (mib(675), mib(675))
    );
}

#[test]
fn a_squeal_is_answered_with_what_was_taken() {
    // "a" was squeezed from 480 to 360 of cache and has followed; then kswapd scans. There is room again.
    let state = known(&config(), &snapshot(1000, 1220, need()));
    let first = tick(&config(), &state, &snapshot(10_000, 1220, need()));
    let followed = |scans| {
        let a = told(guest("a", 568, 100), |s| {
            *s = stats(mib(568), mib(100), mib(440));
            s.async_scans = Some(scans);
        });
        vec![a, guest("b", 500, 490)]
    };
    let second = tick(&config(), &first.state, &snapshot(11_000, 1220, followed(0)));
    let decision = tick(&config(), &second.state, &snapshot(15_000, 1420, followed(500_000)));
    let action = decision.plan.actions.iter().find(|action| action.guest().unwrap().name() == "a").unwrap();
    let back_off = Span::from_secs(60);
    assert_eq!(action.reason, Reason::Squeal { cache: mib(480), back_off });
    assert!(line(&decision, "a").target > Some(mib(600)), "{:?}", line(&decision, "a"));
    assert_eq!(decision.state.guests[action.guest().unwrap()].squeeze.backs_off_until, Some(at(75)));
}
