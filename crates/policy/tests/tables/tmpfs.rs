//! A tmpfs that holds guests' memory is a host of its own for them.

use memtide_model::{
    Absence, Action, Amount, Bytes, Commitment, Config, Decision, GuestSeen, HostState, Plan, Reading,
    Reason, Request, Share, Snapshot, Space, Span, State, Tmpfs, TmpfsId,
};
use memtide_policy::Violation;

use super::{proved, targets, tick, told};
use crate::common::{Host, OVERHEAD, Resident, broken, but, config, elastic, guest, id, mib, snapshot};

const SHM: TmpfsId = TmpfsId(26);

/// `seen` with the memory of these guests in a tmpfs of which `free` of `size` MiB are free.
fn within(mut seen: Snapshot, names: &[&str], (size, free): (u64, u64)) -> Snapshot {
    for guest in seen.guests.iter_mut().filter(|guest| names.contains(&guest.id.name())) {
        guest.tmpfs = Some(SHM);
    }
    let space = Reading::now(Space { size: mib(size), free: mib(free) });
    seen.tmpfs = vec![Tmpfs { id: SHM, at: "/dev/shm".to_owned(), space }];
    seen
}

/// A guest that has used all of `actual`, and stalls from its second report on.
fn stalling(name: &str, actual: u64, stalls: u64) -> GuestSeen {
    told(guest(name, actual, actual - 10), |stats| stats.alloc_stalls = Some(stalls))
}

/// The decision about a stall of "a", at 500 of 1024 MiB beside "b".
fn stall(config: &Config, b: impl Fn() -> GuestSeen, place: impl Fn(Snapshot) -> Snapshot) -> Decision {
    let seen = |millis, stalls| place(snapshot(millis, 8192, vec![stalling("a", 500, stalls), b()]));
    let first = tick(config, &State::default(), &seen(1000, 0));
    tick(config, &first.state, &seen(2000, 50))
}

#[test]
fn a_grant_fits_into_the_tmpfs_and_not_only_into_the_host() {
    for config in [config(), Config { growth_prior: Share::percent(0).unwrap(), ..elastic() }] {
        let quiet = || guest("b", 600, 550);
        let alone = stall(&config, quiet, |seen| seen);
        let free = stall(&config, quiet, |seen| within(seen, &["a", "b"], (4096, 2900)));
        let short = stall(&config, quiet, |seen| within(seen, &["a", "b"], (1160, 60)));
        let target_of_a = |decision: &Decision| {
            let all = decision.plan.actions.iter();
            let mut of_a = all.filter(|action| action.guest() == Some(&id("a")));
            of_a.find_map(
                |action| if let Request::SetTarget(size) = action.request { Some(size) } else { None },
            )
        };
        // 60 are free of the tmpfs; the host has 7 GiB. An elastic ledger does not count the 20 that were granted at the first decision and are
        // not touched yet: what is free is promised once more, but no more than that.
        assert!(target_of_a(&alone) > Some(mib(560)), "{:?}", targets(&alone));
        assert_eq!(target_of_a(&free), target_of_a(&alone));
        let most = if config.commitment == Commitment::Strict { 560 } else { 580 };
        assert_eq!(target_of_a(&short), Some(mib(most)), "{:?}", targets(&short));
        let report = &short.report.host.tmpfs[0];
        assert!(report.binds && report.guests == 2 && report.at == "/dev/shm", "{report:?}");
        assert!(short.report.guests.iter().all(|guest| guest.bound_by == Some(SHM)));
    }
}

#[test]
fn guests_of_a_short_tmpfs_give_for_each_other_and_others_do_not() {
    // "a" stalls. "b" is in the same tmpfs with 400 idle, "c" elsewhere with as much.
    let seen = |millis, stalls| {
        let guests = vec![stalling("a", 500, stalls), guest("b", 600, 200), guest("c", 600, 200)];
        within(snapshot(millis, 8192, guests), &["a", "b"], (1110, 10))
    };
    for config in [config(), elastic()] {
        let first = tick(&config, &State::default(), &seen(1000, 0));
        let second = tick(&config, &first.state, &seen(2000, 50));
        let shrinks = second.plan.actions.iter().filter(|action| {
            matches!((action.guest(), action.request), (Some(guest), Request::SetTarget(size))
                if size < mib(600) && guest != &id("a"))
        });
        let shrinks: Vec<_> = shrinks.map(|action| (action.guest().unwrap().name(), action.reason)).collect();
        assert_eq!(shrinks.len(), 1, "{:?}", targets(&second));
        let (name, reason) = shrinks[0];
        assert_eq!(name, "b");
        assert!(matches!(reason, Reason::TmpfsShort { free, .. } if free == mib(10)), "{reason}");
        assert_eq!(
            reason.to_string().split(';').next(),
            Some("the tmpfs of its memory file has 10 MiB free")
        );
    }
}

