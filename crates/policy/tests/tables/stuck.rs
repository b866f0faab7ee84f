//! Guests that make no progress, take more by themselves, or were reset.

use memtide_model::{
    Bytes, Decision, Fence, GuestSeen, GuestState, Moment, Reading, Reason, Request, Snapshot, Span, State,
    Stuck, Verdict,
};
use memtide_policy::belief::ledger::Entry;
use memtide_policy::belief::stuck::{is_stuck, judge};

use super::{deflating, line, memory, targets, tick, told};
use crate::common::{but, config, elastic, guest, id, mib, snapshot};

/// A guest that keeps `actual` and was asked to keep `target` before.
fn judged(stuck: Stuck, actual: Bytes, target: Bytes, millis: u64) -> Stuck {
    let entry = Entry { actual, target, ..Entry::default() };
    judge(&entry, &GuestState { stuck, actual, ..GuestState::default() }, Moment::from_millis(millis))
}

/// Asked for 500 at 0, the guest stays at 1000: the seconds at which back-offs begin, with their length, and when it is first
/// called uncooperative.
fn unmoved(secs: u64) -> (Vec<(u64, u64)>, Option<u64>) {
    let (mut stuck, mut back_offs, mut said) = (Stuck::default(), Vec::new(), None);
    for millis in (0..=secs * 1000).step_by(250) {
        let next = judged(stuck, mib(1000), mib(500), millis);
        if next.until != stuck.until {
            back_offs.push((millis / 1000, next.back_off.as_millis() / 1000));
        }
        if next.uncooperative && said.is_none() {
            said = Some(millis / 1000);
        }
        stuck = next;
    }
    (back_offs, said)
}

#[test]
fn stuck_after_5_s_and_tried_again_after_back_offs_that_double() {
    // Stuck at 5 until 10, tries for 5 s; stuck at 15 until 25; at 30 until 50; at 55 until 95.
    assert_eq!(unmoved(60).0, [(5, 5), (15, 10), (30, 20), (55, 40)]);
}

#[test]
fn back_offs_end_at_ten_minutes() {
    let (back_offs, _) = unmoved(5_000);
    assert_eq!(back_offs.last().map(|(_, length)| *length), Some(600));
}

#[test]
fn uncooperative_after_20_s() {
    assert_eq!(unmoved(60).1, Some(20));
}

#[test]
fn the_time_that_a_guest_is_paused_does_not_count() {
    let seen = |millis, fence| {
        let a = but(guest("a", 1000, 100), |guest| guest.told.fence = fence);
        snapshot(millis, 1000, vec![a, guest("b", 400, 390)])
    };
    let mut state = tick(&config(), &State::default(), &seen(1000, None)).state;
    for secs in 2..60 {
        state = tick(&config(), &state, &seen(secs * 1000, Some(Fence::Paused))).state;
    }
    let running = tick(&config(), &state, &seen(61_000, None));
    assert!(!is_stuck(&memory(&mut running.state.clone(), "a").stuck, Moment::from_millis(61_000)));
    assert_eq!(line(&running, "a").verdict, Verdict::UnderWay);
}

#[test]
fn a_step_of_1_mib_towards_the_target_is_progress() {
    let first = judged(Stuck::default(), mib(1000), mib(500), 0);
    let moved = judged(first, mib(999), mib(500), 4_000);
    assert_eq!(moved.progress_at, Some(Moment::from_millis(4_000)));
    assert!(!is_stuck(&judged(moved, mib(999), mib(500), 8_999), Moment::from_millis(8_999)));
    assert!(is_stuck(&judged(moved, mib(999), mib(500), 9_000), Moment::from_millis(9_000)));
}

#[test]
fn less_than_1_mib_is_no_progress() {
    let first = judged(Stuck::default(), mib(1000), mib(500), 0);
    let crept = judged(first, Bytes::from_kib(1024 * 999 + 1), mib(500), 4_000);
    assert_eq!(crept.progress_at, Some(Moment::from_millis(0)));
}

#[test]
fn a_guest_at_its_target_is_not_stuck() {
    let first = judged(Stuck::default(), mib(1000), mib(500), 0);
    assert_eq!(judged(first, mib(501), mib(500), 60_000), Stuck::default());
}

