//! Facts of captured trees, with stand-ins for the monitors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{BALLOON, Tree, machine, mib};
use memtide_doctor::facts::{Daemon, Facts, Informant, NoSocket, OtherKind, SocketTrouble, SwapKind};
use memtide_doctor::{Question, Severity, diagnose, gather};
use memtide_model::{
    Absence, Backend, Balloon, Bytes, Capabilities, Cost, GuestId, GuestSeen, GuestStats, Mode, Polling,
    Reading, Span, Told, Users,
};
use memtide_stand_in::qemu::{Behaviour, Machine, StandIn};
use memtide_vmm::qemu::ConfiguredGuest;

fn look(question: Question) -> Facts {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(gather(question))
}

fn rules(facts: &Facts) -> Vec<&'static str> {
    diagnose(facts).iter().map(|finding| finding.rule).collect()
}

/// A tree with one QEMU.
fn one_guest() -> (Tree, StandIn) {
    let tree = Tree::new();
    let stand_in = tree.guest(41, "web", "web.qmp", &[]);
    (tree, stand_in)
}

#[test]
fn a_good_guest_is_asked_once_and_only_read() {
    let (tree, stand_in) = one_guest();
    let facts = look(tree.question());
    assert_eq!(rules(&facts), [""; 0]);
    assert_eq!((facts.guests[0].informant, facts.guests[0].full), (Informant::Monitor, mib(512)));
    assert_eq!(stand_in.connections(), 1);
    // The other side notices the end of the connection a little later.
    let begun = Instant::now();
    while stand_in.has_client() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the connection is closed");
        std::thread::yield_now();
    }
    let asks = |name: &String| name.starts_with("query-") || name.starts_with("x-query-");
    let reads =
        |name: &String| asks(name) || ["qmp_capabilities", "qom-list", "qom-get"].contains(&name.as_str());
    assert!(stand_in.commands().iter().all(reads), "{:?}", stand_in.commands());
}

#[test]
fn monitors_that_cannot_be_used_say_how() {
    for (behaviour, rule) in [
        (Behaviour::NoGreeting, "monitor.taken"),
        (Behaviour::SilentAfterGreeting, "monitor.silent"),
        (Behaviour::Garbage, "monitor.silent"),
        (Behaviour::Refuse, "monitor.refuses"),
    ] {
        let (tree, stand_in) = one_guest();
        stand_in.behave(behaviour);
        let facts = look(tree.question());
        assert_eq!(rules(&facts), [rule], "{behaviour:?}");
        assert_eq!(facts.guests[0].informant, Informant::Nobody, "{behaviour:?}: it told nothing");
    }
    let (tree, stand_in) = one_guest();
    drop(stand_in);
    assert_eq!(rules(&look(tree.question())), ["monitor.silent"]);
}

#[test]
fn a_monitor_that_writes_over_several_lines_is_named_with_the_line_that_replaces_it() {
    let tree = Tree::new();
    let path = tree.path().join("web.qmp");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            // As QEMU 10.0 begins.
            let _left = client.unwrap().write_all(b"{\r\n    \"QMP\": {\r\n        \"version\": {\r\n");
        }
    });
    let monitor = format!("unix:{},server=on,wait=off", path.display());
    tree.qemu(
        41,
        &["-name", "web", "-accel", "kvm", "-m", "512", "-device", BALLOON, "-qmp-pretty", &monitor],
    );
    let findings = diagnose(&look(tree.question()));
    assert_eq!(findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), ["monitor.pretty"]);
    assert!(findings[0].fact.contains("-qmp-pretty"), "{findings:#?}");
    assert_eq!(findings[0].fixes[0].lines, [format!("-qmp {monitor}")]);
}

