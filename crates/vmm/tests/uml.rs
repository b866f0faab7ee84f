//! UML's backend with stand-ins that speak real mconsole: the way to a size, stopped instances, and hostile consoles.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::Tree;
use memtide_model::{Absence, Bytes, Fence, Request};
use memtide_stand_in::uml::{Machine, Manners, StandIn};
use memtide_vmm::uml::Uml;
use memtide_vmm::{Admitted, Fleet, Seen, Wish};

const FULL: Bytes = Bytes::from_mib(512);
const DEADLINE: Duration = Duration::from_millis(300);
const PLENTY: Duration = Duration::from_secs(10);

/// Instances `0`, `1`, … and a fleet that watches them.
struct Host {
    fleet: Fleet,
    consoles: Vec<StandIn>,
    directory: tempfile::TempDir,
    tree: Tree,
    /// Dropping it ends the runtime's thread.
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Host {
    fn new(instances: u32) -> Self {
        let (tree, directory) = (Tree::new(), tempfile::tempdir().unwrap());
        let consoles = (0..instances).map(|number| {
            let (name, pid) = (number.to_string(), 100 + number);
            let home = directory.path().join(&name);
            fs::create_dir_all(&home).unwrap();
            fs::write(home.join("pid"), pid.to_string()).unwrap();
            tree.add_uml(pid, &name, directory.path(), FULL.whole_mib());
            StandIn::start(&home.join("mconsole"), FULL).unwrap()
        });
        let consoles = consoles.collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || runtime.block_on(ended));
        let backend = Uml::new(tree.root(), directory.path().join("replies")).played_here();
        let fleet = Fleet::start(handle, vec![Box::new(backend)], Admitted::named(&["*"]), |_| {});
        Self { fleet, consoles, directory, tree, _end: end }
    }

    /// The processor time of an instance's kernel. Without a call before the first observation, the host does not tell it.
    fn runs_for(&self, number: u32, nanos: u64) {
        let process = self.tree.root().join((100 + number).to_string());
        fs::create_dir_all(process.join("task/0")).unwrap();
        fs::write(process.join("schedstat"), format!("{nanos} 0 1\n")).unwrap();
    }

    fn observe(&mut self) -> Vec<Seen> {
        self.fleet.observe(DEADLINE, |_| Some(Wish::default()))
    }

    /// Observes until `is_so` holds for the instance `number`.
    fn until(&mut self, number: usize, what: &str, is_so: impl Fn(&Seen, &Machine) -> bool) -> Seen {
        let begun = Instant::now();
        loop {
            let seen = self.observe();
            let one = &seen[number];
            if is_so(one, &self.consoles[number].machine()) {
                return one.clone();
            }
            assert!(begun.elapsed() < PLENTY, "still waiting until {number} {what}: {one:#?}");
        }
    }

    fn until_it_keeps(&mut self, number: usize, size: Bytes) -> Seen {
        self.until(number, &format!("keeps {size}"), |seen, _| keeps(seen) == Some(size))
    }

    fn set(&self, seen: &Seen, size: Bytes) -> Result<(), Absence> {
        self.fleet.request(&seen.found.id, Request::SetTarget(size), PLENTY)
    }
}

fn keeps(seen: &Seen) -> Option<Bytes> {
    seen.told.balloon.fresh().map(|balloon| balloon.actual)
}

#[test]
fn a_size_is_reached_without_further_requests_and_not_defended() {
    let mut host = Host::new(1);
    let seen = host.until_it_keeps(0, FULL);
    let size = Bytes::from_mib(200);
    host.set(&seen, size).unwrap();
    host.until(0, "was shrunk", |seen, machine| {
        machine.full.saturating_sub(machine.removed) == size && keeps(seen) == Some(size)
    });
    let stats = host.until_it_keeps(0, size).told.stats.fresh().copied().unwrap();
    assert_eq!(stats.total, Some(Bytes::from_mib(512 - 16 - 312)));
    // A person's `uml_mconsole 0 config mem=+100M`.
    let by_person = size.saturating_add(Bytes::from_mib(100));
    host.consoles[0].machine().removed = FULL.saturating_sub(by_person);
    for _ in 0..5 {
        host.until_it_keeps(0, by_person);
    }
    let seen = host.until_it_keeps(0, by_person);
    host.set(&seen, FULL).unwrap();
    host.until_it_keeps(0, FULL);
}

