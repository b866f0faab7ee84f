//! Guests that end, as guests do every day, are no emergency for the others: a process that has ended shows no memory any more before the kernel has freed it.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use memtide_lab::guest::{Guest, contained};
use memtide_lab::machine::process;
use memtide_lab::machine::small_host::SmallHost;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::work::exercise;
use memtide_model::{Bytes, HostState, Moment};
use memtide_testing::skip;
use rustix::process::{Pid, Signal, kill_process};

use crate::{JOB, mib, prepare, reporting, small_host, start_in, unhurt};

/// Ends for each commitment.
const ENDS: u64 = 25;
/// The kernel frees the largest guest in less time.
const WATCHED: Duration = Duration::from_secs(3);
/// The sizes: 0.5 GiB and its multiples up to 4 GiB.
const PART_MIB: u64 = 512;
const PARTS: u64 = 8;
/// The host: with the largest guest, about a gigabyte is free.
const HOST: Bytes = mib(6 * 1024);

pub fn fifty_ends_are_no_emergency() {
    let run = prepare("test-ends");
    let free = memtide_host::Meminfo::read(&memtide_host::Root::system()).unwrap().available;
    if free < mib(10 * 1024) {
        skip(&format!("guests of 4 GiB need free memory beside them: {free} are available"));
    }
    let host = small_host("ends", HOST);
    let builders = ["ends-1", "ends-2"].map(|name| reporting(name, mib(512), true));
    let neighbours = start_in(&run, &host, builders);
    for guest in &neighbours {
        guest.run(exercise::fill(7, 150, None), JOB).unwrap();
    }
    let qemu = run.lab().qemu().unwrap().program.path.clone();
    for commitment in ["strict", "elastic"] {
        let part = run.part(commitment).unwrap();
        let config = format!("mode = \"manage\"\ncommitment = \"{commitment}\"\ndiscover = [\"ends-*\"]\n");
        let daemon = Daemon::start(part.path(), &config).unwrap();
        for number in 0..ENDS {
            let size = PART_MIB * (1 + number * 5 % PARTS);
            one_end(&daemon, (&host, &qemu), &neighbours, &format!("ends-of-{commitment}-{number}"), size);
        }
        daemon.stop().unwrap();
    }
    neighbours.iter().for_each(unhurt);
}

/// A guest of `size` MiB, all of them touched, comes and ends. No state is worse than before, and no neighbour's target is written for it.
fn one_end(daemon: &Daemon, (host, qemu): (&SmallHost, &Path), neighbours: &[Guest], name: &str, size: u64) {
    let mut guest = full_guest(host, qemu, name, size);
    daemon
        .until("all its memory", JOB, name, |detail| {
            (detail.status.report.footprint >= Some(mib(size))).then_some(())
        })
        .unwrap();
    let before = changes(daemon, neighbours);
    kill_process(Pid::from_child(&guest), Signal::TERM).unwrap();
    guest.wait().unwrap();
    let ended = Instant::now();
    let mut is_gone = false;
    while ended.elapsed() < WATCHED {
        let status = daemon.status().unwrap();
        assert_eq!(status.host.state, HostState::High, "{name}, {size} MiB: {:#?}", status.host);
        assert_eq!(status.host.breach, Bytes::ZERO, "{name}, {size} MiB");
        is_gone = status.guests.iter().all(|guest| guest.name != name);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(is_gone, "{name} is still listed");
    assert_eq!(changes(daemon, neighbours), before, "{name}, {size} MiB");
}

/// When each neighbour was changed last.
fn changes(daemon: &Daemon, neighbours: &[Guest]) -> Vec<Option<Moment>> {
    let last = |guest: &Guest| daemon.guest(guest.name()).unwrap().changes.last().map(|change| change.at);
    neighbours.iter().map(last).collect()
}

/// A QEMU that has touched all memory of its guest, which stays stopped.
fn full_guest(host: &SmallHost, qemu: &Path, name: &str, size: u64) -> Child {
    let mut command = contained(Some(host));
    command.arg(qemu);
    command.args([
        "-S",
        "-nodefaults",
        "-display",
        "none",
        "-accel",
        "tcg,tb-size=16",
        "-machine",
        "pc,memory-backend=ram",
    ]);
    command.args(["-name", name, "-m", &format!("{size}M")]);
    command.args(["-object", &format!("memory-backend-ram,id=ram,size={size}M,prealloc=on")]);
    command.args(["-device", "virtio-balloon-pci"]);
    command.stdin(Stdio::null());
    process::spawn(command).unwrap()
}
