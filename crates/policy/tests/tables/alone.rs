//! Guests that count but are left alone, and observe mode.

use memtide_model::{
    Absence, Balloon, Class, Config, Fence, GuestSeen, Missed, Mode, Polling, Reading, State, Verdict,
    Withheld,
};

use super::{line, targets, tick, with_classes};
use crate::common::{OVERHEAD, but, config, elastic, guest, mib, snapshot, stats};

/// "left" keeps 1024 and uses 100 of them, beside a guest that lacks memory, on a host that is 72 short.
fn beside(left: &GuestSeen) -> Vec<GuestSeen> {
    vec![left.clone(), guest("other", 1000, 990)]
}

fn left_alone(config: &Config, left: &GuestSeen, why: &Verdict) {
    let decision = tick(config, &State::default(), &snapshot(60_000, 2072, beside(left)));
    assert!(
        decision.plan.actions.iter().all(|action| action.guest() != Some(&left.id)),
        "{why:?}: {:#?}",
        decision.plan
    );
    assert_eq!(&line(&decision, "left").verdict, why);
    // It counts: 1084 + 1060 = 2144 of 2072.
    assert_eq!(line(&decision, "left").reach, mib(1024).saturating_add(OVERHEAD), "{why:?}");
    assert_eq!(decision.report.host.breach, mib(72), "{why:?}");
}

fn left() -> GuestSeen {
    but(guest("left", 1024, 100), |guest| guest.told.polling = Polling::Off)
}

#[test]
fn a_guest_that_can_be_changed_gives_in_its_place() {
    let decision = tick(&config(), &State::default(), &snapshot(60_000, 2072, beside(&left())));
    assert_eq!(targets(&decision).first().map(|(name, _)| *name), Some("left"));
}

#[test]
fn a_paused_or_migrating_guest_is_left_alone() {
    for fence in [Fence::Paused, Fence::Migrating] {
        left_alone(&config(), &but(left(), |guest| guest.told.fence = Some(fence)), &Verdict::Fenced(fence));
    }
}

#[test]
fn a_guest_of_an_unmanaged_class_is_left_alone() {
    let config = with_classes(&[("left", Class { manage: false, ..Class::default() })]);
    left_alone(&config, &left(), &Verdict::NotManaged);
}

#[test]
fn a_guest_of_libvirt_is_left_alone() {
    let balloon = Reading::absent(Absence::OwnedBy("libvirt".to_owned()));
    let seen = but(left(), |guest| {
        guest.capabilities.can_be_set = false;
        guest.told.balloon = balloon;
    });
    left_alone(&config(), &seen, &Verdict::NoBalloon(Absence::OwnedBy("libvirt".to_owned())));
}

#[test]
fn a_guest_whose_memory_brings_the_host_nothing_gives_nothing() {
    let file = Withheld::PrivateFile("/dev/shm/template".to_owned());
    let device = Withheld::Pinned("vfio-pci 0000:65:00.0".to_owned());
    let kind = Withheld::Confidential("tdx-guest".to_owned());
    for why in [device, kind, Withheld::Locked, Withheld::HugePages, file] {
        // In an emergency, too: the host of 1100 has nothing free.
        for (config, capacity) in [(config(), 2072), (elastic(), 2072), (elastic(), 1100)] {
            let left = but(guest("left", 1024, 100), |guest| guest.withheld = Some(why.clone()));
            let decision = tick(&config, &State::default(), &snapshot(60_000, capacity, beside(&left)));
            assert!(
                targets(&decision).iter().all(|(name, _)| *name != "left"),
                "{why}: {:#?}",
                decision.plan
            );
            assert_eq!(line(&decision, "left").verdict, Verdict::Withheld(why.clone()));
        }
    }
}

#[test]
fn a_guest_that_was_squeezed_in_vain_gets_its_size_back() {
    let squeezed = but(guest("left", 500, 100), |guest| {
        guest.told.full = mib(1024);
        guest.withheld = Some(Withheld::Locked);
    });
    for config in [config(), elastic()] {
        let decision = tick(&config, &State::default(), &snapshot(60_000, 4096, vec![squeezed.clone()]));
        assert_eq!(targets(&decision), [("left", 1024)]);
    }
}

