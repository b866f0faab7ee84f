//! Torn huge pages are split before anybody gives page cache.

use super::*;
use crate::common::{but, guest, mib, snapshot};
use memtide_model::{Action, GuestSeen, Moment, Reading, Reason};

/// A guest of 800 MiB that uses 300 MiB and has 480 MiB of page cache, and one of 600 MiB that uses 590 MiB and stalls. The host has
/// 60 MiB for each VMM, and nothing to spare beyond `torn` MiB in torn huge pages.
fn seen(millis: u64, torn: u64, stalls: u64) -> Snapshot {
    let cached = told(guest("cached", 800, 300), |stats| {
        (stats.free, stats.disk_caches) = (Some(mib(20)), Some(mib(480)));
    });
    let busy = told(guest("busy", 600, 590), |stats| stats.alloc_stalls = Some(stalls));
    let mut seen = snapshot(millis, 1520 + torn, vec![busy, cached]);
    seen.host.torn = Reading::now(mib(torn));
    seen.host.splits = true;
    seen
}

fn before(config: &Config, torn: u64) -> State {
    known(config, &seen(1_000, torn, 0))
}

fn splits(decision: &Decision) -> Vec<(&str, u64)> {
    let split = |action: &'_ Action| match action.reason {
        Reason::Torn { torn, .. } if action.request == Request::Split => Some(torn.whole_mib()),
        _ => None,
    };
    let actions = decision.plan.actions.iter();
    actions.filter_map(|action| Some((action.guest().unwrap().name(), split(action)?))).collect()
}

#[test]
fn wanted_memory_comes_from_torn_huge_pages_before_page_cache() {
    let config = config();
    let state = before(&config, 200);
    let mut cannot = seen(6_000, 200, 100);
    cannot.host.splits = false;
    let decision = tick(&config, &state, &cannot);
    assert_eq!(splits(&decision), []);
    assert!(targets(&decision).iter().any(|(name, _)| *name == "cached"), "{:#?}", decision.plan);
    // Its own torn memory is not known: the guest that has given most to its balloon (1024 − 600) comes first.
    let decision = tick(&config, &state, &seen(6_000, 200, 100));
    assert_eq!(splits(&decision), [("busy", 200)]);
    assert_eq!(targets(&decision), []);
    assert_eq!(decision.report.host.torn, mib(200));
    // The host has the memory: it is granted, and no guest gives.
    let mut back = seen(6_250, 0, 100);
    back.host.capacity = mib(1520 + 200);
    let decision = tick(&config, &decision.state, &back);
    assert_eq!(splits(&decision), []);
    assert!(matches!(targets(&decision)[..], [("busy", more)] if more > 600), "{:#?}", decision.plan);
}

#[test]
fn torn_memory_is_granted_to_nobody() {
    let config = config();
    let state = before(&config, 200);
    // The room that is torn: 200. The room that is not: 0.
    let decision = tick(&config, &state, &seen(6_000, 200, 100));
    assert_eq!((decision.report.host.free, decision.report.host.room), (Bytes::ZERO, Bytes::ZERO));
    assert!(line(&decision, "busy").target.is_none_or(|target| target <= mib(600)));
}

#[test]
fn a_split_that_returns_nothing_is_waited_for_once_and_then_backs_off() {
    let config = config();
    let mut state = before(&config, 200);
    let mut asked = Vec::new();
    let mut squeezed = None;
    for tenths in 60..400 {
        let seen = seen(tenths * 100, 200, tenths);
        let decision = tick(&config, &state, &seen);
        asked.extend(splits(&decision).into_iter().map(|(name, _)| (tenths, name.to_owned())));
        if squeezed.is_none() && targets(&decision).iter().any(|(name, _)| *name == "cached") {
            squeezed = Some(tenths);
        }
        state = decision.state;
        // Nobody follows: the test asks only for the splits.
        for guest in state.guests.values_mut() {
            guest.target = None;
        }
    }
    // One guest at a decision. Nothing came back within 1 s, so both are left alone for 10 s, then for 20 s.
    let of = |name: &str| asked.iter().filter(|(_, who)| who == name).map(|(at, _)| *at).collect::<Vec<_>>();
    assert_eq!(of("busy"), [60, 170, 380]);
    assert_eq!(of("cached"), [61, 171, 381]);
    // A second after the last of them.
    assert_eq!(squeezed, Some(71));
}

