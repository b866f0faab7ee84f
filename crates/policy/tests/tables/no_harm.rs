//! First, do no harm: memory that is kept free is worth idle memory and cold page cache, never memory in use.

use memtide_model::{
    Action, Amount, Commitment, Config, Decision, GuestSeen, HostState, Reading, Reason, Span, TrialKind,
};

use super::{known, line, memory, targets, tick, told};
use crate::common::{OVERHEAD, but, config, elastic, guest, mib, snapshot, stats};

/// It holds all of its 1024, uses `used` and has `cache` of page cache. It has touched no more.
fn cached(name: &str, used: u64, cache: u64) -> GuestSeen {
    let seen = told(guest(name, 1024, used), |s| *s = stats(mib(1024), mib(used), mib(cache)));
    but(seen, |guest| guest.cost.footprint = Reading::now(mib(used + cache).saturating_add(OVERHEAD)))
}

/// A host of 2048 with a reserve of 5 %, 102. Nobody lacks memory, and `free` is really free.
fn with_free(config: Config, free: u64) -> Decision {
    let config = Config { reserve: Amount::Bytes(mib(102)), ..config };
    // 560 + 660 + the third guest's used memory and overhead, of 2048 less `free`.
    let guests = [cached("hot", 100, 400), cached("cold", 100, 500), cached("work", 768 - free, 0)];
    let state = known(&config, &snapshot(1000, 2048, guests.to_vec()));
    tick(&config, &state, &snapshot(60_000, 2048, guests.to_vec()))
}

#[test]
fn what_is_kept_free_is_worth_one_step_of_one_guest() {
    // 81 are really free, and the envelope of three unseen guests is wished for.
    let decision = with_free(elastic(), 81);
    assert_eq!(decision.report.host.state, HostState::Hard);
    // A quarter of the largest cache: 100 used + 375 of cache + 80 that its kernel keeps free.
    assert_eq!(targets(&decision), [("cold", 555)]);
    let search = &decision.state.guests[&crate::common::id("cold")].search;
    assert_eq!(search.trial.map(|trial| (trial.kind, trial.from)), Some((TrialKind::Taken, mib(500))));
}

#[test]
fn nobody_else_gives_while_a_step_is_watched() {
    let config = Config { reserve: Amount::Bytes(mib(102)), ..elastic() };
    let guests = [cached("hot", 100, 400), cached("cold", 100, 500), cached("work", 687, 0)];
    let state = known(&config, &snapshot(1000, 2048, guests.to_vec()));
    let first = tick(&config, &state, &snapshot(60_000, 2048, guests.to_vec()));
    let second = tick(&config, &first.state, &snapshot(60_250, 2048, guests.to_vec()));
    assert_eq!(targets(&second), []);
}

#[test]
fn a_host_in_danger_takes_page_cache_at_once() {
    // 2 % of 2048 is 40.96: with 40 the host is low. It is safe with 4 %.
    let decision = with_free(elastic(), 40);
    assert_eq!(decision.report.host.state, HostState::Low);
    let mut asked: Vec<&str> = targets(&decision).into_iter().map(|(name, _)| name).collect();
    asked.sort_unstable();
    assert_eq!(asked, ["cold"]);
    assert_eq!(with_free(elastic(), 41).report.host.state, HostState::Hard);
}

#[test]
fn a_lack_is_granted_from_what_is_kept_free_first() {
    // "work" holds and uses 600 and stalls. Its shares alone would give it (2048 - 102) / 3 - 60 = 588, so it lacks the 32 of headroom for what
    // it uses. 180 are free besides the reserve.
    let config = Config { reserve: Amount::Bytes(mib(102)), ..elastic() };
    let seen = |millis, stalls| {
        let work = told(guest("work", 600, 600), |s| s.alloc_stalls = Some(stalls));
        let guests = vec![cached("hot", 100, 400), cached("cold", 100, 386), work];
        snapshot(millis, 2048, guests)
    };
    let state = known(&config, &seen(1000, 0));
    let decision = tick(&config, &state, &seen(60_000, 10_000));
    assert_eq!(decision.report.host.free, mib(180));
    assert!(targets(&decision).contains(&("work", 632)), "{:?}", targets(&decision));
    let urgent = |action: &Action| matches!(action.reason, Reason::Emergency { .. });
    assert!(!decision.plan.actions.iter().any(urgent), "{:#?}", decision.plan);
}

