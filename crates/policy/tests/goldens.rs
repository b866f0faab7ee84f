//! Short scenes as a person reads them in the log: one line an action, with its reason.
//!
//! A change of the policy on purpose shows here as a diff to be reviewed.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

mod common;

use common::{Host, Live, config, mib};
use memtide_model::{Class, Config, Limit};

/// Guests that have come to rest on a host of `capacity` MiB, and an empty log.
fn at_rest(config: Config, capacity: u64, guests: &[Live]) -> Host {
    let mut host = Host::new(config, capacity, guests.to_vec());
    host.run(20);
    host.log.clear();
    host
}

/// The log as one text.
fn log(host: &Host) -> String {
    host.log.join("\n")
}

#[test]
fn memory_follows_the_work() {
    let mut host = at_rest(config(), 1200, &["db", "web"].map(|name| Live::new(name, 150)));
    (host.guest("web").wants, host.guest("web").allocation) = (700, 150);
    host.run(10);
    host.guest("web").free_down_to(150);
    (host.guest("db").wants, host.guest("db").allocation) = (320, 150);
    host.run(5);
    insta::assert_snapshot!(log(&host), @"
    +20.500s db target 342 MiB: 358 MiB idle (needs 182 MiB) while 198 MiB are wanted
    +20.750s db target 252 MiB: 160 MiB idle (needs 182 MiB) while 213 MiB are wanted
    +20.750s web target 615 MiB: stalled at 540 MiB, needs 828 MiB, entitled to 863 MiB
    +21.000s web target 690 MiB: stalled at 615 MiB, needs 828 MiB, entitled to 843 MiB
    +21.250s db target 218 MiB: 70 MiB idle (needs 182 MiB) while 97.5 MiB are wanted
    +21.250s web target 765 MiB: stalled at 690 MiB, needs 903 MiB, entitled to 880 MiB
    +21.500s web target 840 MiB: needs 913 MiB (uses 625 MiB), entitled to 880 MiB
    +21.750s web target 863 MiB: needs 913 MiB (uses 625 MiB), entitled to 880 MiB
    +30.250s web target 764 MiB: 680 MiB idle (needs 182 MiB) while 98.5 MiB are wanted
    +30.500s db target 293 MiB: stalled at 218 MiB, needs 316 MiB, entitled to 499 MiB
    +30.750s web target 714 MiB: 582 MiB idle (needs 182 MiB) while 50.3 MiB are wanted
    +30.750s db target 316 MiB: stalled at 293 MiB, needs 366 MiB, entitled to 518 MiB
    +31.000s db target 366 MiB: stalled at 316 MiB, needs 391 MiB, entitled to 528 MiB
    +31.500s web target 685 MiB: 532 MiB idle (needs 182 MiB) while 28.7 MiB are wanted
    +31.750s db target 395 MiB: needs 417 MiB (uses 320 MiB), entitled to 539 MiB
    ");
}

#[test]
fn squeezed_until_it_squeals() {
    // "archive" needs most of the page cache that it has; the builds come to use what they have as cache, and more.
    let archive = Live { cache: 500, needs_cache: 490, resident: 650, ..Live::new("archive", 150) };
    let builds = ["build", "check"].map(|name| Live { cache: 100, resident: 400, ..Live::new(name, 300) });
    let mut host = at_rest(config(), 1770, &[archive, builds[0].clone(), builds[1].clone()]);
    for name in ["build", "check"] {
        (host.guest(name).cache, host.guest(name).wants) = (0, 500);
    }
    host.run(2);
    // Others leave the host, so that the squeal can be answered at once.
    host.capacity += 300;
    host.run(20);
    insta::assert_snapshot!(log(&host), @"
    +20.500s archive target 626 MiB: squeezed to 444 MiB of page cache (needs 626 MiB) while 70.7 MiB are wanted
    +20.750s archive target 501 MiB: squeezed to 319 MiB of page cache (needs 501 MiB) while 125 MiB are wanted
    +20.750s check target 517 MiB: needs 545 MiB (uses 420 MiB), entitled to 545 MiB
    +21.000s build target 522 MiB: stalled at 447 MiB, needs 573 MiB, entitled to 569 MiB
    +21.250s archive target 368 MiB: squeezed to 186 MiB of page cache (needs 368 MiB) while 133 MiB are wanted
    +21.250s check target 567 MiB: needs 664 MiB (uses 500 MiB), entitled to 664 MiB
    +21.500s archive target 319 MiB: squeezed to 137 MiB of page cache (needs 319 MiB) while 107 MiB are wanted
    +21.500s build target 597 MiB: needs 640 MiB (uses 500 MiB), entitled to 640 MiB
    +21.750s check target 606 MiB: needs 663 MiB (uses 500 MiB), entitled to 606 MiB
    +21.750s build target 613 MiB: needs 639 MiB (uses 500 MiB), entitled to 613 MiB
    +22.750s build target 597 MiB: 54.4 MiB idle (needs 558 MiB) while 11 MiB are wanted
    +24.000s archive target 682 MiB: squealed: gets 500 MiB of page cache back, left alone for 60.0 s
    +24.250s check target 536 MiB: 70.1 MiB idle (needs 536 MiB) while 166 MiB are wanted
    +24.250s build target 558 MiB: 38.4 MiB idle (needs 558 MiB) while 166 MiB are wanted
    +24.500s archive target 795 MiB: stalled at 682 MiB, needs 853 MiB, entitled to 797 MiB
    +31.000s build target 532 MiB: 26.3 MiB idle (needs 532 MiB) while 57.0 MiB are wanted
    +31.250s archive target 822 MiB: stalled at 795 MiB, needs 853 MiB, entitled to 826 MiB
    ");
}

#[test]
fn a_stuck_guest_gives_nothing_and_its_neighbour_in_its_place() {
    let guests = ["frozen", "idle", "work"].map(|name| Live::new(name, 130));
    let mut host = at_rest(config(), 2300, &guests);
    host.guest("frozen").speed = 0;
    (host.guest("work").wants, host.guest("work").allocation) = (800, 150);
    host.run(30);
    insta::assert_snapshot!(log(&host), @"
    +20.500s frozen target 691 MiB: 545 MiB idle (needs 162 MiB) while 11.3 MiB are wanted
    +20.750s idle target 561 MiB: 545 MiB idle (needs 162 MiB) while 161 MiB are wanted
    +21.000s frozen target 565 MiB: 529 MiB idle (needs 162 MiB) while 211 MiB are wanted
    +21.000s work target 783 MiB: stalled at 707 MiB, needs 994 MiB, entitled to 1 GiB
    +21.250s work target 853 MiB: stalled at 783 MiB, needs 994 MiB, entitled to 1 GiB
    +21.750s frozen target 548 MiB: 403 MiB idle (needs 162 MiB) while 171 MiB are wanted
    +25.500s idle target 531 MiB: 399 MiB idle (needs 162 MiB) while 30.7 MiB are wanted
    +25.750s work target 883 MiB: needs 1 GiB (uses 800 MiB), entitled to 1 GiB
    ");
}

#[test]
fn a_guest_deflates_its_own_balloon() {
    // "greedy" may have 400 MiB, and takes 700 for two seconds.
    let limited =
        Class { patterns: vec!["greedy".to_owned()], limit: Limit::At(mib(400)), ..Class::default() };
    let mut config = config();
    config.classes.insert("limited".into(), limited);
    let greedy = Live { deflates: true, actual: 480, target: 480, ..Live::new("greedy", 300) };
    let mut host = Host::new(config, 2300, vec![greedy, Live::new("other", 500)]);
    host.run(20);
    host.guest("greedy").take_by_itself(400);
    host.run(2);
    host.guest("greedy").free_down_to(300);
    host.run(15);
    insta::assert_snapshot!(log(&host), @"
    +0.250s greedy poll statistics every 1.0 s: nothing can be decided without statistics
    +0.250s other poll statistics every 1.0 s: nothing can be decided without statistics
    +0.250s greedy target 400 MiB: its class allows no more than 400 MiB
    +22.250s greedy target 400 MiB: deflated its own balloon from 400 MiB to 704 MiB
    ");
}
