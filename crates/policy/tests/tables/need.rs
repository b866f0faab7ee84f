//! Stage 1: the memory that a guest needs.

use memtide_model::{Bytes, GuestSeen, GuestStats, Mode, Moment, Reading, State};

use super::{Config, known, line, memory, targets, tick, told};
use crate::common::{OVERHEAD, but, config, deflating, guest, host, id, mib, snapshot, stats};

/// Demands are the same in observe mode, and nothing moves.
fn observing() -> Config {
    Config { mode: Mode::Observe, ..config() }
}

fn demand_of(seen: GuestSeen) -> Bytes {
    let name = seen.id.name().to_owned();
    let decision = tick(&observing(), &State::default(), &snapshot(1000, 65_536, vec![seen]));
    line(&decision, &name).demand
}

#[test]
fn used_memory_and_headroom_without_cache() {
    // 300 used + 0 cache + 1024 / 32 headroom.
    assert_eq!(demand_of(guest("a", 1024, 300)), mib(332));
}

#[test]
fn page_cache_counts_once_it_was_seen_to_be_needed() {
    // 300 used + 200 cache + 80 that its kernel keeps free, 5/64 of 1024. Before: 300 used + 32 headroom.
    let seen = || told(guest("a", 1024, 300), |s| *s = stats(mib(1024), mib(300), mib(200)));
    assert_eq!(demand_of(seen()), mib(332));
    let mut state = tick(&observing(), &State::default(), &snapshot(1000, 65_536, vec![seen()])).state;
    memory(&mut state, "a").search.needs = mib(200);
    let decision = tick(&observing(), &state, &snapshot(1250, 65_536, vec![seen()]));
    assert_eq!(line(&decision, "a").demand, mib(580));
}

#[test]
fn used_memory_is_at_most_what_was_touched() {
    // It says that nothing is available, and has touched 200 of its 1024.
    let liar =
        told(guest("a", 1024, 200), |s| (s.available, s.free) = (Some(Bytes::ZERO), Some(Bytes::ZERO)));
    let liar = but(liar, |guest| guest.cost.footprint = Reading::now(mib(200).saturating_add(OVERHEAD)));
    assert_eq!(demand_of(liar), mib(232));
}

#[test]
fn what_a_kernel_reserved_counts_for_an_instance_that_moves_no_memory_by_itself() {
    // Its kernel offers 231 of 256 and has nothing left. Of the other 25, it has touched 10.
    let seen = told(guest("a", 256, 256), |s| (s.total, s.free) = (Some(mib(231)), Some(Bytes::ZERO)));
    let seen = but(seen, |guest| {
        (guest.told.full, guest.cost.footprint) = (mib(512), Reading::now(mib(241).saturating_add(OVERHEAD)));
    });
    let moving = |deflate_on_oom, free_page_reporting| {
        but(seen.clone(), |guest| {
            let Reading::Fresh { value, .. } = &mut guest.told.balloon else { unreachable!("it is fresh") };
            (value.deflate_on_oom, value.free_page_reporting) = (deflate_on_oom, free_page_reporting);
        })
    };
    assert_eq!(demand_of(moving(false, false)), mib(256 + 16));
    assert_eq!(demand_of(moving(true, false)), mib(241 + 16));
    assert_eq!(demand_of(moving(false, true)), mib(241 + 16));
}

#[test]
fn headroom_lies_within_16_and_512_mib() {
    // 256 / 32 = 8 → 16; 32768 / 32 = 1024 → 512.
    for (full, headroom) in [(256, 16), (1024, 32), (32_768, 512)] {
        let seen = but(guest("a", 200, 100), |guest| guest.told.full = mib(full));
        let decision = tick(&observing(), &State::default(), &snapshot(1000, 65_536, vec![seen]));
        assert_eq!(line(&decision, "a").headroom, mib(headroom), "of {full} MiB");
    }
}

#[test]
fn a_guest_of_any_size_that_lacks_all_its_headroom_is_granted_it() {
    // It uses all that it holds, and its headroom is 1/32 of its size within 16 and 512.
    for (full, headroom) in [(256, 16), (1024, 32), (65_536, 512)] {
        let used = full / 2;
        let seen = |millis| {
            let guest = but(guest("a", used, used), |guest| guest.told.full = mib(full));
            snapshot(millis, 131_072, vec![guest])
        };
        let state = known(&config(), &seen(1000));
        let decision = tick(&config(), &state, &seen(60_000));
        assert_eq!(targets(&decision), [("a", used + headroom)], "of {full} MiB");
    }
}

