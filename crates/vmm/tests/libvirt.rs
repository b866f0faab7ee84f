//! The way to guests of libvirt: daemons that misbehave, are restarted or do not know a process, and other writers of the same balloon.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Tree, wait_until};
use memtide_model::{Absence, Bytes, Fence, Owner, Polling, Reading, Request, Span};
use memtide_stand_in::libvirt::{Behaviour, Daemon, Manners};
use memtide_vmm::libvirt::ConfiguredDaemon;
use memtide_vmm::qemu::Qemu;
use memtide_vmm::{Admitted, Fleet, Seen, WakeReason, Wish};

const FULL: Bytes = Bytes::from_mib(512);
/// The deadline for things that should work.
const PLENTY: Duration = Duration::from_secs(10);
/// The deadline for things that should not.
const SHORT: Duration = Duration::from_millis(500);
/// `DomainMemoryStats`.
const MEMORY_STATS: u32 = 159;

struct Host {
    fleet: Fleet,
    daemon: Daemon,
    tree: Tree,
    woken: Arc<Mutex<usize>>,
    _dir: tempfile::TempDir,
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Host {
    /// A host with these domains, whose processes are 4,000,001 and so on.
    fn new(names: &[&str]) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || runtime.block_on(ended));
        let dir = tempfile::tempdir().unwrap();
        let (daemon, tree) = (Daemon::start(dir.path()).unwrap(), Tree::new());
        for (pid, name) in (4_000_001..).zip(names) {
            let uuid = daemon.add(name, pid, FULL.get()).unwrap();
            tree.add_libvirt(pid, name, &uuid);
        }
        let daemons =
            vec![ConfiguredDaemon { socket: Some(daemon.socket().to_owned()), monitor_commands: false }];
        let qemu = Qemu::new(tree.root(), []).with_libvirt(daemons);
        let woken = Arc::<Mutex<usize>>::default();
        let count = Arc::clone(&woken);
        let fleet = Fleet::start(handle, vec![Box::new(qemu)], Admitted::named(&["*"]), move |reason| {
            *count.lock().unwrap() += usize::from(matches!(reason, WakeReason::Event { .. }));
        });
        Self { fleet, daemon, tree, woken, _dir: dir, _end: end }
    }

    fn observe(&mut self, deadline: Duration) -> Vec<Seen> {
        let wish = Wish { keep_open: true, ..Wish::default() };
        let begun = Instant::now();
        let seen = self.fleet.observe(deadline, |_| Some(wish));
        assert!(begun.elapsed() < deadline + Duration::from_secs(2), "{:?}", begun.elapsed());
        seen
    }

    fn find(&mut self, name: &str) -> Option<Seen> {
        self.observe(SHORT).into_iter().find(|seen| seen.found.id.name() == name)
    }

    fn of(&mut self, name: &str) -> Seen {
        self.find(name).unwrap()
    }

    /// Observes until the guest is as `is_so` says.
    fn until(&mut self, name: &str, what: &str, is_so: impl Fn(&Seen) -> bool) -> Seen {
        let begun = Instant::now();
        loop {
            let seen = self.find(name);
            if let Some(seen) = seen.as_ref().filter(|seen| is_so(seen)) {
                return seen.clone();
            }
            assert!(begun.elapsed() < PLENTY * 3, "still waiting until {name} {what}: {seen:#?}");
            std::thread::yield_now();
        }
    }

    fn until_it_keeps(&mut self, name: &str, size: Bytes) -> Seen {
        self.until(name, &format!("keeps {size}"), |seen| keeps(seen) == Some(size))
    }

    fn request(&self, seen: &Seen, request: Request) -> Result<(), Absence> {
        self.fleet.request(&seen.found.id, request, PLENTY)
    }
}

fn keeps(seen: &Seen) -> Option<Bytes> {
    seen.told.balloon.fresh().map(|balloon| balloon.actual)
}

#[test]
fn a_hostile_daemon_gains_no_guest_and_no_time() {
    for manners in [
        Manners::WantsPassword,
        Manners::Silent,
        Manners::Garbage,
        Manners::Endless,
        Manners::Half,
        Manners::Mixes,
        Manners::Lies,
    ] {
        let mut host = Host::new(&["a"]);
        host.daemon.behave(manners);
        for _ in 0..3 {
            let a = host.of("a");
            assert!(keeps(&a).is_none() && a.told.full == FULL, "{manners:?}: {a:#?}");
            assert!(matches!(a.told.balloon, Reading::Absent { .. }), "{manners:?}: {a:#?}");
        }
        host.daemon.behave(Manners::Honest);
        host.until_it_keeps("a", FULL);
    }
    let mut host = Host::new(&["a"]);
    host.daemon.behave(Manners::Floods);
    host.until_it_keeps("a", FULL);
}

