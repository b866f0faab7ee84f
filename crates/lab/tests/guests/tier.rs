//! A compressed tier of a real guest: made by a real daemon, plugged into a real QEMU, filled by the agent, checked by the exerciser.

use std::time::{Duration, Instant};

use memtide_host::Root;
use memtide_host::zram::noted;
use memtide_lab::guest::swap::{Medium, Swap};
use memtide_lab::guest::{Guest, GuestBuilder};
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::{cold_heap, load};
use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_model::Tier;
use serde_json::json;

use crate::{JOB, mib, prepare, reporting, say, start, start_in, unhurt};

/// The longest time until a lost device is given up: three pauses, and the guest's own time to notice.
const LOST: Duration = Duration::from_secs(240);

/// The tier of a guest, if it has one.
fn tier_of(daemon: &Daemon, guest: &Guest) -> Option<Tier> {
    daemon.guest(guest.name()).ok()?.seen.cost.tier.latest().copied()
}

/// Waits until the guest swaps to its tier, as its agent says. Before that, the exerciser takes no more than fits.
pub fn until_swapping(daemon: &Daemon, guest: &Guest) {
    let swaps = || {
        let agent = daemon.guest(guest.name())?.seen.told.agent;
        Ok(agent.latest().filter(|agent| !agent.memory.tier_total.is_zero()).map(drop))
    };
    let explained = || daemon.command(&["explain", guest.name()]).unwrap();
    until("a tier in use", JOB, swaps).unwrap_or_else(|error| panic!("{error}\n{}", explained()));
}

fn with_port(name: &str) -> GuestBuilder {
    reporting(name, mib(1024), true).agent(true).hotplug(true)
}

pub fn cold_memory_goes_to_a_tier_and_every_byte_comes_back() {
    crate::needs_zram();
    let run = prepare("test-tier");
    let host = crate::small_host("tier", mib(1300));
    let mut guests = start_in(&run, &host, [with_port("tier-cold"), with_port("tier-grow")]);
    let [cold, grow] = &guests[..] else { unreachable!("two were started") };
    // Written once, and read and checked once, so slowly that most of it is cold meanwhile.
    let heap = "--size 400M --content heap --seed 5 --rate 6M --passes 1 --verify";
    let heap = cold.begin(load(heap)).unwrap();
    let config = "mode = \"manage\"\nbudget = \"1300 MiB\"\ndiscover = [\"tier-*\"]\ncommitment = \"elastic\"\n\
                  [class.default]\ntier = \"50%\"\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    let takes = grow.begin(load("--size 600M --grow 12M --seed 3 --passes 0 --hold 20s")).unwrap();
    until(
        "cold memory in the tier",
        JOB,
        || Ok(tier_of(&daemon, cold).filter(|tier| tier.stored >= mib(32))),
    )
    .unwrap_or_else(|error| panic!("{error}\n{}", daemon.command(&["explain", "tier-cold"]).unwrap()));
    let tier = tier_of(&daemon, cold).unwrap();
    say(&format!("{tier:?}"));
    say(&daemon.command(&["explain", "tier-cold"]).unwrap());
    assert!(tier.held < tier.stored.mul_div(2, 3), "{tier:?}");
    grow.finish::<Summary>(takes, "taking memory", JOB).unwrap();
    let checked: Summary = cold.finish(heap, "keeping a heap", JOB).unwrap();
    // It ends with an error if a page is not as it was written.
    say(&format!("{checked:?}"));
    // A daemon that starts anew knows it.
    daemon.kill().unwrap();
    let daemon = Daemon::start(run.path(), config).unwrap();
    until("the tier after a restart", JOB, || Ok(tier_of(&daemon, cold).map(drop))).unwrap();
    guests.iter().for_each(unhurt);
    // Its guest is killed with its swap attached: nothing is left of it.
    let dead = guests.remove(0);
    let pid = dead.pid();
    drop(dead);
    until("no device of the dead guest", JOB, || {
        Ok(noted(&Root::system()).iter().all(|noted| noted.pid != pid).then_some(()))
    })
    .unwrap();
    daemon.stop().unwrap();
    assert_eq!(host.oom_kills().unwrap(), 0);
}