#[test]
fn a_guest_that_only_the_configuration_names_is_asked() {
    let tree = Tree::new();
    let hidden = tree.path().join("hidden.qmp");
    let stand_in = StandIn::start(&hidden, machine(), Behaviour::Honest).unwrap();
    // No monitor is on its command line. This process is the one that listens.
    let device = "virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on";
    tree.qemu(std::process::id(), &["-name", "other", "-accel", "kvm", "-m", "512", "-device", device]);
    let mut question = tree.question();
    question.configured = vec![ConfiguredGuest { name: "mine".to_owned(), qmp: hidden }];
    let facts = look(question);
    let told = facts.guests.iter().map(|guest| (guest.name.as_str(), guest.informant)).collect::<Vec<_>>();
    assert_eq!(told, [("mine", Informant::Monitor)]);
    assert!(stand_in.commands().contains(&"query-balloon".to_owned()));
}

#[test]
fn a_guest_without_balloon_driver_or_statistics() {
    for (change, rule) in [
        ((|machine| machine.balloon = false) as fn(&mut Machine), "balloon.none"),
        (
            |machine| {
                machine.driver = false;
                machine.reset();
            },
            "driver.none",
        ),
        (|machine| machine.interval = 0, "statistics.off"),
        (|machine| machine.deflate_on_oom = false, "balloon.deflate-on-oom"),
        (|machine| machine.status = "paused".to_owned(), "guest.paused"),
    ] {
        let (tree, stand_in) = one_guest();
        stand_in.change(change);
        let facts = look(tree.question());
        assert_eq!((rules(&facts), facts.guests[0].informant), (vec![rule], Informant::Monitor));
    }
}

#[test]
fn a_guest_of_libvirt_is_never_connected_to() {
    let tree = Tree::new();
    let path = tree.path().join("monitor.sock");
    let chardev = format!("socket,id=charmonitor,path={},server=on,wait=off", path.display());
    let device = r#"{"driver":"virtio-balloon-pci","id":"balloon0","deflate-on-oom":true}"#;
    tree.qemu(
        41,
        &[
            "-name",
            "guest=eco2,debug-threads=on",
            "-S",
            "-accel",
            "kvm",
            "-m",
            "size=524288k",
            "-chardev",
            &chardev,
        ]
        .into_iter()
        .chain(["-mon", "chardev=charmonitor,id=monitor,mode=control", "-device", device])
        .collect::<Vec<_>>(),
    );
    let stand_in = StandIn::start(&path, machine(), Behaviour::Honest).unwrap();
    let facts = look(tree.question());
    assert_eq!(rules(&facts), ["libvirt.out-of-reach", "balloon.free-page-reporting"]);
    assert_eq!((facts.guests[0].informant, stand_in.connections()), (Informant::Nobody, 0));
}

fn seen(pid: u32) -> GuestSeen {
    GuestSeen {
        id: GuestId::new("web", 100, "b0071d"),
        pid,
        user: None,
        backend: Backend::new("QEMU"),
        capabilities: Capabilities::BALLOON,
        cost: Cost::of(Reading::now(mib(300)), Bytes::ZERO, mib(30), &Absence::Unsupported),
        tmpfs: None,
        withheld: None,
        told: Told {
            full: mib(512),
            claimed: false,
            balloon: Reading::now(Balloon {
                actual: mib(512),
                deflate_on_oom: true,
                free_page_reporting: true,
            }),
            hotplug: Reading::absent(Absence::Unsupported),
            stats: Reading::now(GuestStats {
                available: Some(mib(200)),
                alloc_stalls: Some(0),
                async_scans: Some(0),
                ..GuestStats::default()
            }),
            agent: Reading::unsupported(),
            disks: Reading::unsupported(),
            merges: Reading::unsupported(),
            polling: Polling::Every(Span::from_secs(1)),
            reset: false,
            fence: None,
            terms: None,
        },
    }
}

#[test]
fn what_the_daemon_knows_is_not_asked_again() {
    // The daemon holds the monitor, so nobody else gets a greeting.
    let (tree, stand_in) = one_guest();
    stand_in.behave(Behaviour::NoGreeting);
    let guests = BTreeMap::from([(41, seen(41))]);
    let daemon = Daemon::Runs { version: "0.1.0".to_owned(), mode: Mode::Observe, guests };
    let facts = look(Question { daemon, ..tree.question() });
    assert_eq!(rules(&facts), [""; 0]);
    assert_eq!((facts.guests[0].informant, stand_in.connections()), (Informant::Daemon, 0));
}