#[test]
fn a_restarted_daemon_loses_nothing() {
    let mut host = Host::new(&["a"]);
    let a = host.until_it_keeps("a", FULL);
    assert_eq!(host.request(&a, Request::PollStats(Span::from_secs(1))), Ok(()));
    for round in 0..3 {
        let size = Bytes::from_mib(256 + round * 32);
        assert_eq!(host.request(&a, Request::SetTarget(size)), Ok(()));
        host.daemon.drop_clients();
        host.until_it_keeps("a", size);
    }
    assert_eq!(host.of("a").told.polling, Polling::Every(Span::from_secs(1)));
}

/// Anybody can write a command line with the identity of another domain.
#[test]
fn a_process_that_is_not_the_domains_is_never_moved() {
    let mut host = Host::new(&["a"]);
    host.until_it_keeps("a", FULL);
    let uuid = host.daemon.add("b", 4_000_009, FULL.get()).unwrap();
    host.tree.add_libvirt(4_000_010, "b", &uuid);
    let b = host.until("b", "is seen", |seen| seen.told.balloon.why_not() != Some(&Absence::NotYet));
    assert_eq!(b.told.balloon, Reading::absent(Absence::OwnedBy("libvirt".to_owned())));
    assert!(host.request(&b, Request::SetTarget(Bytes::from_mib(128))).is_err());
    assert_eq!(host.daemon.domain("b").unwrap().written, Vec::<u64>::new());
}

#[test]
fn a_balloon_that_virsh_moves_wakes_and_is_seen() {
    let mut host = Host::new(&["a"]);
    host.until_it_keeps("a", FULL);
    let before = *host.woken.lock().unwrap();
    let woken = Arc::clone(&host.woken);
    // Events come over a connection of their own, which may be later than the first answer.
    wait_until("an event", || {
        host.daemon.set_memory("a", 300 << 10);
        host.daemon.set_memory("a", 320 << 10);
        *woken.lock().unwrap() > before
    });
    host.until_it_keeps("a", Bytes::from_mib(320));
}

/// A frozen QEMU holds up calls about its own domain. There is never more than one of them, and the others go on, however many are frozen.
#[test]
fn frozen_domains_hold_up_nobody_else() {
    let names: Vec<String> = (0..12).map(|number| format!("frozen-{number:02}")).collect();
    let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
    all.push("other");
    let mut host = Host::new(&all);
    for name in &all {
        host.until_it_keeps(name, FULL);
    }
    names.iter().for_each(|name| host.daemon.change(name, |domain| domain.behaviour = Behaviour::Frozen));
    host.until("frozen-11", "is silent", |seen| keeps(seen).is_none());
    let before = host.daemon.calls(MEMORY_STATS);
    for _ in 0..20 {
        host.until_it_keeps("other", FULL);
    }
    let calls = host.daemon.calls(MEMORY_STATS) - before;
    assert!(calls <= 20 + 12 + 20, "frozen domains are asked again and again: {calls}");
    names.iter().for_each(|name| host.daemon.change(name, |domain| domain.behaviour = Behaviour::Good));
    for name in &names {
        host.until_it_keeps(name, FULL);
    }
}

/// libvirt's statistics have no scans.
#[test]
fn what_a_domain_reads_from_its_disks_is_told() {
    let mut host = Host::new(&["reads"]);
    host.daemon.change("reads", |domain| (domain.period, domain.disk_reads) = (1, 5 << 20));
    let told = host.until("reads", "has read", |seen| seen.told.disks.fresh().is_some()).told;
    assert_eq!(told.disks.fresh().map(|disks| disks.bytes), Some(Bytes::from_mib(5)));
}

/// Of a daemon that only lets memtide read, guests are seen and left alone.
#[test]
fn a_daemon_that_lets_memtide_read_is_read() {
    let mut host = Host::new(&["a"]);
    host.daemon.behave(Manners::OnlyReads);
    let a = host.until_it_keeps("a", FULL);
    assert_eq!(a.told.fence, Some(Fence::Owned(Owner::LibvirtLetsRead)));
    assert_eq!(host.request(&a, Request::SetTarget(Bytes::from_mib(128))), Err(Absence::Forbidden));
    assert_eq!(host.daemon.domain("a").unwrap().written, Vec::<u64>::new());
}