/// Three guests touch a heap that does not fit into their memory for an hour, anywhere, and write a third of the touches: one swaps to a zram of its own, one to
/// a file on a tmpfs, one to a tier. Every page that is touched is compared with what was written to it, and in the end all of them.
pub fn an_hour_of_swapping_loses_no_byte() {
    crate::needs_zram();
    let run = prepare("test-tier-hour");
    let swap = |medium, name| crate::or_skip(Swap::create(medium, mib(512), run.path(), name, 1));
    let (zram, tmpfs) = (swap(Medium::Zram, "zram"), swap(Medium::Tmpfs, "tmpfs"));
    let small = |name: &str| Guest::builder(name).memory(mib(300));
    let guests = start(
        &run,
        [
            small("hour-zram").swap(&zram),
            small("hour-tmpfs").swap(&tmpfs),
            reporting("hour-tier", mib(512), true).agent(true).hotplug(true),
        ],
    );
    zram.on(&guests[0]).unwrap();
    tmpfs.on(&guests[1]).unwrap();
    let config = "mode = \"manage\"\nbudget = \"3 GiB\"\ndiscover = [\"hour-tier\"]\ncommitment = \"elastic\"\n\
                  [class.default]\ntier = \"80%\"\nlimit = \"300 MiB\"\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    until_swapping(&daemon, &guests[2]);
    until("a small guest", JOB, || Ok((guests[2].actual()? <= mib(301)).then_some(()))).unwrap();
    let work = |seed| {
        load(&format!(
            "--size 320M --grow 20M --content heap --seed {seed} --hot 50%:95% --rate 40M --writes 30% --duration 1h --verify --hold"
        ))
    };
    let jobs: Vec<_> = guests.iter().zip(1..).map(|(guest, seed)| guest.begin(work(seed)).unwrap()).collect();
    for (guest, job) in guests.iter().zip(jobs) {
        let done: Summary = guest.finish(job, "an hour of work", Duration::from_secs(5_400)).unwrap();
        let all = Ask::Order { load: job.id(), line: "check".to_owned() };
        let all: Tally = guest.ask(all, Duration::from_secs(600)).unwrap();
        let (read, written) = guest.meminfo().unwrap().swapped();
        say(&format!("{}: {done:?}; {all:?}; {read} pages read from swap, {written} written", guest.name()));
        assert_eq!((done.errors, all.mismatches), (0, 0));
        assert!(read > 10_000 && written > 10_000, "{}: {read} {written}", guest.name());
        unhurt(guest);
    }
    say(&daemon.command(&["explain", "hour-tier"]).unwrap());
    daemon.stop().unwrap();
}

/// Memory that lies in compressed swap is read back at most half as fast as the guest reads the device.
pub fn a_swap_in_takes_at_most_twice_as_long_as_a_read() {
    const HEAP_MIB: u64 = 200;
    crate::needs_zram();
    let run = prepare("test-tier-read");
    let swap = crate::or_skip(Swap::create(Medium::Zram, mib(512), run.path(), "zram", 1));
    let guests = start(&run, [Guest::builder("swap-in").memory(mib(640)).swap(&swap)]);
    let guest = &guests[0];
    swap.on(guest).unwrap();
    let heap = guest.run(cold_heap(5, HEAP_MIB, "2.5"), JOB).unwrap();
    let timed = |what: Ask| {
        let begun = Instant::now();
        let answer: serde_json::Value = guest.ask(what, JOB).unwrap();
        (answer, begun.elapsed())
    };
    let check = || timed(Ask::Order { load: heap.id(), line: "check".to_owned() }).1;
    let sh = |cmd: String| timed(Ask::Sh { cmd });
    let resident = check();
    let (said, _) = sh(format!("echo \"{}M swappiness=200\" > /sys/fs/cgroup/memory.reclaim", HEAP_MIB - 40));
    let before = guest.meminfo().unwrap().swapped();
    assert!(before.1 > 25_000, "{said}: {before:?} pages read from swap and written");
    // The device is read first: what is in memory again may be gone from it.
    let device = "device=$(sed -n 's/^\\(.dev.vd[a-z]*\\) .*/\\1/p' /proc/swaps)";
    let reads = 10_000_u32;
    let (said, read) =
        sh(format!("{device}; dd if=$device of=/dev/null bs=4k count={reads} iflag=direct 2>&1"));
    let swapped_in = check();
    let pages = guest.meminfo().unwrap().swapped().0 - before.0;
    let a_read = read.as_secs_f64() / f64::from(reads);
    let a_swap_in =
        swapped_in.saturating_sub(resident).as_secs_f64() / f64::from(u32::try_from(pages).unwrap());
    say(&format!(
        "checked in memory in {resident:?}, from swap in {swapped_in:?}, {pages} pages: {:.0} us each; a read of 4 KiB takes {:.0} us ({said})",
        a_swap_in * 1e6,
        a_read * 1e6
    ));
    assert!(pages > 25_000);
    assert!(a_swap_in <= 2.0 * a_read);
}

