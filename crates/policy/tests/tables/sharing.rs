//! Whose memory KSM may merge.

use super::*;
use crate::common::{guest, mib, snapshot};
use memtide_model::{GuestSeen, KsmMode, KsmReason, KsmSeen, KsmVerdict, Moment, Reading, Reason, Span};

/// Three guests of 400 MiB, of which KSM has merged 0, 100 and 200 MiB, on a host with this much to spare.
fn seen(free: u64) -> Snapshot {
    let merges = |name: &str, merged| GuestSeen {
        told: memtide_model::Told { merges: Reading::now(true), ..guest(name, 400, 300).told },
        cost: memtide_model::Cost { merged: Reading::now(mib(merged)), ..guest(name, 400, 300).cost },
        ..guest(name, 400, 300)
    };
    let guests = vec![merges("a", 0), merges("b", 100), merges("c", 200)];
    let used = Bytes::sum(guests.iter().filter_map(|guest| guest.cost.footprint.fresh().copied()));
    let mut seen = snapshot(1_000, used.whole_mib() + free, guests);
    // Each copy stands for two pages, so that half of what is merged is saved.
    seen.host.ksm = Reading::now(KsmSeen { saved: mib(300), shared: mib(300), ..KsmSeen::default() });
    seen
}

fn governing() -> Config {
    let mut config = config();
    config.ksm.mode = KsmMode::Govern;
    config
}

/// The same on a host without a reserve, whose states begin at nothing.
fn roomy() -> Config {
    let mut config = governing();
    config.reserve = memtide_model::Amount::Bytes(Bytes::ZERO);
    config
}

fn shared(decision: &Decision) -> Vec<(&str, bool)> {
    let actions = decision.plan.actions.iter();
    let share = |request| if let Request::Share(shares) = request { Some(shares) } else { None };
    actions.filter_map(|action| Some((action.guest()?.name(), share(action.request)?))).collect()
}

#[test]
fn guests_do_not_share_unless_their_class_says_so() {
    let decision = tick(&governing(), &State::default(), &seen(1_000));
    assert_eq!(shared(&decision), [("a", false), ("b", false)], "one after the other comes apart");
    let reason =
        decision.plan.actions.iter().find(|action| action.request == Request::Share(false)).unwrap().reason;
    assert_eq!(reason, Reason::Ksm(KsmReason::DoesNotShare { apart: Bytes::ZERO }));
    let mut config = governing();
    config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().share = true;
    assert_eq!(shared(&tick(&config, &State::default(), &seen(1_000))), []);
    let mut apart = seen(1_000);
    apart.guests[1].told.merges = Reading::now(false);
    assert_eq!(shared(&tick(&config, &State::default(), &apart)), [("b", true)]);
}

#[test]
fn merged_memory_comes_apart_only_where_the_host_has_room() {
    // 100 MiB are saved of 200 MiB that are merged. Below 2 % of its memory, the host would be low.
    assert_eq!(shared(&tick(&roomy(), &State::default(), &seen(190))), [("a", false)]);
    assert_eq!(shared(&tick(&roomy(), &State::default(), &seen(260))), [("a", false), ("b", false)]);
}

#[test]
fn no_burst_begins_before_guests_have_come_apart() {
    let mut seen = seen(190);
    let ksm = KsmSeen { mergeable: mib(900), ..seen.host.ksm.fresh().cloned().unwrap() };
    seen.host.ksm = Reading::now(ksm);
    let scans = |decision: &Decision| {
        decision.plan.actions.iter().any(|action| matches!(action.request, Request::Merge(_)))
    };
    let verdict = |decision: &Decision| decision.report.host.ksm.as_ref().unwrap().verdict;
    let mut decision = tick(&roomy(), &State::default(), &seen);
    assert!(!scans(&decision), "b and c have merged memory, and the host has no room for it");
    assert_eq!(verdict(&decision), KsmVerdict::Separates);
    for guest in &mut seen.guests {
        guest.told.merges = Reading::now(false);
    }
    seen.taken_at = seen.taken_at.after(Span::from_secs(1));
    decision = tick(&roomy(), &decision.state, &seen);
    assert!(scans(&decision), "{:?}", verdict(&decision));
}

#[test]
fn the_next_one_waits_until_it_is_done_and_nobody_is_asked_again_at_once() {
    let config = roomy();
    let mut seen = seen(1_000);
    let mut decision = tick(&config, &State::default(), &seen);
    assert_eq!(shared(&decision), [("a", false), ("b", false)]);
    let mut later = |seen: &mut Snapshot, seconds: u64| {
        seen.taken_at = seen.taken_at.after(Span::from_secs(seconds));
        decision = tick(&config, &decision.state, seen);
        shared(&decision).iter().map(|(name, shares)| ((*name).to_owned(), *shares)).collect::<Vec<_>>()
    };
    seen.guests[0].told.merges = Reading::now(false);
    assert_eq!(later(&mut seen, 1), [], "nobody knows how far b is");
    seen.guests[1].told.merges = Reading::now(false);
    assert_eq!(later(&mut seen, 1), [("c".to_owned(), false)]);
    assert_eq!(later(&mut seen, 1), [], "c was asked");
    assert_eq!(later(&mut seen, 600), [("c".to_owned(), false)], "and did not do it");
}

#[test]
fn nobody_is_asked_who_does_not_know_or_is_not_governed() {
    let mut unknown = seen(1_000);
    for guest in &mut unknown.guests {
        guest.told.merges = Reading::unsupported();
    }
    assert_eq!(shared(&tick(&governing(), &State::default(), &unknown)), []);
    assert_eq!(shared(&tick(&config(), &State::default(), &seen(1_000))), [], "KSM is not memtide's");
    let mut anothers = State::default();
    anothers.ksm.foreign_since = Some(Moment::from_millis(500));
    assert_eq!(shared(&tick(&governing(), &anothers, &seen(1_000))), [], "somebody else sets it");
}
