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
    +21.250s db target 516 MiB: 326 MiB idle (needs 214 MiB); 24.5 MiB needed elsewhere
    +21.500s db target 457 MiB: 302 MiB idle (needs 214 MiB); 58.5 MiB needed elsewhere
    +21.500s web target 564 MiB: needs 623 MiB (uses 422 MiB), entitled to 623 MiB
    +21.750s db target 441 MiB: 243 MiB idle (needs 214 MiB); 15.9 MiB needed elsewhere
    +21.750s web target 623 MiB: needs 662 MiB (uses 462 MiB), entitled to 662 MiB
    +22.250s db target 339 MiB: 227 MiB idle (needs 214 MiB); 102 MiB needed elsewhere
    +22.250s web target 639 MiB: needs 741 MiB (uses 542 MiB), entitled to 741 MiB
    +22.500s db target 323 MiB: 125 MiB idle (needs 214 MiB); 43.1 MiB needed elsewhere
    +22.500s web target 714 MiB: needs 780 MiB (uses 582 MiB), entitled to 780 MiB
    +22.750s web target 757 MiB: needs 783 MiB (uses 585 MiB), entitled to 783 MiB
    +23.000s db target 286 MiB: 109 MiB idle (needs 214 MiB); 36.9 MiB needed elsewhere
    +23.250s db target 214 MiB: 72 MiB idle (needs 214 MiB); 72 MiB needed elsewhere
    +23.250s web target 794 MiB: needs 898 MiB (uses 702 MiB), entitled to 866 MiB
    +23.500s web target 866 MiB: needs 927 MiB (uses 732 MiB), entitled to 866 MiB
    +30.250s web target 802 MiB: 564 MiB idle (needs 302 MiB); 64 MiB needed elsewhere
    +30.500s db target 278 MiB: stalled at 214 MiB, needs 278 MiB, entitled to 540 MiB
    +31.000s web target 717 MiB: 549 MiB idle (needs 253 MiB); 84.6 MiB needed elsewhere
    +31.250s db target 353 MiB: stalled at 278 MiB, needs 362 MiB, entitled to 540 MiB
    +31.750s web target 594 MiB: 465 MiB idle (needs 253 MiB); 123 MiB needed elsewhere
    +32.000s db target 438 MiB: stalled at 353 MiB, needs 485 MiB, entitled to 540 MiB
    +32.250s db target 485 MiB: needs 485 MiB (uses 341 MiB), entitled to 540 MiB
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
    +20.500s archive target 579 MiB: squeezed to 224 MiB of page cache (needs 579 MiB); 141 MiB needed elsewhere
    +20.750s archive target 563 MiB: squeezed to 299 MiB of page cache (needs 654 MiB); 70.9 MiB needed elsewhere
    +20.750s build target 598 MiB: needs 666 MiB (uses 502 MiB), entitled to 598 MiB
    +21.000s check target 590 MiB: needs 666 MiB (uses 502 MiB), entitled to 590 MiB
    +21.250s archive target 456 MiB: squeezed to 126 MiB of page cache (needs 481 MiB); 108 MiB needed elsewhere
    +21.250s build target 617 MiB: needs 788 MiB (uses 575 MiB), entitled to 724 MiB
    +21.500s archive target 427 MiB: squeezed to 129 MiB of page cache (needs 484 MiB); 61.6 MiB needed elsewhere
    +21.500s build target 692 MiB: needs 788 MiB (uses 575 MiB), entitled to 705 MiB
    +21.750s check target 627 MiB: needs 702 MiB (uses 539 MiB), entitled to 627 MiB
    +26.500s archive target 738 MiB: needs 738 MiB (uses 275 MiB), entitled to 738 MiB
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
    +22.250s frozen target 686 MiB: 513 MiB idle (needs 194 MiB); 20.5 MiB needed elsewhere
    +22.500s idle target 661 MiB: 513 MiB idle (needs 194 MiB); 65.9 MiB needed elsewhere
    +22.750s frozen target 642 MiB: 492 MiB idle (needs 194 MiB); 64.8 MiB needed elsewhere
    +22.750s work target 752 MiB: needs 817 MiB (uses 602 MiB), entitled to 817 MiB
    +23.250s idle target 600 MiB: 467 MiB idle (needs 194 MiB); 126 MiB needed elsewhere
    +23.500s frozen target 595 MiB: 448 MiB idle (needs 194 MiB); 112 MiB needed elsewhere
    +23.500s work target 814 MiB: needs 935 MiB (uses 722 MiB), entitled to 935 MiB
    +24.000s idle target 508 MiB: 406 MiB idle (needs 194 MiB); 203 MiB needed elsewhere
    +24.250s work target 889 MiB: stalled at 814 MiB, needs 1017 MiB, entitled to 1017 MiB
    +24.500s work target 905 MiB: needs 1017 MiB (uses 802 MiB), entitled to 1017 MiB
    +27.250s idle target 396 MiB: 314 MiB idle (needs 194 MiB); 112 MiB needed elsewhere
    +27.500s work target 980 MiB: needs 1.01 GiB (uses 832 MiB), entitled to 1 GiB
    +27.750s work target 1017 MiB: needs 1.01 GiB (uses 832 MiB), entitled to 1 GiB
    +42.250s frozen target 707 MiB: no progress towards 595 MiB for 20.0 s; stays at 707 MiB
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