#[test]
fn the_shares_of_a_large_guest_include_what_small_ones_cannot_use() {
    // 8192 - 5 * 60 for five guests. Four of 512 can use no more than that, so 5844 are left for the large one. It stalls at 4096: + 4096 / 4.
    let seen = |millis, stalls| {
        let sized = |guest, full| but(guest, |guest: &mut GuestSeen| guest.told.full = mib(full));
        let large = told(sized(guest("large", 4096, 4000), 8192), |s| s.alloc_stalls = Some(stalls));
        let mut guests = ["a", "b", "c", "d"].map(|name| sized(guest(name, 512, 100), 512)).to_vec();
        guests.push(large);
        snapshot(millis, 8192, guests)
    };
    let state = known(&config(), &seen(1000, 0));
    let decision = tick(&config(), &state, &seen(60_000, 10_000));
    assert_eq!(line(&decision, "large").demand, mib(5120));
}

#[test]
fn a_demand_ends_at_the_limit() {
    // 1010 + 32 = 1042 of 1024.
    assert_eq!(demand_of(guest("a", 1024, 1010)), mib(1024));
}

/// The report after two ticks `millis` apart.
fn after(millis: u64, first: GuestSeen, second: GuestSeen) -> memtide_model::GuestReport {
    let state = tick(&observing(), &State::default(), &snapshot(1000, 65_536, vec![first])).state;
    let decision = tick(&observing(), &state, &snapshot(1000 + millis, 65_536, vec![second]));
    line(&decision, "a").clone()
}

#[test]
fn growth_within_a_reaction_time_is_headroom() {
    // 40 in 250 ms, within a reaction time of 1 s: 340 used + 32 + 40. It may go on within the longest one, 3 s: + 80.
    assert_eq!(after(250, guest("a", 1024, 300), guest("a", 1024, 340)).demand, mib(492));
    // 500 at once: at most a quarter of 1024: 800 used + 32 + 256 → cut at 1024; the headroom shows it.
    assert_eq!(after(250, guest("a", 1024, 300), guest("a", 1024, 800)).headroom, mib(32 + 256));
}

#[test]
fn a_guest_that_cannot_deflate_its_balloon_has_headroom_for_a_second_of_growth() {
    // 80 a second, 20 in each decision; the reaction time is half a second.
    let growth = |deflates: bool| {
        let seen = |step: u64| {
            let a = guest("a", 1024, 300 + 20 * step);
            snapshot(1000 + 250 * step, 65_536, vec![if deflates { deflating(a) } else { a }])
        };
        let mut state = State { reaction: Some(memtide_model::Span::from_millis(500)), ..State::default() };
        for step in 0..=20 {
            state = tick(&observing(), &state, &seen(step)).state;
        }
        memory(&mut state, "a").growth.recent
    };
    assert!(growth(false) > growth(true).mul_div(3, 2), "{} {}", growth(false), growth(true));
}

#[test]
fn of_a_long_inflation_the_time_for_64_mib_is_the_reaction_time() {
    // 4 s for 256 MiB: 1 s for 64. A step of 64 takes all of its time, and no more than 3 s count.
    for (from, reaction) in [(756, 1000), (564, 3000)] {
        let mut state = known(&observing(), &snapshot(0, 65_536, vec![guest("a", from, 100)]));
        let a = memory(&mut state, "a");
        (a.target, a.target_set_from) = (Some(mib(500)), mib(from));
        (a.target_set_at, a.stuck.progress_at) = (Some(Moment::from_millis(0)), Some(Moment::from_millis(0)));
        let seen = snapshot(4000, 65_536, vec![guest("a", 500, 100)]);
        let decision = tick(&observing(), &state, &seen);
        assert_eq!(decision.state.reaction, Some(memtide_model::Span::from_millis(reaction)), "from {from}");
    }
}

#[test]
fn statistics_of_an_earlier_size_are_no_sign_that_less_is_used() {
    // The guest uses 300 all the time; the balloon took 100 at 250 and 100 more at 350; the statistics date from the beginning.
    let old = |millis, actual| {
        let mut seen = told(guest("a", 1000, 300), |_| {});
        seen.told.balloon = guest("a", actual, 0).told.balloon;
        let Reading::Fresh { value, .. } = seen.told.stats else { unreachable!("the builder's are fresh") };
        seen.told.stats = Reading::Fresh { value, age: memtide_model::Span::from_millis(millis - 1000) };
        seen
    };
    let mut state = State::default();
    for (millis, actual) in [(1000, 1000), (1250, 900), (1350, 800), (1450, 800)] {
        let decision = tick(&observing(), &state, &snapshot(millis, 65_536, vec![old(millis, actual)]));
        assert_eq!(line(&decision, "a").used, Some(mib(300)), "at {millis}");
        state = decision.state;
    }
}