pub fn a_full_tier_that_does_not_compress_hurts_nobody_and_is_let_go() {
    crate::needs_zram();
    let run = prepare("test-tier-full");
    let guests = start(&run, [reporting("tier-full", mib(512), true).agent(true).hotplug(true)]);
    let guest = &guests[0];
    let config = "mode = \"manage\"\nbudget = \"2 GiB\"\ndiscover = [\"tier-full\"]\n\
                  commitment = \"elastic\"\n[class.default]\ntier = \"12%\"\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    let explained = || daemon.command(&["explain", "tier-full"]).unwrap();
    let kept = guest.begin(load("--size 240M --seed 5 --passes 1 --rate 4M --verify")).unwrap();
    until_swapping(&daemon, guest);
    // More than fits: nobody asks the guest's kernel to swap, and it fills the tier with noise.
    let more = guest.begin(load("--size 240M --seed 6 --passes 1 --hold 5s --verify")).unwrap();
    let full = until("a full tier", JOB, || {
        Ok(tier_of(&daemon, guest).filter(|tier| tier.stored >= tier.size.mul_div(1, 2)))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", explained()));
    say(&format!("{full:?}"));
    assert!(full.held > full.stored && full.held < full.limit, "{full:?}");
    for (job, what) in [(more, "taking memory"), (kept, "keeping memory")] {
        guest.finish::<Summary>(job, what, JOB).unwrap();
    }
    unhurt(guest);
    until("no tier", JOB, || Ok(tier_of(&daemon, guest).is_none().then_some(())))
        .unwrap_or_else(|error| panic!("{error}\n{}", explained()));
    say(&explained());
    until("no device", JOB, || {
        Ok(noted(&Root::system()).iter().all(|noted| noted.pid != guest.pid()).then_some(()))
    })
    .unwrap();
    daemon.stop().unwrap();
}

/// Somebody unplugs the device from a guest that has memory in it: the programs of that memory are lost, and nobody and nothing else.
pub fn a_device_that_is_taken_away_leaves_nothing_and_is_replaced() {
    crate::needs_zram();
    let run = prepare("test-tier-lost");
    let guests = start(&run, [reporting("tier-lost", mib(512), true).agent(true).hotplug(true)]);
    let guest = &guests[0];
    let config = "mode = \"manage\"\nbudget = \"2 GiB\"\ndiscover = [\"tier-lost\"]\n\
                  commitment = \"elastic\"\n[class.default]\ntier = \"50%\"\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    let explained = || daemon.command(&["explain", "tier-lost"]).unwrap();
    guest.begin(load("--size 240M --content heap --seed 5 --passes 0 --hold 1h")).unwrap();
    until_swapping(&daemon, guest);
    let more = guest.begin(load("--size 240M --content heap --seed 6 --passes 0 --hold 1h")).unwrap();
    until("memory in the tier", JOB, || Ok(tier_of(&daemon, guest).filter(|tier| tier.stored >= mib(16))))
        .unwrap_or_else(|error| panic!("{error}\n{:?}\n{}", guest.standing(more), explained()));
    let devices = || -> Vec<u32> {
        let noted = noted(&Root::system()).into_iter().filter(|noted| noted.pid == guest.pid());
        noted.map(|noted| noted.device).collect()
    };
    let [lost] = devices()[..] else { panic!("{:?}", devices()) };
    guest.qmp("device_del", &json!({ "id": "memtide-tier" })).unwrap();
    until("an end of the device", LOST, || Ok((!devices().contains(&lost)).then_some(())))
        .unwrap_or_else(|error| panic!("{error}\n{}", explained()));
    // Programs that are left or new get another one.
    guest.begin(load("--size 120M --content heap --seed 7 --passes 0 --hold 1h")).unwrap();
    until_swapping(&daemon, guest);
    say(&explained());
    assert!(guest.alive());
    daemon.stop().unwrap();
}

pub fn a_guest_without_a_port_gets_no_tier_and_no_device_stays() {
    crate::needs_zram();
    let run = prepare("test-tier-port");
    let guests = start(&run, [reporting("tier-portless", mib(512), true).agent(true)]);
    let guest = &guests[0];
    let config = "mode = \"manage\"\nbudget = \"2 GiB\"\ndiscover = [\"tier-portless\"]\n\
                  commitment = \"elastic\"\n[class.default]\ntier = \"50%\"\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    // However long memtide and QEMU take: a request without an answer is made again after a pause.
    guest.begin(load("--size 128M --content heap --seed 5 --passes 0 --hold 1h")).unwrap();
    until("a refusal", JOB, || {
        let explained = daemon.command(&["explain", "tier-portless"])?;
        Ok((explained.contains("attach a tier") && explained.contains("failed: refused")).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", daemon.command(&["explain", "tier-portless"]).unwrap()));
    say(&daemon.command(&["explain", "tier-portless"]).unwrap());
    until("no device", JOB, || {
        Ok(noted(&Root::system()).iter().all(|noted| noted.pid != guest.pid()).then_some(()))
    })
    .unwrap();
    unhurt(guest);
    daemon.stop().unwrap();
}
