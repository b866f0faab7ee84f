//! Guests that are left alone because somebody asked for it.

use memtide_model::{
    Absence, Action, Bytes, Config, Decision, GuestSeen, Hold, Hotplug, Keeps, Mode, Moment, Order, Ordered,
    PAGE_4K, Plan, Reading, Reason, Request, Snapshot, State, Verdict,
};
use memtide_policy::Violation;

use super::{deflating, line, memory, targets, tick, told};
use crate::common::{Host, Resident, broken, but, config, elastic, guest, host, id, mib, snapshot};

fn hold(keeps: Keeps, until: Option<u64>) -> Option<Hold> {
    Some(Hold { keeps, until: until.map(Moment::from_millis) })
}

/// The snapshot with one order about "a".
fn with_order(seen: Snapshot, hold: Option<Hold>) -> Snapshot {
    Snapshot {
        orders: vec![Order { guest: id("a"), ordered: hold.map_or(Ordered::Manage, Ordered::Leave) }],
        ..seen
    }
}

/// A decision's changes to "a".
fn done_to_a(decision: &Decision) -> Vec<(Request, Reason)> {
    let about_a = decision.plan.actions.iter().filter(|action| action.guest() == Some(&id("a")));
    about_a.map(|Action { request, reason, .. }| (*request, *reason)).collect()
}

/// "b" needs 200 more than it has, and there is no room: 450 and 400 plus 60 each are all the memory there is.
fn short(millis: u64, a: GuestSeen) -> Snapshot {
    let b = told(guest("b", 400, 390), |s| s.alloc_stalls = Some(millis));
    snapshot(millis, 970, vec![a, b])
}

/// The state after "a" was asked for 300 and both guests were observed for a while.
fn asked_for_300() -> State {
    let mut state = tick(&config(), &State::default(), &short(1000, guest("a", 600, 100))).state;
    for (name, target) in [("a", 300), ("b", 400)] {
        let guest = memory(&mut state, name);
        (guest.target, guest.target_set_at) = (Some(mib(target)), Some(Moment::from_millis(1000)));
        guest.told_since = Some(Moment::default());
    }
    state
}

#[test]
fn who_is_held_stops_where_it_is_and_is_not_asked_again() {
    let state = asked_for_300();
    // It has come from 600 to 450 on its way to 300.
    let seen = with_order(short(2000, guest("a", 450, 100)), hold(Keeps::Size, None));
    let first = tick(&config(), &state, &seen);
    assert_eq!(done_to_a(&first), [(Request::SetTarget(mib(450)), Reason::Held { target: mib(300) })]);
    let mut state = first.state;
    for secs in 3..120 {
        let decision = tick(&config(), &state, &short(secs * 1000, guest("a", 450, 100)));
        assert_eq!(done_to_a(&decision), [], "at {secs} s");
        assert!(matches!(line(&decision, "a").verdict, Verdict::Held(_)));
        state = decision.state;
    }
    // "Manage it again": it has 450 − 100 − 32 idle.
    let again = tick(&config(), &state, &with_order(short(120_000, guest("a", 450, 100)), None));
    assert!(
        matches!(done_to_a(&again)[..], [(Request::SetTarget(_), Reason::IdleMemory { .. })]),
        "{again:?}"
    );
}

#[test]
fn a_hold_is_over_when_its_time_is() {
    let seen = with_order(short(2000, guest("a", 450, 100)), hold(Keeps::Size, Some(10_000)));
    let mut state = tick(&config(), &asked_for_300(), &seen).state;
    let mut asked_at = None;
    for secs in 3..15 {
        let decision = tick(&config(), &state, &short(secs * 1000, guest("a", 450, 100)));
        asked_at = asked_at.or((!done_to_a(&decision).is_empty()).then_some(secs));
        state = decision.state;
    }
    assert_eq!(asked_at, Some(10));
}

