//! The fleet with many stand-ins, honest and hostile, used as the engine's thread uses it.

mod common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Process, Tree, wait_until};
use memtide_model::{Absence, Bytes, Capabilities, GuestId, Polling, Reading, Request, Span, Users};
use memtide_stand_in::qemu::{Behaviour, Machine, StandIn};
use memtide_vmm::qemu::{ConfiguredGuest, Qemu};
use memtide_vmm::{Admitted, Backend, Control, DiscoverError, Fleet, Found, Seen, WakeReason, Wish};
use serde_json::json;

/// The deadline for things that should work: long, because the machine may be busy.
const PLENTY: Duration = Duration::from_secs(60);

struct Host {
    handle: tokio::runtime::Handle,
    /// Dropping it ends the runtime's thread.
    _end: tokio::sync::oneshot::Sender<()>,
    tree: Tree,
    sockets: tempfile::TempDir,
    woken: Arc<Mutex<Vec<WakeReason>>>,
}

impl Host {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || runtime.block_on(ended));
        Self {
            handle,
            _end: end,
            tree: Tree::new(),
            sockets: tempfile::tempdir().expect("a temporary directory"),
            woken: Arc::default(),
        }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// Adds a guest with a process and a monitor.
    fn guest(&self, pid: u32, name: &str, behaviour: Behaviour) -> StandIn {
        let path = self.socket(name);
        let stand_in = StandIn::start(&path, Machine::new(512), behaviour).expect("a socket");
        self.tree.add_qemu(pid, name, &path);
        stand_in
    }

    fn fleet(&self, configured: &[(&str, PathBuf)]) -> Fleet {
        let woken = Arc::clone(&self.woken);
        let configured = configured
            .iter()
            .map(|(name, qmp)| ConfiguredGuest { name: (*name).to_owned(), qmp: qmp.clone() });
        let qemu = Qemu::new(self.tree.root(), configured);
        Fleet::start(self.handle.clone(), vec![Box::new(qemu)], Admitted::named(&["*"]), move |reason| {
            woken.lock().expect("no panic elsewhere").push(reason);
        })
    }

    /// How often an event of a guest has woken the engine.
    fn events(&self) -> usize {
        let woken = self.woken.lock().expect("no panic elsewhere");
        woken.iter().filter(|reason| matches!(reason, WakeReason::Event { .. })).count()
    }
}

fn observe(fleet: &mut Fleet, deadline: Duration) -> Vec<Seen> {
    fleet.observe(deadline, |_| Some(Wish::default()))
}

fn named<'a>(seen: &'a [Seen], name: &str) -> &'a Seen {
    seen.iter().find(|guest| guest.found.id.name() == name).unwrap_or_else(|| panic!("no guest {name}"))
}

fn actual(seen: &Seen) -> Option<u64> {
    seen.told.balloon.fresh().map(|balloon| balloon.actual.whole_mib())
}

#[test]
fn between_two_observations_only_those_are_asked_that_are_named() {
    let host = Host::new();
    let asked = host.guest(100, "asked", Behaviour::Honest);
    let left_alone = host.guest(101, "left-alone", Behaviour::Honest);
    let mut fleet = host.fleet(&[]);
    let seen = observe(&mut fleet, PLENTY);
    let id = named(&seen, "asked").found.id.clone();
    let before = [&asked, &left_alone].map(StandIn::commands_so_far);
    asked.change(|machine| machine.target = 300 << 20);
    asked.change(|machine| machine.actual = 300 << 20);
    fleet.ask(PLENTY, PLENTY, |guest| (*guest == id).then(Wish::default));
    assert_eq!(fleet.seen(&id).as_ref().and_then(actual), Some(300));
    assert!(asked.commands_so_far() > before[0]);
    assert_eq!(left_alone.commands_so_far(), before[1]);
}

#[test]
fn who_has_not_answered_yet_is_not_late_before_its_time() {
    let host = Host::new();
    let slow = host.guest(100, "slow", Behaviour::Honest);
    let mut fleet = host.fleet(&[]);
    let id = named(&observe(&mut fleet, PLENTY), "slow").found.id.clone();
    slow.behave(Behaviour::SilentAfterGreeting);
    fleet.ask(Duration::from_secs(2), Duration::from_millis(1), |_| Some(Wish::default()));
    let balloon = |fleet: &Fleet| fleet.seen(&id).expect("it is there").told.balloon;
    assert!(balloon(&fleet).fresh().is_some());
    wait_until("what is late is old", || balloon(&fleet).why_not() == Some(&Absence::Timeout));
}