#[test]
fn nobody_gives_for_page_cache_that_free_memory_has_room_for() {
    // Strict, 600 + 900 + 120 of 1620: no room. "reader" uses 100 and was seen to need 500 of page cache; with the 80 that its kernel keeps
    // free, 80 are missing. "idle" uses 300. Neither has touched more than that.
    let is_idle_asked = |cache| {
        let seen = |millis| {
            let costs = |guest, touched| {
                but(guest, |guest| guest.cost.footprint = Reading::now(mib(touched).saturating_add(OVERHEAD)))
            };
            let reader = told(guest("reader", 600, 100), |s| *s = stats(mib(600), mib(100), mib(cache)));
            let guests = vec![costs(reader, 100 + cache), costs(guest("idle", 900, 300), 300)];
            snapshot(millis, 1620, guests)
        };
        let mut state = known(&config(), &seen(1000));
        memory(&mut state, "reader").search.needs = mib(500);
        let decision = tick(&config(), &state, &seen(60_000));
        targets(&decision).iter().any(|(name, _)| *name == "idle")
    };
    assert!(is_idle_asked(420), "80 are free");
    assert!(!is_idle_asked(300), "200 are free");
}

#[test]
fn memory_in_use_is_not_taken_for_page_cache_of_another() {
    // Strict, 770 + 810 + 120 of 1700: no room. "hot" uses 100 and was seen to need 665 of page cache, "work" uses 805. Equal shares of
    // 1580 are 790.
    let seen = |millis| {
        let hot = told(guest("hot", 770, 100), |s| *s = stats(mib(770), mib(100), mib(665)));
        snapshot(millis, 1700, vec![hot, guest("work", 810, 805)])
    };
    let mut state = known(&config(), &seen(1000));
    memory(&mut state, "hot").search.needs = mib(665);
    let decision = tick(&config(), &state, &seen(60_000));
    assert!(line(&decision, "work").entitlement >= mib(810), "{:?}", line(&decision, "work"));
    assert!(targets(&decision).iter().all(|(name, _)| *name != "work"), "{:?}", targets(&decision));
}

#[test]
fn cache_that_was_seen_to_be_needed_goes_last() {
    // "work" stalls at 500 and lacks 125 at once, and nothing is free or idle.
    let seen = |millis, stalls| {
        let keeps = |name, cache: u64| {
            told(guest(name, 180 + cache, 100), |s| *s = stats(mib(180 + cache), mib(100), mib(cache)))
        };
        let work = told(guest("work", 500, 490), |s| s.alloc_stalls = Some(stalls));
        snapshot(millis, 1940, vec![keeps("hot", 500), keeps("cold", 400), work])
    };
    let config = Config { commitment: Commitment::Strict, ..config() };
    let mut state = known(&config, &seen(1000, 0));
    let both = tick(&config, &state, &seen(60_000, 10_000));
    let asked = |decision: &Decision| {
        let mut names: Vec<String> = targets(decision).iter().map(|(name, _)| (*name).to_owned()).collect();
        names.sort();
        names
    };
    // Nobody can tell them apart: the one with more cache.
    assert_eq!(asked(&both), ["hot"]);
    let search = &mut memory(&mut state, "hot").search;
    search.needs = mib(500);
    search.back_off.span = Span::from_secs(60);
    assert_eq!(asked(&tick(&config, &state, &seen(60_000, 10_000))), ["cold"]);
}
