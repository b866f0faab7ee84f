//! Short scenes as a person reads them in the log: one line for each action, with its reason.
//!
//! A deliberate change of the policy appears here as a diff to review.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

mod common;

use common::{Host, Resident, config, mib};
use memtide_guest::{File, Spec};
use memtide_model::{Class, Config, Limit};

/// Quiet guests on a host of `capacity` MiB, and an empty log.
fn quiet(config: Config, capacity: u64, guests: &[Resident]) -> Host {
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
    let mut host = quiet(config(), 1200, &["db", "web"].map(|name| Resident::new(name, 150)));
    host.guest("web").wants(700);
    host.run(10);
    host.guest("web").wants(150);
    host.guest("db").wants(320);
    host.run(5);
    insta::assert_snapshot!(log(&host), @"
    +21.250s db target 506 MiB: 288 MiB idle (needs 252 MiB); 34.0 MiB needed elsewhere
    +21.500s db target 456 MiB: 254 MiB idle (needs 252 MiB); 49.5 MiB needed elsewhere
    +21.500s web target 574 MiB: needs 748 MiB (uses 460 MiB), entitled to 748 MiB
    +21.750s web target 624 MiB: needs 754 MiB (uses 466 MiB), entitled to 754 MiB
    +22.250s db target 301 MiB: 204 MiB idle (needs 252 MiB); 155 MiB needed elsewhere
    +22.500s db target 263 MiB: 49.3 MiB idle (needs 252 MiB); 119 MiB needed elsewhere
    +22.500s web target 699 MiB: needs 908 MiB (uses 620 MiB), entitled to 828 MiB
    +22.750s web target 774 MiB: needs 908 MiB (uses 620 MiB), entitled to 828 MiB
    +23.250s web target 817 MiB: needs 1 GiB (uses 740 MiB), entitled to 828 MiB
    +30.250s web target 748 MiB: 517 MiB idle (needs 300 MiB); 69.1 MiB needed elsewhere
    +30.500s db target 332 MiB: stalled at 263 MiB, needs 415 MiB, entitled to 524 MiB
    +31.000s web target 628 MiB: 496 MiB idle (needs 252 MiB); 120 MiB needed elsewhere
    +31.250s db target 407 MiB: stalled at 332 MiB, needs 620 MiB, entitled to 572 MiB
    +31.750s web target 563 MiB: 376 MiB idle (needs 252 MiB); 65.4 MiB needed elsewhere
    +31.750s db target 452 MiB: needs 678 MiB (uses 390 MiB), entitled to 572 MiB
    +32.000s db target 517 MiB: needs 678 MiB (uses 390 MiB), entitled to 572 MiB
    ");
}

#[test]
fn squeezed_until_it_squeals() {
    // "archive" needs most of its page cache; the builds start to use their cache memory, and more.
    let reads = |spec: &mut Spec| spec.files.push(File::hot(mib(490), 300 << 20));
    let archive = Resident::with("archive", 150, reads);
    let builds = ["build", "check"].map(|name| Resident::with(name, 300, |spec| spec.cold = mib(100)));
    let mut host = quiet(config(), 1950, &[archive, builds[0].clone(), builds[1].clone()]);
    for name in ["build", "check"] {
        host.guest(name).wants(500);
    }
    host.run(2);
    // Others leave the host, so that the squeal can be answered at once.
    host.capacity += 300;
    host.run(20);
    insta::assert_snapshot!(log(&host), @"
    +20.500s archive target 704 MiB: squeezed to 349 MiB of page cache (needs 704 MiB); 134 MiB needed elsewhere
    +20.750s archive target 679 MiB: squeezed to 340 MiB of page cache (needs 695 MiB); 159 MiB needed elsewhere
    +20.750s build target 541 MiB: needs 811 MiB (uses 514 MiB), entitled to 613 MiB
    +21.000s archive target 656 MiB: squeezed to 317 MiB of page cache (needs 672 MiB); 147 MiB needed elsewhere
    +21.000s check target 550 MiB: needs 823 MiB (uses 525 MiB), entitled to 619 MiB
    +21.250s archive target 640 MiB: squeezed to 303 MiB of page cache (needs 658 MiB); 126 MiB needed elsewhere
    +21.250s build target 564 MiB: stalled at 541 MiB, needs 839 MiB, entitled to 635 MiB
    +21.500s archive target 615 MiB: squeezed to 280 MiB of page cache (needs 635 MiB); 143 MiB needed elsewhere
    +21.500s check target 566 MiB: needs 847 MiB (uses 550 MiB), entitled to 642 MiB
    +21.750s archive target 592 MiB: squeezed to 258 MiB of page cache (needs 613 MiB); 133 MiB needed elsewhere
    +21.750s build target 589 MiB: needs 861 MiB (uses 564 MiB), entitled to 654 MiB
    +22.000s archive target 576 MiB: squeezed to 244 MiB of page cache (needs 599 MiB); 109 MiB needed elsewhere
    +22.000s check target 589 MiB: needs 863 MiB (uses 566 MiB), entitled to 648 MiB
    +22.250s build target 690 MiB: needs 869 MiB (uses 572 MiB), entitled to 690 MiB
    +22.250s check target 690 MiB: needs 863 MiB (uses 566 MiB), entitled to 690 MiB
    +23.250s check target 674 MiB: 16.3 MiB idle (needs 619 MiB); 30 MiB needed elsewhere
    +26.250s check target 656 MiB: 18 MiB idle (needs 604 MiB); 31.7 MiB needed elsewhere
    +27.000s archive target 724 MiB: squealed: gets 383 MiB of page cache back, left alone for 60.0 s
    ");
}

#[test]
fn a_stuck_guest_gives_nothing_and_its_neighbour_in_its_place() {
    let guests = ["frozen", "idle", "work"].map(|name| Resident::new(name, 130));
    let mut host = quiet(config(), 2300, &guests);
    host.guest("frozen").model.hang(true);
    host.guest("work").wants(800);
    host.run(30);
    insta::assert_snapshot!(log(&host), @"
    +22.250s frozen target 673 MiB: 475 MiB idle (needs 232 MiB); 33.3 MiB needed elsewhere
    +22.500s idle target 664 MiB: 475 MiB idle (needs 232 MiB); 76.3 MiB needed elsewhere
    +22.750s frozen target 631 MiB: 441 MiB idle (needs 232 MiB); 75.6 MiB needed elsewhere
    +22.750s work target 750 MiB: needs 928 MiB (uses 640 MiB), entitled to 928 MiB
    +23.250s idle target 571 MiB: 432 MiB idle (needs 232 MiB); 169 MiB needed elsewhere
    +23.500s frozen target 613 MiB: 399 MiB idle (needs 232 MiB); 111 MiB needed elsewhere
    +23.500s work target 825 MiB: needs 1.01 GiB (uses 750 MiB), entitled to 1 GiB
    +23.750s work target 843 MiB: needs 1.01 GiB (uses 750 MiB), entitled to 1 GiB
    +24.000s frozen target 536 MiB: 381 MiB idle (needs 232 MiB); 171 MiB needed elsewhere
    +24.250s idle target 555 MiB: 339 MiB idle (needs 232 MiB); 172 MiB needed elsewhere
    +24.500s work target 859 MiB: stalled at 843 MiB, needs 1.10 GiB, entitled to 1 GiB
    +27.250s idle target 517 MiB: 323 MiB idle (needs 232 MiB); 37.6 MiB needed elsewhere
    +27.500s work target 896 MiB: needs 1.12 GiB (uses 859 MiB), entitled to 1 GiB
    +28.000s idle target 498 MiB: 285 MiB idle (needs 232 MiB); 19.5 MiB needed elsewhere
    +28.250s work target 916 MiB: needs 1.13 GiB (uses 870 MiB), entitled to 1 GiB
    +42.250s frozen target 707 MiB: no progress towards 536 MiB for 20.0 s; stays at 707 MiB
    ");
}

#[test]
fn a_guest_deflates_its_own_balloon() {
    // "greedy" has a limit of 400 MiB, and takes 700 for twenty seconds.
    let limited =
        Class { patterns: vec!["greedy".to_owned()], limit: Limit::At(mib(400)), ..Class::default() };
    let mut config = config();
    config.classes.insert("limited".into(), limited);
    let greedy = Resident::with("greedy", 300, |spec| spec.deflate_on_oom = true);
    let mut host = Host::new(config, 2300, vec![greedy, Resident::new("other", 500)]);
    host.run(20);
    host.log.clear();
    host.guest("greedy").wants(700);
    host.run(20);
    host.guest("greedy").wants(200);
    host.run(15);
    insta::assert_snapshot!(log(&host), @"
    +40.250s greedy target 400 MiB: deflated its own balloon from 400 MiB to 744 MiB
    ");
}
