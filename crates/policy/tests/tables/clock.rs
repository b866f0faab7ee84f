//! Squeezes by the clock on an ample host.

use memtide_guest::Kernel;
use memtide_model::{Config, Reading, Request, Span};

use super::{known, targets, tick, told};
use crate::common::{Host, OVERHEAD, Resident, but, config, elastic, guest, mib, snapshot, stats};

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
            assert!(steps.last().is_none_or(|last| *last + 5_000 <= host.now), "each step is watched");
            steps.push(host.now);
        }
    }
    // (1024 − 232) / 128 = 6.2 of each.
    assert!(steps.len() >= 12, "{steps:?}");
    for guest in &host.guests {
        // 200 used, 70 that its kernel cannot use, and headroom of 32.
        assert!((232..=302).contains(&guest.actual()), "{}: {}", guest.name, guest.actual());
    }
    // A guest that needs memory gets it, and nobody gets comfort.
    host.guest("a").wants(700);
    host.until(30, |host| host.guests[0].used() >= 695);
    assert!(host.guest("b").actual() <= 302);
}

#[test]
fn a_guest_that_cannot_show_what_hurts_keeps_its_cache() {
    let cached = |kernel| {
        Resident::with("a", 200, |spec| {
            (spec.kernel, spec.cold) = (kernel, mib(400));
        })
    };
    let cache_after = |kernel| {
        let config = Config { squeeze_every: Some(Span::from_secs(60)), ..config() };
        let mut host = Host::new(config, 8_192, vec![cached(kernel)]);
        host.run(300);
        host.guest("a").cache()
    };
    assert!(cache_after(Kernel::V6_12) < 300, "{}", cache_after(Kernel::V6_12));
    assert!(cache_after(Kernel::V6_1) > 380, "{}", cache_after(Kernel::V6_1));
}

#[test]
fn a_guest_that_fills_its_headroom_with_page_cache_is_squeezed_too() {
    let full = told(guest("a", 256, 0), |s| *s = stats(mib(256), mib(100), mib(153)));
    let full = but(full, |guest| guest.cost.footprint = Reading::now(mib(250).saturating_add(OVERHEAD)));
    let config = Config { squeeze_every: Some(Span::from_secs(60)), ..elastic() };
    let seen = |millis| snapshot(millis, 1024, vec![full.clone()]);
    let decision = tick(&config, &known(&config, &seen(1000)), &seen(120_000));
    let [("a", target)] = targets(&decision)[..] else { panic!("{:?}", decision.plan) };
    assert!((200..=246).contains(&target), "{target}");
}

#[test]
fn a_guest_that_reports_freed_memory_is_not_asked_for_it_by_an_elastic_host() {
    let config = Config { squeeze_every: Some(Span::from_secs(60)), ..elastic() };
    let mut host = Host::new(config, 8_192, vec![Resident::new("a", 200)]);
    host.run(300);
    assert_eq!(host.guest("a").actual(), 1024);
}

#[test]
fn without_the_setting_nobody_is_squeezed() {
    let mut host = host(None);
    host.run(300);
    assert_eq!((host.guest("a").actual(), host.guest("b").actual()), (1024, 1024));
}