#[test]
fn what_somebody_else_does_during_a_hold_outlasts_it() {
    // There is room for what "b" lacks.
    let roomy = |seen: Snapshot| Snapshot { host: host(mib(2000)), ..seen };
    let seen = with_order(short(2000, guest("a", 450, 100)), hold(Keeps::Size, Some(10_000)));
    let mut state = tick(&config(), &asked_for_300(), &roomy(seen)).state;
    for secs in 3..15 {
        let actual = if secs < 6 { 450 } else { 350 };
        let decision = tick(&config(), &state, &roomy(short(secs * 1000, guest("a", actual, 100))));
        assert_eq!(done_to_a(&decision), [], "at {secs} s");
        state = decision.state;
    }
    let held_until = Some(Moment::from_millis(10_000));
    let foreign = Hold { keeps: Keeps::Foreign { from: mib(450), held_until }, until: None };
    assert_eq!(memory(&mut state, "a").hold, Some(foreign));
}

#[test]
fn during_an_operators_hold_no_lack_of_another_guest_ends_that_of_somebody_else() {
    // "b" runs dry all the time, and nothing is spare. The operator's hold is for 10 s, regardless of foreign movements.
    let seen = with_order(short(2000, guest("a", 450, 100)), hold(Keeps::Size, Some(10_000)));
    let mut state = tick(&config(), &asked_for_300(), &seen).state;
    let mut ended_at = None;
    for secs in 3..15 {
        let actual = if secs < 6 { 450 } else { 520 };
        let decision = tick(&config(), &state, &short(secs * 1000, guest("a", actual, 100)));
        ended_at = ended_at.or((!done_to_a(&decision).is_empty()).then_some(secs));
        state = decision.state;
    }
    assert_eq!(ended_at, Some(10));
}

/// "a" keeps all of its 1024 and uses 100. "b" keeps 400, uses `used` and has `stalls` stalls so far. "c" keeps 300, of which 100
/// are used and `cache` is page cache. 1724 + 180 of `capacity`.
fn three(millis: u64, capacity: u64, (used, stalls): (u64, u64), cache: u64) -> Snapshot {
    let b = told(guest("b", 400, used), |s| s.alloc_stalls = Some(stalls));
    let c = told(guest("c", 300, 100), |s| {
        (s.free, s.disk_caches) = (Some(mib(200 - cache)), Some(mib(cache)));
    });
    snapshot(millis, capacity, vec![guest("a", 1024, 100), b, c])
}

/// The decision once "b" has stalled, and the state before it: somebody else moved the balloon of "a" from 500.
fn escaped(config: &Config, capacity: u64, used: u64, cache: u64) -> (Decision, State) {
    let mut state = super::known(config, &three(1000, capacity, (used, 0), cache));
    let foreign = Keeps::Foreign { from: mib(500), held_until: None };
    memory(&mut state, "a").hold = hold(foreign, None);
    (tick(config, &state, &three(60_000, capacity, (used, 10_000), cache)), state)
}

#[test]
fn a_foreign_hold_ends_when_another_guest_runs_dry() {
    // "b" has 10 left, less than 16, and lacks 22. Nothing is spare, and "c" needs 100 + 180 + 32 of its 300.
    let (mut decision, _) = escaped(&config(), 1904, 390, 180);
    let verdict = line(&decision, "a").verdict.clone();
    assert_eq!(verdict, Verdict::HoldEnds { lacking: Some(id("b")), lacks: mib(22) });
    // It stalled, so it needs 400 + 100. Nothing is free, and 2 % of the host should be: 38. "a" gives both at once. "c" was not seen
    // to need its cache.
    let target = mib(1024 - 100).saturating_sub(mib(1904).mul_div(2, 100)).round_down(PAGE_4K);
    let changes =
        done_to_a(&decision).into_iter().filter(|(change, _)| matches!(change, Request::SetTarget(_)));
    let ends = (Request::SetTarget(target), Reason::HoldEnds { lacks: mib(22) });
    assert_eq!(changes.collect::<Vec<_>>(), [ends]);
    assert_eq!(memory(&mut decision.state, "a").hold, None);
}

