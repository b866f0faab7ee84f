//! The search for the page cache that a guest needs.

use memtide_model::{Bytes, GuestState, Moment, Search, Span, Taken, Trial, TrialKind};
use memtide_policy::belief::evidence::Evidence;
use memtide_policy::belief::need::Need;
use memtide_policy::belief::search::{
    Arrived, Heard, Listening, gentle_step, gets_back, listen, may_try, take, unproven,
};

use crate::common::mib;

/// A guest's size in these tests.
const FULL: Bytes = Bytes::from_mib(1024);

fn at(secs: u64) -> Moment {
    Moment::from_millis(secs * 1000)
}

/// A guest with this much cache, which scans so much per second.
fn cached(cache: u64, scanned: u64) -> Need {
    let (stalls, refaults, kills, scanned) = (false, false, false, mib(scanned));
    Need {
        used: Some(mib(100)),
        cache_held: mib(cache),
        evidence: Some(Evidence {
            shows_stalls: true,
            shows_refaults: true,
            stalls,
            reclaims: false,
            refaults,
            kills,
            scanned,
        }),
        ..Need::default()
    }
}

fn stalls(need: Need) -> Need {
    Need { stalls: true, ..need }
}

/// A guest from which a step from 400 to 300 of cache was taken at 100 s; its balloon arrived at 101 s.
fn taken() -> Search {
    let mut search = Search::default();
    take(&mut search, Taken { has: mib(400), keeps: mib(300), gently: true }, at(100));
    hear(search, &cached(300, 0), 101).0
}

/// A guest that has arrived and has no free memory left.
const FULL_AT_SIZE: Listening =
    Listening { arrived: Arrived::Size, is_full: true, is_excused: false, fair: Bytes::ZERO };

/// What is heard at `secs`; the guest has arrived and has no free memory left.
fn hear(search: Search, need: &Need, secs: u64) -> (Search, Option<Heard>) {
    hear_at(search, need, secs, Arrived::Size)
}

/// The same; `arrived` says how far its last step has come.
fn hear_at(search: Search, need: &Need, secs: u64, arrived: Arrived) -> (Search, Option<Heard>) {
    let before = GuestState { search, cache: need.cache_held, ..GuestState::default() };
    listen(&before, &GuestState::default(), need, Listening { arrived, ..FULL_AT_SIZE }, at(secs))
}

#[test]
fn a_gentle_step_is_a_quarter_and_at_least_16_mib() {
    for (cache, step) in [(480, 120), (64, 16), (40, 16), (10, 10), (0, 0)] {
        assert_eq!(gentle_step(mib(cache)), mib(step), "of {cache}");
    }
}

#[test]
fn a_guest_that_stalls_or_scans_after_a_step_gets_the_cache_back() {
    for need in [stalls(cached(300, 0)), cached(300, 1)] {
        let (search, heard) = hear(taken(), &need, 105);
        assert_eq!(heard, Some(Heard::Hurt));
        assert_eq!(gets_back(&search, at(105)), Some((mib(400), Span::from_secs(60))));
        assert_eq!(search.needs, mib(400));
        assert_eq!(
            search.trial.map(|trial| trial.kind),
            Some(TrialKind::Granted),
            "whether that helps is watched, too"
        );
        assert_eq!(may_try(&search, &cached(400, 0), FULL, at(164)), Bytes::ZERO);
        assert_eq!(may_try(&search, &cached(400, 0), FULL, at(165)), mib(400), "after a minute");
        assert_eq!(unproven(&search, &cached(450, 0), FULL), mib(50));
    }
}

#[test]
fn nothing_is_heard_before_the_balloon_has_arrived_and_settled() {
    let (search, heard) = hear(taken(), &stalls(cached(300, 0)), 102);
    assert_eq!((search.trial.map(|trial| trial.kind), heard), (Some(TrialKind::Taken), None));
}

/// A target is rounded down to a page, and the guest may use more meanwhile: it then never has the size for the cache that was left to it.
#[test]
fn a_step_is_heard_once_its_balloon_has_arrived() {
    let mut search = Search::default();
    take(&mut search, Taken { has: mib(400), keeps: mib(300), gently: true }, at(100));
    let heard = |arrived| {
        let search = hear_at(search, &cached(300, 0), 101, arrived).0;
        hear_at(search, &stalls(cached(300, 0)), 105, arrived).1
    };
    assert_eq!([Arrived::No, Arrived::Balloon].map(heard), [None, Some(Heard::Hurt)]);
}

#[test]
fn scans_of_our_own_inflation_are_excused() {
    let before = GuestState { search: taken(), ..GuestState::default() };
    let heard = |is_excused| {
        let seen = Listening { is_excused, ..FULL_AT_SIZE };
        listen(&before, &GuestState::default(), &cached(300, 50), seen, at(104)).1
    };
    assert_eq!(heard(true), None);
    assert_eq!(heard(false), Some(Heard::Hurt));
}

#[test]
fn a_quiet_step_ends_after_nine_seconds() {
    assert!(hear(taken(), &cached(300, 0), 109).0.trial.is_some());
    let (search, heard) = hear(taken(), &cached(300, 0), 110);
    assert_eq!((search.trial, search.needs, heard), (None, Bytes::ZERO, None));
}

