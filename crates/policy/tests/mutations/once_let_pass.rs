//! Plans that an earlier check let pass, one for each rule. Their reasons are those of honest plans.

use memtide_model::{Amount, Commitment, Deed, GuestSeen, Limit, PAGE_4K};

use super::*;

const SECOND: u64 = 1000;

fn sets(name: &str, target: u64, reason: Reason) -> Action {
    Action::of(id(name), Request::SetTarget(mib(target)), reason)
}

fn needs(mib: u64) -> Reason {
    let bytes = super::mib(mib);
    Reason::Demand { used: bytes, demand: bytes, entitlement: bytes }
}

/// The check has seen these guests for a while, quiet, with these targets.
fn given(config: Config, seen: Snapshot, plan: Vec<Action>) -> Given {
    let mut witness = Witness::default();
    let mut before = seen.clone();
    before.taken_at = Moment::from_millis(seen.taken_at.as_millis() - 60 * SECOND);
    while before.taken_at < seen.taken_at {
        witness::looks(&mut witness, &config, &before);
        before.taken_at = before.taken_at.after(Span::from_secs(1));
    }
    witness.guests.values_mut().for_each(|guest| guest.gain.proof = Proof::Gained);
    Given { config, state: State::default(), witness, seen, plan: Plan { actions: plan } }
}

/// The names of the broken promises, each with the place of its action.
fn refused(given: &Given) -> Vec<(usize, &'static str)> {
    given.refused().iter().map(|(place, violation)| (*place, name(violation))).collect()
}

fn at_a_minute(capacity: u64, guests: Vec<memtide_model::GuestSeen>) -> Snapshot {
    snapshot(100 * SECOND, capacity, guests)
}

#[test]
fn everybody_to_32_mib_on_an_ample_host() {
    let idle = Reason::IdleMemory { idle: mib(900), demand: mib(100), wanted: mib(900) };
    let guests = || ["a", "b", "c"].map(|name| guest(name, 1024, 20)).to_vec();
    let plan = || ["a", "b", "c"].map(|name| sets(name, 32, idle)).to_vec();
    for config in [config(), elastic()] {
        let given = given(config, at_a_minute(8192, guests()), plan());
        assert_eq!(refused(&given), [(0, "Unwanted"), (1, "Unwanted"), (2, "Unwanted")]);
    }
    // Their limits do not fit, but each has had plenty for a minute, and the commitment is kept.
    let smaller = || ["a", "b", "c"].map(|name| guest(name, 600, 20)).to_vec();
    let given = given(config(), at_a_minute(2048, smaller()), plan());
    assert_eq!(refused(&given), [(0, "Unwanted"), (1, "Unwanted"), (2, "Unwanted")]);
}

