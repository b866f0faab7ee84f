//! The agent in a guest is asked before a balloon takes page cache.

use super::*;
use crate::common::{but, guest, mib, snapshot};
use memtide_model::{
    Agent, AgentMemory, Amount, Balloon, Deed, GuestState, Hold, Keeps, Moment, Order, Ordered, Reading,
    Share,
};

/// A guest of 800 MiB that uses 300 MiB and has 480 MiB of page cache, with an agent that has ended this number of requests, the last of which
/// freed this much; and one of 600 MiB that uses 590 MiB and stalls. The host has nothing to spare.
fn seen(millis: u64, stalls: u64, (ended, freed): (u64, u64)) -> Snapshot {
    let memory = AgentMemory {
        unmapped_cache: mib(480),
        free: mib(60),
        free_blocks: mib(20),
        ..AgentMemory::default()
    };
    let agent = Agent {
        memory,
        counts_refaults: true,
        trims: true,
        compacts: true,
        least_cache: mib(64),
        ended,
        freed: mib(freed),
        ..Agent::default()
    };
    let cached = told(guest("cached", 800, 300), |stats| {
        (stats.free, stats.disk_caches) = (Some(mib(20)), Some(mib(480)));
    });
    let cached = but(cached, |guest| guest.told.agent = Reading::now(agent));
    let busy = told(guest("busy", 600, 590), |stats| stats.alloc_stalls = Some(stalls));
    snapshot(millis, 1520, vec![busy, cached])
}

fn asked(decision: &Decision) -> Vec<Request> {
    let to_agents = decision.plan.actions.iter().filter(|action| action.request.deed().is_some());
    to_agents.map(|action| action.request).collect()
}

fn trims(decision: &Decision) -> bool {
    matches!(asked(decision)[..], [Request::Agent(Deed::Trim(_))])
}

#[test]
fn a_step_is_trimmed_and_urgently_the_balloon_takes_it_too() {
    let config = config();
    let state = known(&config, &seen(1_000, 0, (0, 0)));
    let decision = tick(&config, &state, &seen(6_000, 100, (0, 0)));
    assert!(trims(&decision), "{:#?}", decision.plan);
    let trim = decision.plan.actions.iter().find(|action| action.request.deed().is_some()).unwrap();
    assert!(trim.expects.is_some_and(|expected| expected.bytes >= mib(16)), "{trim:?}");
    // The agent works: it is asked for nothing else.
    assert_eq!(asked(&tick(&config, &decision.state, &seen(6_250, 200, (0, 0)))), []);
}

#[test]
fn an_agent_that_frees_nothing_is_left_alone_for_longer_each_time() {
    let config = config();
    let mut state = known(&config, &seen(1_000, 0, (0, 0)));
    let (mut ended, mut times) = (0, Vec::new());
    for second in 6..60 {
        let decision = tick(&config, &state, &seen(second * 1_000, second * 100, (ended, 0)));
        if trims(&decision) {
            times.push(second);
            ended += 1;
        }
        // The guest does not follow: nothing else changes.
        state = decision.state;
        state.guests.get_mut(&id("cached")).unwrap().search = Default::default();
    }
    let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        times.len() >= 2 && pauses[0] >= 10 && pauses.windows(2).all(|pair| pair[1] >= 2 * pair[0] - 2),
        "{times:?}"
    );
}

#[test]
fn compaction_that_brings_nothing_stops_no_trim() {
    let config = config();
    let before = known(&config, &seen(1_000, 0, (0, 0)));
    let mut state = tick(&config, &before, &seen(6_000, 100, (0, 0))).state;
    let agent = &mut state.guests.get_mut(&id("cached")).unwrap().agent;
    agent.asked.as_mut().unwrap().deed = Deed::Compact;
    let after = tick(&config, &state, &seen(7_000, 200, (1, 0))).state;
    let agent = &after.guests[&id("cached")].agent;
    assert!(agent.pieces.until.is_some() && agent.back_off.until.is_none(), "{agent:?}");
}

