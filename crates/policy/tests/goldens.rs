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
    +21.250s db target 516 MiB: 288 MiB idle (needs 214 MiB); 24.5 MiB needed elsewhere
    +21.500s db target 457 MiB: 264 MiB idle (needs 214 MiB); 58.5 MiB needed elsewhere
    +21.500s web target 564 MiB: needs 623 MiB (uses 422 MiB), entitled to 623 MiB
    +21.750s db target 401 MiB: 205 MiB idle (needs 214 MiB); 55.9 MiB needed elsewhere
    +21.750s web target 623 MiB: needs 679 MiB (uses 462 MiB), entitled to 679 MiB
    +22.000s db target 385 MiB: 149 MiB idle (needs 214 MiB); 12.6 MiB needed elsewhere
    +22.000s web target 679 MiB: needs 698 MiB (uses 481 MiB), entitled to 698 MiB
    +22.250s db target 329 MiB: 133 MiB idle (needs 214 MiB); 56.5 MiB needed elsewhere
    +22.250s web target 695 MiB: needs 751 MiB (uses 524 MiB), entitled to 751 MiB
    +22.500s db target 252 MiB: 76.7 MiB idle (needs 214 MiB); 87.9 MiB needed elsewhere
    +22.500s web target 751 MiB: needs 839 MiB (uses 582 MiB), entitled to 839 MiB
    +22.750s web target 826 MiB: needs 861 MiB (uses 604 MiB), entitled to 861 MiB
    +30.250s web target 786 MiB: 522 MiB idle (needs 304 MiB); 40.3 MiB needed elsewhere
    +30.500s web target 756 MiB: 483 MiB idle (needs 303 MiB); 30.3 MiB needed elsewhere
    +30.500s db target 294 MiB: stalled at 252 MiB, needs 324 MiB, entitled to 530 MiB
    +30.750s web target 739 MiB: 471 MiB idle (needs 285 MiB); 16.5 MiB needed elsewhere
    +30.750s db target 324 MiB: needs 341 MiB (uses 252 MiB), entitled to 540 MiB
    +31.000s web target 663 MiB: 468 MiB idle (needs 271 MiB); 75.9 MiB needed elsewhere
    +31.000s db target 341 MiB: stalled at 324 MiB, needs 417 MiB, entitled to 540 MiB
    +31.250s web target 616 MiB: 393 MiB idle (needs 271 MiB); 48.5 MiB needed elsewhere
    +31.250s db target 416 MiB: stalled at 341 MiB, needs 464 MiB, entitled to 540 MiB
    +31.500s db target 464 MiB: needs 464 MiB (uses 324 MiB), entitled to 540 MiB
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
    +20.500s archive target 704 MiB: squeezed to 349 MiB of page cache (needs 704 MiB); 141 MiB needed elsewhere
    +20.750s archive target 679 MiB: squeezed to 340 MiB of page cache (needs 695 MiB); 130 MiB needed elsewhere
    +20.750s build target 541 MiB: needs 666 MiB (uses 502 MiB), entitled to 598 MiB
    +21.000s archive target 656 MiB: squeezed to 317 MiB of page cache (needs 672 MiB); 116 MiB needed elsewhere
    +21.000s build target 566 MiB: needs 683 MiB (uses 518 MiB), entitled to 619 MiB
    +21.250s archive target 640 MiB: squeezed to 303 MiB of page cache (needs 658 MiB); 153 MiB needed elsewhere
    +21.250s build target 589 MiB: needs 718 MiB (uses 541 MiB), entitled to 654 MiB
    +21.500s archive target 624 MiB: squeezed to 289 MiB of page cache (needs 644 MiB); 128 MiB needed elsewhere
    +21.500s check target 541 MiB: stalled at 525 MiB, needs 679 MiB, entitled to 603 MiB
    +21.750s archive target 607 MiB: squeezed to 273 MiB of page cache (needs 628 MiB); 108 MiB needed elsewhere
    +21.750s check target 557 MiB: stalled at 541 MiB, needs 689 MiB, entitled to 607 MiB
    +22.000s archive target 591 MiB: squeezed to 258 MiB of page cache (needs 613 MiB); 103 MiB needed elsewhere
    +22.000s check target 574 MiB: needs 700 MiB (uses 536 MiB), entitled to 626 MiB
    +22.250s check target 680 MiB: needs 704 MiB (uses 536 MiB), entitled to 680 MiB
    +22.250s build target 687 MiB: needs 728 MiB (uses 543 MiB), entitled to 687 MiB
    +26.250s build target 666 MiB: 21 MiB idle (needs 575 MiB); 35 MiB needed elsewhere
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
    +22.250s frozen target 686 MiB: 475 MiB idle (needs 194 MiB); 20.5 MiB needed elsewhere
    +22.500s idle target 661 MiB: 475 MiB idle (needs 194 MiB); 65.9 MiB needed elsewhere
    +22.750s frozen target 642 MiB: 454 MiB idle (needs 194 MiB); 64.8 MiB needed elsewhere
    +22.750s work target 752 MiB: needs 817 MiB (uses 602 MiB), entitled to 817 MiB
    +23.000s idle target 633 MiB: 429 MiB idle (needs 194 MiB); 93.5 MiB needed elsewhere
    +23.250s frozen target 583 MiB: 410 MiB idle (needs 194 MiB); 124 MiB needed elsewhere
    +23.250s work target 781 MiB: needs 904 MiB (uses 682 MiB), entitled to 904 MiB
    +23.500s idle target 591 MiB: 401 MiB idle (needs 194 MiB); 166 MiB needed elsewhere
    +23.750s idle target 549 MiB: 359 MiB idle (needs 194 MiB); 165 MiB needed elsewhere
    +23.750s work target 823 MiB: needs 988 MiB (uses 762 MiB), entitled to 988 MiB
    +24.000s work target 864 MiB: needs 1007 MiB (uses 781 MiB), entitled to 1007 MiB
    +24.250s frozen target 547 MiB: 351 MiB idle (needs 194 MiB); 160 MiB needed elsewhere
    +42.250s frozen target 707 MiB: no progress towards 547 MiB for 20.0 s; stays at 707 MiB
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