#[test]
fn a_foreign_hold_ends_when_its_guest_kills_a_program() {
    // Nobody else lacks anything, and 2 GiB are free.
    let seen = |millis, kills| {
        let b = told(guest("a", 400, 390), |stats| stats.oom_kills = Some(kills));
        snapshot(millis, 4096, vec![b, guest("b", 1024, 100)])
    };
    for config in [config(), elastic()] {
        let mut state = super::known(&config, &seen(1000, 3));
        memory(&mut state, "a").hold = hold(Keeps::Foreign { from: mib(500), held_until: None }, None);
        let quiet = tick(&config, &state, &seen(60_000, 3));
        assert!(matches!(line(&quiet, "a").verdict, Verdict::Held(_)));
        let kills = tick(&config, &state, &seen(60_000, 4));
        assert_eq!(line(&kills, "a").verdict, Verdict::HoldEnds { lacking: Some(id("a")), lacks: mib(32) });
        let after = tick(&config, &kills.state, &seen(61_000, 5));
        assert!(targets(&after).iter().any(|(name, target)| *name == "a" && *target > 400), "{after:?}");
    }
}

#[test]
fn a_foreign_hold_is_respected_as_long_as_others_have_what_they_use() {
    let is_held = |(decision, _): (Decision, State)| {
        let held = matches!(line(&decision, "a").verdict, Verdict::Held(_));
        assert!(!held || done_to_a(&decision).is_empty(), "{:?}", done_to_a(&decision));
        held
    };
    assert!(is_held(escaped(&config(), 1904, 384, 180)), "16 are left to \"b\"");
    assert!(is_held(escaped(&config(), 1926, 390, 180)), "22 can be granted now");
    assert!(is_held(escaped(&config(), 1904, 390, 140)), "\"c\" has 300 - 100 - 140 - 32 = 28 idle");
    assert!(!is_held(escaped(&config(), 1904, 390, 147)), "\"c\" has 21 idle");
}

#[test]
fn a_foreign_hold_ends_when_the_host_is_in_danger_and_nobody_else_can_help() {
    // 1024 + 60 and 300 + 60 of 1440: nothing is left, and 4 % should be. "a" uses 600. Unless "b" has that much to give, "a" does.
    let found = |config: &Config, b: GuestSeen| {
        let seen = |millis| snapshot(millis, 1440, vec![guest("a", 1024, 600), b.clone()]);
        let mut state = super::known(config, &seen(1000));
        memory(&mut state, "a").hold = hold(Keeps::Foreign { from: mib(500), held_until: None }, None);
        let decision = tick(config, &state, &seen(60_000));
        assert_eq!(broken(config, &state, &seen(60_000), &decision.plan), []);
        (line(&decision, "a").verdict.clone(), targets(&decision).iter().any(|(name, _)| *name == "a"))
    };
    let lacks = mib(1440).mul_div(4, 100).saturating_add(mib(4));
    for config in [config(), elastic()] {
        // "b" can give 300 − 260 − 16 of it.
        assert_eq!(found(&config, guest("b", 300, 260)), (Verdict::HoldEnds { lacking: None, lacks }, true));
        let (verdict, moves) = found(&config, guest("b", 300, 200));
        assert!(matches!(verdict, Verdict::Held(_)) && !moves, "{verdict:?}");
    }
    // What "b" has not touched would not help the host.
    let untouched = but(guest("b", 900, 290), |guest| guest.cost.footprint = Reading::now(mib(360)));
    assert_eq!(found(&elastic(), untouched), (Verdict::HoldEnds { lacking: None, lacks }, true));
}

#[test]
fn nobody_gives_for_a_size_that_nobody_ordered() {
    // 1904 of 1800: 104 are missing, but "a" has touched only 100. By its shares alone, it would have 1800 / 3 - 60 = 540 of its 1024, and
    // "c" has 180 idle.
    let seen = |millis| {
        let mut seen = three(millis, 1800, (300, 0), 0);
        seen.guests[0].cost.footprint = Reading::now(mib(160));
        seen
    };
    let mut state = super::known(&config(), &seen(1000));
    memory(&mut state, "a").hold = hold(Keeps::Foreign { from: mib(500), held_until: None }, None);
    let decision = tick(&config(), &state, &seen(60_000));
    let unordered = line(&decision, "a").unordered.whole_mib();
    // All of what is missing is its.
    assert_eq!((unordered, decision.report.host.breach), (104, mib(104)));
    assert_eq!(targets(&decision), []);
    // If the guest may deflate its own balloon, it may have done so itself.
    let mut itself = seen(60_000);
    itself.guests[0] = deflating(itself.guests[0].clone());
    let decision = tick(&config(), &state, &itself);
    assert_eq!(line(&decision, "a").unordered, Bytes::ZERO);
    assert_ne!(targets(&decision), []);
}