#[test]
fn free_memory_in_pieces_is_compacted_if_no_page_cache_is_trimmed() {
    let config = config();
    let with_cache = |millis, stalls, cache| {
        let mut seen = seen(millis, stalls, (0, 0));
        let cached = seen.guests.iter_mut().find(|guest| guest.id == id("cached")).unwrap();
        cached.told.balloon =
            cached.told.balloon.clone().map(|balloon| Balloon { free_page_reporting: true, ..balloon });
        cached.told.agent = cached.told.agent.clone().map(|mut agent| {
            agent.memory.unmapped_cache = mib(cache);
            agent
        });
        seen
    };
    let state = known(&config, &with_cache(1_000, 0, 70));
    assert_eq!(asked(&tick(&config, &state, &with_cache(6_000, 100, 70))), [Request::Agent(Deed::Compact)]);
    assert!(trims(&tick(&config, &state, &with_cache(6_000, 100, 480))));
    // Its balloon inflates, or its programs grow: they need its processors.
    let known = |change: fn(&mut GuestState)| {
        let mut state = state.clone();
        change(state.guests.get_mut(&id("cached")).unwrap());
        state
    };
    for at_work in
        [known(|cached| cached.target = Some(mib(700))), known(|cached| cached.used_then = mib(200))]
    {
        let decision = tick(&config, &at_work, &with_cache(6_000, 100, 70));
        assert!(!asked(&decision).contains(&Request::Agent(Deed::Compact)), "{:#?}", decision.plan);
    }
}

/// The agent of the first test, with this much free memory in pieces that reporting could return, and reporting on.
fn with_pieces(millis: u64, stalls: u64, (pieces, returns): (u64, bool)) -> Snapshot {
    let mut seen = seen(millis, stalls, (0, 0));
    let cached = seen.guests.iter_mut().find(|guest| guest.id == id("cached")).unwrap();
    cached.told.balloon =
        cached.told.balloon.clone().map(|balloon| Balloon { free_page_reporting: true, ..balloon });
    cached.told.agent = cached.told.agent.clone().map(|mut agent| {
        agent.memory = AgentMemory { unmapped_cache: mib(70), pieces: mib(pieces), ..agent.memory };
        Agent { reports_pieces: true, pieces_return: returns, ..agent }
    });
    seen
}

#[test]
fn reporting_returns_small_pieces_as_long_as_memory_is_wanted() {
    let config = config();
    let state = known(&config, &with_pieces(1_000, 0, (30, false)));
    let report = |on| [Request::Agent(Deed::ReportPieces(on))];
    let first = tick(&config, &state, &with_pieces(6_000, 100, (30, false)));
    assert_eq!(asked(&first), report(true), "before anything is compacted");
    let little = tick(&config, &state, &with_pieces(6_000, 100, (10, false)));
    assert_eq!(asked(&little), [Request::Agent(Deed::Compact)], "too small even for that");

    // It is done: a minute is left to the kernel. What is left of the 40 MiB is compacted then.
    let done = |millis, stalls| {
        let mut seen = with_pieces(millis, stalls, (10, true));
        let cached = seen.guests.iter_mut().find(|guest| guest.id == id("cached")).unwrap();
        cached.told.agent = cached.told.agent.clone().map(|agent| Agent { ended: 1, ..agent });
        seen
    };
    let later = tick(&config, &first.state, &done(7_000, 200));
    assert_eq!(asked(&later), []);
    assert_eq!(
        asked(&tick(&config, &later.state, &done(70_000, 9_000))),
        [Request::Agent(Deed::Compact)],
        "while memory is wanted, they return"
    );
    let satisfied = |millis| {
        let mut seen = done(millis, 200);
        seen.host.capacity = mib(8_000);
        seen
    };
    let rich = tick(&config, &later.state, &satisfied(30_000));
    assert_eq!(asked(&rich), [], "not for less than a minute");
    assert_eq!(asked(&tick(&config, &rich.state, &satisfied(70_000))), report(false));
    // A guest that is left alone gets its own setting back, too, and no pause delays it.
    let mut held = rich.state;
    let cached = held.guests.get_mut(&id("cached")).unwrap();
    cached.hold = Some(Hold { keeps: Keeps::Size, until: None });
    for pause in [&mut cached.agent.pieces, &mut cached.agent.back_off] {
        pause.until = Some(Moment::from_millis(600_000));
    }
    assert_eq!(asked(&tick(&config, &held, &satisfied(70_000))), report(false));
}

