//! The policies of the founding text of UML's memory management, each a configuration in `docs/policies`, on real instances.
//!
//! Each run is kept: its journal is a trace of its policy.

use std::fs;
use std::path::Path;
use std::time::Duration;

use memtide_lab::guest::disk::Disk;
use memtide_lab::guest::{self, Guest, Vmm};
use memtide_lab::machine::lab::Run;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::{fill, load, read_disk};
use memtide_load::helper::wire::Ask;
use memtide_model::Bytes;

use crate::{JOB, mib, prepare, the_lab, unhurt, until_explained, until_smaller};

/// The memory of each instance.
const MEMORY: Bytes = mib(256);
/// The disk of each instance, in MiB.
const DISK: u64 = 120;

/// The longest time until all have been squeezed by the clock: a round begins after minutes, and each of its steps is watched for 5 s.
const ROUNDS: Duration = Duration::from_secs(480);

/// Instances, and how their host is managed.
struct Host {
    run: Run,
    disk: Disk,
    instances: Vec<Guest>,
}

impl Host {
    fn new(policy: &str, names: &[&str]) -> Self {
        let run = prepare(&format!("test-{policy}"));
        let disk = Disk::ensure(the_lab().cache(), 41, DISK).unwrap();
        let builders = names.iter().map(|name| Guest::builder(name).vmm(Vmm::Uml).memory(MEMORY).disk(&disk));
        let instances = guest::start_all(builders, &run, None).unwrap();
        run.keep();
        Self { run, disk, instances }
    }

    /// memtide begins to manage the instances with a policy of `docs/policies`, on a host of this much memory.
    fn manage(&self, policy: &str, budget: Bytes) -> Daemon {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/policies/{policy}.toml"));
        let names: Vec<&str> = self.instances.iter().map(Guest::name).collect();
        let here = format!("budget = \"{} MiB\"\ndiscover = {names:?}\n", budget.whole_mib());
        Daemon::start(self.run.path(), &(here + &fs::read_to_string(file).unwrap())).unwrap()
    }

    /// An instance reads the disk once, and keeps it in its page cache.
    fn read(&self, instance: &Guest) {
        instance.run(read_disk(&self.disk, DISK, None), JOB).unwrap();
    }

    /// An instance reads the first part of the disk again and again.
    fn uses(&self, instance: &Guest, mib: u64) {
        let seed = self.disk.seed;
        let options = format!(
            "--kind cache --file /dev/vda --size {mib}M --seed {seed} --rate 10M --random --verify --duration 1h"
        );
        instance.begin(load(&options)).unwrap();
    }

    /// The end of a run.
    fn end(&self, daemon: Daemon) {
        self.instances.iter().for_each(unhurt);
        daemon.stop().unwrap();
        println!("{}", self.run.path().join("journal").display());
    }
}

/// Waits until `memtide explain` says this of an instance.
fn until_said(daemon: &Daemon, instance: &Guest, words: &str) {
    until_explained(daemon, instance.name(), words, ROUNDS, |explained| explained.contains(words));
}

pub fn an_instance_is_squeezed_until_it_squeals() {
    let host = Host::new("until-it-squeals", &["squeal-1"]);
    let instance = &host.instances[0];
    host.read(instance);
    host.uses(instance, 50);
    let daemon = host.manage("until-it-squeals", mib(1024));
    until_said(&daemon, instance, "squeezed by the clock");
    // Whether it reads again first, or waits for memory, depends on its kernel.
    until_explained(&daemon, instance.name(), "a squeal", ROUNDS, |explained| {
        ["squealed", "stalled"].iter().any(|words| explained.contains(words))
    });
    host.end(daemon);
}

pub fn instances_are_squeezed_by_the_clock() {
    let host = Host::new("by-the-clock", &["clock-1", "clock-2"]);
    let daemon = host.manage("by-the-clock", mib(1024));
    for instance in &host.instances {
        host.read(instance);
    }
    for instance in &host.instances {
        until_said(&daemon, instance, "squeezed by the clock");
        until_smaller(&daemon, instance.name(), mib(150), ROUNDS);
    }
    host.end(daemon);
}

pub fn an_idle_instance_gives_when_memory_is_short() {
    let host = Host::new("idle-gives", &["idle-1", "idle-2"]);
    let [idle, works] = &host.instances[..] else { unreachable!("two were started") };
    let freed = idle.run(fill(5, 150, None), JOB).unwrap();
    idle.run(Ask::Cancel { job: freed.id() }, JOB).unwrap();
    let daemon = host.manage("idle-gives", mib(380));
    works.run(fill(7, 130, Some(10)), JOB).unwrap();
    until_smaller(&daemon, idle.name(), mib(160), JOB);
    assert!(daemon.command(&["explain", idle.name()]).unwrap().contains("needed elsewhere"));
    host.end(daemon);
}

pub fn an_instance_gets_what_it_lacks_when_memory_is_ample() {
    let host = Host::new("ample-gives", &["ample-1"]);
    let instance = &host.instances[0];
    instance.set_target(mib(120)).unwrap();
    until("a small instance", JOB, || Ok((instance.actual()? <= mib(124)).then_some(()))).unwrap();
    let daemon = host.manage("ample-gives", mib(1024));
    instance.run(fill(7, 150, Some(20)), JOB).unwrap();
    until_said(&daemon, instance, "to spare");
    host.end(daemon);
}

pub fn an_expensive_instance_gets_more_than_a_cheap_one() {
    let host = Host::new("expensive-and-cheap", &["gold-1", "tin-1"]);
    let [gold, tin] = &host.instances[..] else { unreachable!("two were started") };
    let daemon = host.manage("expensive-and-cheap", mib(340));
    for instance in [gold, tin] {
        host.uses(instance, DISK);
    }
    until("more for the expensive one", JOB, || {
        let size = |instance: &Guest| Ok(daemon.guest(instance.name())?.status.report.actual);
        Ok((size(gold)? >= size(tin)?.saturating_add(mib(40))).then_some(()))
    })
    .unwrap();
    host.end(daemon);
}
