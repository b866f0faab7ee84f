//! memtide with real guests. Each test has its own guests, and its daemon sees no others.

use std::time::Duration;

use memtide_lab::experiments::react::stall::{free, managing, move_to, need_and_grant, settled};
use memtide_lab::guest::channel::Job;
use memtide_lab::guest::{BOOT, Guest};
use memtide_lab::machine::lab::Run;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise;
use memtide_load::exerciser::content::Tally;
use memtide_load::helper::wire::{Ask, Hugepages};
use memtide_model::{Bytes, Polling, Verdict};

use crate::JOB;
use crate::mib;
use crate::prepare;
use crate::unhurt;

/// How often a guest needs memory. An even number: two guests take turns.
const REPETITIONS: usize = 4;
/// A guest that lacks what the next job needs.
const SMALL: Bytes = mib(320);

fn start(run: &Run, names: &[&str], memory: u64) -> Vec<Guest> {
    crate::start(run, names.iter().map(|name| crate::reporting(name, mib(memory), true)))
}

fn fill(guest: &Guest, seed: u64, mib: u64) -> Job {
    guest.run(exercise::fill(seed, mib, None), JOB).unwrap()
}

pub fn observing_changes_nothing() {
    let run = prepare("test-observe");
    let guests = start(&run, &["look-1"], 512);
    let guest = &guests[0];
    let daemon = Daemon::start(run.path(), "discover = [\"look-*\"]").unwrap();
    let detail = daemon
        .until("the balloon's reading", JOB, "look-1", |detail| {
            detail.seen.told.balloon.fresh().is_some().then(|| detail.clone())
        })
        .unwrap();
    assert_eq!(detail.status.report.verdict, Verdict::Observed);
    assert_eq!(detail.seen.told.polling, Polling::Off, "where nobody polls, it is said and not changed");
    assert_eq!(detail.seen.told.full, mib(512));
    assert!(detail.status.report.footprint > Some(mib(50)));
    // The discovered socket is released: another client is greeted.
    let ticks = daemon.status().unwrap().counters.ticks;
    until("further ticks", JOB, || Ok((daemon.status()?.counters.ticks >= ticks + 3).then_some(()))).unwrap();
    let greeting = until("a greeting", JOB, || Ok(greeting(guest.monitor()))).unwrap();
    assert!(greeting.contains("QMP"), "{greeting}");
    assert_eq!(guest.actual().unwrap(), mib(512));
    let detail = daemon.guest("look-1").unwrap();
    assert_eq!((detail.seen.told.polling, detail.changes.len()), (Polling::Off, 0));
    daemon.stop().unwrap();
}

/// The first line that a monitor sends, if it is free.
fn greeting(path: &std::path::Path) -> Option<String> {
    use std::io::BufRead;
    let stream = std::os::unix::net::UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(300))).ok()?;
    let mut line = String::new();
    std::io::BufReader::new(stream).read_line(&mut line).ok()?;
    Some(line).filter(|line| !line.is_empty())
}

/// The reasons of the daemon's changes for a guest, the newest first.
fn reasons(daemon: &Daemon, guest: &Guest) -> Vec<String> {
    daemon.guest(guest.name()).unwrap().changes.into_iter().map(|change| change.reason).collect()
}

/// The job gets its memory while the host has some, and nobody is killed for it. How long that takes: `memtide-lab run react`.
pub fn a_stall_is_answered_from_free_memory() {
    let run = prepare("test-grant");
    let guest = &start(&run, &["grant-1"], 1024)[0];
    for repetition in 0..REPETITIONS {
        // The guest is small and the host has room, as after a neighbour has gone. A new daemon finds this situation.
        move_to(guest, SMALL).unwrap();
        let part = run.part(&format!("daemon-{repetition}")).unwrap();
        let daemon = Daemon::start(part.path(), &managing("grant-", mib(1100))).unwrap();
        daemon
            .until("statistics", JOB, "grant-1", |detail| {
                detail.status.report.used.filter(|used| !used.is_zero())
            })
            .unwrap();
        let (reaction, memory) = need_and_grant(&daemon, guest, exercise::fill(7, 320, None)).unwrap();
        assert!(reaction.granted > Bytes::ZERO && guest.actual().unwrap() > SMALL, "{reaction:?}");
        assert!(!reasons(&daemon, guest).is_empty(), "the grant has no reason");
        verified(guest, memory);
        daemon.stop().unwrap();
        free(guest, memory).unwrap();
    }
    unhurt(guest);
}

/// The same if only another guest has the memory: it gives, and keeps what it uses.
pub fn a_stall_is_answered_from_a_donor() {
    let run = prepare("test-donor");
    let guests = start(&run, &["donor-1", "donor-2"], 768);
    // Both together keep 640 MiB beyond the cost of their processes.
    let budget = 640 + 2 * 150;
    let daemon = Daemon::start(run.path(), &managing("donor-", mib(budget))).unwrap();
    for repetition in 0..REPETITIONS {
        // They take turns: one guest's memory is now with the other.
        let (guest, donor) = (&guests[repetition % 2], &guests[(repetition + 1) % 2]);
        settled(&daemon, donor).unwrap();
        let small = settled(&daemon, guest).unwrap();
        // The donor may have grown again while the other one settled.
        let had = donor.actual().unwrap();
        let need = small.whole_mib().saturating_sub(100) + 64;
        let (reaction, memory) = need_and_grant(&daemon, guest, exercise::fill(7, need, None)).unwrap();
        assert!(reaction.granted > Bytes::ZERO && guest.actual().unwrap() > small, "{reaction:?}");
        assert!(donor.actual().unwrap() < had, "the donor keeps all of {had}");
        verified(guest, memory);
        free(guest, memory).unwrap();
    }
    daemon.stop().unwrap();
    guests.iter().for_each(unhurt);
}