#[test]
fn bad_guests_delay_nobody_beyond_the_deadline() {
    let host = Host::new();
    let bad = [
        ("taken", Behaviour::NoGreeting, Absence::ControlTaken),
        ("silent", Behaviour::SilentAfterGreeting, Absence::Timeout),
        ("garbage", Behaviour::Garbage, Absence::Malformed),
        ("endless", Behaviour::EndlessLine, Absence::Malformed),
        ("half", Behaviour::HalfMessage, Absence::Disconnected),
        ("ids", Behaviour::WrongIds, Absence::Timeout),
        ("types", Behaviour::WrongTypes, Absence::Malformed),
        ("refuse", Behaviour::Refuse, Absence::Refused("not  today".to_owned())),
    ];
    let mut stand_ins = Vec::new();
    for (pid, (name, behaviour, _)) in (100..).zip(&bad) {
        stand_ins.push(host.guest(pid, name, *behaviour));
    }
    for (pid, name) in (200..).zip(["flood", "good1", "good2"]) {
        let behaviour = if name == "flood" { Behaviour::EventFlood } else { Behaviour::Honest };
        stand_ins.push(host.guest(pid, name, behaviour));
    }
    let mut fleet = host.fleet(&[]);
    let deadline = Duration::from_secs(4);
    let begun = Instant::now();
    let seen = observe(&mut fleet, deadline);
    assert!(begun.elapsed() < deadline * 2, "{:?}", begun.elapsed());
    assert_eq!(seen.len(), 11);
    for (name, _, absence) in &bad {
        assert_eq!(named(&seen, name).told.balloon, Reading::absent(absence.clone()), "{name}");
    }
    for name in ["flood", "good1", "good2"] {
        assert_eq!(actual(named(&seen, name)), Some(512), "{name}");
    }
}

#[test]
fn a_guest_that_stops_answering_grows_old_and_is_not_asked_twice() {
    let host = Host::new();
    let stand_in = host.guest(100, "web", Behaviour::Honest);
    let mut fleet = host.fleet(&[("web", host.socket("web"))]);
    assert_eq!(actual(&observe(&mut fleet, PLENTY)[0]), Some(512));
    stand_in.behave(Behaviour::SilentAfterGreeting);
    let (short, asked_before) = (Duration::from_millis(100), stand_in.commands().len());
    let mut before = Span::ZERO;
    wait_until("the readings grow old", || {
        let Reading::Stale { value, age, why } = observe(&mut fleet, short)[0].told.balloon.clone() else {
            panic!("not stale")
        };
        assert_eq!((value.actual, why), (Bytes::from_mib(512), Absence::Timeout));
        assert!(age >= before, "{age} after {before}");
        before = age;
        age >= Span::from_millis(500)
    });
    // One exchange was sent. The monitor owes its answers, and nothing more is sent before they come.
    let asked: Vec<_> = stand_in.commands().split_off(asked_before);
    assert_eq!(asked.iter().filter(|name| *name == "query-balloon").count(), 1, "{asked:?}");
}

#[test]
fn changes_go_to_all_guests_at_once() {
    let host = Host::new();
    let good = host.guest(100, "good", Behaviour::Honest);
    let _silent = host.guest(101, "silent", Behaviour::SilentAfterGreeting);
    let mut fleet = host.fleet(&[]);
    let seen = observe(&mut fleet, Duration::from_millis(800));
    let (good_id, silent_id) =
        (named(&seen, "good").found.id.clone(), named(&seen, "silent").found.id.clone());
    let nobody = GuestId::new("nobody", 1, "b");
    let target = Request::SetTarget(Bytes::from_mib(256));
    let changes = [(silent_id, target), (nobody, target), (good_id.clone(), target)];
    let begun = Instant::now();
    let results = fleet.apply(&changes, Duration::from_secs(1));
    assert!(begun.elapsed() < PLENTY, "the silent one does not hold the others up");
    assert!(results[0].is_err());
    assert_eq!(results[1], Err(Absence::Gone));
    assert!(results[2].is_ok());
    assert_eq!(good.change(|machine| machine.target), 256 << 20);

    fleet.request(&good_id, Request::PollStats(Span::from_secs(2)), PLENTY).unwrap();
    fleet.request(&good_id, Request::SetTarget(Bytes::from_mib(300)), PLENTY).unwrap();
    let seen = observe(&mut fleet, Duration::from_millis(800));
    let good = named(&seen, "good");
    assert_eq!(actual(good), Some(300));
    assert_eq!(good.told.polling, Polling::Every(Span::from_secs(2)));
    assert!(good.told.stats.fresh().is_some());
}

