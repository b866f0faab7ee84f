//! The agent in a real guest: what it reports, what a trim brings back, and what the agent itself costs.

use memtide_agent::wire::{self, Can, Report};
use memtide_lab::error::LabError;
use memtide_lab::guest::Guest;
use memtide_lab::guest::agent::Peer;
use memtide_lab::guest::channel::Job;
use memtide_lab::guest::disk::Disk;
use memtide_lab::machine::kernel::Which;
use memtide_lab::machine::lab::{Lab, Run};
use memtide_lab::machine::packages;
use memtide_lab::machine::small_host::SmallHost;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::{self, load};
use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::{Ask, Output};
use memtide_model::Bytes;

use crate::{JOB, mib, prepare, reporting, say, start, start_in, the_lab, unhurt};

/// The disk that the guest reads once, in MiB.
const COLD: u64 = 200;
/// The seed of its content.
const DISK_SEED: u64 = 31;
/// The largest program of the agent.
const PROGRAM: Bytes = Bytes::from_kib(1536);
/// The most memory that the agent may have resident.
const RESIDENT: Bytes = Bytes::from_mib(2);

/// The output of a command in the guest.
fn sh(guest: &Guest, command: &str) -> String {
    let said: Output = guest.ask(Ask::Sh { cmd: command.to_owned() }, JOB).unwrap();
    said.text
}

/// Free memory on per-CPU lists.
fn on_cpus(guest: &Guest) -> Bytes {
    let pages = sh(guest, "awk '/count:/ { pages += $2 } END { print pages }' /proc/zoneinfo");
    Bytes::from_kib(4 * pages.trim().parse::<u64>().unwrap())
}