fn verified(guest: &Guest, memory: Job) {
    let tally: Tally = guest.ask(Ask::Order { load: memory.id(), line: "check".to_owned() }, JOB).unwrap();
    assert_eq!(tally.mismatches, 0, "{}", guest.name());
}

pub fn a_self_deflation_hurts_nobody() {
    let run = prepare("test-self");
    let guests = start(&run, &["self-1", "self-2"], 640);
    let (greedy, modest) = (&guests[0], &guests[1]);
    let kept = fill(modest, 3, 200);
    // A limit keeps memtide from granting the first guest what it needs, so the guest takes it by itself.
    let limit = "[class.greedy]\nmatch = [\"self-1\"]\nlimit = \"320 MiB\"\n";
    let daemon = Daemon::start(run.path(), &(managing("self-", mib(1216)) + limit)).unwrap();
    daemon
        .until("the limit", JOB, "self-1", |detail| (detail.status.report.actual <= mib(321)).then_some(()))
        .unwrap();
    // Not all that it has: a kernel that has taken back its whole balloon kills.
    let taken = fill(greedy, 7, 460);
    let took = greedy.actual().unwrap();
    assert!(took > mib(500), "the guest deflated its own balloon: {took}");
    free(greedy, taken).unwrap();
    // memtide writes a target, and the balloon follows.
    daemon
        .until("its limit again", JOB, "self-1", |detail| {
            (detail.status.report.actual <= mib(330)).then_some(())
        })
        .unwrap();
    verified(modest, kept);
    for guest in &guests {
        unhurt(guest);
    }
    daemon.stop().unwrap();
}

pub fn a_reset_hurts_nobody() {
    let run = prepare("test-reset");
    let guests = start(&run, &["reset-1", "reset-2"], 640);
    let (reset, modest) = (&guests[0], &guests[1]);
    let kept = fill(modest, 3, 250);
    let daemon = Daemon::start(run.path(), &managing("reset-", mib(1000))).unwrap();
    daemon
        .until("a smaller guest", JOB, "reset-1", |detail| {
            (detail.status.report.actual < mib(500)).then_some(())
        })
        .unwrap();
    let small = settled(&daemon, reset).unwrap();
    reset.reset().unwrap();
    // QEMU continues to report the old actual. The ledger counts the full size until the driver reports again.
    daemon
        .until("the reset in the ledger", JOB, "reset-1", |detail| {
            (detail.status.report.reach >= reset.memory()).then_some(())
        })
        .unwrap();
    reset.wait_up(BOOT).unwrap();
    daemon
        .until("the driver's return", JOB, "reset-1", |detail| {
            let back = !detail.seen.told.reset && detail.seen.told.stats.fresh().is_some();
            (back && detail.status.report.actual <= small.saturating_add(mib(64))).then_some(())
        })
        .unwrap();
    verified(modest, kept);
    unhurt(modest);
    daemon.stop().unwrap();
}

pub fn a_guest_that_lies_gains_only_its_share() {
    let run = prepare("test-liar");
    let guests = start(&run, &["liar-1", "liar-2", "liar-3"], 1024);
    let (liar, modest) = (&guests[0], &guests[1..]);
    let kept: Vec<Job> = modest.iter().map(|guest| fill(guest, 3, 150)).collect();
    // 1100 MiB for the memory of three guests, plus the cost of their processes.
    let daemon = Daemon::start(run.path(), &managing("liar-", mib(1100 + 3 * 130))).unwrap();
    let reached = until("the budget", JOB, || {
        let status = daemon.status()?;
        Ok(status.host.breach.is_zero().then_some(status))
    });
    assert!(reached.is_ok(), "{:#?}", daemon.status().unwrap().host);
    // It reserves as many huge pages as it can and uses none. Its kernel counts this memory as gone.
    let taken = until("the huge pages", JOB, || {
        let huge: Hugepages = liar.ask(Ask::Hugepages { mib: 800 }, JOB)?;
        let taken = huge.pages * huge.page_kib / 1024;
        Ok((taken >= 200).then_some(taken))
    });
    taken.unwrap();
    let report = |name: &str| daemon.guest(name).unwrap().status.report;
    let begun = daemon.status().unwrap().counters.ticks;
    until("forty decisions", JOB, || {
        let (all, liar) = (daemon.status()?, report("liar-1"));
        let modest_use = Bytes::sum(all.guests[1..].iter().filter_map(|guest| guest.report.used));
        assert!(liar.target.unwrap().saturating_add(modest_use) <= mib(1200), "{all:#?}");
        Ok((all.counters.ticks >= begun + 40).then_some(()))
    })
    .unwrap();
    for (guest, kept) in modest.iter().zip(kept) {
        // Each other guest still gets the memory that it needs, at once.
        let more = fill(guest, 4, 100);
        verified(guest, kept);
        verified(guest, more);
        unhurt(guest);
    }
    daemon.stop().unwrap();
}
