//! Work that succeeds without a manager succeeds with memtide: a guest that works with its page cache, beside one with an
//! idle cache and one that takes much memory now and then. All of it fits, with little to spare.

use std::time::{Duration, Instant};

use memtide_lab::guest::Guest;
use memtide_lab::guest::channel::Job;
use memtide_lab::guest::disk::Disk;
use memtide_lab::machine::kernel::Which;
use memtide_lab::machine::lab::{Lab, Run};
use memtide_lab::managers::daemon::{Daemon, TIER};
use memtide_lab::wait::until;
use memtide_lab::work::exercise::{load, read_disk};
use memtide_load::exerciser::report::Summary;
use memtide_model::Bytes;

use crate::JOB;
use crate::mib;
use crate::reporting;
use crate::say;
use crate::start_in;
use crate::the_lab;
use crate::unhurt;

/// The three guests and their host. Page caches and memory in MiB, rates in MiB a second.
struct Case {
    name: &'static str,
    /// The memory that they share: only about 80 MiB are left when the last guest has all its memory.
    host: Bytes,
    /// The page cache of the first guest, and the rate at which it reads and checks it at random.
    hot: u64,
    reads: u64,
    /// The page cache of the second guest, which it read once.
    cold: u64,
    /// The memory that the third guest takes.
    takes: u64,
}

const USUAL: Case = Case { name: "usual", host: mib(2048), hot: 400, reads: 60, cold: 400, takes: 650 };
const SMALLER: Case = Case { name: "smaller", host: mib(1843), hot: 250, reads: 40, cold: 450, takes: 500 };

/// The number of times that the third guest takes its memory.
const ROUNDS: u32 = 2;
/// The time of one round: the third guest fills its memory at 100 MiB/s, keeps it for 15 s and gives it back.
const ROUND: Duration = Duration::from_secs(40);

/// The work of one run.
struct Done {
    /// The bytes that the guest with the busy page cache read and checked.
    read: Bytes,
    /// Pages that it had to read from its disk again.
    refaults: u64,
}

/// Who manages.
#[derive(Clone, Copy, Debug)]
struct Arm {
    commitment: &'static str,
    agents: bool,
    tiers: bool,
}

const STRICT: Arm = Arm { commitment: "strict", agents: false, tiers: false };
const ELASTIC: Arm = Arm { commitment: "elastic", ..STRICT };

const ALL: [Arm; 5] = [
    STRICT,
    ELASTIC,
    Arm { agents: true, ..STRICT },
    Arm { agents: true, ..ELASTIC },
    Arm { agents: true, tiers: true, ..ELASTIC },
];
const WITHOUT_AGENTS: [Arm; 2] = [STRICT, ELASTIC];

pub fn a_cache_in_use_is_left_to_its_guest() {
    is_left(&USUAL, the_lab(), "", &ALL);
}

pub fn a_smaller_cache_in_use_is_left_to_its_guest() {
    is_left(&SMALLER, the_lab(), "", &ALL);
}

/// Its driver tells neither of stalls nor of scans.
pub fn a_cache_in_use_is_left_to_a_guest_of_linux_6_1() {
    crate::needs_debian_12("the old kernel is a package of Debian 12");
    let lab = the_lab().with_kernel(Which::OfDebian12, &say).unwrap();
    is_left(&USUAL, &lab, "-old", &WITHOUT_AGENTS);
}

/// In each arm, the guest with the busy page cache does at least nine tenths of the work that it does under free page
/// reporting alone.
fn is_left(case: &Case, lab: &Lab, kind: &str, arms: &[Arm]) {
    let run = Run::create(lab, &format!("test-no-harm-{}{kind}", case.name)).unwrap();
    let alone = work(&run, case, None);
    println!("{}: free page reporting alone: {} read, {} refaults", case.name, alone.read, alone.refaults);
    let share = |arm: &Arm| {
        let managed = work(&run, case, Some(*arm));
        let percent = managed.read.mul_div(100, 1).get() / alone.read.get().max(1);
        println!("{}: {arm:?}: {} read, {} refaults: {percent} %", case.name, managed.read, managed.refaults);
        (*arm, percent)
    };
    let shares: Vec<_> = arms.iter().map(share).collect();
    assert!(shares.iter().all(|(_, percent)| *percent >= 90), "percent of the work: {shares:?}");
}