#[test]
fn guests_of_the_configuration_are_matched_by_their_socket() {
    let (tree, _stand_in) = one_guest();
    let at = |name: &str, file: &str| ConfiguredGuest { name: name.to_owned(), qmp: tree.path().join(file) };
    let configured = vec![at("shop", "web.qmp"), at("db", "db.qmp")];
    // Its own name does not matter, not even to `discover`.
    let facts = look(Question { configured, discover: vec!["none".to_owned()], ..tree.question() });
    assert_eq!(facts.guests[0].name, "shop");
    assert_eq!(rules(&facts), ["guest.unmatched"]);
    assert_eq!(facts.unmatched[0].name, "db");
    let facts = look(Question { discover: vec!["db-*".to_owned()], ..tree.question() });
    assert_eq!((facts.guests.len(), facts.left_out), (0, 1));
}

#[test]
fn a_guest_of_another_user_is_not_asked_and_is_told_with_the_line_that_admits_it() {
    let (tree, stand_in) = one_guest();
    let pid = 41;
    tree.file(&format!("proc/{pid}/status"), "Name:\tq\nUid:\t1001\t1001\t1001\t1001\n");
    tree.file("etc/passwd", "alice:x:1001:1001::/:\n");
    let facts = look(tree.question());
    assert_eq!((facts.guests.len(), facts.left_out, stand_in.connections()), (0, 0, 0));
    assert_eq!((rules(&facts), facts.outsiders.count), (vec!["users.outside"], 1));
    let finding = &diagnose(&facts)[0];
    assert!(finding.fact.contains("(process 41 of alice) belongs to a user outside"), "{}", finding.fact);
    assert_eq!(finding.fixes[0].lines, ["users = [\"system\", \"alice\"]"]);
    // The operator has named it, or it is of a user of the list.
    let configured = vec![ConfiguredGuest { name: "shop".to_owned(), qmp: tree.path().join("web.qmp") }];
    let facts = look(Question { configured, ..tree.question() });
    assert_eq!((facts.guests.len(), facts.outsiders.count), (1, 0));
    let mut question = tree.question();
    question.config.users = Users::new(Vec::new(), vec![(1001, 1001)]);
    let facts = look(question);
    assert_eq!((facts.guests.len(), facts.guests[0].user), (1, Some(1001)));
}

#[test]
fn a_guest_that_only_its_listening_socket_shows_is_shown() {
    let tree = Tree::new();
    let qmp = tree.path().join("passed.qmp");
    let _stand_in = StandIn::start(&qmp, machine(), Behaviour::Honest).unwrap();
    let configured = || vec![ConfiguredGuest { name: "db".to_owned(), qmp: qmp.clone() }];
    // No process of the tree listens there.
    let facts = look(Question { configured: configured(), ..tree.question() });
    assert_eq!((facts.guests.len(), rules(&facts)), (0, vec!["guest.unmatched"]));
    assert_eq!(facts.unmatched[0].why, SocketTrouble::NoGuest(std::process::id()));
    // A QEMU of another name got the socket from its parent.
    tree.qemu(std::process::id(), &["-name", "x", "-accel", "kvm", "-m", "512", "-device", BALLOON]);
    tree.file(&format!("proc/{}/comm", std::process::id()), "vm-runner\n");
    let facts = look(Question { configured: configured(), ..tree.question() });
    assert_eq!((facts.guests[0].name.as_str(), facts.guests[0].informant), ("db", Informant::Monitor));
    assert_eq!(rules(&facts), ["agent.none"]);
}

