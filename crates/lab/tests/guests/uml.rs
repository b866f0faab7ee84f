//! memtide with real UML instances.

use memtide_lab::guest::channel::Job;
use memtide_lab::guest::disk::Disk;
use memtide_lab::guest::{Guest, Vmm};
use memtide_lab::machine::lab::Run;
use memtide_lab::machine::packages::Release;
use memtide_lab::machine::small_tmpfs::SmallTmpfs;
use memtide_lab::machine::uml_kernel::{self, UmlKernel};
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise;
use memtide_load::exerciser::content::Tally;
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;
use memtide_testing::skip;

use crate::{JOB, mib, operator, prepare, reporting, say, the_lab, unhurt, until_explained};

/// The page cache of an instance that does not use it, in MiB.
const CACHE: u64 = 96;

fn start(run: &Run, names: &[&str], memory: u64) -> Vec<Guest> {
    crate::start(run, names.iter().map(|name| Guest::builder(name).vmm(Vmm::Uml).memory(mib(memory))))
}

fn fill(instance: &Guest, seed: u64, mib: u64, mib_per_s: Option<u64>) -> Job {
    instance.run(exercise::fill(seed, mib, mib_per_s), JOB).unwrap()
}

fn verified(instance: &Guest, memory: Job) {
    let check = Ask::Order { load: memory.id(), line: "check".to_owned() };
    let tally: Tally = instance.ask(check, JOB).unwrap();
    assert_eq!(tally.mismatches, 0, "{}", instance.name());
}

pub fn memory_moves_between_uml_instances() {
    memory_moves("uml", UmlKernel::Usual);
}

/// Debian 13's kernel does the same. It is downloaded for this test.
pub fn memory_moves_between_instances_of_linux_6_12() {
    crate::needs_debian_12(
        "Debian 13's kernel is unpacked on Debian 12 only; elsewhere it is the installed one",
    );
    if uml_kernel::has_amx().unwrap() {
        skip("Linux 6.12 has no room for the registers of a processor with AMX");
    }
    memory_moves("uml-6.12", UmlKernel::Of(Release::Debian13));
}

fn memory_moves(name: &str, kernel: UmlKernel) {
    let run = prepare(&format!("test-{name}"));
    let instance =
        |nth| Guest::builder(&format!("{name}-{nth}")).vmm(Vmm::Uml).uml_kernel(kernel).memory(mib(256));
    let instances = crate::start(&run, [instance(1), instance(2)]);
    let (first, second) = (&instances[0], &instances[1]);
    let kept = fill(second, 3, 60, None);
    // It frees what it had touched: its memory file keeps all of that.
    let freed = fill(first, 5, 150, None);
    first.run(Ask::Cancel { job: freed.id() }, JOB).unwrap();
    assert!(first.private() > mib(150));
    let config = format!("mode = \"manage\"\nbudget = \"320 MiB\"\ndiscover = [\"{name}-*\"]\n");
    let daemon = Daemon::start(run.path(), &config).unwrap();
    until("the budget", JOB, || Ok(daemon.status()?.host.breach.is_zero().then_some(()))).unwrap();
    until("the host has it back", JOB, || Ok((first.private() < mib(120)).then_some(()))).unwrap();
    verified(second, kept);
    // The other way: a need is answered. An instance cannot take memory by itself, so it must not grow faster than memtide answers.
    let more = fill(first, 7, 100, Some(20));
    verified(first, more);
    verified(second, kept);
    instances.iter().for_each(unhurt);
    stopped(&run, daemon);
}