#[test]
fn a_guest_of_libvirt_is_seen_and_left_alone() {
    let host = Host::new();
    let path = host.socket("monitor.sock");
    let stand_in = StandIn::start(&path, Machine::new(512), Behaviour::Honest).unwrap();
    let chardev = format!("socket,id=charmonitor,path={},server=on,wait=off", path.display());
    let args = [
        "qemu",
        "-name",
        "guest=lv",
        "-S",
        "-m",
        "256",
        "-chardev",
        &chardev,
        "-mon",
        "chardev=charmonitor,mode=control",
    ];
    host.tree.add(&Process { pid: 9, parent: 1, start: 3, comm: "qemu-system-x86", args: &args });
    // Even if the configuration names its monitor.
    let mut fleet = host.fleet(&[("lv", path)]);
    let seen = observe(&mut fleet, PLENTY);
    assert_eq!((seen[0].found.capabilities.can_be_set, seen[0].told.full), (true, Bytes::from_mib(256)));
    assert_eq!(seen[0].found.vmm.to_string(), "QEMU of libvirt");
    assert_eq!(seen[0].told.balloon, Reading::absent(Absence::OwnedBy("libvirt".to_owned())));
    let target = Request::SetTarget(Bytes::from_mib(128));
    let refused = fleet.request(&seen[0].found.id, target, PLENTY);
    assert_eq!(refused, Err(Absence::OwnedBy("libvirt".to_owned())));
    assert_eq!(stand_in.connections(), 0);
}

#[test]
fn a_configured_monitor_is_held_and_its_events_wake() {
    let host = Host::new();
    let stand_in = host.guest(100, "vm-17", Behaviour::Honest);
    let mut fleet = host.fleet(&[("web1", host.socket("vm-17")), ("missing", host.socket("missing"))]);
    let seen = observe(&mut fleet, PLENTY);
    assert_eq!((seen.len(), seen[0].found.id.name(), actual(&seen[0])), (1, "web1", Some(512)));
    assert!(stand_in.has_client());
    let missing =
        format!("[[guest]] missing: {}: {}", host.socket("missing").display(), Absence::Disconnected);
    assert_eq!(fleet.warnings(), [missing]);

    stand_in.event("BALLOON_CHANGE", &json!({"actual": 5}));
    wait_until("BALLOON_CHANGE wakes", || host.events() == 1);
    stand_in.event("RESET", &json!({}));
    wait_until("RESET wakes", || host.events() == 2);
    assert_eq!(stand_in.connections(), 1);
    assert_eq!(fleet.told_of().into_iter().collect::<Vec<_>>(), [seen[0].found.id.clone()]);
    assert!(fleet.told_of().is_empty());
}

#[test]
fn a_configured_guest_is_found_by_who_listens() {
    let host = Host::new();
    let path = host.socket("hidden");
    let _stand_in = StandIn::start(&path, Machine::new(512), Behaviour::Honest).unwrap();
    // The process has another name, and no monitor on its command line.
    let args = ["vmm-of-my-own", "-m", "512"];
    host.tree.add(&Process {
        pid: std::process::id(),
        parent: 1,
        start: 3,
        comm: "vmm-of-my-own",
        args: &args,
    });
    let mut fleet = host.fleet(&[("mine", path)]);
    let seen = observe(&mut fleet, PLENTY);
    assert_eq!(
        (seen.len(), seen[0].found.id.name(), seen[0].found.process.pid),
        (1, "mine", std::process::id())
    );
    assert_eq!(actual(&seen[0]), Some(512));
    assert!(fleet.warnings().is_empty());
}

#[test]
fn guests_come_and_go() {
    let host = Host::new();
    let _a = host.guest(100, "a", Behaviour::Honest);
    let mut fleet = host.fleet(&[]);
    assert_eq!(observe(&mut fleet, PLENTY).len(), 1);
    let _b = host.guest(101, "b", Behaviour::Honest);
    wait_until("b appears", || observe(&mut fleet, PLENTY).len() == 2);
    host.tree.remove(100);
    wait_until("a is gone", || observe(&mut fleet, PLENTY).iter().all(|seen| seen.found.id.name() == "b"));
}