#[test]
fn a_relative_path_of_a_monitor_that_leads_nowhere_is_named_as_it_was_given() {
    let tree = Tree::new();
    let agent = ["-chardev", "socket,id=agent,path=/run/a.sock,server=on,wait=off"];
    let port = ["-device", "virtserialport,chardev=agent,name=org.memtide.agent.0"];
    let monitor = ["-qmp", "unix:daemon.qmp,server=on,wait=off", "-daemonize"];
    let args =
        [&["-name", "web", "-m", "512", "-accel", "kvm", "-device", BALLOON][..], &agent, &port, &monitor];
    tree.qemu(41, &args.concat());
    let cwd = tree.path().join("proc/41/cwd");
    std::fs::remove_file(&cwd).unwrap();
    std::os::unix::fs::symlink("/", &cwd).unwrap();
    let facts = look(tree.question());
    let findings = diagnose(&facts);
    assert_eq!(rules(&facts), ["monitor.relative"]);
    assert!(findings[0].fact.contains("its monitor, daemon.qmp, is relative"), "{findings:#?}");
}

#[test]
fn other_vmms_are_found_by_their_programs_and_by_what_they_hold() {
    let (tree, _stand_in) = one_guest();
    let process = |pid: u32, comm: &str, descriptors: &[&str]| {
        tree.file(&format!("proc/{pid}/comm"), format!("{comm}\n"));
        tree.file(&format!("proc/{pid}/cmdline"), format!("{comm}\0-m\0512\0"));
        tree.file(&format!("proc/{pid}/stat"), format!("{pid} ({comm}) S 1{}", " 0".repeat(20)));
        std::fs::create_dir_all(tree.path().join(format!("proc/{pid}/fd"))).unwrap();
        for (number, target) in descriptors.iter().enumerate() {
            let link = tree.path().join(format!("proc/{pid}/fd/{number}"));
            std::os::unix::fs::symlink(target, link).unwrap();
        }
    };
    process(51, "cloud-hyperviso", &["/dev/null", "anon_inode:kvm-vm"]);
    process(52, "firecracker", &["/dev/null"]);
    process(53, "VBoxHeadless", &[]);
    process(54, "my-vmm", &["anon_inode:kvm-vm"]);
    process(55, "bash", &["anon_inode:kvm-vcpu:0"]);
    process(56, "qemu-system-i38", &[]);
    tree.file("proc/56/cmdline", "qemu-system-i386\0-xen-domid\x007\0-machine\0xenfv\0-m\08184\0");
    let facts = look(tree.question());
    let seen: Vec<_> = facts.others.iter().map(|one| (one.pid, one.name.as_str(), one.kind)).collect();
    assert_eq!(
        seen,
        [
            (51, "cloud-hypervisor", OtherKind::Known),
            (53, "VirtualBox", OtherKind::Known),
            (54, "my-vmm", OtherKind::HoldsKvm),
            (56, "QEMU", OtherKind::XenDeviceModel),
        ]
    );
    assert_eq!((facts.guests.len(), facts.promised()), (1, mib(512)));
}

#[test]
fn a_qemu_of_another_name_that_only_people_or_tcp_reach_is_named_with_the_reason() {
    let (tree, _stand_in) = one_guest();
    let process = |pid: u32, size: u64, args: &[&str]| {
        tree.qemu(pid, &[&["-m", "512", "-machine", "q35"], args].concat());
        tree.file(&format!("proc/{pid}/comm"), "my-vm\n");
        let cmdline = std::fs::read_to_string(tree.path().join(format!("proc/{pid}/cmdline"))).unwrap();
        tree.file(&format!("proc/{pid}/cmdline"), cmdline.replace("qemu-system-x86_64", "my-vm"));
        tree.file(&format!("proc/{pid}/status"), format!("VmSize:\t{} kB\n", size << 10));
        std::fs::create_dir_all(tree.path().join(format!("proc/{pid}/fd"))).unwrap();
    };
    process(61, 700, &["-monitor", "unix:/run/hmp,server=on,wait=off"]);
    process(62, 700, &["-qmp", "tcp:localhost:4444,server=on"]);
    process(63, 700, &[]);
    // A program that only knows QEMU's arguments.
    process(64, 20, &["-monitor", "stdio"]);
    let facts = look(tree.question());
    let seen: Vec<_> = facts.others.iter().map(|one| (one.pid, one.name.as_str(), one.kind)).collect();
    let unknown = OtherKind::UnknownQemu;
    assert_eq!(
        seen,
        [
            (61, "my-vm", unknown(NoSocket::Hmp)),
            (62, "my-vm", unknown(NoSocket::Tcp)),
            (63, "my-vm", unknown(NoSocket::NoMonitor))
        ]
    );
    assert_eq!(rules(&facts), ["vmm.not-counted"; 3]);
    let findings = diagnose(&facts);
    assert!(findings[0].fact.contains("its QMP monitor is on TCP"), "{findings:#?}");
    assert!(findings[1].fact.contains("for people (HMP), not QMP"), "{findings:#?}");
    assert_eq!(findings[1].fixes[0].lines, ["-qmp unix:/run/vm/my-vm.qmp,server=on,wait=off"]);
}