#[test]
fn a_reboot_is_told_once_and_gives_the_instance_all_its_memory() {
    let mut host = Host::new(1);
    let seen = host.until_it_keeps(0, FULL);
    assert!(!seen.told.reset, "its first boot");
    let size = Bytes::from_mib(200);
    host.set(&seen, size).unwrap();
    host.until_it_keeps(0, size);
    host.consoles[0].machine().reboots();
    let seen = host.until(0, "has rebooted", |seen, _| seen.told.reset);
    assert_eq!(keeps(&seen), Some(FULL));
    let seen = host.until_it_keeps(0, FULL);
    assert!(!seen.told.reset);
    host.set(&seen, size).unwrap();
    let seen = host.until_it_keeps(0, size);
    assert!(!seen.told.reset);
}

#[test]
fn a_stopped_instance_is_fenced_until_it_goes_on() {
    let mut host = Host::new(1);
    let fence = |wanted: Option<Fence>| move |seen: &Seen, _: &Machine| seen.told.fence == wanted;
    host.until(0, "runs", fence(None));
    host.consoles[0].machine().is_stopped = true;
    host.until(0, "is fenced", fence(Some(Fence::Paused)));
    host.consoles[0].machine().is_stopped = false;
    host.until(0, "runs again", fence(None));
}

#[test]
fn an_instance_that_rests_is_not_asked_until_it_runs() {
    let mut host = Host::new(1);
    host.runs_for(0, 0);
    host.until_it_keeps(0, FULL);
    // As long a rest between two looks as a tick.
    let tick = Duration::from_millis(100);
    let mut ran = 0;
    let mut asked_in_ten_ticks = |host: &mut Host, nanos_a_tick: u64| {
        let before = host.consoles[0].machine().asked;
        for _ in 0..10 {
            std::thread::sleep(tick);
            ran += nanos_a_tick;
            host.runs_for(0, ran);
            assert_eq!(keeps(&host.observe()[0]), Some(FULL));
        }
        host.consoles[0].machine().asked - before
    };
    let (rests, works) = (asked_in_ten_ticks(&mut host, 50_000), asked_in_ten_ticks(&mut host, 5_000_000));
    assert!(rests <= 3 && works >= 10, "{rests} questions at rest, {works} at work");
    // It does not run at all: somebody may have stopped it.
    assert!(asked_in_ten_ticks(&mut host, 0) >= 10);
}

#[test]
fn a_hostile_console_hurts_nobody_else_and_is_fresh_once_it_behaves() {
    for manners in [
        Manners::Silent,
        Manners::Garbage,
        Manners::Half,
        Manners::Floods,
        Manners::Mixes,
        Manners::OtherVersion,
        Manners::Late(DEADLINE),
    ] {
        let mut host = Host::new(2);
        host.until_it_keeps(0, FULL);
        let honest = host.until_it_keeps(1, FULL);
        host.consoles[0].machine().manners = manners;
        for size in [256, 400, 512].map(Bytes::from_mib) {
            host.set(&honest, size).unwrap_or_else(|why| panic!("{manners:?}: {why}"));
            host.until_it_keeps(1, size);
            let size = keeps(&host.observe()[0]);
            assert!(size.is_none_or(|size| size <= FULL), "{manners:?}: {size:?}");
        }
        host.consoles[0].machine().manners = Manners::Honest;
        host.until_it_keeps(0, FULL);
        let sockets = fs::read_dir(host.directory.path().join("replies")).unwrap().count();
        assert_eq!(sockets, 2, "{manners:?}: no socket is left behind");
    }
}