#[test]
fn more_than_a_small_step_of_one_guest_by_the_clock() {
    let by_clock = Reason::SqueezeStep { cache: mib(0), demand: mib(132), wanted: mib(0) };
    let clocked = || Config { squeeze_every: Some(Span::from_secs(3600)), ..config() };
    let refused = |config, used, targets: &[(&'static str, u64)]| {
        let plan = targets.iter().map(|(name, target)| sets(name, *target, by_clock)).collect();
        let guests = vec![guest("a", 1024, used), guest("b", 1024, 100)];
        refused(&given(config, at_a_minute(8192, guests), plan))
    };
    assert_eq!(refused(clocked(), 100, &[("a", 896)]), []);
    assert_eq!(refused(config(), 100, &[("a", 896)]), [(0, "Unwanted")]);
    assert_eq!(refused(clocked(), 100, &[("a", 895)]), [(0, "Unwanted")]);
    assert_eq!(refused(clocked(), 100, &[("a", 896), ("b", 896)]), [(1, "Unwanted")]);
    assert_eq!(refused(clocked(), 900, &[("a", 896)]), [(0, "TakesInUse")]);
    let mut without = clocked();
    without.classes.values_mut().for_each(|class| class.squeeze = false);
    assert_eq!(refused(without, 100, &[("a", 896)]), [(0, "Unwanted")]);
}

#[test]
fn more_than_was_ordered_or_is_available_is_fetched() {
    let fetches = |bytes, target| {
        let guests = vec![guest("a", 1024, 900), guest("b", 1024, 100)];
        let plan = vec![sets("a", target, Reason::Ordered)];
        let mut given = given(config(), at_a_minute(8192, guests), plan);
        given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Fetch(mib(bytes)) });
        refused(&given)
    };
    assert_eq!(fetches(100, 924), []);
    assert_eq!(fetches(100, 923), [(0, "Unwanted")]);
    assert_eq!(fetches(124, 900), []);
    assert_eq!(fetches(500, 899), [(0, "TakesInUse")], "it calls 124 available");
    // 100 are on their way already, and only 24 of the 124 are left.
    let giving = |target| {
        let guests = vec![guest("a", 1024, 900), guest("b", 1024, 100)];
        let mut given = given(config(), at_a_minute(8192, guests), vec![sets("a", target, Reason::Ordered)]);
        given.witnessed("a").target = Some(mib(924));
        given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Fetch(mib(100)) });
        refused(&given)
    };
    assert_eq!(giving(900), []);
    assert_eq!(giving(899), [(0, "TakesInUse")]);
}

#[test]
fn a_guest_without_statistics_is_squeezed_to_32_mib() {
    let silent = but(guest("a", 800, 100), |a| a.told.stats = Reading::absent(Absence::Silent));
    let guests = vec![silent, guest("b", 600, 590)];
    let short = Reason::OverShare { entitlement: mib(32), short: mib(700) };
    // 1400 + 120 of 1500. Its share is at least (1500 - 120 - 64) / 2, less a 64th of its size: 642.
    let mut given = given(config(), at_a_minute(1500, guests), vec![sets("a", 32, short)]);
    assert_eq!(refused(&given), [(0, "BelowShare")]);
    given.set("a", mib(642));
    assert_eq!(refused(&given), []);
}

#[test]
fn a_blind_guest_grows_as_if_it_were_released() {
    let silent = but(guest("a", 500, 100), |a| a.told.stats = Reading::absent(Absence::Silent));
    let plan = vec![sets("a", 900, Reason::Release)];
    for config in [config(), elastic()] {
        let mut given = given(config, at_a_minute(4096, vec![silent.clone()]), plan.clone());
        assert_eq!(refused(&given), [(0, "GrowsBlind")]);
        let hold = Hold { keeps: Keeps::Limit, until: None };
        given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Leave(hold) });
        assert_eq!(refused(&given), [], "the operator released it");
    }
}

#[test]
fn a_reservation_is_broken_as_if_the_guest_were_held() {
    let plan = vec![sets("a", 600, Reason::Held { target: mib(700) })];
    let mut given = given(config(), at_a_minute(4096, vec![guest("a", 600, 300)]), plan);
    given.default_class().reservation = mib(700);
    let a = given.witnessed("a");
    let a_second_ago = Some(Moment::from_millis(99 * SECOND));
    (a.target, a.written_at) = (Some(mib(700)), a_second_ago);
    (a.distance, a.tries_since) = (mib(100), a_second_ago);
    assert_eq!(refused(&given), [(0, "BelowReservation")]);
    let hold = Hold { keeps: Keeps::Size, until: None };
    given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Leave(hold) });
    assert_eq!(refused(&given), [], "the operator holds it");
}

#[test]
fn a_stuck_guest_is_asked_for_more_10_ms_after_its_last_change() {
    let idle = Reason::IdleMemory { idle: mib(400), demand: mib(100), wanted: mib(400) };
    let guests = vec![guest("a", 800, 100), guest("b", 600, 598)];
    let mut given = given(config(), at_a_minute(1500, guests), vec![sets("a", 400, idle)]);
    assert_eq!(refused(&given), []);
    let a = given.witnessed("a");
    (a.target, a.distance) = (Some(mib(500)), mib(300));
    a.tries_since = Some(Moment::from_millis(93 * SECOND));
    a.written_at = Some(Moment::from_millis(100 * SECOND - 10));
    assert_eq!(refused(&given), [(0, "TakesFromStuck")]);
}