#[test]
fn a_process_that_delays_its_reader_costs_its_own_facts_alone() {
    let (tree, _stand_in) = one_guest();
    let _other = tree.guest(42, "db", "db.qmp", &[]);
    let smaps = tree.path().join("proc/42/smaps");
    std::fs::remove_file(&smaps).unwrap();
    // Nobody ever writes to this pipe: opening it takes forever.
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &smaps, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let begun = Instant::now();
    let facts = look(tree.question());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    // The stand-ins do not go on reporting statistics meanwhile: that is another finding.
    assert!(rules(&facts).contains(&"sight.slow"), "{:?}", rules(&facts));
    assert_eq!(facts.slow, ["the mappings of db (process 42)"]);
    assert_eq!(facts.guests[0].mappings, Err(Absence::Overran));
    assert_eq!(facts.guests[0].informant, Informant::Monitor);
    assert_eq!(facts.guests[1].mappings, Ok(()));
}

#[test]
fn a_guest_whose_socket_is_a_file_is_given_no_line_that_would_delete_it() {
    let (tree, _stand_in) = one_guest();
    tree.file("passwd", "root");
    tree.file("directory/file", "");
    for name in ["passwd", "directory"] {
        let qmp = tree.path().join(name);
        let facts = look(Question {
            configured: vec![ConfiguredGuest { name: "db".to_owned(), qmp }],
            ..tree.question()
        });
        assert_eq!(facts.unmatched[0].why, SocketTrouble::NoSocket);
        let findings = diagnose(&facts);
        assert_eq!(findings[0].rule, "guest.unmatched");
        assert!(findings[0].fact.ends_with(": it is not a socket, and no QEMU can listen there"));
        let fixes = format!("{:?}", findings[0].fixes);
        assert!(fixes.contains("name another path") && !fixes.contains("-qmp"), "{fixes}");
    }
}

#[test]
fn the_settings_of_a_host_are_read() {
    let (tree, _stand_in) = one_guest();
    tree.file(
        "proc/swaps",
        "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 1048576 0 100\n/swap\\040file file 2097152 1024 -2\n",
    );
    tree.file("sys/block/zram0/backing_dev", "none\n");
    tree.file("proc/sys/vm/overcommit_memory", "2\n");
    tree.file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    tree.file("sys/kernel/mm/ksm/run", "2\n");
    tree.file("sys/kernel/mm/ksm/advisor_mode", "[none] scan-time\n");
    std::fs::remove_file(tree.path().join("proc/pressure/memory")).unwrap();
    let facts = look(tree.question());
    let kinds: Vec<_> =
        facts.host.swaps.iter().map(|swap| (swap.name.as_str(), swap.kind, swap.size)).collect();
    assert_eq!(kinds, [("/dev/zram0", SwapKind::Zram, mib(1024)), ("/swap file", SwapKind::Disk, mib(2048))]);
    assert_eq!(facts.host.kernel(), Some((6, 12)));
    assert_eq!(facts.host.commit, Some((mib(4096), mib(1024))));
    assert_eq!(facts.host.ksm.unwrap().advisor, Some(false));
    assert_eq!(
        rules(&facts),
        ["swap.disk", "overcommit.strict", "kernel.no-pressure", "thp.never", "ksm.unmerges"]
    );
    tree.file("sys/block/zram0/backing_dev", "/dev/vdb\n");
    tree.file("sys/module/zswap/parameters/enabled", "Y\n");
    let facts = look(tree.question());
    assert!(facts.host.zswap && facts.host.swaps[0].kind == SwapKind::ZramWithDisk);
}