#[test]
fn strict_takes_memory_from_the_guests_of_a_tmpfs_that_is_promised_beyond_its_size() {
    // Both hold 800 and have touched 300 of it: they may take 1000 more, and 700 are free. The host has room for all.
    let touched = |name| {
        but(guest(name, 800, 200), |guest| {
            guest.cost.footprint = Reading::now(mib(300).saturating_add(OVERHEAD))
        })
    };
    let seen = |place: bool| {
        let seen = snapshot(1000, 8192, vec![touched("a"), touched("b")]);
        if place { within(seen, &["a", "b"], (1300, 700)) } else { seen }
    };
    assert_eq!(targets(&tick(&config(), &State::default(), &seen(false))), [("a", 1024), ("b", 1024)]);
    let decision = tick(&config(), &State::default(), &seen(true));
    assert_eq!(decision.report.host.tmpfs[0].breach, mib(300));
    assert_eq!(decision.report.host.breach, Bytes::ZERO);
    let given: u64 = targets(&decision).iter().map(|(_, target)| 800 - target).sum();
    assert!(given > 0, "{:?}", targets(&decision));
}

#[test]
fn a_tmpfs_without_a_reading_or_with_more_left_than_the_host_changes_nothing() {
    let seen = || snapshot(1000, 2400, vec![guest("a", 800, 790), guest("b", 600, 200)]);
    let plain = tick(&config(), &State::default(), &seen());
    let ample = tick(&config(), &State::default(), &within(seen(), &["a", "b"], (8192, 6700)));
    let mut unread = within(seen(), &["a", "b"], (1400, 0));
    unread.tmpfs[0].space = Reading::absent(Absence::Forbidden);
    let unread = tick(&config(), &State::default(), &unread);
    assert_eq!((&ample.plan, &unread.plan), (&plain.plan, &plain.plan));
    assert!(!ample.report.host.tmpfs[0].binds && unread.report.host.tmpfs.is_empty());
}

#[test]
fn nothing_is_granted_into_a_tmpfs_that_was_not_read_for_long() {
    let aged = |secs| {
        move |seen| {
            let mut seen = within(seen, &["a", "b"], (8192, 7000));
            let tmpfs = &mut seen.tmpfs[0];
            tmpfs.space = tmpfs.space.clone().later(Span::from_secs(secs));
            seen
        }
    };
    for config in [config(), Config { growth_prior: Share::percent(0).unwrap(), ..elastic() }] {
        let quiet = || guest("b", 600, 550);
        let (young, old) = (stall(&config, quiet, aged(10)), stall(&config, quiet, aged(11)));
        assert!(targets(&young).iter().any(|(name, _)| *name == "a"), "{:?}", targets(&young));
        assert_eq!(targets(&old), [], "{config:?}");
        assert_eq!(old.report.host.tmpfs[0].room, Bytes::ZERO);
        let seen = aged(11)(snapshot(1000, 8192, vec![stalling("a", 500, 1), quiet()]));
        let plan = Plan { actions: vec![Action::of(id("a"), Request::SetTarget(mib(501)), Reason::Release)] };
        let violations = broken(&config, &State::default(), &seen, &plan);
        assert!(matches!(violations.as_slice(), [Violation::TmpfsFull { .. }]), "{violations:?}");
    }
}

#[test]
fn the_shortage_of_a_tmpfs_is_remembered_while_it_binds_nobody() {
    let seen = |millis, space| {
        within(snapshot(millis, 4000, vec![guest("a", 800, 790), guest("b", 600, 200)]), &["a", "b"], space)
    };
    let short = tick(&config(), &State::default(), &seen(1000, (1410, 10)));
    assert!(short.state.tmpfs[&SHM] > HostState::High, "{:?}", short.state.tmpfs);
    let ample = tick(&config(), &short.state, &seen(1100, (8192, 6700)));
    assert!(!ample.report.host.tmpfs[0].binds);
    assert_eq!(ample.state.tmpfs, short.state.tmpfs);
    let gone = Snapshot { tmpfs: Vec::new(), ..seen(1200, (0, 0)) };
    assert!(tick(&config(), &ample.state, &gone).state.tmpfs.is_empty());
}