#[test]
fn the_check_lets_a_foreign_hold_end_only_then() {
    let found = |capacity, used, cache, target: u64, change: &dyn Fn(&mut State)| {
        let (_, mut state) = escaped(&config(), 1904, 390, 180);
        change(&mut state);
        let action =
            Action::of(id("a"), Request::SetTarget(mib(target)), Reason::HoldEnds { lacks: mib(22) });
        let seen = three(60_000, capacity, (used, 10_000), cache);
        broken(&config(), &state, &seen, &Plan { actions: vec![action] })
    };
    let as_it_is = |_: &mut State| {};
    let not_ours = [Violation::NotOurs(id("a"))];
    assert_eq!(found(1904, 390, 180, 924, &as_it_is), []);
    assert_eq!(found(1904, 384, 180, 924, &as_it_is), not_ours, "nobody runs dry");
    assert_eq!(found(1926, 390, 180, 924, &as_it_is), not_ours, "there is room");
    assert_eq!(found(1904, 390, 140, 924, &as_it_is), not_ours, "others have idle memory");
    let smaller = |state: &mut State| memory(state, "a").target = Some(mib(500));
    assert_eq!(found(1904, 390, 180, 1028, &smaller).first(), not_ours.first(), "it grows");
    let operators = |keeps, until| move |state: &mut State| memory(state, "a").hold = hold(keeps, until);
    assert_eq!(found(1904, 390, 180, 924, &operators(Keeps::Size, None)), not_ours);
    assert_eq!(found(1904, 390, 180, 924, &operators(Keeps::Limit, None)), not_ours);
    let within = Keeps::Foreign { from: mib(500), held_until: Some(Moment::from_millis(70_000)) };
    assert_eq!(found(1904, 390, 180, 924, &operators(within, None)), not_ours, "within an operator's hold");
    // A guest's own lack does not end its own hold.
    let both = |state: &mut State| {
        let foreign = Keeps::Foreign { from: mib(500), held_until: None };
        memory(state, "b").hold = hold(foreign, None);
    };
    assert_eq!(found(1904, 390, 180, 924, &both), not_ours, "who runs dry is held itself");
}

#[test]
fn who_is_held_gives_nothing_in_an_emergency() {
    for config in [config(), elastic()] {
        let seen = |millis| snapshot(millis, 1200, vec![guest("a", 700, 100), guest("b", 500, 490)]);
        let mut state =
            tick(&config, &State::default(), &with_order(seen(1000), hold(Keeps::Size, None))).state;
        for secs in 2..20 {
            let decision = tick(&config, &state, &seen(secs * 1000));
            assert_eq!(done_to_a(&decision), [], "at {secs} s");
            state = decision.state;
        }
    }
}

#[test]
fn who_is_released_gets_its_limit_from_others_and_the_promises_are_kept() {
    // 2 × (1024 + 60) do not fit into 1700: "a" waits until "b" has given its unneeded memory. Host::tick checks each plan.
    let mut host = Host::new(config(), 1700, vec![Resident::new("a", 100), Resident::new("b", 200)]);
    host.run(60);
    let before = host.guest("a").actual();
    let mut seen = 0;
    memory(&mut host.state, "a").hold = hold(Keeps::Limit, None);
    host.witness.guests.get_mut(&id("a")).unwrap().hold = hold(Keeps::Limit, None);
    host.until(60, |host| {
        seen += 1;

        // Except for a dead band.
        host.guests[0].actual() >= 1024 - 16
    });
    assert!(before < 1000 && seen > 1, "{before}, {seen}");
    assert!(host.log.iter().any(|line| line.contains(" a target") && line.contains("released")));
    let log = host.log.len();
    host.run(60);
    assert!(host.log[log..].iter().all(|line| !line.contains(" a target")), "{:?}", &host.log[log..]);
}