#[test]
fn progress_ends_a_back_off_and_its_doubling() {
    let stuck = judged(judged(Stuck::default(), mib(1000), mib(500), 0), mib(1000), mib(500), 5_000);
    assert!(is_stuck(&stuck, Moment::from_millis(6_000)));
    let moved = judged(stuck, mib(900), mib(500), 6_000);
    assert!(!is_stuck(&moved, Moment::from_millis(6_000)));
    assert_eq!(moved.back_off, Span::ZERO);
}

/// "a" after it was asked for 500: decisions every 250 ms on a host where its share is 500.
fn asked_for_500(seen: impl Fn(u64) -> Snapshot, from: u64, to: u64) -> Vec<(u64, Decision)> {
    let mut state = tick(&config(), &State::default(), &seen(from)).state;
    let a = memory(&mut state, "a");
    (a.target, a.target_set_at) = (Some(mib(500)), Some(Moment::from_millis(from)));
    a.stuck = Stuck::default();
    memory(&mut state, "b").target = None;
    let mut decisions = Vec::new();
    for millis in (from + 250..=to).step_by(250) {
        let decision = tick(&config(), &state, &seen(millis));
        state = decision.state.clone();
        decisions.push((millis, decision));
    }
    decisions
}

/// "b" holds and needs 500 of the 1000 that a host of 1120 has for two guests. Most of their memory is not resident: whatever
/// they keep, the host is in no emergency.
fn half(millis: u64, a: GuestSeen) -> Snapshot {
    half_with(millis, a, 468)
}

fn half_with(millis: u64, a: GuestSeen, used: u64) -> Snapshot {
    let resident = |guest| but(guest, |guest| guest.cost.footprint = Reading::now(mib(300)));
    snapshot(millis, 1120, vec![resident(a), resident(guest("b", 500, used))])
}

#[test]
fn a_stuck_guest_is_said_to_be_and_gives_nothing() {
    // Memory is wanted, since 700 + 500 do not fit into 1000; "a" does not move.
    let decisions = asked_for_500(|millis| half(millis, guest("a", 700, 200)), 10_000, 45_000);
    let verdict = |at: u64| {
        let (_, decision) = decisions.iter().find(|(millis, _)| *millis == at).unwrap();
        line(decision, "a").verdict.clone()
    };
    assert_eq!(verdict(10_250), Verdict::UnderWay);
    let until = Moment::from_millis(20_250);
    assert_eq!(verdict(15_250), Verdict::Stuck { since: Span::from_secs(5), until, uncooperative: false });
    // It is drawn back to what it has, and asked again after 5 and 10 s: the third failure is said.
    assert!(matches!(verdict(41_000), Verdict::Stuck { uncooperative: true, .. }), "{:?}", verdict(41_000));
}

#[test]
fn a_grant_that_is_not_taken_is_drawn_back() {
    // Asked to keep 500, it stays at 300 although it may grow.
    let decisions = asked_for_500(|millis| half(millis, guest("a", 300, 200)), 10_000, 16_000);
    let back = decisions.iter().flat_map(|(_, decision)| &decision.plan.actions).find_map(|action| {
        matches!(action.reason, Reason::StuckAt { .. }).then_some((action.request, action.reason))
    });
    let reason = Reason::StuckAt { target: mib(500), actual: mib(300), since: Span::from_secs(5) };
    assert_eq!(back, Some((Request::SetTarget(mib(300)), reason)));
}

#[test]
fn who_could_not_give_is_granted_what_it_lacks() {
    // At 300, "a" did not follow, and is left alone for a minute. Then its program grows.
    let seen = |millis, used| snapshot(millis, 3000, vec![guest("a", 300, used), guest("b", 500, 100)]);
    for config in [config(), elastic()] {
        let mut state = tick(&config, &State::default(), &seen(1000, 200)).state;
        let a = memory(&mut state, "a");
        a.target = Some(mib(300));
        a.stuck =
            Stuck { until: Some(Moment::from_millis(60_000)), back_off: Span::from_secs(60), ..a.stuck };
        let decision = tick(&config, &state, &seen(2000, 290));
        assert!(matches!(targets(&decision)[..], [("a", 322..)]), "{:?}", targets(&decision));
    }
}