#[test]
fn a_guest_that_is_bound_to_a_node_is_granted_only_what_is_free_there() {
    // Two nodes of 4 GiB. "a" and "b" are bound to the second one, which has 60 left. The first one has nearly all of its memory.
    let on_node = |seen| {
        let mut seen = within(seen, &["a", "b"], (4096, 60));
        let node = TmpfsId::of_node(1);
        seen.tmpfs[0].id = node;
        seen.guests.iter_mut().for_each(|guest| guest.tmpfs = guest.tmpfs.map(|_| node));
        seen
    };
    for config in [config(), Config { growth_prior: Share::percent(0).unwrap(), ..elastic() }] {
        let free = stall(&config, || guest("b", 600, 550), |seen| seen);
        assert!(targets(&free).iter().any(|(name, target)| *name == "a" && *target > 580), "{free:?}");
        let short = stall(&config, || guest("b", 600, 200), on_node);
        // Grants that were not touched yet are promised once more (elastic).
        let most = if config.commitment == Commitment::Strict { 560 } else { 580 };
        let of =
            |name| targets(&short).into_iter().find(|(other, _)| *other == name).map(|(_, target)| target);
        assert!(of("a").is_none_or(|target| target <= most), "{:?}", targets(&short));
        // Its neighbour gives it memory, with a reason.
        assert!(of("b").is_some_and(|target| target < 600), "{:?}", targets(&short));
        let to_b = short.plan.actions.iter().find(|action| action.guest() == Some(&id("b"))).unwrap();
        let reason = to_b.reason.to_string();
        assert!(reason.starts_with("NUMA node 1 has 60 MiB free; the guests bound to it need "), "{reason}");
        assert_eq!(short.report.guests[0].bound_by.and_then(TmpfsId::node), Some(1));

        let seen = on_node(snapshot(1000, 8192, vec![stalling("a", 500, 1), guest("b", 600, 590)]));
        let plan = |mib_| Plan {
            actions: vec![Action::of(id("a"), Request::SetTarget(mib(mib_)), Reason::Release)],
        };
        assert_eq!(broken(&config, &State::default(), &seen, &plan(560)), []);
        let violations = broken(&config, &State::default(), &seen, &plan(561));
        assert!(matches!(violations.as_slice(), [Violation::TmpfsFull { .. }]), "{violations:?}");
    }
}

#[test]
fn the_check_refuses_a_plan_that_promises_more_than_the_tmpfs_has() {
    let needy = || told(guest("a", 500, 490), |stats| stats.alloc_stalls = Some(1));
    for config in [config(), elastic()] {
        let seen = within(snapshot(1000, 8192, vec![needy(), guest("b", 600, 590)]), &["a"], (600, 100));
        let plan = |target: u64| Plan {
            actions: vec![Action::of(id("a"), Request::SetTarget(mib(target)), Reason::Release)],
        };
        assert_eq!(broken(&config, &State::default(), &seen, &plan(600)), []);
        let violations = broken(&config, &State::default(), &seen, &plan(601));
        let full = Violation::TmpfsFull { guest: id("a"), needs: mib(101), free: mib(100) };
        assert_eq!(violations, [full], "{config:?}");
        // A guest elsewhere is none of its business.
        let other =
            Plan { actions: vec![Action::of(id("b"), Request::SetTarget(mib(1000)), Reason::Release)] };
        assert_eq!(broken(&config, &State::default(), &seen, &other), []);
    }
}

#[test]
fn the_check_knows_that_memory_is_wanted_in_a_short_tmpfs() {
    // "b" has been content for long, and nobody lacks anything on the host.
    let seen = |free| {
        within(
            snapshot(1000, 8192, vec![guest("a", 600, 590), guest("b", 600, 100)]),
            &["a", "b"],
            (1200, free),
        )
    };
    let plan = Plan { actions: vec![Action::of(id("b"), Request::SetTarget(mib(400)), Reason::Release)] };
    let strict = Config { reserve: Amount::Bytes(mib(1000)), ..config() };
    let state = proved(&State::default(), &seen(0));
    assert_eq!(broken(&strict, &state, &seen(0), &plan), []);
}

/// A tmpfs of `size` MiB that holds all guests of a host.
fn lives_in(size: u64) -> impl FnMut(&mut Snapshot) {
    move |seen: &mut Snapshot| {
        let own = |guest: &GuestSeen| {
            guest.cost.footprint.latest().copied().unwrap_or_default().saturating_sub(OVERHEAD)
        };
        let held = Bytes::sum(seen.guests.iter().map(own));
        let names: Vec<String> = seen.guests.iter().map(|guest| guest.id.name().to_owned()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let free = mib(size).saturating_sub(held).whole_mib();
        *seen = within(seen.clone(), &names, (size, free));
    }
}

#[test]
fn guests_whose_use_moves_never_fill_their_tmpfs() {
    // Three guests of 1 GiB in 1.5 GiB, on a host of 16 GiB: each in turn wants 700 MiB. Each tick is checked.
    for config in [config(), elastic()] {
        let config = Config { reserve: Amount::Bytes(mib(600)), ..config };
        let guests = ["a", "b", "c"].map(|name| Resident::new(name, 150));
        let mut host = Host::new(config, 16 * 1024, guests.to_vec());
        host.place = Some(Box::new(lives_in(1536)));
        host.run(30);
        for name in ["a", "b", "c"] {
            host.guest(name).wants(700);
            host.run(40);
            let used = host.guest(name).used();
            assert!(used >= 690, "{name} has {used}:\n{}", host.log.join("\n"));
            host.guest(name).wants(150);
            host.run(20);
        }
        assert!(host.most_in_tmpfs <= 1536, "{}", host.most_in_tmpfs);
    }
}