#[test]
fn a_moving_balloon_is_no_growth_of_the_guest() {
    // The balloon took 100, the statistics are a tick older: 924 − 724 = 200 ≤ used ≤ 1024 − 724 = 300, as before.
    let second = told(guest("a", 924, 300), |s| s.available = Some(mib(724)));
    let report = after(250, guest("a", 1024, 300), second);
    assert_eq!((report.used, report.headroom), (Some(mib(300)), mib(32)));
}

#[test]
fn growth_counts_while_the_balloon_moves() {
    // The balloon took 100 and the guest 130: 924 − 594 = 330 are used, 30 more than before: 330 + 32 + 30, and 60 that may follow.
    let second = told(guest("a", 924, 300), |s| s.available = Some(mib(594)));
    assert_eq!(after(250, guest("a", 1024, 300), second).demand, mib(452));
}

#[test]
fn what_is_touched_between_two_reports_is_growth() {
    // The statistics come each 300 ms, and say that nothing is available; in each tick of 100 ms, the guest touches 10 more.
    let touches = |tick: u64| {
        let mut seen = told(guest("a", 1000, 1000), |s| s.minor_faults = Some(tick / 3));
        let Reading::Fresh { value, .. } = seen.told.stats else { unreachable!("the builder's are fresh") };
        seen.told.stats = Reading::Fresh { value, age: memtide_model::Span::from_millis(tick % 3 * 100) };
        seen.cost.footprint = Reading::now(mib(60 + 300 + 10 * tick));
        seen
    };
    let mut state = State::default();
    for tick_of in 0..=30 {
        let seen = snapshot(1000 + 100 * tick_of, 65_536, vec![touches(tick_of)]);
        state = tick(&observing(), &state, &seen).state;
    }
    // 100 a second, within a reaction time of 1 s.
    let growth = memory(&mut state, "a").growth.recent.whole_mib();
    assert!((70..=100).contains(&growth), "{growth}");
}

#[test]
fn what_the_next_kernel_uses_is_no_growth() {
    // 100 + 32; while it starts again, all that it holds; 300 + 32, without the 200.
    let reset = || {
        but(guest("a", 1024, 300), |guest| {
            guest.told.reset = true;
            guest.told.stats = Reading::absent(memtide_model::Absence::Silent);
        })
    };
    let mut state = known(&observing(), &snapshot(1000, 65_536, vec![guest("a", 1024, 100)]));
    state = tick(&observing(), &state, &snapshot(2000, 65_536, vec![reset()])).state;
    let decision = tick(&observing(), &state, &snapshot(30_000, 65_536, vec![guest("a", 1024, 300)]));
    assert_eq!(line(&decision, "a").demand, mib(332));
}

#[test]
fn without_statistics_the_demand_is_what_the_guest_holds() {
    let silent =
        but(guest("a", 700, 1), |guest| guest.told.stats = Reading::absent(memtide_model::Absence::Silent));
    let decision = tick(&observing(), &State::default(), &snapshot(1000, 65_536, vec![silent]));
    let report = line(&decision, "a");
    assert_eq!((report.used, report.demand), (None, mib(700)));
}

/// A guest at 400 MiB with little free memory and all counters at zero.
fn watched() -> GuestSeen {
    told(guest("a", 400, 300), |s| {
        (s.free, s.disk_caches, s.swapped_in) = (Some(mib(100)), Some(Bytes::ZERO), Some(Bytes::ZERO));
    })
}

type Counters = fn(&mut GuestStats);

#[test]
fn each_sign_of_want_raises_the_demand_at_its_threshold() {
    // At 400: + max(400 / 4, 64) = 500. Otherwise 300 + 32 = 332.
    let (raised, calm) = (mib(500), mib(332));
    let signs: [(&str, Counters, Bytes); 9] = [
        ("4 waiting allocations a second", |s| s.alloc_stalls = Some(4), raised),
        ("3 waiting allocations", |s| s.alloc_stalls = Some(3), calm),
        ("1 MiB scanned by those who wait", |s| s.direct_scans = Some(1 << 20), raised),
        ("less than that", |s| s.direct_scans = Some((1 << 20) - 1), calm),
        ("any amount scanned by kswapd: that is a hypothesis", |s| s.async_scans = Some(1 << 30), calm),
        ("1 MiB swapped in", |s| s.swapped_in = Some(mib(1)), raised),
        ("less than that", |s| s.swapped_in = Some(Bytes::from_kib(1023)), calm),
        ("a kill", |s| s.oom_kills = Some(1), raised),
        ("nothing", |_| {}, calm),
    ];
    for (what, change, expected) in signs {
        assert_eq!(after(1000, watched(), told(watched(), change)).demand, expected, "{what}");
    }
}

#[test]
fn thresholds_are_rates() {
    // 1 in 250 ms is 4 a second; 7 in 2 s is 3.5.
    let stalled = |count| told(watched(), |s| s.alloc_stalls = Some(count));
    assert_eq!(after(250, watched(), stalled(1)).demand, mib(500));
    assert_eq!(after(2000, watched(), stalled(7)).demand, mib(332));
}

