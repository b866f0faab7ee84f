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
    +21.500s web target 574 MiB: needs 624 MiB (uses 460 MiB), entitled to 679 MiB
    +21.750s web target 624 MiB: needs 629 MiB (uses 466 MiB), entitled to 681 MiB
    +22.250s db target 323 MiB: 204 MiB idle (needs 252 MiB); 133 MiB needed elsewhere
    +22.500s db target 279 MiB: 71.0 MiB idle (needs 252 MiB); 102 MiB needed elsewhere
    +22.500s web target 699 MiB: needs 801 MiB (uses 620 MiB), entitled to 814 MiB
    +22.750s web target 774 MiB: needs 800 MiB (uses 620 MiB), entitled to 796 MiB
    +23.250s db target 252 MiB: 27.3 MiB idle (needs 252 MiB); 149 MiB needed elsewhere
    +23.250s web target 801 MiB: needs 950 MiB (uses 740 MiB), entitled to 828 MiB
    +23.500s web target 828 MiB: needs 952 MiB (uses 743 MiB), entitled to 828 MiB
    +30.250s web target 764 MiB: 528 MiB idle (needs 300 MiB); 64 MiB needed elsewhere
    +30.500s db target 316 MiB: stalled at 252 MiB, needs 316 MiB, entitled to 487 MiB
    +30.750s web target 685 MiB: 512 MiB idle (needs 252 MiB); 79 MiB needed elsewhere
    +31.000s web target 655 MiB: 433 MiB idle (needs 252 MiB); 34.5 MiB needed elsewhere
    +31.000s db target 391 MiB: stalled at 316 MiB, needs 426 MiB, entitled to 547 MiB
    +31.250s db target 425 MiB: stalled at 391 MiB, needs 425 MiB, entitled to 547 MiB
    +31.500s web target 639 MiB: 402 MiB idle (needs 252 MiB); 5.91 MiB needed elsewhere
    +31.750s web target 591 MiB: 386 MiB idle (needs 252 MiB); 47.4 MiB needed elsewhere
    +31.750s db target 442 MiB: needs 499 MiB (uses 390 MiB), entitled to 575 MiB
    +32.000s db target 489 MiB: needs 498 MiB (uses 390 MiB), entitled to 575 MiB
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
    +20.500s archive target 566 MiB: squeezed to 259 MiB of page cache (needs 566 MiB); 134 MiB needed elsewhere
    +20.750s archive target 433 MiB: squeezed to 126 MiB of page cache (needs 433 MiB); 193 MiB needed elsewhere
    +20.750s build target 610 MiB: stalled at 535 MiB, needs 669 MiB, entitled to 669 MiB
    +21.000s check target 610 MiB: stalled at 535 MiB, needs 669 MiB, entitled to 669 MiB
    +21.250s archive target 353 MiB: squeezed to 45.8 MiB of page cache (needs 353 MiB); 122 MiB needed elsewhere
    +21.250s build target 685 MiB: stalled at 610 MiB, needs 748 MiB, entitled to 748 MiB
    +21.500s archive target 307 MiB: squeezed to 0 of page cache (needs 307 MiB); 179 MiB needed elsewhere
    +21.500s build target 760 MiB: stalled at 685 MiB, needs 856 MiB, entitled to 770 MiB
    +21.750s check target 673 MiB: needs 693 MiB (uses 579 MiB), entitled to 673 MiB
    +22.750s build target 731 MiB: 115 MiB idle (needs 645 MiB); 29.2 MiB needed elsewhere
    +24.000s archive target 667 MiB: squealed: gets 365 MiB of page cache back, left alone for 60.0 s
    +24.500s build target 715 MiB: 104 MiB idle (needs 627 MiB); 10.8 MiB needed elsewhere
    +29.000s build target 624 MiB: 90.8 MiB idle (needs 624 MiB); 151 MiB needed elsewhere
    +29.000s archive target 683 MiB: stalled at 667 MiB, needs 833 MiB, entitled to 777 MiB
    +29.250s archive target 758 MiB: needs 833 MiB (uses 275 MiB), entitled to 777 MiB
    +29.500s archive target 773 MiB: needs 833 MiB (uses 275 MiB), entitled to 777 MiB
    +31.000s check target 613 MiB: 62.1 MiB idle (needs 611 MiB); 59.8 MiB needed elsewhere
    +31.250s archive target 833 MiB: needs 833 MiB (uses 275 MiB), entitled to 834 MiB
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
    +22.750s work target 750 MiB: needs 825 MiB (uses 640 MiB), entitled to 1003 MiB
    +23.250s idle target 571 MiB: 432 MiB idle (needs 232 MiB); 169 MiB needed elsewhere
    +23.500s frozen target 613 MiB: 399 MiB idle (needs 232 MiB); 111 MiB needed elsewhere
    +23.500s work target 825 MiB: needs 947 MiB (uses 750 MiB), entitled to 1 GiB
    +23.750s work target 843 MiB: needs 946 MiB (uses 750 MiB), entitled to 1 GiB
    +24.000s frozen target 597 MiB: 381 MiB idle (needs 232 MiB); 98.2 MiB needed elsewhere
    +24.250s frozen target 548 MiB: 365 MiB idle (needs 232 MiB); 181 MiB needed elsewhere
    +24.250s idle target 548 MiB: 339 MiB idle (needs 232 MiB); 181 MiB needed elsewhere
    +24.500s work target 865 MiB: stalled at 843 MiB, needs 1 GiB, entitled to 1 GiB
    +27.250s idle target 389 MiB: 316 MiB idle (needs 232 MiB); 159 MiB needed elsewhere
    +27.500s work target 940 MiB: needs 1 GiB (uses 865 MiB), entitled to 1 GiB
    +27.750s work target 1015 MiB: needs 1 GiB (uses 865 MiB), entitled to 1 GiB
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