#[test]
fn who_is_released_needs_no_statistics() {
    let silent =
        |actual| but(guest("a", actual, 100), |guest| guest.told.stats = Reading::absent(Absence::Timeout));
    let seen = |millis, a| snapshot(millis, 4000, vec![a]);
    let known = tick(&config(), &State::default(), &seen(1000, guest("a", 500, 100))).state;
    let mut known = known;
    memory(&mut known, "a").target = Some(mib(500));
    let held = tick(&config(), &known, &seen(2000, silent(500)));
    assert_eq!(targets(&held), []);
    let released =
        tick(&config(), &held.state, &with_order(seen(3000, silent(500)), hold(Keeps::Limit, None)));
    assert_eq!(done_to_a(&released), [(Request::SetTarget(mib(1024)), Reason::Release)]);
    let there = tick(&config(), &released.state, &seen(4000, silent(1024)));
    assert!(matches!(line(&there, "a").verdict, Verdict::Held(_)));
}

/// The verdict on "a" after it was seen with the given sizes, 2 s apart, on a host with room; it was asked to keep 500.
fn after(sizes: &[GuestSeen]) -> (Verdict, Vec<Bytes>) {
    let seen = |millis, a: &GuestSeen| snapshot(millis, 1500, vec![a.clone(), guest("b", 800, 700)]);
    let mut state = tick(&config(), &State::default(), &seen(1000, &guest("a", 500, 200))).state;
    let a = memory(&mut state, "a");
    (a.target, a.target_set_at) = (Some(mib(500)), Some(Moment::from_millis(1000)));
    a.told_since = Some(Moment::default());
    let (mut verdict, mut asked) = (Verdict::Steady, Vec::new());
    for (seconds, a) in (10..).step_by(2).zip(sizes) {
        let decision = tick(&config(), &state, &seen(seconds * 1000, a));
        verdict = line(&decision, "a").verdict.clone();
        asked.extend(done_to_a(&decision).into_iter().filter_map(|(change, _)| match change {
            Request::SetTarget(target) => Some(target),
            _ => None,
        }));
        state = decision.state;
    }
    (verdict, asked)
}

#[test]
fn a_balloon_that_grows_below_what_was_asked_is_somebody_elses() {
    let foreign =
        Verdict::Held(Hold { keeps: Keeps::Foreign { from: mib(500), held_until: None }, until: None });
    let (verdict, asked) = after(&[guest("a", 500, 200), guest("a", 400, 200), guest("a", 300, 200)]);
    assert_eq!((verdict, asked), (foreign, vec![]));
}

#[test]
fn a_balloon_that_shrinks_without_us_is_somebody_elses_where_the_guest_may_not() {
    let (verdict, asked) = after(&[guest("a", 1024, 200)]);
    assert_eq!(
        verdict,
        Verdict::Held(Hold { keeps: Keeps::Foreign { from: mib(500), held_until: None }, until: None })
    );
    assert_eq!(asked, []);
}

#[test]
fn where_the_guest_may_deflate_itself_its_statistics_tell_who_it_was() {
    // 524 more, and all of it available afterwards: a person's command. The first look decides nothing: its statistics may be
    // older than the movement.
    let early =
        |guest: GuestSeen| but(guest, |guest| guest.told.stats = aged(guest.told.stats.clone(), 6_000));
    let lifted = deflating(guest("a", 1024, 200));
    let (verdict, asked) = after(&[early(lifted.clone())]);
    assert!(!matches!(verdict, Verdict::Held(_)), "{verdict:?}");
    assert_eq!(asked, []);
    let (verdict, asked) = after(&[early(lifted.clone()), lifted.clone()]);
    assert_eq!(
        verdict,
        Verdict::Held(Hold { keeps: Keeps::Foreign { from: mib(500), held_until: None }, until: None })
    );
    assert_eq!(asked, []);
    // It uses the memory that it took: its own deflation, and a stall.
    let used = deflating(guest("a", 800, 790));
    let (verdict, _) = after(&[used.clone(), used]);
    assert!(!matches!(verdict, Verdict::Held(_)), "{verdict:?}");
    // It had to wait for memory meanwhile, and has freed memory since.
    let waited = told(lifted, |s| s.alloc_stalls = Some(1000));
    let (verdict, _) = after(&[waited.clone(), waited]);
    assert!(!matches!(verdict, Verdict::Held(_)), "{verdict:?}");
}

fn aged<T: Clone>(reading: Reading<T>, millis: u64) -> Reading<T> {
    match reading {
        Reading::Fresh { value, .. } => {
            Reading::Fresh { value, age: memtide_model::Span::from_millis(millis) }
        }
        other => other,
    }
}

