//! Squeezes by the clock on an ample host.

use memtide_model::{Config, Request, Span};

use crate::common::{Host, Resident, config};

/// Two guests of 1 GiB that use 200 MiB, on a host that has 8 GiB for them.
fn host(squeeze_every: Option<Span>) -> Host {
    let config = Config { squeeze_every, ..config() };
    Host::new(config, 8_192, vec![Resident::new("a", 200), Resident::new("b", 200)])
}

#[test]
fn one_guest_at_a_time_gives_step_by_step_what_it_does_not_need() {
    let mut host = host(Some(Span::from_secs(60)));
    host.run(55);
    assert_eq!((host.guest("a").actual(), host.guest("b").actual()), (1024, 1024));
    let mut steps: Vec<u64> = Vec::new();
    while host.now < 100_000 + 300_000 {
        let before = host.guests.iter().map(Resident::actual).collect::<Vec<_>>();
        let decision = host.tick();
        for action in &decision.plan.actions {
            let Request::SetTarget(target) = action.request else { continue };
            let name = action.guest().unwrap().name();
            let had = before[usize::from(name == "b")];
            assert!(had - target.whole_mib() <= 128, "{name}: at most an eighth of its size");
            assert!(steps.last().is_none_or(|last| *last < host.now), "one guest at a time");
            steps.push(host.now);
        }
    }
    // (1024 − 232) / 128 = 6.2 of each.
    assert!(steps.len() >= 12, "{steps:?}");
    for guest in &host.guests {
        // 200 used, and headroom of 32.
        assert!((232..300).contains(&guest.actual()), "{}: {}", guest.name, guest.actual());
    }
    // A guest that needs memory gets it, and nobody gets comfort.
    host.guest("a").wants(700);
    host.until(30, |host| host.guests[0].used() >= 695);
    assert!(host.guest("b").actual() < 300);
}

#[test]
fn without_the_setting_nobody_is_squeezed() {
    let mut host = host(None);
    host.run(300);
    assert_eq!((host.guest("a").actual(), host.guest("b").actual()), (1024, 1024));
}