#[test]
fn memory_in_a_pool_of_huge_pages_counts_once() {
    let huge = but(guest("left", 1024, 100), |guest| {
        guest.withheld = Some(Withheld::HugePages);
        guest.cost.in_pool = mib(1024);
        // The kernel counts pages of the pool in no process.
        guest.cost.footprint = Reading::now(OVERHEAD);
    });
    // The pool of 1024 is in the host's other use.
    let mut seen = snapshot(60_000, 4096, vec![huge]);
    seen.host.other = mib(1024);
    let decision = tick(&config(), &State::default(), &seen);
    assert_eq!(line(&decision, "left").reach, OVERHEAD);
    assert_eq!(decision.report.host.breach, mib(0));
    // It has touched 700 of them: these are its own, and no more than they is its worst case.
    let left = &mut seen.guests[0];
    left.cost.in_pool_resident = mib(700);
    left.cost.footprint = Reading::now(OVERHEAD.saturating_add(mib(700)));
    seen.host.other = mib(324);
    let decision = tick(&config(), &State::default(), &seen);
    let line = line(&decision, "left");
    assert_eq!((line.reach, Some(line.reach)), (OVERHEAD.saturating_add(mib(700)), line.footprint));
    assert_eq!(decision.report.host.breach, mib(0));
}

#[test]
fn a_guest_without_a_driver_is_left_alone() {
    for why in [Absence::NoBalloon, Absence::NoDriver, Absence::Timeout] {
        let seen = but(left(), |guest| guest.told.balloon = Reading::absent(why.clone()));
        left_alone(&config(), &seen, &Verdict::NoBalloon(why));
    }
}

#[test]
fn a_guest_whose_balloon_was_not_read_of_late_is_left_alone() {
    let Reading::Fresh { value, age } = left().told.balloon else { unreachable!("the builder's is fresh") };
    let balloon = Reading::Stale { value, age, why: Absence::ControlTaken };
    left_alone(
        &config(),
        &but(left(), |guest| guest.told.balloon = balloon),
        &Verdict::NoBalloon(Absence::ControlTaken),
    );
}

#[test]
fn a_guest_that_was_reset_is_left_alone_until_its_driver_reports() {
    left_alone(&config(), &but(left(), |guest| guest.told.reset = true), &Verdict::Reset);
}

#[test]
fn the_reach_of_a_guest_without_a_driver_is_its_full_size() {
    let none = but(guest("a", 300, 100), |guest| guest.told.balloon = Reading::absent(Absence::NoDriver));
    let decision = tick(&config(), &State::default(), &snapshot(1000, 4096, vec![none]));
    assert_eq!(line(&decision, "a").reach, mib(1084));
}

#[test]
fn observing_changes_nothing_and_reports_all() {
    let config = Config { mode: Mode::Observe, ..config() };
    let mut a = left();
    a.told.stats = Reading::now(stats(mib(1024), mib(300), mib(200)));
    let balloon = Balloon { actual: mib(1024), deflate_on_oom: false, free_page_reporting: false };
    a.told.balloon = Reading::now(balloon);
    let decision = tick(&config, &State::default(), &snapshot(60_000, 2072, beside(&a)));
    assert_eq!(decision.plan.actions, []);
    assert_eq!(line(&decision, "left").verdict, Verdict::Observed);
    assert_eq!(decision.report.host.breach, mib(72));
    // "left": 1024 resident − 300 used = 724 beyond use, 524 of it free; the balloon leaves 32 of headroom. "other": 10 beyond
    // use, less than its headroom, and its free pages come back without a balloon.
    assert_eq!(decision.report.host.savings.free_page_reporting, mib(524));
    assert_eq!(decision.report.host.savings.ballooning, mib(692));
}

#[test]
fn without_a_reading_of_the_hosts_memory_no_target_changes() {
    // The same guests as above: "left" would give to "other".
    let seen = |missed| {
        let mut seen = snapshot(60_000, 2072, beside(&guest("left", 1024, 100)));
        seen.host.missed = missed;
        seen
    };
    let state = super::known(&config(), &snapshot(50_000, 2072, beside(&guest("left", 1024, 100))));
    assert_ne!(targets(&tick(&config(), &state, &seen(None))), []);
    let missed = Some(Missed { why: Absence::Forbidden, age: None });
    assert_eq!(targets(&tick(&config(), &state, &seen(missed))), []);
}
