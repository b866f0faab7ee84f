//! Work that succeeds without a manager succeeds with memtide: a guest that works with its page cache, beside one with an
//! idle cache and one that takes much memory now and then. All of it fits, with little to spare.

use std::time::{Duration, Instant};

use memtide_lab::guest::Guest;
use memtide_lab::guest::channel::Job;
use memtide_lab::guest::disk::Disk;
use memtide_lab::machine::lab::Run;
use memtide_lab::machine::small_host::SmallHost;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::{load, read_disk};
use memtide_load::exerciser::report::Summary;
use memtide_model::Bytes;

use crate::JOB;
use crate::mib;
use crate::prepare;
use crate::reporting;
use crate::start_in;
use crate::unhurt;

/// The memory shared by the three guests: only about 80 MiB are left when the last guest has all its memory.
const HOST: Bytes = mib(2048);
/// The page cache of the first two guests, in MiB.
const CACHE: u64 = 400;
/// The rate at which the first guest reads its cache at random and checks it, in MiB a second.
const READS: u64 = 60;
/// The memory that the third guest takes, in MiB.
const TAKES: u64 = 650;
/// The number of times that it does.
const ROUNDS: u32 = 1;
/// The time of one round: the third guest fills its memory at 100 MiB/s, keeps it for 15 s and gives it back.
const ROUND: Duration = Duration::from_secs(40);

/// The work of one run.
struct Done {
    /// The bytes that the guest with the busy page cache read and checked.
    read: Bytes,
    /// Pages that it had to read from its disk again.
    refaults: u64,
}

pub fn a_cache_in_use_is_left_to_its_guest() {
    let run = prepare("test-no-harm");
    let alone = work(&run, "reporting", None);
    let commitment = "commitment = \"elastic\"\nself_deflations = 0";
    let managed = work(&run, "elastic", Some(commitment));
    let percent = managed.read.mul_div(100, 1).get() / alone.read.get().max(1);
    println!(
        "free page reporting alone: {} read, {} refaults; memtide: {} read, {} refaults: {percent} %",
        alone.read, alone.refaults, managed.read, managed.refaults
    );
    assert!(percent >= 90, "{percent} % of the work that is done without memtide");
}

/// Runs the three guests in their own small host, under memtide if there is a configuration for it.
fn work(run: &Run, arm: &str, commitment: Option<&str>) -> Done {
    let part = run.part(arm).unwrap();
    let host = SmallHost::create("no-harm", HOST, Bytes::ZERO).unwrap();
    let disk = Disk::ensure(run.lab().cache(), 11, CACHE).unwrap();
    let builders = ["hot", "cold", "grow"].map(|name| {
        let builder = reporting(&format!("harm-{name}"), mib(1024), false);
        if name == "grow" { builder } else { builder.disk(&disk) }
    });
    let guests = start_in(&part, &host, builders);
    let [hot, cold, grow] = &guests[..] else { unreachable!("three were started") };
    let read = [hot, cold].map(|guest| guest.begin(read_disk(&disk, CACHE, None)).unwrap());
    for (guest, job) in [hot, cold].into_iter().zip(read) {
        guest.finish::<Summary>(job, "reading its disk", JOB).unwrap();
    }
    let daemon = commitment.map(|commitment| {
        let config = format!(
            "mode = \"manage\"\nbudget = \"{} MiB\"\ndiscover = [\"harm-*\"]\n{commitment}\n",
            HOST.whole_mib()
        );
        Daemon::start(part.path(), &config).unwrap()
    });
    let before = refaults(hot);
    let seconds = ROUND.as_secs() * u64::from(ROUNDS);
    let seed = disk.seed;
    let options = format!(
        "--kind cache --file /dev/vda --size {CACHE}M --seed {seed} --rate {READS}M --random --verify --duration {seconds}s"
    );
    let reads = hot.begin(load(&options)).unwrap();
    take_and_free(grow, reads, hot);
    let summary: Summary = hot.finish(reads, "reading its page cache", JOB).unwrap();
    assert_eq!(summary.errors, 0);
    let refaults = refaults(hot) - before;
    if let Some(daemon) = daemon {
        println!("{}", daemon.command(&["status"]).unwrap());
        daemon.stop().unwrap();
    }
    guests.iter().for_each(unhurt);
    assert_eq!(host.oom_kills().unwrap(), 0);
    Done { read: Bytes::new(summary.touched_bytes), refaults }
}

/// Lets `grow` take its memory and give it back, round after round, while `hot` reads.
fn take_and_free(grow: &Guest, reads: Job, hot: &Guest) {
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let options = format!("--size {TAKES}M --grow 100M --seed {round} --passes 0 --hold 15s");
        let job = grow.begin(load(&options)).unwrap();
        grow.finish::<Summary>(job, "taking memory", JOB).unwrap();
        until("the next round", JOB, || {
            hot.second(reads).ok();
            Ok((begun.elapsed() >= ROUND * (round + 1)).then_some(()))
        })
        .unwrap();
    }
}

/// Pages of files that the guest had dropped and read again.
fn refaults(guest: &Guest) -> u64 {
    guest.meminfo().unwrap().vmstat.get("workingset_refault_file").copied().unwrap_or_default()
}
