//! memtide with real guests, one test at a time. Each test has its own guests, and its daemon sees no others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use memtide_lab::channel::Job;
use memtide_lab::daemon::Daemon;
use memtide_lab::exercise;
use memtide_lab::experiments::react::stall::{
    Reaction, free, managing, move_to, need_and_grant, raw, settled,
};
use memtide_lab::guest::{self, BOOT, Guest};
use memtide_lab::lab::{Lab, Run};
use memtide_lab::wait::until;
use memtide_load::agent::wire::{Ask, Hugepages, Output};
use memtide_load::exerciser::content::Tally;
use memtide_model::{Bytes, StatsPolling, Verdict};

const JOB: Duration = Duration::from_secs(90);
/// The number of repetitions of a reaction. (The experiment `react` makes more.)
const REPETITIONS: usize = 10;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Guests are many and processors few: one at a time.
    arguments.test_threads = Some(1);
    let test = |name: &str, run: fn()| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    let tests = vec![
        test("observing_changes_nothing", observing_changes_nothing),
        test("a_stall_is_answered_from_free_memory", a_stall_is_answered_from_free_memory),
        test("a_stall_is_answered_from_a_donor", a_stall_is_answered_from_a_donor),
        test("a_self_deflation_hurts_nobody", a_self_deflation_hurts_nobody),
        test("a_reset_hurts_nobody", a_reset_hurts_nobody),
        test("a_guest_that_lies_gains_only_its_share", a_guest_that_lies_gains_only_its_share),
        test(
            "a_host_inside_a_guest_is_read_through_cgroup_v2",
            a_host_inside_a_guest_is_read_through_cgroup_v2,
        ),
    ];
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn start(run: &Run, names: &[&str], memory: u64, deflate_on_oom: bool) -> Vec<Guest> {
    let builder = |name: &&str| {
        Guest::builder(name).memory(mib(memory)).deflate_on_oom(deflate_on_oom).free_page_reporting(true)
    };
    guest::start_all(names.iter().map(builder), run, None).unwrap()
}

fn prepare(name: &str) -> Run {
    Run::create(&Lab::prepare(&|text| eprintln!("{text}")).unwrap(), name).unwrap()
}

fn fill(guest: &Guest, seed: u64, mib: u64) -> Job {
    guest.run(exercise::fill(seed, mib, None), JOB).unwrap()
}

fn observing_changes_nothing() {
    let run = prepare("test-observe");
    let guests = start(&run, &["look-1"], 512, true);
    let guest = &guests[0];
    let daemon = Daemon::start(run.path(), "discover = [\"look-*\"]").unwrap();
    let detail = daemon
        .until("the balloon's reading", JOB, "look-1", |detail| {
            detail.seen.balloon.fresh().is_some().then(|| detail.clone())
        })
        .unwrap();
    assert_eq!(detail.status.report.verdict, Verdict::Observed);
    assert_eq!(detail.seen.polling, StatsPolling::Off, "where nobody polls, it is said and not changed");
    assert_eq!(detail.seen.full, mib(512));
    assert!(detail.status.report.footprint > Some(mib(50)));
    // The socket that was discovered is released: another client is greeted.
    let ticks = daemon.status().unwrap().counters.ticks;
    until("further ticks", JOB, || Ok((daemon.status()?.counters.ticks >= ticks + 3).then_some(()))).unwrap();
    let greeting = until("a greeting", JOB, || Ok(greeting(guest.qmp_path()))).unwrap();
    assert!(greeting.contains("QMP"), "{greeting}");
    assert_eq!(guest.actual().unwrap(), mib(512));
    let detail = daemon.guest("look-1").unwrap();
    assert_eq!((detail.seen.polling, detail.changes.len()), (StatsPolling::Off, 0));
    daemon.stop().unwrap();
}

/// The first line that a monitor says, where it is free.
fn greeting(path: &std::path::Path) -> Option<String> {
    use std::io::BufRead;
    let stream = std::os::unix::net::UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(300))).ok()?;
    let mut line = String::new();
    std::io::BufReader::new(stream).read_line(&mut line).ok()?;
    Some(line).filter(|line| !line.is_empty())
}

/// Prints the reactions and asserts the goal: at most 1.5 × the raw commands + 1 s at the 95th percentile.
fn judge(what: &str, reactions: &[Reaction], mut raws: Vec<Duration>) {
    let sorted = |of: fn(&Reaction) -> Duration| {
        let mut took: Vec<Duration> = reactions.iter().map(of).collect();
        took.sort_unstable();
        (took[took.len() / 2], took[(took.len() * 95).div_ceil(100) - 1])
    };
    raws.sort_unstable();
    let raw = raws[raws.len() / 2];
    let goal = raw.mul_f64(1.5) + Duration::from_secs(1);
    let (median, p95) = sorted(Reaction::waited);
    let (need, need95) = sorted(|reaction| reaction.from_need);
    println!(
        "{what}: from stall to grant median {median:.2?}, p95 {p95:.2?} of {} (from the need: median {need:.2?}, p95 \
         {need95:.2?}); raw QMP median {raw:.2?}; goal {goal:.2?}",
        reactions.len()
    );
    assert!(p95 <= goal, "{what}: p95 {p95:?} is above {goal:?}");
}