#[test]
fn a_split_whose_return_is_hidden_by_an_inflation_is_no_failure() {
    let config = config();
    let mut state = before(&config, 200);
    let mut asked = Vec::new();
    for tenths in 60..95 {
        // Torn memory never falls: the balloon of "busy" tears more all the time.
        let decision = tick(&config, &state, &seen(tenths * 100, 200, tenths));
        asked.extend(splits(&decision).into_iter().map(|(name, _)| (tenths, name.to_owned())));
        state = decision.state;
        for (name, guest) in &mut state.guests {
            guest.target = None;
            if name.name() == "busy" {
                guest.inflating_at = Some(Moment::from_millis(tenths * 100 + 50));
            }
        }
    }
    let of = |name: &str| asked.iter().filter(|(_, who)| who == name).map(|(at, _)| *at).collect::<Vec<_>>();
    assert_eq!((of("busy"), of("cached")), (vec![60, 70, 80, 90], vec![61]), "{asked:?}");
}

#[test]
fn nobody_counts_on_a_split_of_a_guest_whose_balloon_inflates() {
    let config = config();
    let mut state = before(&config, 200);
    let squeezes = |state: &State| {
        let decision = tick(&config, state, &seen(6_000, 200, 60));
        assert_eq!(splits(&decision).len(), 1, "{:#?}", decision.plan);
        targets(&decision).iter().any(|(name, _)| *name == "cached")
    };
    assert!(!squeezes(&state));
    for guest in state.guests.values_mut() {
        guest.target = Some(mib(100));
        guest.actual = guest.actual.saturating_add(mib(1));
    }
    assert!(squeezes(&state));
}

#[test]
fn a_guest_is_split_again_only_after_another_inflation() {
    let config = config();
    let mut state = before(&config, 200);
    let mut asked = Vec::new();
    for tenths in 60..120 {
        // The first split of each returns 100; then more is torn, by something else.
        let torn = if (60..64).contains(&tenths) { 200 } else { 100 };
        let decision = tick(&config, &state, &seen(tenths * 100, torn, tenths));
        asked.extend(splits(&decision).into_iter().map(|(name, _)| (tenths, name.to_owned())));
        state = decision.state;
        for (name, guest) in &mut state.guests {
            guest.target = None;
            // "cached" inflates at 10 s.
            if name.name() == "cached" && tenths == 100 {
                guest.inflating_at = Some(Moment::from_millis(10_000));
            }
        }
    }
    let of = |name: &str| asked.iter().filter(|(_, who)| who == name).map(|(at, _)| *at).collect::<Vec<_>>();
    assert_eq!((of("busy"), of("cached")), (vec![60], vec![61, 101]));
}

#[test]
fn guests_whose_own_torn_memory_is_known_come_largest_first_until_it_suffices() {
    let config = config();
    let own = |torn: u64| move |guest: &mut GuestSeen| guest.cost.torn = Reading::now(mib(torn));
    let names = |torn: [u64; 3]| {
        let mut seen = seen(6_000, 300, 100);
        let small = |name: &str| guest(name, 100, 100);
        seen.guests.extend([small("small-1"), small("small-2")]);
        seen.guests.sort_by(|a, b| a.id.cmp(&b.id));
        seen.host.capacity = mib(1520 + 300 + 2 * 160);
        for (guest, torn) in seen.guests.iter_mut().zip([torn[0], torn[1], torn[2], 0]) {
            own(torn)(guest);
        }
        let mut quiet = seen.clone();
        quiet.taken_at = Moment::from_millis(1_000);
        *quiet.guests.first_mut().unwrap() = but(guest("busy", 600, 590), own(torn[0]));
        let state = known(&config, &quiet);
        let decision = tick(&config, &state, &seen);
        splits(&decision).into_iter().map(|(name, torn)| (name.to_owned(), torn)).collect::<Vec<_>>()
    };
    let wanted =
        |names: &[(&str, u64)]| names.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<Vec<_>>();
    // "cached" alone has enough.
    assert_eq!(names([40, 300, 0]), wanted(&[("cached", 300)]));
    // Less than 16 MiB is not worth a request.
    assert_eq!(names([15, 20, 17]), wanted(&[("cached", 20), ("small-1", 17)]));
}

#[test]
fn nobody_is_asked_while_nothing_is_wanted_or_memtide_observes() {
    let (config, state) = (config(), before(&config(), 200));
    let mut ample = seen(6_000, 200, 0);
    ample.host.capacity = mib(4_000);
    assert_eq!(splits(&tick(&config, &state, &ample)), []);
    let observes = Config { mode: Mode::Observe, ..config };
    assert_eq!(splits(&tick(&observes, &state, &seen(6_000, 200, 100))), []);
}