/// Debian's kernels for instances have neither memory cgroups nor the multi-generational LRU: an agent tells what it sees, and says what it cannot do. Cold
/// page cache is unplugged.
pub fn an_instances_agent_tells_what_its_kernel_cannot_do() {
    let run = prepare("test-uml-agent");
    let disk = Disk::ensure(the_lab().cache(), 31, CACHE).unwrap();
    let cold = Guest::builder("cached-cold").vmm(Vmm::Uml).memory(mib(320)).disk(&disk).agent(true);
    let guests = crate::start(&run, [cold, Guest::builder("cached-grow").vmm(Vmm::Uml).memory(mib(256))]);
    let (cold, grow) = (&guests[0], &guests[1]);
    let kept = fill(cold, 3, 40, None);
    let read = cold.begin(exercise::read_disk(&disk, CACHE, None)).unwrap();
    cold.finish::<Summary>(read, "reading its disk", JOB).unwrap();
    let config = "mode = \"manage\"\nbudget = \"430 MiB\"\ndiscover = [\"cached-*\"]\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    until("the budget", JOB, || Ok(daemon.status()?.host.breach.is_zero().then_some(()))).unwrap();
    let more = fill(grow, 5, 120, Some(20));
    verified(grow, more);
    verified(cold, kept);
    let explained = daemon.command(&["explain", "cached-cold"]).unwrap();
    say(&explained);
    assert!(explained.contains("can count refaults; could drop"), "{explained}");
    assert!(explained.contains("squeezed to") && !explained.contains("trim "), "{explained}");
    guests.iter().for_each(unhurt);
    stopped(&run, daemon);
}

pub fn an_instance_and_a_qemu_guest_share_a_host() {
    let run = prepare("test-both");
    let instance = Guest::builder("both-uml").vmm(Vmm::Uml).memory(mib(256));
    let guests = crate::start(&run, [instance, reporting("both-qemu", mib(512), true)]);
    let (instance, guest) = (&guests[0], &guests[1]);
    let kept = fill(guest, 11, 100, None);
    // Together they may cost about 900 MiB.
    let config = "mode = \"manage\"\nbudget = \"700 MiB\"\nself_deflations = 0\ndiscover = [\"both-*\"]\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    let status = until("the budget", JOB, || {
        let status = daemon.status()?;
        Ok((status.guests.len() == 2 && status.host.breach.is_zero()).then_some(status))
    });
    let mut backends: Vec<String> =
        status.unwrap().guests.iter().map(|guest| guest.backend.to_string()).collect();
    backends.sort();
    assert_eq!(backends, ["QEMU", "UML"]);
    // What one of them gave, the other may have.
    let more = fill(instance, 13, 150, Some(20));
    verified(instance, more);
    verified(guest, kept);
    guests.iter().for_each(unhurt);
    stopped(&run, daemon);
}

pub fn an_instance_killed_in_the_middle_of_a_request_hurts_nobody() {
    let run = prepare("test-gone");
    let stays = &start(&run, &["gone-stays"], 256)[0];
    let kept = fill(stays, 3, 60, None);
    // The budget holds one instance, so each newcomer is asked for memory at once.
    let config = "mode = \"manage\"\nbudget = \"320 MiB\"\ndiscover = [\"gone-*\"]\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    for nth in 1..=3 {
        let killed = &start(&run, &[&format!("gone-{nth}")], 256)[0];
        until("a request", JOB, || {
            let target = daemon.guest(killed.name()).ok().and_then(|detail| detail.status.report.target);
            Ok(target.filter(|target| *target < mib(256)))
        })
        .unwrap();
        killed.kill().unwrap();
        until("its end", JOB, || {
            let guests = daemon.status()?.guests;
            Ok(guests.iter().all(|guest| guest.name != killed.name()).then_some(()))
        })
        .unwrap();
    }
    verified(stays, kept);
    unhurt(stays);
    stopped(&run, daemon);
}