#[test]
fn elastic_grants_four_guests_what_is_not_there() {
    let large = |name| but(guest(name, 300, 290), |guest| guest.told.full = mib(4096));
    let names = ["a", "b", "c", "d"];
    // 4 × 360 of 1500: 60 are free, and the guests grew by 3000 together.
    let plan = names.map(|name| sets(name, 4096, needs(4096))).to_vec();
    let mut given = given(elastic(), at_a_minute(1500, names.map(large).to_vec()), plan);
    given.witness.surge.peak = mib(3000);
    assert_eq!(refused(&given), [0, 1, 2, 3].map(|place| (place, "Unbacked")));
}

#[test]
fn a_host_with_1_mib_free_grants_124() {
    let guests = vec![guest("a", 500, 490)];
    let mut given = given(elastic(), at_a_minute(561, guests), vec![sets("a", 624, needs(624))]);
    assert_eq!(refused(&given), [(0, "Unbacked")]);
    given.set("a", mib(501));
    assert_eq!(refused(&given), []);
}

#[test]
fn one_guest_gets_three_intervals() {
    let polls = |every| Action::of(id("a"), Request::PollStats(every), Reason::NeedStats);
    let spans = [Span::from_secs(1), Span::from_millis(1), Span::from_millis(u64::MAX)];
    let given = given(config(), at_a_minute(4096, vec![guest("a", 600, 300)]), spans.map(polls).to_vec());
    let both = |place| [(place, "AsksTwice"), (place, "Interval")];
    assert_eq!(refused(&given), [both(1), both(2)].concat());
}

#[test]
fn strict_raises_reach_above_the_capacity_because_a_self_deflation_falls() {
    let guests = vec![guest("a", 600, 300), guest("b", 600, 300), common::deflating(guest("c", 600, 590))];
    // 3 × 660 = 1980 of 1700; with "c" at 900, 2280. The room for its own deflation falls by as much.
    let config = Config { self_deflations: 1, ..config() };
    let plan = vec![sets("a", 500, needs(500)), sets("c", 900, needs(900))];
    let given = given(config, at_a_minute(1700, guests), plan);
    assert_eq!(refused(&given), [(1, "OverCommitted")]);
}

#[test]
fn a_grant_too_many_costs_that_grant_and_not_the_memory_that_others_free() {
    let guests = vec![guest("a", 800, 100), guest("b", 400, 390), guest("c", 400, 390)];
    // 1600 + 180 of 1880: 100 are spare. "b" may have 80 of them, "c" then 20.
    let plan = vec![
        sets("a", 500, needs(500)),
        sets("b", 480, needs(480)),
        sets("c", 480, needs(480)),
        sets("a", 400, needs(400)),
    ];
    let mut given = given(config(), at_a_minute(1880, guests), plan);
    let early = "GrowsBeforeFreed";
    assert_eq!(refused(&given), [(1, early), (2, early), (3, "AsksTwice")]);
    given.plan.actions.pop();
    assert_eq!(refused(&given), [(2, "OverCommitted")]);
    given.set("c", mib(420));
    assert_eq!(refused(&given), []);
}

#[test]
fn without_a_reading_of_the_host_only_a_limit_is_enforced() {
    let guests = vec![guest("a", 800, 100), guest("b", 400, 390)];
    let plan = vec![sets("a", 600, needs(600)), sets("b", 500, needs(500))];
    let mut given = given(config(), at_a_minute(1880, guests), plan);
    given.seen.host.missed = Some(Missed { why: Absence::Forbidden, age: None });
    assert_eq!(refused(&given), [(0, "HostNotRead"), (1, "HostNotRead")]);
    given.default_class().limit = Limit::At(mib(600).saturating_sub(PAGE_4K.bytes()));
    assert_eq!(refused(&given), [(1, "HostNotRead")]);
}

