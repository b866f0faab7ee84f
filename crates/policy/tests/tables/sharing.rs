//! Whose memory KSM may merge.

use super::*;
use crate::common::{guest, mib, snapshot};
use memtide_model::{GuestSeen, KsmMode, KsmReason, Reading, Reason};

/// Three guests of 400 MiB, of which KSM has merged 0, 100 and 200 MiB, on a host with this much to spare.
fn seen(free: u64) -> Snapshot {
    let merges = |name: &str, merged| GuestSeen {
        told: memtide_model::Told { merges: Reading::now(true), ..guest(name, 400, 300).told },
        cost: memtide_model::Cost { merged: Reading::now(mib(merged)), ..guest(name, 400, 300).cost },
        ..guest(name, 400, 300)
    };
    let guests = vec![merges("a", 0), merges("b", 100), merges("c", 200)];
    let used = Bytes::sum(guests.iter().filter_map(|guest| guest.cost.footprint.fresh().copied()));
    snapshot(1_000, used.whole_mib() + free, guests)
}

fn governing() -> Config {
    let mut config = config();
    config.ksm.mode = KsmMode::Govern;
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
    assert_eq!(reason, Reason::Ksm(KsmReason::DoesNotShare { merged: Bytes::ZERO }));
    let mut config = governing();
    config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().share = true;
    assert_eq!(shared(&tick(&config, &State::default(), &seen(1_000))), []);
    let mut apart = seen(1_000);
    apart.guests[1].told.merges = Reading::now(false);
    assert_eq!(shared(&tick(&config, &State::default(), &apart)), [("b", true)]);
}

#[test]
fn merged_memory_comes_apart_only_where_the_host_has_room() {
    assert_eq!(shared(&tick(&governing(), &State::default(), &seen(90))), [("a", false)]);
    let mut apart = seen(150);
    apart.guests[1].told.merges = Reading::now(false);
    assert_eq!(shared(&tick(&governing(), &State::default(), &apart)), [("a", false)]);
    let mut apart = seen(250);
    apart.guests[1].told.merges = Reading::now(false);
    assert_eq!(shared(&tick(&governing(), &State::default(), &apart)), [("a", false), ("c", false)]);
}

#[test]
fn nobody_is_asked_who_does_not_know_or_is_not_governed() {
    let mut unknown = seen(1_000);
    for guest in &mut unknown.guests {
        guest.told.merges = Reading::unsupported();
    }
    assert_eq!(shared(&tick(&governing(), &State::default(), &unknown)), []);
    assert_eq!(shared(&tick(&config(), &State::default(), &seen(1_000))), [], "KSM is not memtide's");
}