#[test]
fn a_small_guest_is_raised_by_64_mib_at_least() {
    // 200 / 4 = 50 → 64.
    let stalled = told(guest("a", 200, 150), |s| s.alloc_stalls = Some(100));
    assert_eq!(after(1000, guest("a", 200, 150), stalled).demand, mib(264));
}

#[test]
fn a_raise_holds_10_s_and_is_not_raised_again_before_it_was_granted() {
    let mut state = tick(&observing(), &State::default(), &snapshot(0, 65_536, vec![watched()])).state;
    let mut at = |millis, stalls| {
        let seen = told(watched(), |s| s.alloc_stalls = Some(stalls));
        let decision = tick(&observing(), &state, &snapshot(millis, 65_536, vec![seen]));
        state = decision.state.clone();
        line(&decision, "a").demand
    };
    assert_eq!(at(1_000, 100), mib(500));
    // It still keeps 400: 500 again, not 625, for 10 s from now.
    assert_eq!(at(2_000, 200), mib(500));
    assert_eq!(at(11_999, 200), mib(500));
    assert_eq!(at(12_000, 200), mib(332));
}

#[test]
fn a_raise_beyond_the_share_counts_free_memory_that_the_kernel_cannot_use() {
    // Its shares alone give it (720 − 120) / 2 = 300 of its 400. It has touched 340, and 60 are free, none of it available: it cannot
    // use them before it has more. (They always count for a guest that cannot deflate its own balloon.)
    let seen = |millis, stalls| {
        let a = told(guest("a", 400, 400), |s| {
            (s.available, s.free, s.alloc_stalls) = (Some(Bytes::ZERO), Some(mib(60)), Some(stalls));
        });
        let a = but(deflating(a), |guest| guest.cost.footprint = Reading::now(mib(60 + 340)));
        snapshot(millis, 720, vec![a, guest("b", 200, 100)])
    };
    let state = tick(&observing(), &State::default(), &seen(0, 0)).state;
    let demand = |stalls| line(&tick(&observing(), &state, &seen(1000, stalls)), "a").demand;
    assert_eq!((demand(0), demand(1000)), (mib(340 + 32), mib(340 + 60 + 32)));
}

#[test]
fn stalls_of_our_own_inflation_are_excused_until_2_s_after_it() {
    let inflating = |actual| told(guest("a", actual, 300), |s| s.swapped_in = Some(Bytes::ZERO));
    let mut state = tick(&observing(), &State::default(), &snapshot(0, 65_536, vec![inflating(500)])).state;
    memory(&mut state, "a").target = Some(mib(400));
    let mut at = |millis, actual, stalls, kills| {
        let seen = told(inflating(actual), |s| {
            (s.alloc_stalls, s.oom_kills) = (Some(stalls), Some(kills));
        });
        let decision = tick(&observing(), &state, &snapshot(millis, 65_536, vec![seen]));
        state = decision.state.clone();
        line(&decision, "a").demand
    };
    // On the way from 500 to 400, and as it arrives.
    assert_eq!(at(250, 450, 100, 0), mib(332));
    assert_eq!(at(500, 400, 200, 0), mib(332));
    // Excused until 1.999 s later; not 2 s later.
    assert_eq!(at(2_499, 400, 300, 0), mib(332));
    assert_eq!(at(2_500, 400, 400, 0), mib(500));
}

#[test]
fn a_kill_counts_even_during_our_own_inflation() {
    let mut state =
        tick(&observing(), &State::default(), &snapshot(0, 65_536, vec![guest("a", 500, 300)])).state;
    memory(&mut state, "a").target = Some(mib(400));
    let killed = told(guest("a", 450, 300), |s| s.oom_kills = Some(1));
    let decision = tick(&observing(), &state, &snapshot(250, 65_536, vec![killed]));
    // 450 + max(450 / 4, 64) = 562.5.
    assert_eq!(line(&decision, "a").demand, Bytes::from_kib(1024 * 562 + 512));
}

#[test]
fn counters_that_go_back_are_no_want() {
    let rebooted = told(watched(), |s| s.alloc_stalls = Some(0));
    assert_eq!(after(1000, told(watched(), |s| s.alloc_stalls = Some(9_000)), rebooted).demand, mib(332));
}

#[test]
fn a_guest_that_is_only_seen_is_remembered() {
    let seen = snapshot(1000, 65_536, vec![guest("a", 1024, 300)]);
    let state = tick(&observing(), &State::default(), &seen).state;
    assert_eq!(state.guests[&id("a")].used, mib(300));
    assert_eq!(seen.host, host(mib(65_536)));
}