#[test]
fn a_grant_to_a_guest_that_could_not_give_ends_if_it_is_not_taken() {
    // "a" is left alone for ten minutes. Its program grows, and its balloon does not deflate.
    let seen = |millis, used| snapshot(millis, 3000, vec![guest("a", 300, used), guest("b", 500, 100)]);
    let mut state = tick(&config(), &State::default(), &seen(1000, 200)).state;
    let a = memory(&mut state, "a");
    a.target = Some(mib(300));
    a.stuck = Stuck {
        until: Some(Moment::from_millis(600_000)),
        back_off: Span::from_secs(600),
        ..Stuck::default()
    };
    let mut ended = None;
    for millis in (2000..20_000).step_by(250) {
        let decision = tick(&config(), &state, &seen(millis, 290));
        let mut about_a = decision.plan.actions.iter().filter(|action| action.guest() == Some(&id("a")));
        if ended.is_none() && about_a.any(|action| matches!(action.reason, Reason::StuckAt { .. })) {
            ended = Some(millis);
        }
        state = decision.state;
    }
    assert_eq!(ended, Some(7000));
}

#[test]
fn a_deflation_ends_the_pause_of_a_guest_that_could_not_give() {
    let stuck =
        Stuck { until: Some(Moment::from_millis(60_000)), back_off: Span::from_secs(40), ..Stuck::default() };
    let judged = |before, actual| {
        let entry = Entry { actual, target: mib(500), ..Entry::default() };
        judge(
            &entry,
            &GuestState { stuck, actual: before, ..GuestState::default() },
            Moment::from_millis(8_000),
        )
    };
    assert_eq!(judged(mib(480), mib(500)), Stuck::default());
    assert_eq!(judged(mib(500), mib(500)), stuck);
}

#[test]
fn who_does_not_take_a_grant_is_not_granted_it_again_at_once() {
    let seen = |millis| snapshot(millis, 3000, vec![guest("a", 300, 290), guest("b", 500, 100)]);
    let mut state = State::default();
    let mut asked = Vec::new();
    for millis in (1000..40_000).step_by(250) {
        let decision = tick(&config(), &state, &seen(millis));
        asked.extend(targets(&decision).into_iter().map(|(name, _)| (name.to_owned(), millis)));
        state = decision.state;
    }
    // A grant and its end each time: 5 s are tried, then 5, 10, 20 s are left out.
    assert!(asked.iter().filter(|(name, _)| name == "a").count() <= 6, "{asked:?}");
}

#[test]
fn after_a_deflation_by_the_guest_its_target_is_written_again() {
    // It was at 500 and took 700, which it uses for a moment. "b" needs the other 500: nothing can be granted.
    let seen = |millis| {
        let (actual, used) = match millis {
            ..12_500 => (500, 400),
            12_500 => (700, 690),
            _ => (700, 400),
        };
        half(millis, deflating(guest("a", actual, used)))
    };
    let decisions = asked_for_500(seen, 10_000, 15_000);
    let again: Vec<(u64, u64)> = decisions
        .iter()
        .flat_map(|(millis, decision)| decision.plan.actions.iter().map(move |action| (*millis, action)))
        .filter_map(|(millis, action)| match (action.request, action.reason) {
            (Request::SetTarget(target), Reason::SelfDeflation { actual, .. }) if actual == mib(700) => {
                Some((millis, target.whole_mib()))
            }
            _ => None,
        })
        .collect();
    // A deflation is a stall, and is granted what is left. Once it no longer stalls and uses less than its target, the target is written
    // again, every 2 s while the guest does not follow it.
    assert!(!again.is_empty() && again.iter().all(|(_, target)| *target < 650), "{again:?}");
}

#[test]
fn a_deflation_by_the_guest_counts_as_a_stall() {
    let actual = |millis| if millis < 12_500 { 500 } else { 700 };
    let seen = |millis| half(millis, deflating(guest("a", actual(millis), 400)));
    let decisions = asked_for_500(seen, 10_000, 12_500);
    // 700 + 700 / 4, but no more than its shares alone would give it: 1120 / 2 − 60. Without a stall, it would need 240 + 32.
    assert_eq!(line(&decisions.last().unwrap().1, "a").demand, mib(500));
}