fn over_share(target: u64) -> Reason {
    Reason::OverEntitlement { entitlement: mib(target), demand: mib(900), short: mib(100) }
}

/// A guest whose page cache is everything that it has available.
fn with_cache(name: &str, actual: u64, used: u64, cache: u64) -> GuestSeen {
    let statistics = common::stats(mib(actual), mib(used), mib(cache));
    told(guest(name, actual, used), |stats| *stats = statistics)
}

#[test]
fn programs_of_one_guest_die_for_another_with_200_mib_available() {
    // 1820 + 120 of 1940: the commitment leaves no room. An elastic host with nothing free would be in danger.
    let plan = |target| vec![sets("a", target, over_share(target))];
    for (config, capacity) in [(config(), 1940), (elastic(), 2100)] {
        let refused = |left: u64, target| {
            let guests = vec![guest("a", 920, 900), guest("b", 900, 900 - left)];
            refused(&given(config.clone(), at_a_minute(capacity, guests), plan(target)))
        };
        for target in [850, 880] {
            assert_eq!(refused(200, target), [(0, "TakesInUse")], "{target}");
        }
        assert_eq!(refused(200, 900), [], "what it does not use");
        if config.commitment == Commitment::Elastic {
            assert_eq!(refused(0, 870), [(0, "TakesInUse")], "it can be granted what it lacks");
            continue;
        }
        // Another one has nothing left: it lacks 32 MiB. A step may be larger by half of that.
        assert_eq!(refused(0, 870), []);
        assert_eq!(refused(0, 850), [(0, "TakesInUse")]);
    }
}

#[test]
fn four_guests_give_what_they_use_for_one_that_lacks_20_mib() {
    let names = ["a", "b", "c", "d"];
    for (config, capacity) in [(config(), 5200), (elastic(), 5500)] {
        let mut guests = names.map(|name| guest(name, 1000, 900)).to_vec();
        // It has 12 of its 32 MiB of headroom.
        guests.push(guest("e", 900, 888));
        let plan = names.map(|name| sets(name, 819, over_share(819))).to_vec();
        let mut given = given(config, at_a_minute(capacity, guests), plan);
        assert_eq!(refused(&given), [0, 1, 2, 3].map(|place| (place, "TakesInUse")));
        if given.config.commitment == Commitment::Strict {
            given.set("a", mib(880));
            assert_eq!(refused(&given), [1, 2, 3].map(|place| (place, "TakesInUse")), "one gives 20 MiB");
            // Nor one after the other: "a" was asked for it a moment ago.
            given.plan.actions.remove(0);
            given.witnessed("a").target = Some(mib(880));
            assert_eq!(refused(&given), [0, 1, 2].map(|place| (place, "TakesInUse")));
        }
    }
}

#[test]
fn page_cache_of_a_class_that_keeps_it() {
    let step = Reason::SqueezeStep { cache: mib(300), demand: mib(700), wanted: mib(100) };
    for (config, capacity) in [(config(), 1970), (elastic(), 2100)] {
        // "b" has filled its memory with page cache, and can want more. "a" has 50 free beside its 500 of cache.
        let guests = vec![with_cache("a", 950, 400, 500), with_cache("b", 900, 300, 600)];
        let plan = |target| vec![sets("a", target, step)];
        let mut given = given(config, at_a_minute(capacity, guests), plan(800));
        assert_eq!(refused(&given), []);
        given.default_class().squeeze = false;
        assert_eq!(refused(&given), [(0, "TakesInUse")]);
        given.plan.actions = plan(900);
        assert_eq!(refused(&given), [], "its free memory");
    }
}