fn a_stall_is_answered_from_free_memory() {
    let run = prepare("test-grant");
    let guests = start(&run, &["grant-1"], 1024, true);
    let guest = &guests[0];
    let (mut reactions, mut raws) = (Vec::new(), Vec::new());
    for repetition in 0..REPETITIONS {
        // The guest is small and the host has room, as after a neighbour has gone: a new daemon finds it so.
        move_to(guest, mib(320)).unwrap();
        let part = run.part(&format!("daemon-{repetition}")).unwrap();
        let daemon = Daemon::start(part.path(), &managing("grant-", mib(1100))).unwrap();
        daemon
            .until("statistics", JOB, "grant-1", |detail| {
                detail.status.report.used.filter(|used| !used.is_zero())
            })
            .unwrap();
        let (reaction, memory) = need_and_grant(&daemon, guest, 320).unwrap();
        reactions.push(reaction);
        daemon.stop().unwrap();
        free(guest, memory).unwrap();
        raws.push(raw(guest, None, reaction.granted).unwrap());
    }
    judge("free memory", &reactions, raws);
}

fn a_stall_is_answered_from_a_donor() {
    let run = prepare("test-donor");
    let guests = start(&run, &["donor-1", "donor-2"], 1024, true);
    // Both together keep 640 MiB beside what their processes cost.
    let footprint = |guest: &Guest| guest.footprint().whole_mib();
    let budget = 640 + 2 * 150;
    let daemon = Daemon::start(run.path(), &managing("donor-", mib(budget))).unwrap();
    println!("footprints {} and {} MiB", footprint(&guests[0]), footprint(&guests[1]));
    let mut reactions = Vec::new();
    for repetition in 0..REPETITIONS {
        // In turn: what one had is with the other.
        let (guest, donor) = (&guests[repetition % 2], &guests[(repetition + 1) % 2]);
        settled(&daemon, donor).unwrap();
        let small = settled(&daemon, guest).unwrap();
        let need = small.whole_mib().saturating_sub(100) + 64;
        let (reaction, memory) = need_and_grant(&daemon, guest, need).unwrap();
        reactions.push(reaction);
        free(guest, memory).unwrap();
    }
    daemon.stop().unwrap();
    let mut grants: Vec<Bytes> = reactions.iter().map(|reaction| reaction.granted).collect();
    grants.sort_unstable();
    let bytes = grants[grants.len() / 2];
    for guest in &guests {
        move_to(guest, mib(600)).unwrap();
    }
    let raws = (0..5).map(|_| raw(&guests[0], Some(&guests[1]), bytes).unwrap()).collect();
    judge("a donor", &reactions, raws);
}

/// The lost blocks and OOM kills of a guest: what no neighbour may cause.
fn unhurt(guest: &Guest) {
    assert!(guest.alive(), "{} is gone", guest.name());
    assert_eq!(guest.meminfo().unwrap().oom_kills(), 0, "{}", guest.name());
    assert_eq!(guest.lost(), Vec::<String>::new(), "{}", guest.name());
}

fn verified(guest: &Guest, memory: Job) {
    let tally: Tally = guest.ask(Ask::Order { load: memory.id(), line: "check".to_owned() }, JOB).unwrap();
    assert_eq!(tally.mismatches, 0, "{}", guest.name());
}

fn a_self_deflation_hurts_nobody() {
    let run = prepare("test-self");
    let guests = start(&run, &["self-1", "self-2"], 1024, true);
    let (greedy, modest) = (&guests[0], &guests[1]);
    let kept = fill(modest, 3, 200);
    // A limit keeps the first guest from being granted what it wants: it takes it by itself.
    let limit = "[class.greedy]\nmatch = [\"self-1\"]\nlimit = \"320 MiB\"\n";
    let daemon = Daemon::start(run.path(), &(managing("self-", mib(1600)) + limit)).unwrap();
    daemon
        .until("the limit", JOB, "self-1", |detail| (detail.status.report.actual <= mib(321)).then_some(()))
        .unwrap();
    let taken = fill(greedy, 7, 500);
    let took = greedy.actual().unwrap();
    assert!(took > mib(500), "the guest deflated its own balloon: {took}");
    free(greedy, taken).unwrap();
    // The target is written again, and the balloon follows.
    daemon
        .until("the target again", JOB, "self-1", |detail| {
            (detail.status.report.actual <= mib(330)).then_some(())
        })
        .unwrap();
    let changes = daemon.guest("self-1").unwrap().changes;
    assert!(changes.iter().any(|change| change.reason.contains("deflated its own balloon")), "{changes:#?}");
    verified(modest, kept);
    for guest in &guests {
        unhurt(guest);
    }
    daemon.stop().unwrap();
}