#[test]
fn what_we_a_reset_or_hotplug_did_is_nobody_elses() {
    let smaller = |change: &dyn Fn(&mut State)| {
        let seen = |millis, a| snapshot(millis, 1500, vec![a, guest("b", 800, 700)]);
        let mut state = tick(&config(), &State::default(), &seen(1000, guest("a", 700, 200))).state;
        let a = memory(&mut state, "a");
        (a.target, a.target_set_at) = (Some(mib(600)), Some(Moment::from_millis(1000)));
        a.told_since = Some(Moment::default());
        change(&mut state);
        let decision = tick(&config(), &state, &seen(10_000, guest("a", 400, 200)));
        matches!(line(&decision, "a").verdict, Verdict::Held(_))
    };
    let at = Moment::from_millis;
    assert!(smaller(&|_| {}), "the rest of this test would show nothing");
    assert!(!smaller(&|state| memory(state, "a").target = Some(mib(400))), "our target");
    assert!(!smaller(&|state| memory(state, "a").target_set_at = Some(at(8_500))), "raised a moment ago");
    assert!(!smaller(&|state| memory(state, "a").doubt_until = Some(at(11_000))), "perhaps ours");
    assert!(!smaller(&|state| memory(state, "a").reset_at = Some(at(1_000))), "a reset");
    assert!(!smaller(&|state| memory(state, "a").told_since = None), "nothing was known before");
    assert!(!smaller(&|state| memory(state, "a").plugged = Some(mib(200))), "hot-plug");
}

#[test]
fn an_observer_holds_nobody() {
    let observe = memtide_model::Config { mode: Mode::Observe, ..config() };
    let state = tick(&observe, &State::default(), &snapshot(1000, 1500, vec![guest("a", 700, 200)])).state;
    let decision = tick(&observe, &state, &snapshot(9000, 1500, vec![guest("a", 300, 200)]));
    assert_eq!(line(&decision, "a").verdict, Verdict::Observed);
}

#[test]
fn memory_that_virtio_mem_unplugs_is_not_taken_by_somebody_else() {
    let plugged = |actual, plugged| {
        but(guest("a", actual, 200), |guest| {
            guest.told.hotplug =
                Reading::now(Hotplug { requested: mib(plugged), plugged: mib(plugged), most: mib(plugged) })
        })
    };
    let (verdict, _) = after(&[plugged(500, 200), plugged(300, 0)]);
    assert!(!matches!(verdict, Verdict::Held(_)), "{verdict:?}");
}

#[test]
fn who_raised_a_balloon_is_not_answered_before_it_is_known_who_it_was() {
    // "a" may deflate its own balloon. It keeps 300 and uses 240 of them; then somebody raises it to 500. The statistics are
    // older, so they say that 60 are available. A second later they say 260.
    let seen = |millis: u64, actual: u64, available: u64, age: u64| {
        let mut a = told(deflating(guest("a", actual, 0)), |s| s.available = Some(mib(available)));
        a.told.stats = Reading::Fresh {
            value: *a.told.stats.latest().unwrap(),
            age: memtide_model::Span::from_millis(age),
        };
        snapshot(millis, 4096, vec![a])
    };
    let mut state = tick(&config(), &State::default(), &seen(1000, 300, 60, 0)).state;
    for millis in [20_000, 20_250] {
        let guest = memory(&mut state, "a");
        (guest.target, guest.target_set_at) = (Some(mib(300)), Some(Moment::from_millis(1000)));
        state = tick(&Config { mode: Mode::Observe, ..config() }, &state, &seen(millis, 300, 60, 250)).state;
    }
    memory(&mut state, "a").target = Some(mib(300));
    for (millis, available, age) in [(20_500, 60, 500), (20_750, 60, 750), (21_000, 260, 100)] {
        let decision = tick(&config(), &state, &seen(millis, 500, available, age));
        assert_eq!(done_to_a(&decision), [], "at {millis} ms");
        state = decision.state;
    }
    let foreign = Hold { keeps: Keeps::Foreign { from: mib(300), held_until: None }, until: None };
    assert_eq!(memory(&mut state, "a").hold, Some(foreign));
}