#[test]
fn a_guest_of_another_user_is_listed_and_never_connected_to() {
    let host = Host::new();
    let _ours = host.guest(100, "ours", Behaviour::Honest);
    let theirs = host.guest(101, "theirs", Behaviour::Honest);
    let named_by_operator = host.guest(102, "theirs-too", Behaviour::Honest);
    let configured = ConfiguredGuest { name: "named".to_owned(), qmp: host.socket("theirs-too") };
    for (pid, user) in [(100, 0), (101, 1001), (102, 1001)] {
        host.tree.owned_by(pid, user);
    }
    let qemu = Qemu::new(host.tree.root(), [configured]);
    let of_system = Admitted { users: Some(Users::default()), ..Admitted::named(&["*"]) };
    let mut fleet = Fleet::start(host.handle.clone(), vec![Box::new(qemu)], of_system.clone(), |_| {});
    let seen = observe(&mut fleet, PLENTY);
    let users: Vec<_> = seen.iter().map(|seen| (seen.found.id.name(), seen.found.process.user)).collect();
    assert_eq!(users, [("named", Some(1001)), ("ours", Some(0))], "the configuration names one of theirs");
    let outsiders = fleet.outsiders().clone();
    let listed: Vec<_> = outsiders.listed.iter().map(|one| (one.name.as_str(), one.pid, one.user)).collect();
    assert_eq!((listed, outsiders.count), (vec![("theirs", 101, Some(1001))], 1));
    assert_eq!((theirs.connections(), named_by_operator.connections() > 0), (0, true));
    // The operator adds the user, and takes the line back.
    fleet.admit(Admitted { users: Some(Users::new(Vec::new(), vec![(0, 1001)])), ..of_system.clone() });
    wait_until("it is admitted", || observe(&mut fleet, PLENTY).len() == 3);
    assert_eq!(fleet.outsiders().count, 0);
    wait_until("it answers", || actual(named(&observe(&mut fleet, PLENTY), "theirs")) == Some(512));
    fleet.admit(of_system);
    wait_until("it is outside again", || observe(&mut fleet, PLENTY).len() == 2);
    assert_eq!(fleet.outsiders().count, 1);
}

/// A backend that finds one more guest at each look, and whose looks hang as long as its gate is shut.
struct Slow {
    gate: Arc<Mutex<()>>,
    found: Vec<Found>,
}

impl Backend for Slow {
    fn discover(&mut self, _ended: bool) -> Result<Option<Vec<Found>>, DiscoverError> {
        let _open = self.gate.lock().expect("no panic elsewhere");
        let number = self.found.len();
        self.found.push(Found {
            id: GuestId::new(&format!("slow-{number}"), 1, "boot"),
            vmm: memtide_model::Backend::new("slow"),
            capabilities: Capabilities::BALLOON,
            full: Bytes::from_mib(64),
            withheld: None,
            process: memtide_vmm::Process::default(),
            facts: Vec::new(),
            is_configured: false,
        });
        Ok(Some(self.found.clone()))
    }

    fn control(&mut self, _guest: &GuestId) -> Result<Box<dyn Control>, Absence> {
        Err(Absence::NoControl)
    }
}

#[test]
fn a_look_for_guests_that_hangs_holds_nobody_up() {
    let host = Host::new();
    let gate = Arc::<Mutex<()>>::default();
    let slow = Slow { gate: Arc::clone(&gate), found: Vec::new() };
    let looked = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&looked);
    let mut fleet =
        Fleet::start(host.handle.clone(), vec![Box::new(slow)], Admitted::named(&["*"]), move |reason| {
            counted.fetch_add(usize::from(reason == WakeReason::Looked), Ordering::Relaxed);
        });
    let count = |fleet: &mut Fleet| observe(fleet, Duration::ZERO).len();
    wait_until("the first look", || count(&mut fleet) > 0);
    let shut = gate.lock().expect("no panic elsewhere");
    // Looks are ordered every two seconds. Many observations pass while one hangs.
    let begun = Instant::now();
    let (mut observed, before) = (0, count(&mut fleet));
    while begun.elapsed() < Duration::from_secs(4) {
        observed += 1;
        let now = count(&mut fleet);
        assert!((before..=before + 1).contains(&now), "the known guests stay: {now} of {before}");
    }
    assert!(observed > 20, "{observed} observations in four seconds");
    let before_it = looked.load(Ordering::Relaxed);
    drop(shut);
    wait_until("the look that hung wakes", || looked.load(Ordering::Relaxed) > before_it);
    wait_until("a look after that", || count(&mut fleet) > before + 1);
}