#[test]
fn memory_on_huge_pages_and_in_a_cgroup_is_noticed() {
    let tree = Tree::new();
    let backend = "memory-backend-file,id=mem0,mem-path=/dev/hugepages/libvirt,size=512M,share=on";
    let _web = tree.guest(41, "web", "web.qmp", &["-object", backend]);
    let _db = tree.guest(42, "db", "db.qmp", &["-overcommit", "mem-lock=on"]);
    tree.file("proc/41/cgroup", "0::/vm.slice/web.scope\n");
    for (dir, max, high) in
        [("", "max", "max"), ("/vm.slice", "max", "max"), ("/vm.slice/web.scope", "268435456", "134217728")]
    {
        let dir = format!("sys/fs/cgroup{dir}");
        tree.file(&format!("{dir}/memory.max"), format!("{max}\n"));
        tree.file(&format!("{dir}/memory.high"), format!("{high}\n"));
        tree.file(&format!("{dir}/memory.current"), "1048576\n");
        if max != "max" {
            tree.file(&format!("{dir}/memory.swap.max"), "max\n");
        }
    }
    // The guest's memory is not marked for KSM, its video memory is.
    let mapping = |from: u64, mib: u64, flags: &str| {
        format!("{from:x}-{:x} rw-p 00000000 00:00 0 \nVmFlags: rd wr {flags} \n", from + (mib << 20))
    };
    tree.file("proc/42/smaps", mapping(1 << 30, 512, "dc") + &mapping(2 << 30, 16, "dc mg"));
    tree.file("sys/kernel/mm/ksm/pages_shared", "1\n");
    tree.file("sys/kernel/mm/ksm/pages_sharing", "0\n");
    let facts = look(tree.question());
    assert_eq!((facts.guests[0].marked, facts.guests[1].marked), (Some(false), Some(true)));
    assert_eq!(facts.host.ksm_saves, Some(mib(0)));
    assert_eq!(
        facts.guests[1].memory_files,
        [("/dev/hugepages/libvirt".into(), Some("hugetlbfs".to_owned()))]
    );
    assert_eq!([&facts.cgroups.kill, &facts.cgroups.throttle].map(|all| all[0].limit), [mib(256), mib(128)]);
    assert_eq!(rules(&facts), ["pinned.locked", "pinned.huge-pages", "cgroup.limit", "cgroup.high"]);
    // memtide guards the same limit on a cgroup that all guests share.
    tree.file("proc/42/cgroup", "0::/vm.slice/web.scope\n");
    let facts = look(tree.question());
    let (host, limit) = facts.cgroups.small_host.as_ref().unwrap();
    assert!(host.ends_with("vm.slice/web.scope") && *limit == mib(256), "{host:?} {limit}");
    assert!(!rules(&facts).contains(&"cgroup.limit"));
    assert_eq!(facts.cgroups.swap_limits, std::slice::from_ref(host));
}