/// The memory that the agent has resident.
fn resident(guest: &Guest) -> Bytes {
    let status = sh(guest, "cat /proc/$(pidof memtide-agent)/status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    Bytes::from_kib(line.trim().trim_end_matches(" kB").parse().unwrap())
}

pub fn the_agent_trims_cold_cache_and_hurts_nothing() {
    trims("agent", the_lab());
}

pub fn the_agent_does_the_same_on_linux_6_1() {
    if !packages::is_debian_12() {
        eprintln!("skipped: the old kernel is that of Debian 12, to be had there only");
        return;
    }
    trims("agent-old", &the_lab().with_kernel(Which::OfDebian12, &say).unwrap());
}

/// Linux 5.10 can drop page cache only all at once: the agent says so, and leaves it.
pub fn the_agent_says_what_linux_5_10_cannot_do() {
    if !packages::is_debian_12() {
        eprintln!("skipped: apt must trust Debian's archive keys, as on Debian 12");
        return;
    }
    let lab = the_lab().with_kernel(Which::OfDebian11, &say).unwrap();
    assert!(lab.qemu().unwrap().kernel.release.starts_with("5.10."), "{lab:?}");
    let (_run, guests, memory) = with_cold_cache("agent-5.10", &lab);
    let guest = &guests[0];

    let mut peer = Peer::connect(guest).unwrap();
    let hello = peer.greet().unwrap();
    say(&format!("{hello:?}"));
    let able = [Can::Report, Can::Pressure, Can::Refaults, Can::Compact];
    assert!(able.iter().all(|can| hello.can.contains(can)), "{hello:?}");
    assert!(!hello.can.contains(&Can::Trim) && !hello.can.contains(&Can::CacheLimit), "{hello:?}");
    let before = peer.report().unwrap();
    assert!(before.memory.unmapped_cache >= mib(COLD * 9 / 10), "{before:?}");
    let trim = |last_resort| wire::Ask::Trim { bytes: mib(100), may_swap: false, last_resort };
    for (last_resort, reason) in
        [(false, "memory.reclaim needs Linux 5.19"), (true, "does not allow drop_caches")]
    {
        let why = peer.done(trim(last_resort)).unwrap_err().to_string();
        assert!(why.contains(reason), "{why}");
    }
    peer.done(wire::Ask::Compact).unwrap();
    let after = peer.report().unwrap();
    assert!(after.memory.unmapped_cache >= mib(COLD * 9 / 10), "{after:?}");
    let tally: Tally = guest.ask(Ask::Order { load: memory.id(), line: "check".to_owned() }, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (100 << 20, 0));
    let resident = resident(guest);
    assert!(resident <= RESIDENT, "{resident}");
    unhurt(guest);
}

/// A guest with 100 MiB of memory in use, which the job returned has filled, and [`COLD`] MiB of page cache that it read once.
fn with_cold_cache(name: &str, lab: &Lab) -> (Run, Vec<Guest>, Job) {
    let run = Run::create(lab, &format!("test-{name}")).unwrap();
    let disk = Disk::ensure(lab.cache(), DISK_SEED, COLD).unwrap();
    let guests = start(&run, [reporting(name, mib(512), true).disk(&disk).agent(true)]);
    let memory = guests[0].begin(exercise::fill(5, 100, None)).unwrap();
    guests[0].finish::<Summary>(memory, "a filled load", JOB).unwrap();
    let cold = guests[0].begin(exercise::read_disk(&disk, COLD, None)).unwrap();
    guests[0].finish::<Summary>(cold, "a read disk", JOB).unwrap();
    (run, guests, memory)
}

fn trims(name: &str, lab: &Lab) {
    let (_run, guests, memory) = with_cold_cache(name, lab);
    let guest = &guests[0];

    let mut peer = Peer::connect(guest).unwrap();
    let hello = peer.greet().unwrap();
    say(&format!("{hello:?}"));
    let needed = [Can::Report, Can::Pressure, Can::Refaults, Can::Trim, Can::Compact];
    assert!(needed.iter().all(|can| hello.can.contains(can)), "{hello:?}");
    let before = peer.report().unwrap();
    say(&format!("before: {:?}", before.memory));
    assert!(before.memory.unmapped_cache >= mib(COLD * 9 / 10), "{before:?}");

    let footprint = guest.private();
    let done = peer.done(wire::Ask::Trim { bytes: mib(100), may_swap: false, last_resort: false }).unwrap();
    let bytes = done.bytes.unwrap();
    let after = peer.report().unwrap();
    say(&format!("{done:?}; after: {:?}", after.memory));
    assert!(bytes >= mib(90) && bytes <= mib(120), "{done:?}");
    let held = |report: &Report| report.memory.unmapped_cache.saturating_add(report.memory.reclaimable_slab);
    let gone = held(&before).saturating_sub(held(&after));
    assert!(gone >= bytes.mul_div(9, 10), "{gone} of {bytes}");
    let free = |report: &Report| report.memory.free;
    assert!(free(&after).saturating_sub(free(&before)) >= bytes.mul_div(9, 10), "{before:?} {after:?}");
    // The lists may hold an eighth of the guest's memory, so a small trim could stay there whole.
    assert!(on_cpus(guest) <= mib(4), "{} stay on per-CPU lists", on_cpus(guest));
    peer.done(wire::Ask::Trim { bytes: mib(16), may_swap: false, last_resort: false }).unwrap();
    assert!(on_cpus(guest) <= mib(4), "{} stay on per-CPU lists", on_cpus(guest));
    assert_eq!(after.counters.swapped_out, before.counters.swapped_out);

    // What the guest freed is the host's, as far as it is in blocks that reporting returns.
    peer.done(wire::Ask::Compact).unwrap();
    until("the host has four fifths of it", JOB, || {
        let back = footprint.saturating_sub(guest.private());
        Ok((back >= bytes.mul_div(4, 5)).then_some(()))
    })
    .unwrap();
    let tally: Tally = guest.ask(Ask::Order { load: memory.id(), line: "check".to_owned() }, JOB).unwrap();
    assert_eq!((tally.bytes, tally.mismatches), (100 << 20, 0));
    let resident = resident(guest);
    say(&format!("the agent has {resident} resident; {}", sh(guest, "memtide-agent status").trim()));
    assert!(resident <= RESIDENT, "{resident}");
    let size = sh(guest, "wc -c < /proc/$(pidof memtide-agent)/exe");
    say(&format!("its program has {} bytes", size.trim()));
    assert!(size.trim().parse::<u64>().unwrap() <= PROGRAM.get(), "{size}");
    rereads(guest, COLD);
    unhurt(guest);
}

/// Reads the first `mib` MiB of the disk again, and checks them: what was dropped was no data.
fn rereads(guest: &Guest, mib: u64) {
    let disk = Disk::ensure(the_lab().cache(), DISK_SEED, mib).unwrap();
    let read = guest.begin(exercise::read_disk(&disk, mib, None)).unwrap();
    let summary: Summary = guest.finish(read, "reading its disk again", JOB).unwrap();
    assert_eq!(exercise::verified_by(&summary, DISK_SEED), mib << 20, "{summary:?}");
}

pub fn memtide_asks_the_agent_before_it_takes() {
    let run = prepare("test-agent-asked");
    let host = SmallHost::create("agent-asked", mib(1300), Bytes::ZERO).unwrap();
    let disk = Disk::ensure(the_lab().cache(), DISK_SEED, 400).unwrap();
    let cold = reporting("asked-cold", mib(1024), true).disk(&disk).agent(true);
    let guests = start_in(&run, &host, [cold, reporting("asked-grow", mib(1024), true)]);
    let [cold, grow] = &guests[..] else { unreachable!("two were started") };
    let read = cold.begin(exercise::read_disk(&disk, 400, None)).unwrap();
    cold.finish::<Summary>(read, "reading its disk", JOB).unwrap();
    let config = "mode = \"manage\"\nbudget = \"1300 MiB\"\ndiscover = [\"asked-*\"]\ncommitment = \"elastic\"\n\
                  [class.limited]\nmatch = [\"asked-cold\"]\ncache_limit = \"90%\"\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    let takes = grow.begin(load("--size 600M --grow 20M --seed 3 --passes 0 --hold 20s")).unwrap();
    grow.finish::<Summary>(takes, "taking memory", JOB).unwrap();
    let explained = daemon.command(&["explain", "asked-cold"]).unwrap();
    say(&daemon.command(&["status"]).unwrap());
    say(&explained);
    let log = sh(cold, "memtide-agent status");
    say(&log);
    let used = "stat=$(cat /proc/$(pidof memtide-agent)/stat); set -- ${stat##*) }; echo $((${12} + ${13}))";
    say(&format!("the agent has used {} ticks of 10 ms of CPU time", sh(cold, used).trim()));
    assert!(explained.contains("trim "), "{explained}");
    assert!(log.contains("asked to trim") && log.contains("limits unmapped page cache to 90%"), "{log}");
    // Its neighbour has freed its memory: nobody moves any more.
    until("a quiet guest", JOB, || {
        let explained = daemon.command(&["explain", "asked-cold"])?;
        Ok(explained.lines().next().is_some_and(|line| !line.contains("waits")).then_some(()))
    })
    .unwrap();
    let offer = daemon.command(&["reclaim", "asked-cold", "--by", "40M", "--dry-run"]).unwrap();
    say(&offer);
    assert!(offer.contains("40 MiB can be had"), "{offer}");
    // The command fails if the host has less back than was asked for: what is free in small pieces stays with the guest.
    let reclaimed = match daemon.command(&["reclaim", "asked-cold", "--by", "40M", "--hold", "10m"]) {
        Err(LabError::Failed { output, .. }) => output,
        other => other.unwrap(),
    };
    say(&reclaimed);
    assert!(reclaimed.contains("its agent dropped 40 MiB"), "{reclaimed}");
    assert!(reclaimed.contains("held by the operator"), "{reclaimed}");
    daemon.stop().unwrap();
    rereads(cold, 400);
    guests.iter().for_each(unhurt);
    assert_eq!(host.oom_kills().unwrap(), 0);
}