/// Runs the three guests in their own small host, under memtide or nobody.
fn work(run: &Run, case: &Case, arm: Option<Arm>) -> Done {
    let name = |arm: Arm| format!("{}-agents-{}-tiers-{}", arm.commitment, arm.agents, arm.tiers);
    let part = run.part(&arm.map_or_else(|| "reporting".to_owned(), name)).unwrap();
    let has = |of: fn(Arm) -> bool| arm.is_some_and(of);
    let host = crate::small_host("no-harm", case.host);
    let disks = [case.hot, case.cold].map(|size| Disk::ensure(run.lab().cache(), 11, size).unwrap());
    let [hot_builder, cold_builder, grow_builder] = ["hot", "cold", "grow"]
        .map(|name| reporting(&format!("harm-{name}"), mib(1024), false))
        .map(|guest| guest.agent(has(|arm| arm.agents)).hotplug(has(|arm| arm.tiers)));
    let builders = [hot_builder.disk(&disks[0]), cold_builder.disk(&disks[1]), grow_builder];
    let guests = start_in(&part, &host, builders);
    let [hot, cold, grow] = &guests[..] else { unreachable!("three were started") };
    let sizes = [(hot, &disks[0], case.hot), (cold, &disks[1], case.cold)];
    let read = sizes.map(|(guest, disk, size)| (guest, guest.begin(read_disk(disk, size, None)).unwrap()));
    for (guest, job) in read {
        guest.finish::<Summary>(job, "reading its disk", JOB).unwrap();
    }
    let daemon = arm.map(|arm| {
        let config = format!(
            "mode = \"manage\"\nbudget = \"{} MiB\"\ndiscover = [\"harm-*\"]\ncommitment = \"{}\"\n\
             self_deflations = 0\n{}",
            case.host.whole_mib(),
            arm.commitment,
            if arm.tiers { TIER } else { "" }
        );
        Daemon::start(part.path(), &config).unwrap()
    });
    let before = hot.meminfo().unwrap().file_refaults();
    let seconds = ROUND.as_secs() * u64::from(ROUNDS);
    let (size, seed, rate) = (case.hot, disks[0].seed, case.reads);
    let options = format!(
        "--kind cache --file /dev/vda --size {size}M --seed {seed} --rate {rate}M --random --verify --duration {seconds}s"
    );
    let reads = hot.begin(load(&options)).unwrap();
    take_and_free(grow, case.takes, reads, hot);
    let summary: Summary = hot.finish(reads, "reading its page cache", JOB).unwrap();
    assert_eq!(summary.errors, 0);
    let refaults = hot.meminfo().unwrap().file_refaults() - before;
    if let Some(daemon) = daemon {
        println!("{}", daemon.command(&["status"]).unwrap());
        daemon.stop().unwrap();
    }
    for guest in &guests {
        let seen = guest.meminfo().unwrap();
        println!("{}: swapped {:?}, refaults {}", guest.name(), seen.swapped(), seen.file_refaults());
    }
    guests.iter().for_each(unhurt);
    assert_eq!(host.oom_kills().unwrap(), 0);
    Done { read: Bytes::new(summary.touched_bytes), refaults }
}

/// Lets `grow` take `takes` MiB and give it back, round after round, while `hot` reads.
fn take_and_free(grow: &Guest, takes: u64, reads: Job, hot: &Guest) {
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let options = format!("--size {takes}M --grow 100M --seed {round} --passes 0 --hold 15s");
        let job = grow.begin(load(&options)).unwrap();
        grow.finish::<Summary>(job, "taking memory", JOB).unwrap();
        until("the next round", JOB, || {
            hot.second(reads).ok();
            Ok((begun.elapsed() >= ROUND * (round + 1)).then_some(()))
        })
        .unwrap();
    }
}
