//! A compressed tier of a real guest: made by a real daemon, plugged into a real QEMU, filled by the agent, checked by the exerciser.

use std::time::Duration;

use memtide_host::Root;
use memtide_host::zram::noted;
use memtide_lab::guest::{Guest, GuestBuilder};
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::load;
use memtide_load::exerciser::report::Summary;
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
