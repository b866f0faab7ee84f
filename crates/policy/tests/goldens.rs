//! Short scenes as a person reads them in the log: one line an action, with its reason.
//!
//! A change of the policy on purpose shows here as a diff to be reviewed.

mod common;

use common::{Host, Live, config};
use memtide_model::Config;

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
    +20.250s db target 528 MiB: 362 MiB idle (needs 182 MiB) while others lack 8 MiB
    +20.500s db target 342 MiB: 346 MiB idle (needs 182 MiB) while others lack 186 MiB
    +20.750s db target 248 MiB: 160 MiB idle (needs 182 MiB) while others lack 205 MiB
    +20.750s web target 627 MiB: stalled at 544 MiB, needs 832 MiB, entitled to 865 MiB
    +21.000s web target 702 MiB: stalled at 627 MiB, needs 832 MiB, entitled to 865 MiB
    +21.250s db target 182 MiB: 66 MiB idle (needs 182 MiB) while others lack 136 MiB
    +21.250s web target 777 MiB: needs 913 MiB (uses 625 MiB), entitled to 898 MiB
    +21.500s web target 852 MiB: needs 913 MiB (uses 625 MiB), entitled to 898 MiB
    +21.750s web target 898 MiB: needs 913 MiB (uses 625 MiB), entitled to 898 MiB
    +30.250s web target 834 MiB: 218 MiB idle (needs 680 MiB) while others lack 64 MiB
    +30.500s db target 246 MiB: stalled at 182 MiB, needs 246 MiB, entitled to 377 MiB
    +30.750s web target 770 MiB: 154 MiB idle (needs 680 MiB) while others lack 64 MiB
    +31.000s web target 725 MiB: 343 MiB idle (needs 427 MiB) while others lack 45.5 MiB
    +31.000s db target 310 MiB: stalled at 246 MiB, needs 356 MiB, entitled to 513 MiB
    +31.250s web target 693 MiB: 298 MiB idle (needs 426 MiB) while others lack 32 MiB
    +31.250s db target 356 MiB: stalled at 310 MiB, needs 388 MiB, entitled to 526 MiB
    +31.500s db target 388 MiB: needs 388 MiB (uses 275 MiB), entitled to 526 MiB
    +31.750s web target 677 MiB: 268 MiB idle (needs 424 MiB) while others lack 9.04 MiB
    +32.000s web target 652 MiB: 253 MiB idle (needs 423 MiB) while others lack 24.7 MiB
    +32.000s db target 404 MiB: needs 428 MiB (uses 320 MiB), entitled to 542 MiB
    +32.250s db target 428 MiB: needs 428 MiB (uses 320 MiB), entitled to 542 MiB
    ");
}

#[test]
fn squeezed_until_it_squeals() {
    // All would like more page cache than there is; "archive" needs most of what it has.
    let archive = Live { cache: 500, needs_cache: 490, resident: 650, ..Live::new("archive", 150) };
    let builds = ["build", "check"].map(|name| Live { cache: 100, resident: 400, ..Live::new(name, 300) });
    let mut host = at_rest(config(), 1770, &[archive, builds[0].clone(), builds[1].clone()]);
    for name in ["build", "check"] {
        host.guest(name).cache = 200;
    }
    host.run(2);
    // Others leave the host, so that the squeal can be answered at once.
    host.capacity += 300;
    host.run(20);
    insta::assert_snapshot!(log(&host), @"
    +20.250s archive target 470 MiB: squeezed to 288 MiB of page cache (needs 470 MiB) while 234 MiB are wanted
    +20.500s build target 513 MiB: needs 560 MiB (uses 300 MiB), entitled to 560 MiB
    +20.750s check target 523 MiB: needs 560 MiB (uses 300 MiB), entitled to 560 MiB
    +21.000s build target 560 MiB: needs 560 MiB (uses 300 MiB), entitled to 560 MiB
    +21.000s check target 551 MiB: needs 560 MiB (uses 300 MiB), entitled to 560 MiB
    +23.250s archive target 588 MiB: squealed: gets 500 MiB of page cache back, left alone for 60.0 s
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
    +20.500s frozen target 691 MiB: 545 MiB idle (needs 162 MiB) while others lack 11.3 MiB
    +20.750s idle target 561 MiB: 545 MiB idle (needs 162 MiB) while others lack 161 MiB
    +21.000s frozen target 565 MiB: 529 MiB idle (needs 162 MiB) while others lack 211 MiB
    +21.000s work target 783 MiB: stalled at 707 MiB, needs 994 MiB, entitled to 1 GiB
    +21.250s work target 853 MiB: stalled at 783 MiB, needs 994 MiB, entitled to 1 GiB
    +21.500s frozen target 548 MiB: 403 MiB idle (needs 162 MiB) while others lack 166 MiB
    +26.500s idle target 390 MiB: 399 MiB idle (needs 162 MiB) while others lack 171 MiB
    +26.750s work target 928 MiB: needs 1 GiB (uses 800 MiB), entitled to 1 GiB
    +27.000s work target 1003 MiB: needs 1 GiB (uses 800 MiB), entitled to 1 GiB
    +27.250s work target 1 GiB: needs 1 GiB (uses 800 MiB), entitled to 1 GiB
    ");
}

#[test]
fn a_guest_deflates_its_own_balloon() {
    let greedy = Live { deflates: true, ..Live::new("greedy", 300) };
    let mut host = at_rest(config(), 1300, &[greedy, Live::new("other", 500)]);
    host.guest("other").wants = 700;
    host.run(10);
    host.log.clear();
    host.guest("greedy").take_by_itself(300);
    host.run(2);
    host.guest("greedy").free_down_to(300);
    host.run(15);
    insta::assert_snapshot!(log(&host), @"
    +30.250s other target 716 MiB: emergency: host low with 0 free, down to 716 MiB
    +30.250s greedy target 357 MiB: deflated its own balloon from 357 MiB to 604 MiB
    +32.250s other target 590 MiB: entitled to 590 MiB (needs 808 MiB) while the host is 383 MiB short
    +32.250s greedy target 529 MiB: needs 755 MiB (uses 375 MiB), entitled to 590 MiB
    +37.500s greedy target 476 MiB: entitled to 476 MiB (needs 755 MiB) while the host is 377 MiB short
    +42.500s other target 645 MiB: needs 796 MiB (uses 700 MiB), entitled to 645 MiB
    ");
}