#[test]
fn back_offs_double_from_a_minute_to_an_hour() {
    let mut search = taken();
    let mut minutes = Vec::new();
    for _ in 0..8 {
        search = Search { trial: taken().trial, ..search };
        search = hear(search, &stalls(cached(300, 0)), 105).0;
        minutes.push(search.back_off.span.as_millis() / 60_000);
    }
    assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn a_grant_that_does_not_lower_the_scans_proves_nothing() {
    let hurt = hear(taken(), &cached(300, 20), 105).0;
    // It has its 400 again, has filled them, and scans as much as before.
    let arrived = hear(hurt, &cached(400, 0), 106).0;
    let (search, heard) = hear(arrived, &cached(400, 20), 120);
    assert_eq!((heard, search.needs, search.trial), (Some(Heard::Refuted), Bytes::ZERO, None));
    // For ten minutes its scans prove nothing; a stall does.
    let mut again = search;
    take(&mut again, Taken { has: mib(400), keeps: mib(300), gently: true }, at(200));
    let again = hear(again, &cached(300, 0), 201).0;
    assert_eq!(hear(again, &cached(300, 50), 205).1, None);
    assert_eq!(hear(again, &stalls(cached(300, 0)), 205).1, Some(Heard::Hurt));
}

#[test]
fn a_guest_that_was_hurt_gets_its_cache_back_also_later() {
    let hurt = hear(taken(), &cached(300, 20), 105).0;
    for secs in [105, 110, 164] {
        assert_eq!(gets_back(&hurt, at(secs)), Some((mib(400), Span::from_secs(60))));
    }
    assert_eq!(gets_back(&hurt, at(165)), None);
    assert_eq!(gets_back(&taken(), at(105)), None);
}

#[test]
fn a_grant_that_is_being_filled_is_not_refuted() {
    let hurt = hear(taken(), &cached(300, 20), 105).0;
    let arrived = hear(hurt, &cached(300, 20), 106).0;
    // To fill it, the guest reads again what it lost.
    for (cache, secs) in [(300, 109), (350, 115), (390, 120)] {
        assert_eq!(hear(arrived, &cached(cache, 20), secs).1, None, "{cache} MiB after {secs} s");
    }
    assert_eq!(hear(arrived, &cached(400, 20), 109).1, None, "it arrived 3 s ago");
    assert_eq!(hear(arrived, &cached(400, 20), 110).1, Some(Heard::Refuted));
}

#[test]
fn a_grant_that_others_took_back_is_not_refuted() {
    let hurt = hear(taken(), &cached(300, 20), 105).0;
    let arrived = hear(hurt, &cached(400, 0), 106).0;
    let (search, heard) = hear_at(arrived, &cached(400, 20), 120, Arrived::Balloon);
    assert_eq!((heard, search.needs), (None, mib(400)));
}

#[test]
fn a_grant_that_helps_is_kept() {
    let hurt = hear(taken(), &cached(300, 20), 105).0;
    let arrived = hear(hurt, &cached(400, 0), 106).0;
    let (search, heard) = hear(arrived, &cached(400, 0), 226);
    assert_eq!((search.trial, search.needs, heard), (None, mib(400), None));
}

#[test]
fn steps_that_follow_each_other_too_fast_are_one_step() {
    let mut search = taken();
    take(&mut search, Taken { has: mib(300), keeps: mib(225), gently: false }, at(102));
    let search = hear(search, &cached(225, 0), 103).0;
    let (search, heard) = hear(search, &stalls(cached(225, 0)), 106);
    assert_eq!((heard, search.needs), (Some(Heard::Hurt), mib(400)));
}

#[test]
fn needed_cache_that_is_taken_in_need_stays_needed() {
    let mut search = Search { needs: mib(400), ..Search::default() };
    take(&mut search, Taken { has: mib(400), keeps: mib(200), gently: false }, at(100));
    assert_eq!((search.needs, search.trial), (mib(400), None));
}

#[test]
fn need_for_cache_fades_while_the_guest_does_not_use_the_room() {
    let mut search = Search { needs: mib(400), trial: None, ..Search::default() };
    for secs in 1..60 {
        let need = cached(100, 0);
        let before = GuestState { search, cache: need.cache_held, ..GuestState::default() };
        let next = GuestState { stats_of: Some(at(secs)), ..GuestState::default() };
        search = listen(&before, &next, &need, Listening { is_full: false, ..FULL_AT_SIZE }, at(secs)).0;
    }
    assert!(search.needs < mib(110), "{}", search.needs);
}

#[test]
fn a_guest_that_nobody_can_hear_keeps_a_sixteenth() {
    let mut need = cached(400, 0);
    need.evidence = need.evidence.map(|evidence| Evidence { shows_refaults: false, ..evidence });
    assert_eq!(unproven(&Search::default(), &need, FULL), mib(400 - 64));
}

#[test]
fn a_trial_that_never_arrives_ends_after_a_minute() {
    let trial =
        Trial { kind: TrialKind::Taken, from: mib(400), at: at(100), arrived_at: None, scanned: Bytes::ZERO };
    let search = Search { trial: Some(trial), ..Search::default() };
    let before = GuestState { search, ..GuestState::default() };
    let heard = |secs| {
        let seen = Listening { arrived: Arrived::No, ..FULL_AT_SIZE };
        listen(&before, &GuestState::default(), &cached(300, 0), seen, at(secs)).0
    };
    assert!(heard(159).trial.is_some());
    assert_eq!(heard(160).trial, None);
}
