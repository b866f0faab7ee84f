//! Torn huge pages: who sees which bytes when, and when the host has them.

use memtide_host::{Cgroup, Root};
use memtide_lab::experiments::react::stall::{managing, move_to};
use memtide_lab::guest::Guest;
use memtide_lab::machine::small_host::SmallHost;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::{Ask, Output};
use memtide_model::Bytes;
use memtide_testing::skip;

use crate::{JOB, mib, prepare, start_in, unhurt};

/// Less is noise: page tables, and pages that the guest touches meanwhile.
const NOISE: Bytes = Bytes::from_mib(12);

/// The memory of the guest, as different people see it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// What its process has resident, without its program: the footprint.
    resident: Bytes,
    /// What its cgroup is charged for: the host does not have it.
    charged: Bytes,
    /// The difference that torn huge pages make.
    torn: Bytes,
}

impl Seen {
    fn now(host: &SmallHost, guest: &Guest) -> Self {
        let cgroup = Cgroup::of(&Root::system(), guest.pid()).unwrap().unwrap();
        let torn = cgroup.torn().unwrap();
        Self { resident: guest.private(), charged: host.usage().unwrap(), torn }
    }
}

/// Skips the test unless the kernel gives QEMU huge pages, and lets root call the memory of others cold.
fn needs_huge_pages() {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !enabled.contains("[always]") && !enabled.contains("[madvise]") {
        skip(&format!("QEMU gets no transparent huge pages here ({})", enabled.trim()));
    }
    if let Err(why) = memtide_host::can_split() {
        skip(&format!("this process cannot make the kernel split huge pages: {why}"));
    }
}

/// Two loads fill the guest's memory side by side, then one of them ends. Its pages lie between those of the other. The balloon takes them.
fn tear(guest: &Guest) {
    let never = "echo never >/sys/kernel/mm/transparent_hugepage/enabled".to_owned();
    let _said: Output = guest.ask(Ask::Sh { cmd: never }, JOB).unwrap();
    let loads = [1, 2].map(|seed| guest.begin(exercise::fill(seed, 140, Some(60))).unwrap());
    for load in loads {
        guest.finish::<Summary>(load, "a filled load", JOB).unwrap();
    }
    guest.run(Ask::Cancel { job: loads[1].id() }, JOB).unwrap();
    move_to(guest, mib(260)).unwrap();
}

pub fn memtide_gives_the_host_its_torn_huge_pages() {
    needs_huge_pages();
    let run = prepare("test-torn");
    let host = crate::small_host("memtide-torn", mib(1024));
    let guests = start_in(&run, &host, [Guest::builder("torn-1").memory(mib(512))]);
    let guest = &guests[0];
    let booted = Seen::now(&host, guest);
    tear(guest);
    let torn = Seen::now(&host, guest);
    println!("booted {booted:?}\ntorn   {torn:?}");
    assert!(booted.torn < NOISE, "{booted:?}");
    assert!(torn.torn > mib(40), "{torn:?}");
    // The guest gave the memory back, and the host does not have it.
    assert!(torn.charged >= torn.resident.saturating_add(torn.torn).saturating_sub(NOISE), "{torn:?}");

    // The worst case of the guest exceeds the budget by what is torn: memory is wanted.
    let budget = torn.resident.saturating_add(torn.torn.mul_div(1, 2));
    let daemon = Daemon::start(run.path(), &managing("torn-", budget)).unwrap();
    let split = until("a split", JOB, || {
        let changes = daemon.guest("torn-1")?.changes;
        Ok(changes.into_iter().find(|tried| tried.change == "split its torn huge pages"))
    })
    .unwrap();
    assert_eq!(split.failed, None);
    println!("{split:?}");
    let back = until("the memory", JOB, || {
        let seen = Seen::now(&host, guest);
        Ok((seen.torn < NOISE).then_some(seen))
    })
    .unwrap();
    println!("back   {back:?}");
    // The host has what was torn, and the guest keeps what it uses.
    let returned = torn.charged.saturating_sub(back.charged);
    assert!(returned >= torn.torn.mul_div(3, 4), "{returned} of {}", torn.torn);
    until("a ledger without torn memory", JOB, || Ok((daemon.status()?.host.torn < NOISE).then_some(())))
        .unwrap();
    daemon.stop().unwrap();
    unhurt(guest);
}