fn a_reset_hurts_nobody() {
    let run = prepare("test-reset");
    let guests = start(&run, &["reset-1", "reset-2"], 1024, true);
    let (reset, modest) = (&guests[0], &guests[1]);
    let kept = fill(modest, 3, 250);
    let daemon = Daemon::start(run.path(), &managing("reset-", mib(1400))).unwrap();
    daemon
        .until("a smaller guest", JOB, "reset-1", |detail| {
            (detail.status.report.actual < mib(800)).then_some(())
        })
        .unwrap();
    let small = settled(&daemon, reset).unwrap();
    reset.reset().unwrap();
    // QEMU goes on reporting the old actual; the ledger counts the full size until the driver reports again.
    daemon
        .until("the reset in the ledger", JOB, "reset-1", |detail| {
            (detail.status.report.reach >= mib(1024)).then_some(())
        })
        .unwrap();
    reset.wait_up(BOOT).unwrap();
    daemon
        .until("the driver's return", JOB, "reset-1", |detail| {
            let back = !detail.seen.reset && detail.seen.stats.fresh().is_some();
            (back && detail.status.report.actual <= small.saturating_add(mib(64))).then_some(())
        })
        .unwrap();
    verified(modest, kept);
    unhurt(modest);
    daemon.stop().unwrap();
}

fn a_guest_that_lies_gains_only_its_share() {
    let run = prepare("test-liar");
    let guests = start(&run, &["liar-1", "liar-2", "liar-3"], 1024, true);
    let (liar, modest) = (&guests[0], &guests[1..]);
    let kept: Vec<Job> = modest.iter().map(|guest| fill(guest, 3, 150)).collect();
    // 1100 MiB for what three guests keep, beside what their processes cost.
    let daemon = Daemon::start(run.path(), &managing("liar-", mib(1100 + 3 * 130))).unwrap();
    let reached = until("the budget", JOB, || {
        let status = daemon.status()?;
        Ok(status.host.breach.is_zero().then_some(status))
    });
    assert!(reached.is_ok(), "{:#?}", daemon.status().unwrap().host);
    // It reserves all that it can as huge pages and uses none of it: to its kernel, memory is gone.
    let claimed = until("the claim", JOB, || {
        let huge: Hugepages = liar.ask(Ask::Hugepages { mib: 800 }, JOB)?;
        let claimed = huge.pages * huge.page_kib / 1024;
        Ok((claimed >= 200).then_some(claimed))
    });
    claimed.unwrap();
    let report = |name: &str| daemon.guest(name).unwrap().status.report;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        let (all, liar) = (daemon.status().unwrap(), report("liar-1"));
        let modest_use = Bytes::sum(all.guests[1..].iter().filter_map(|guest| guest.report.used));
        assert!(liar.target.unwrap().saturating_add(modest_use) <= mib(1200), "{all:#?}");
    }
    for (guest, kept) in modest.iter().zip(kept) {
        // Each still gets what it needs, at once.
        let more = fill(guest, 4, 100);
        verified(guest, kept);
        verified(guest, more);
        unhurt(guest);
    }
    daemon.stop().unwrap();
}

/// memtide's readers on a kernel with cgroup v2 alone: inside a guest.
fn a_host_inside_a_guest_is_read_through_cgroup_v2() {
    let run = prepare("test-cgroup-v2");
    let guest = Guest::builder("v2").memory(mib(512)).start(&run, None).unwrap();
    guest.wait_up(BOOT).unwrap();
    let script = "echo +memory > /cg/cgroup.subtree_control; mkdir -p /cg/vms; \
                  echo 134217728 > /cg/vms/memory.max; sleep 600 >/dev/null 2>&1 & pid=$!; \
                  echo $pid > /cg/vms/cgroup.procs; host-report --pid $pid; kill $pid";
    let output: Output = guest.ask(Ask::Sh { cmd: script.to_owned() }, JOB).unwrap();
    let report: serde_json::Value = serde_json::from_str(&output.text).unwrap_or_else(|error| {
        panic!("{error}: {}", output.text);
    });
    let text = report.to_string();
    assert!(text.contains("134217728"), "the limit of the cgroup: {text}");
    assert!(text.contains("oom_kills"), "its events: {text}");
}