#[test]
fn an_agent_works_for_nobody() {
    let agent = Agent {
        memory: AgentMemory { unmapped_cache: mib(400), ..AgentMemory::default() },
        trims: true,
        compacts: true,
        reports_pieces: true,
        ..Agent::default()
    };
    let asked = |capacity, request, squeeze| {
        let a = but(with_cache("a", 950, 400, 500), |a| a.told.agent = Reading::now(agent.clone()));
        let guests = vec![a, with_cache("b", 900, 300, 600)];
        let cold = Reason::ColdCache { droppable: mib(400), wanted: mib(100) };
        let mut given =
            given(config(), at_a_minute(capacity, guests), vec![Action::of(id("a"), request, cold)]);
        given.default_class().squeeze = squeeze;
        given
    };
    let trim = Request::Agent(Deed::Trim(mib(100)));
    let pieces = |on| Request::Agent(Deed::ReportPieces(on));
    assert_eq!(refused(&asked(8192, pieces(false), true)), [], "its kernel's own choice costs nothing");
    for request in [trim, Request::Agent(Deed::Compact), pieces(true)] {
        // On 8 GiB, both limits fit.
        assert_eq!(refused(&asked(8192, request, true)), [(0, "AsksForNothing")]);
        assert_eq!(refused(&asked(1970, request, true)), []);
    }
    assert_eq!(refused(&asked(1970, trim, false)), [(0, "TrimsNeeded")], "its class keeps page cache");
    // "b" can want 124 MiB, and a step may be 64 MiB larger.
    assert_eq!(refused(&asked(1970, Request::Agent(Deed::Trim(mib(400))), true)), [(0, "AsksForNothing")]);
    let mut given = asked(8192, trim, false);
    given.seen.orders.push(Order { guest: id("a"), ordered: Ordered::Trim(mib(100)) });
    assert_eq!(refused(&given), [], "the operator ordered it");
}

#[test]
fn statistics_are_polled_that_are_polled_already() {
    let polls = Action::of(id("a"), Request::PollStats(Span::from_secs(1)), Reason::NeedStats);
    let polled = |polling, is_polled| {
        let a = but(guest("a", 600, 300), |a| a.told.polling = polling);
        let mut given = given(config(), at_a_minute(4096, vec![a]), vec![polls.clone()]);
        given.witnessed("a").is_polled = is_polled;
        refused(&given)
    };
    let each = |seconds| Polling::Every(Span::from_secs(seconds));
    assert_eq!(polled(each(1), false), [], "memtide's interval now");
    assert_eq!(polled(each(1), true), [(0, "PollsForNothing")]);
    assert_eq!(polled(each(10), true), [], "somebody polls less often");
    assert_eq!(polled(Polling::Off, true), []);
    assert_eq!(polled(Polling::Unknown, false), [(0, "PollsForNothing")]);
}

#[test]
fn what_is_kept_for_surprises_goes_to_a_guest_with_350_mib_available() {
    let reserve = Amount::Bytes(mib(200));
    for config in [config(), elastic()] {
        let config = Config { reserve, ..config };
        let grows = |left: u64, target| {
            let guests = vec![guest("a", 700, 700 - left), guest("b", 900, 400)];
            // 1600 + 120 + 200 of 1920.
            given(config.clone(), at_a_minute(1920, guests), vec![sets("a", target, needs(target))])
        };
        let broken = if config.commitment == Commitment::Strict { "OverCommitted" } else { "Unbacked" };
        assert_eq!(refused(&grows(350, 764)), [(0, broken)]);
        assert_eq!(refused(&grows(20, 764)), [(0, broken)], "it lacks 12 MiB of its headroom");
        assert_eq!(refused(&grows(20, 712)), []);
        // After a stall, it may lack a quarter of what it holds.
        let mut stalled = grows(350, 764);
        stalled.witnessed("a").raised = Some((mib(875), Moment::from_millis(95 * SECOND)));
        assert_eq!(refused(&stalled), []);
    }
}