#[test]
fn a_class_keeps_its_least_page_cache() {
    let mut config = config();
    let state = known(&config, &seen(1_000, 0, (0, 0)));
    let decide = |config: &Config| tick(config, &state, &seen(6_000, 100, (0, 0)));
    assert!(trims(&decide(&config)));
    config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().cache = Amount::Bytes(mib(480));
    assert_eq!(asked(&decide(&config)), [Request::Agent(Deed::Compact)], "only free memory");
}

#[test]
fn a_limit_of_the_class_is_asked_for_once() {
    let mut config = config();
    let share = Share::percent(40);
    config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().cache_limit = share;
    let state = known(&config, &seen(1_000, 0, (0, 0)));
    let limited = |mut seen: Snapshot| {
        seen.host.capacity = mib(8_000);
        seen
    };
    let decision = tick(&config, &state, &limited(seen(6_000, 0, (0, 0))));
    assert_eq!(asked(&decision), [Request::Agent(Deed::LimitCache(share))]);
    let mut kept = limited(seen(7_000, 0, (1, 0)));
    for guest in &mut kept.guests {
        guest.told.agent = guest.told.agent.clone().map(|agent| Agent { cache_limit: share, ..agent });
    }
    let decision = tick(&config, &decision.state, &kept);
    assert_eq!(asked(&decision), []);
    assert!(decision.state.guests[&id("cached")].agent.back_off.until.is_none());
}

#[test]
fn an_ordered_trim_takes_at_most_what_may_be_dropped() {
    let config = config();
    let state = known(&config, &seen(1_000, 0, (0, 0)));
    let mut ordered = seen(6_000, 0, (0, 0));
    ordered.host.capacity = mib(8_000);
    ordered.orders.push(Order { guest: id("cached"), ordered: Ordered::Trim(mib(1_000)) });
    assert_eq!(asked(&tick(&config, &state, &ordered)), [Request::Agent(Deed::Trim(mib(480 - 64)))]);
}

#[test]
fn what_an_agent_trims_is_no_stall_of_its_guest() {
    let config = config();
    let scanned = |millis, direct: u64| {
        let mut seen = seen(millis, 0, (0, 0));
        seen.host.capacity = mib(8_000);
        for guest in &mut seen.guests {
            *guest = told(guest.clone(), |stats| stats.direct_scans = Some(direct << 20));
        }
        seen
    };
    let state = known(&config, &scanned(1_000, 0));
    let decision = tick(&config, &state, &scanned(6_000, 100));
    let stalled = |name| decision.state.guests[&id(name)].stalled.is_some();
    assert!(!stalled("cached"), "its agent may have dropped page cache");
    assert!(stalled("busy"), "it has no agent");
}

#[test]
fn refaults_of_the_working_set_count_and_scans_do_not() {
    let config = config();
    let mut before = seen(1_000, 0, (0, 0));
    before.host.capacity = mib(8_000);
    let state = known(&config, &before);
    let later = |activations: u64| {
        let mut now = seen(2_000, 0, (0, 0));
        now.host.capacity = mib(8_000);
        for guest in now.guests.iter_mut().filter(|guest| guest.id == id("cached")) {
            guest.told.agent = guest.told.agent.clone().map(|mut agent| {
                agent.counters.activations_file = mib(activations);
                agent
            });
            guest.told.stats = guest.told.stats.clone().map(|mut stats| {
                stats.async_scans = stats.async_scans.map(|scans| scans + (500 << 20));
                stats
            });
        }
        tick(&config, &state, &now).state.guests[&id("cached")].search.needs
    };
    assert_eq!(later(0), Bytes::ZERO);
    assert!(later(8) > mib(480));
}