#[test]
fn after_a_reset_the_target_is_written_again_once_the_driver_reports() {
    let seen = |millis| {
        let reset = (11_000..12_000).contains(&millis);
        // QEMU keeps reporting the old actual meanwhile.
        let actual = if millis < 12_000 { 500 } else { 1024 };
        half(millis, but(guest("a", actual, 200), |guest| guest.told.reset = reset))
    };
    let decisions = asked_for_500(seen, 10_000, 12_000);
    for (millis, decision) in &decisions {
        let expected = if (11_000..12_000).contains(millis) {
            1024 + 60
        } else {
            line(decision, "a").actual.whole_mib() + 60
        };
        assert_eq!(line(decision, "a").reach, mib(expected), "at {millis}");
        if (11_000..12_000).contains(millis) {
            assert_eq!(line(decision, "a").verdict, Verdict::Reset);
            assert!(targets(decision).iter().all(|(name, _)| *name != "a"));
        }
    }
    let (_, last) = decisions.last().unwrap();
    let action = last.plan.actions.iter().find(|action| action.guest() == Some(&id("a"))).unwrap();
    assert_eq!(action.request, Request::SetTarget(mib(500)));
    assert_eq!(action.reason, Reason::Reset { actual: mib(1024) });
}

#[test]
fn after_a_reset_a_balloon_that_moved_meanwhile_is_believed() {
    // QEMU reports 500 all the time. With 200 used, the guest has 824 available until its driver has inflated, then 300.
    let seen = |millis, inflated: bool| {
        let reset = (11_000..12_000).contains(&millis);
        let told = told(guest("a", 500, 200), |s| s.available = Some(mib(if inflated { 300 } else { 824 })));
        half(millis, but(told, |guest| guest.told.reset = reset))
    };
    for (inflated, keeps) in [(false, 1024), (true, 500)] {
        let decisions = asked_for_500(|millis| seen(millis, inflated || millis < 11_000), 10_000, 14_000);
        assert_eq!(line(&decisions.last().unwrap().1, "a").actual, mib(keeps));
    }
}

#[test]
fn corrections_of_a_target_do_not_make_a_guest_look_willing() {
    // Each second, it is asked for a page less; it gives nothing.
    let mut state = tick(&config(), &State::default(), &half(1000, guest("a", 700, 200))).state;
    for secs in 2..40 {
        let a = memory(&mut state, "a");
        (a.target, a.stuck.until) = (Some(mib(500 - secs)), None);
        state = tick(&config(), &state, &half(secs * 1000, guest("a", 700, 200))).state;
    }
    assert!(memory(&mut state, "a").stuck.uncooperative);
}

#[test]
fn neighbours_of_a_stuck_guest_give_only_what_they_do_not_need() {
    // "a" stays at 700 and is 200 over; "b" has 500 − 300 − 32 = 168 idle.
    let seen = |millis| half_with(millis, guest("a", 700, 200), 300);
    let mut state = tick(&config(), &State::default(), &seen(1000)).state;
    let a = memory(&mut state, "a");
    (a.target, a.stuck.until) = (Some(mib(500)), Some(Moment::from_millis(60_000)));
    a.stuck.progress_at = Some(Moment::from_millis(1000));
    memory(&mut state, "b").target = None;
    let decision = tick(&config(), &state, &seen(8_000));
    // 1000 − 700 = 300 are left for "b", more than it has touched.
    assert!(line(&decision, "b").entitlement >= mib(300), "{:?}", line(&decision, "b"));
    let to_b: Vec<u64> =
        targets(&decision).iter().filter(|(name, _)| *name == "b").map(|(_, target)| *target).collect();
    assert_eq!(to_b, [300]);
}

#[test]
fn where_a_guest_uses_what_it_took_an_elastic_target_follows() {
    let seen = |millis, actual, used| {
        let mut seen = half(millis, deflating(guest("a", actual, used)));
        seen.guests[0].cost.footprint = Reading::now(mib(60 + used));
        seen
    };
    let mut state = tick(&elastic(), &State::default(), &seen(10_000, 500, 400)).state;
    memory(&mut state, "a").target = Some(mib(500));
    let state = tick(&elastic(), &state, &seen(11_000, 700, 690)).state;
    let decision = tick(&elastic(), &state, &seen(12_000, 700, 690));
    assert!(line(&decision, "a").target >= Some(mib(700)), "{:?}", targets(&decision));
}