/// A reboot gives an instance all its memory again, in the same process. One that was stopped on its console is left alone until it goes on, and
/// one that halted is gone. What a person plugs there stays until another instance lacks it.
pub fn an_instance_that_reboots_stops_or_halts_is_noticed() {
    let run = prepare("test-odd");
    let instances = start(&run, &["odd-1", "odd-2"], 256);
    // The lab counts what is plugged from its first look on.
    assert_eq!(instances[1].actual().unwrap(), mib(256));
    let config = "mode = \"manage\"\nbudget = \"320 MiB\"\ndiscover = [\"odd-*\"]\n";
    let daemon = Daemon::start(run.path(), config).unwrap();
    let in_budget =
        || until("the budget", JOB, || Ok(daemon.status()?.host.breach.is_zero().then_some(()))).unwrap();
    until("both", JOB, || Ok((daemon.status()?.guests.len() == 2).then_some(()))).unwrap();
    in_budget();
    somebody_plugs(&daemon, &instances[1], &instances[0]);
    instances[0].reset().unwrap();
    until_explained(&daemon, "odd-1", "was reset", JOB, |explained| explained.contains("was reset"));
    in_budget();
    assert!(!daemon.command(&["explain", "odd-1"]).unwrap().contains("somebody else"));
    instances[1].pause().unwrap();
    until_explained(&daemon, "odd-2", "paused", JOB, |explained| explained.contains("paused"));
    instances[1].resume().unwrap();
    until_explained(&daemon, "odd-2", "goes on", JOB, |explained| !explained.contains("paused"));
    instances[1].halt().unwrap();
    until("its end", JOB, || Ok((daemon.status()?.guests.len() == 1).then_some(()))).unwrap();
    stopped(&run, daemon);
}

/// A person at the console of `plugged` (`uml_mconsole`) is somebody else. Then `grows` needs more than was left to it.
fn somebody_plugs(daemon: &Daemon, plugged: &Guest, grows: &Guest) {
    operator::until_settled(daemon, plugged.name());
    plugged.set_target(plugged.memory()).unwrap();
    operator::until_said(daemon, "plugged by somebody else", plugged.name(), operator::is_foreign);
    let status = daemon.command(&["status"]).unwrap();
    let resume = format!("`memtide resume {}` takes it back", plugged.name());
    for told in ["held: somebody else moved its balloon", &resume] {
        assert!(status.contains(told), "{status}");
    }
    operator::stays(daemon, plugged, plugged.memory());
    let filled = fill(grows, 3, 150, Some(20));
    assert!(!operator::is_foreign(&operator::verdict(daemon, plugged.name())));
    let log = daemon.log().unwrap();
    assert!(log.contains(&format!("{} lacks", grows.name())), "{log}");
    verified(grows, filled);
    unhurt(plugged);
}

/// A tmpfs that holds less than its instances may touch is a host for them: without memtide, the one that grows is killed although the machine has
/// memory. Together, the first and the second touch about 445 MiB of it; with memtide, the three need 252 MiB and twice 70 MiB at once, with headroom.
pub fn instances_fit_into_a_small_tmpfs() {
    let run = prepare("test-tmpfs");
    for managed in [false, true] {
        let name = if managed { "managed" } else { "unmanaged" };
        let part = run.part(name).unwrap();
        let tmpfs = crate::or_skip(SmallTmpfs::mount(&part.path().join("memory"), mib(400)));
        let instance = |nth| {
            let builder = Guest::builder(&format!("tmpfs-{name}-{nth}")).vmm(Vmm::Uml).memory(mib(256));
            builder.memory_dir(tmpfs.path())
        };
        let instances = crate::start(&part, (1..=3).map(instance));
        let daemon = managed.then(|| {
            let config = format!("mode = \"manage\"\nbudget = \"4 GiB\"\ndiscover = [\"tmpfs-{name}-*\"]\n");
            Daemon::start(part.path(), &config).unwrap()
        });
        // What the first one frees, its memory file keeps.
        let freed = fill(&instances[0], 3, 190, Some(20));
        instances[0].run(Ask::Cancel { job: freed.id() }, JOB).unwrap();
        let grows = instances[1].run(exercise::fill(5, 170, Some(20)), JOB);
        let Some(daemon) = daemon else {
            assert!(grows.is_err(), "the tmpfs held them all");
            until("its end", JOB, || Ok((!instances[1].alive()).then_some(()))).unwrap();
            continue;
        };
        verified(&instances[1], grows.unwrap());
        instances.iter().for_each(unhurt);
        let status = daemon.command(&["status"]).unwrap();
        say(&status);
        assert!(status.contains("tmpfs"), "{status}");
        stopped(&part, daemon);
    }
}

/// Stops the daemon. It leaves no sockets.
fn stopped(run: &Run, daemon: Daemon) {
    daemon.stop().unwrap();
    let replies = std::fs::read_dir(run.path().join("mconsole")).map_or(0, Iterator::count);
    assert_eq!(replies, 0, "no sockets are left");
}