#[test]
fn a_size_that_nobody_has_proved_counts_no_further_than_memory_is_mapped() {
    let (tree, _stand_in) = one_guest();
    tree.qemu(51, &["-name", "liar", "-accel", "kvm", "-m", "6G", "-device", BALLOON]);
    let liars = |facts: &Facts| {
        let liar = facts.guests.iter().find(|guest| guest.name == "liar").unwrap();
        let found = diagnose(facts).into_iter().find(|finding| finding.rule == "guest.claims");
        (liar.full, facts.promised(), found.map(|finding| finding.fact).unwrap_or_default())
    };
    // It has mapped all that it claims.
    let (all, promised, said) = liars(&look(tree.question()));
    assert_eq!((all, promised, said.as_str()), (mib(6144), mib(6656), ""));
    tree.mapping(51, mib(64));
    let (some, promised, said) = liars(&look(tree.question()));
    assert_eq!((some, promised), (mib(64), mib(576)));
    assert!(said.contains("claims 6 GiB, but its process has mapped only 64 MiB"), "{said}");
    // The daemon has bounded it in the same way.
    let mut known = seen(51);
    (known.told.full, known.told.claimed) = (mib(64), true);
    let guests = BTreeMap::from([(51, known)]);
    let daemon = Daemon::Runs { version: "0.1.0".to_owned(), mode: Mode::Observe, guests };
    let (some, _, told) = liars(&look(Question { daemon, ..tree.question() }));
    assert_eq!((some, told), (mib(64), said));
    // No guest is larger than the machine, whatever it has mapped.
    tree.file("proc/51/cmdline", "qemu-system-x86_64\0-name\0liar\0-accel\0kvm\0-m\x00900G\0");
    tree.mapping(51, mib(900 << 10));
    let (none, promised, said) = liars(&look(tree.question()));
    assert_eq!((none, promised), (mib(4), mib(516)));
    assert_eq!(said, "it claims 900 GiB, more than this machine has");
}

#[test]
fn memory_that_was_passed_as_a_descriptor_is_what_the_descriptor_leads_to() {
    let tree = Tree::new();
    let backend = "memory-backend-file,id=mem0,mem-path=/proc/self/fd/7,size=512M,share=on";
    let _web = tree.guest(41, "web", "web.qmp", &["-object", backend]);
    std::fs::create_dir_all(tree.path().join("proc/41/fd")).unwrap();
    let link = tree.path().join("proc/41/fd/7");
    let path = PathBuf::from("/proc/self/fd/7");
    for (target, kind, found) in [
        ("/memfd:ram (deleted)", None, None),
        ("/dev/shm/ram", Some("tmpfs"), None),
        ("/srv/ram", Some("ext4"), Some("pinned.file")),
    ] {
        let _first = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).unwrap();
        let facts = look(tree.question());
        assert_eq!(facts.guests[0].memory_files, [(path.clone(), kind.map(str::to_owned))], "{target}");
        assert_eq!(rules(&facts), found.into_iter().collect::<Vec<_>>(), "{target}");
    }
}

#[test]
fn nonsense_is_survived() {
    let tree = Tree::new();
    for file in
        ["meminfo", "swaps", "uptime", "self/mountinfo", "sys/vm/overcommit_memory", "pressure/memory"]
    {
        tree.file(&format!("proc/{file}"), b"\xff\x00nonsense -1 99999999999999999999 [ - : kB\n\n");
    }
    for file in ["transparent_hugepage/enabled", "ksm/run", "ksm/pages_to_scan"] {
        tree.file(&format!("sys/kernel/mm/{file}"), b"[\xff");
    }
    tree.qemu(
        41,
        &["-name", "\u{1b}[2Jweb\u{202e}", "-m", "x", "-device", "{", "-object", "{\"qom-type\":7}"],
    );
    for file in ["status", "cgroup"] {
        tree.file(&format!("proc/41/{file}"), b"\xff:\x00\nVmLck: many kB\n0::\n");
    }
    let facts = look(tree.question());
    let findings = diagnose(&facts);
    assert!(findings.iter().any(|finding| finding.severity == Severity::Problem), "{findings:#?}");
    // Without processes at all.
    let empty = Tree::new();
    std::fs::remove_file(empty.path().join("proc/sys/kernel/random/boot_id")).unwrap();
    assert_eq!(rules(&look(empty.question())), ["sight.no-processes"]);
}
