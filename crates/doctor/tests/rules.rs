//! Rules: one change makes a healthy host unhealthy, and exactly one finding follows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::PathBuf;

use common::{found, guest, healthy, instance, mib};
use memtide_doctor::facts::{
    Configuration, Daemon, Facts, GuestFacts, ImageFacts, Journal, LeftBehind, OtherKind, OtherVmm,
    ProcessStatus, Sight, SocketTrouble, Swap, SwapKind, Thp, Trouble, Unmatched,
};
use memtide_doctor::{Finding, Severity, diagnose};
use memtide_host::{CgroupVersion, Limited, Locked};
use memtide_model::{
    Absence, Agent, Amount, Balloon, Bytes, Can, Config, Fence, GuestStats, KsmMode, KsmRun, KsmSettings,
    Mode, Outsider, Outsiders, Polling, Reading, Space, Span, TmpfsId, Withheld, name_matches,
};
use memtide_vmm::qemu::{
    Accel, Backing, BalloonArgument, Equipment, Launcher, MemoryArgument, MemoryBlock, Owner,
};

const PROBLEM: Severity = Severity::Problem;
const WARNING: Severity = Severity::Warning;
const HINT: Severity = Severity::Hint;

type Spoil = fn(&mut Facts);
type Spoiler = dyn Fn(&mut Facts);

fn first(facts: &mut Facts) -> &mut GuestFacts {
    &mut facts.guests[0]
}

/// The monitor of the first guest reported nothing.
fn absent(facts: &mut Facts, why: Absence) {
    untold(first(facts), why);
}

fn untold(guest: &mut GuestFacts, why: Absence) {
    guest.told.balloon = Reading::absent(why.clone());
    guest.told.stats = Reading::absent(why);
    guest.told.polling = Polling::Unknown;
}

fn equipment(facts: &mut Facts) -> &mut Equipment {
    first(facts).equipment.as_mut().unwrap()
}

fn status(facts: &mut Facts) -> &mut ProcessStatus {
    first(facts).status.as_mut().unwrap()
}

fn locked(facts: &mut Facts) -> &mut Locked {
    first(facts).locked.as_mut().unwrap()
}

fn thp(facts: &mut Facts) -> &mut Thp {
    facts.host.thp.as_mut().unwrap()
}

fn ksm(facts: &mut Facts) -> &mut KsmSettings {
    facts.host.ksm.as_mut().unwrap()
}

fn device(facts: &mut Facts) -> &mut BalloonArgument {
    equipment(facts).balloon.as_mut().unwrap()
}

fn fresh<T: std::fmt::Debug>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Fresh { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

fn balloon(facts: &mut Facts) -> &mut Balloon {
    fresh(&mut first(facts).told.balloon)
}

fn stats(facts: &mut Facts) -> &mut GuestStats {
    fresh(&mut first(facts).told.stats)
}

fn swap(kind: SwapKind) -> Swap {
    Swap { name: "/dev/vda2".to_owned(), kind, size: mib(1024), used: mib(0) }
}

fn limited(dir: &str, limit: u64, guests: &[usize]) -> Limited {
    Limited { dir: dir.into(), version: CgroupVersion::V2, limit: mib(limit), guests: guests.to_vec() }
}

/// This change of a healthy host gives exactly one finding, with `line` in its text.
#[track_caller]
fn gives(severity: Severity, rule: &str, line: &str, spoil: impl FnOnce(&mut Facts)) {
    let findings = found(spoil);
    assert_eq!(kinds(&findings), [(rule, severity)], "{findings:#?}");
    let all = text(&findings[0]);
    assert!(all.contains(line), "{rule}: no `{line}` in {all}");
    assert!(!findings[0].cost.is_empty(), "{rule} says what it costs");
}

fn rules(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.rule).collect()
}

fn kinds(findings: &[Finding]) -> Vec<(&'static str, Severity)> {
    findings.iter().map(|finding| (finding.rule, finding.severity)).collect()
}

fn text(finding: &Finding) -> String {
    let lines = finding.fixes.iter().flat_map(|fix| fix.lines.iter().chain([&fix.place]));
    lines.fold(format!("{}\n{}", finding.fact, finding.cost), |all, line| format!("{all}\n{line}"))
}

#[test]
fn a_healthy_host_lacks_nothing() {
    assert_eq!(diagnose(&healthy()), []);
    assert_eq!(found(|facts| facts.guests.clear()), []);
    // Swap in compressed memory is not on a disk.
    assert_eq!(found(|facts| facts.host.swaps = vec![swap(SwapKind::Zram)]), []);
}

#[test]
fn the_way_to_the_balloon() {
    gives(PROBLEM, "monitor.none", "-qmp unix:/run/vm/web1.qmp,server=on,wait=off", |facts| {
        absent(facts, Absence::NoControl)
    });
    gives(PROBLEM, "monitor.tcp", "-qmp unix:/run/vm/web1.qmp,server=on,wait=off", |facts| {
        absent(facts, Absence::NoControl);
        first(facts).tcp_monitors = vec!["tcp:localhost:4444".to_owned()];
    });
    gives(PROBLEM, "monitor.taken", "-qmp unix:/run/vm/web1-memtide.qmp,server=on,wait=off", |facts| {
        absent(facts, Absence::ControlTaken)
    });
    gives(PROBLEM, "monitor.taken", "Incus keeps its monitor for itself", |facts| {
        absent(facts, Absence::NoControl);
        first(facts).process.reads_files = true;
        first(facts).launch.by = Launcher::Incus;
    });
    gives(PROBLEM, "monitor.silent", "/run/vm/web1.qmp cannot be used", |facts| {
        absent(facts, Absence::Timeout)
    });
    gives(PROBLEM, "monitor.relative", "qmp = \"/DIR/vm.qmp\"", |facts| {
        absent(facts, Absence::Disconnected);
        first(facts).left_behind = Some(LeftBehind { path: "vm.qmp".into(), found: None });
    });
    gives(HINT, "monitor.relative", "qmp = \"/srv/vm.qmp\"", |facts| {
        let found = Some("/srv/vm.qmp".into());
        first(facts).left_behind = Some(LeftBehind { path: "vm.qmp".into(), found });
    });
    gives(PROBLEM, "monitor.refuses", "does not report a balloon", |facts| {
        absent(facts, Absence::Unsupported)
    });
    gives(
        PROBLEM,
        "balloon.none",
        "-device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on",
        |facts| {
            equipment(facts).balloon = None;
            absent(facts, Absence::NoBalloon);
        },
    );
    gives(PROBLEM, "driver.none", "modprobe virtio_balloon", |facts| absent(facts, Absence::NoDriver));
    gives(PROBLEM, "driver.none", "does not answer", |facts| {
        first(facts).told.stats = Reading::absent(Absence::Silent)
    });
    gives(WARNING, "monitor.stopped", "kill -CONT 101", |facts| {
        absent(facts, Absence::ControlTaken);
        status(facts).stopped = true;
    });
    gives(WARNING, "sight.monitors", "sudo memtide doctor", |facts| absent(facts, Absence::Forbidden));
    gives(HINT, "driver.booting", "still booting", |facts| {
        absent(facts, Absence::NoDriver);
        first(facts).age = Some(Span::from_secs(5));
    });
    gives(HINT, "guest.paused", r#"{"execute":"cont"}"#, |facts| {
        first(facts).told.fence = Some(Fence::Paused)
    });
}

#[test]
fn what_an_agent_needs() {
    gives(HINT, "agent.none", "-device virtserialport,chardev=agent,name=org.memtide.agent.0", |facts| {
        first(facts).agent = None;
    });
    // A guest of libvirt with a second monitor, which memtide alone uses.
    let findings = found(|facts| {
        first(facts).agent = None;
        first(facts).owner = Owner::Libvirt;
    });
    let finding = findings.iter().find(|finding| finding.rule == "agent.none").unwrap();
    assert!(text(finding).contains("<target type='virtio' name='org.memtide.agent.0'/>"), "{finding:?}");
    gives(HINT, "agent.limited", "cannot trim (needs Linux 5.19)", |facts| {
        let cannot = [(Can::Trim, "needs Linux 5.19".to_owned()), (Can::Ages, "no debugfs".to_owned())];
        first(facts).told.agent = Reading::now(Agent { cannot: cannot.into(), ..Agent::default() });
    });
    gives(WARNING, "agent.silent", "systemctl enable --now memtide-agent", |facts| {
        first(facts).told.agent = Reading::absent(Absence::Silent);
    });
}

#[test]
fn what_the_balloon_can_do() {
    gives(WARNING, "balloon.deflate-on-oom", "deflate-on-oom=on", |facts| {
        balloon(facts).deflate_on_oom = false
    });
    gives(
        WARNING,
        "balloon.free-page-reporting",
        "-device virtio-balloon-ccw,id=balloon0,deflate-on-oom=on,free-page-reporting=on",
        |facts| {
            balloon(facts).free_page_reporting = false;
            device(facts).free_page_reporting = false;
            device(facts).driver = "virtio-balloon-ccw".to_owned();
        },
    );
    gives(WARNING, "balloon.free-page-reporting", "QEMU 4.2 does not have it", |facts| {
        balloon(facts).free_page_reporting = false;
        device(facts).free_page_reporting = false;
        first(facts).qemu = Some((4, 2));
    });
    gives(WARNING, "balloon.reporting-not-negotiated", "Linux 5.7", |facts| {
        balloon(facts).free_page_reporting = false
    });
    gives(WARNING, "driver.no-available", "Linux 4.6 or newer", |facts| stats(facts).available = None);
    gives(HINT, "statistics.seldom", "every 60.0 s", |facts| {
        first(facts).told.polling = Polling::Every(Span::from_secs(60))
    });
    gives(HINT, "statistics.off", r#""path":"/machine/peripheral/balloon0""#, |facts| {
        first(facts).told.polling = Polling::Off
    });
    for (daemon_runs, line) in [(false, "sudo memtide run --manage"), (true, "mode = \"manage\"")] {
        gives(HINT, "statistics.off", line, |facts| {
            first(facts).told.polling = Polling::Off;
            if daemon_runs {
                let (version, guests) = ("0.1.0".to_owned(), Default::default());
                facts.daemon = Daemon::Runs { version, mode: Mode::Observe, guests };
            }
        });
    }
    gives(HINT, "driver.no-stalls", "Linux 6.12 or newer", |facts| stats(facts).alloc_stalls = None);
    gives(HINT, "driver.no-stalls", "this one is 7.2", |facts| {
        stats(facts).alloc_stalls = None;
        first(facts).qemu = Some((7, 2));
    });
}

#[test]
fn statistics_are_memtides_own_affair_while_it_manages() {
    let findings = found(|facts| {
        facts.mode = Mode::Manage;
        first(facts).told.polling = Polling::Off;
    });
    assert_eq!(findings, []);
}

#[test]
fn memory_that_no_balloon_brings_back() {
    gives(PROBLEM, "pinned.device", "-device vfio-pci,host=0000:65:00.0", |facts| {
        equipment(facts).pinning = vec!["vfio-pci 0000:65:00.0".to_owned()]
    });
    gives(PROBLEM, "pinned.confidential", "manage = false", |facts| {
        equipment(facts).confidential = Some("sev-guest".to_owned())
    });
    gives(PROBLEM, "pinned.locked", "-overcommit mem-lock=off", |facts| equipment(facts).mem_lock = true);
    gives(PROBLEM, "pinned.locked", "1 GiB of its process are locked", |facts| {
        locked(facts).locked = mib(1024)
    });
    gives(PROBLEM, "pinned.huge-pages", "memory-backend-ram,id=mem0,size=1024M", |facts| {
        status(facts).huge = mib(512)
    });
    gives(PROBLEM, "pinned.huge-pages", "at /dev/hugepages", |facts| {
        first(facts).memory_files = vec![("/dev/hugepages".into(), Some("hugetlbfs".to_owned()))]
    });
    gives(PROBLEM, "pinned.huge-pages", r#"[class."fixed-web1"]"#, |facts| {
        equipment(facts).memory =
            vec![MemoryArgument { hugetlb: true, prealloc: true, ..MemoryArgument::default() }]
    });
    gives(WARNING, "pinned.file", "memory-backend-memfd", |facts| {
        first(facts).memory_files = vec![("/var/tmp/ram".into(), Some("ext4".to_owned()))]
    });
    gives(HINT, "memory.prealloc", "prealloc=on", |facts| equipment(facts).prealloc = true);
    let shared =
        found(|facts| first(facts).memory_files = vec![("/dev/shm/g".into(), Some("tmpfs".to_owned()))]);
    assert_eq!(shared, [], "shared memory is freed like any other");
}

#[test]
fn a_name_with_the_signs_of_patterns_is_no_pattern_for_other_guests() {
    for (name, pattern) in [("b-*", "b-?"), ("b-?", "b-?"), ("b[1]", "b?1]")] {
        let findings = found(|facts| {
            equipment(facts).mem_lock = true;
            first(facts).name = name.to_owned();
        });
        let class = findings[0].fixes.last().unwrap();
        assert!(class.lines[1].starts_with("# Each ? matches any character"), "{class:?}");
        assert_eq!(class.lines[2], format!("match = [\"{pattern}\"]"), "{name}");
        assert!(name_matches(pattern, name) && !name_matches(pattern, "b-web"), "{name}");
    }
    let plain = found(|facts| equipment(facts).mem_lock = true);
    assert!(!text(&plain[0]).contains("Each ?"), "{plain:#?}");
}

#[test]
fn a_few_locked_pages_are_nothing_unusual() {
    assert_eq!(found(|facts| locked(facts).locked = mib(2)), []);
}

#[test]
fn a_guest_that_is_left_alone_has_no_problems() {
    for spoil in [
        (|facts| absent(facts, Absence::NoControl)) as Spoil,
        |facts| equipment(facts).pinning = vec!["vfio-pci 0000:65:00.0".to_owned()],
        |facts| equipment(facts).mem_lock = true,
        |facts| balloon(facts).deflate_on_oom = false,
        |facts| first(facts).told.polling = Polling::Off,
    ] {
        let findings = found(|facts| {
            spoil(facts);
            first(facts).managed = false;
        });
        assert_eq!(findings, []);
    }
}

#[test]
fn guests_of_libvirt_get_libvirts_lines_and_have_no_problems() {
    let findings = found(|facts| {
        for guest in &mut facts.guests {
            guest.owner = Owner::Libvirt;
            untold(guest, Absence::OwnedBy("libvirt".to_owned()));
        }
        first(facts).name = "a b".to_owned();
        equipment(facts).balloon = None;
        facts.guests[1].equipment.as_mut().unwrap().balloon.as_mut().unwrap().free_page_reporting = false;
    });
    assert_eq!(
        kinds(&findings),
        [("balloon.none", WARNING), ("balloon.free-page-reporting", WARNING), ("libvirt.not-managed", HINT)]
    );
    let all: String = findings.iter().map(text).collect();
    assert!(all.contains("virsh edit 'a b'"), "{all}");
    assert!(all.contains(
        "<memballoon model='virtio' autodeflate='on' freePageReporting='on'><stats period='1'/></memballoon>"
    ));
    assert!(all.contains("virsh dommemstat --period 1 'a b' --live --config"), "{all}");
    assert!(!all.contains("-qmp") && !all.contains("-device"), "{all}");
}

#[test]
fn the_hosts_memory() {
    gives(WARNING, "swap.disk", "swapoff /dev/vda2", |facts| facts.host.swaps = vec![swap(SwapKind::Disk)]);
    gives(WARNING, "swap.guest", "100 MiB of it are in the host's swap", |facts| {
        status(facts).swapped = mib(100)
    });
    gives(WARNING, "overcommit.strict", "1.07 GiB of 4 GiB are left", |facts| {
        facts.host.overcommit = Some(2)
    });
    gives(HINT, "swap.disk", "sysctl -w vm.swappiness=1", |facts| {
        facts.host.swaps = vec![swap(SwapKind::Disk)];
        facts.host.zswap = true;
    });
    gives(HINT, "swap.disk", "writes back to a disk", |facts| {
        facts.host.swaps = vec![swap(SwapKind::ZramWithDisk)]
    });
    gives(HINT, "memory.min-free", "vm.min_free_kbytes=83886", |facts| facts.host.min_free = Some(mib(1024)));
    gives(HINT, "memory.huge-pool", "sysctl -w vm.nr_hugepages=0", |facts| facts.host.huge_pool = mib(2048));
    let torn = found(|facts| facts.host.torn = Some(mib(200)));
    assert_eq!((torn[0].rule, torn[0].severity), ("memory.torn", HINT));
    gives(WARNING, "memory.torn", "systemctl enable --now memtide", |facts| {
        facts.host.torn = Some(mib(200));
        facts.host.cannot_split = Some("this kernel has no process_madvise (Linux 5.10)".to_owned());
    });
    assert_eq!(found(|facts| facts.host.torn = Some(mib(60))), [], "a few are always there");
    let limits = found(|facts| {
        facts.host.swaps = vec![swap(SwapKind::Disk)];
        facts.cgroups.swap_limits = vec!["/sys/fs/cgroup/machine.slice".into(), "/sys/fs/cgroup/vm".into()];
    });
    let lines = &limits[0].fixes[0].lines;
    assert_eq!(lines[0], "systemctl set-property machine.slice MemorySwapMax=0");
    assert_eq!(lines[1], "echo 0 > /sys/fs/cgroup/vm/memory.swap.max");
    let kept_out = found(|facts| {
        facts.host.swaps = vec![swap(SwapKind::Disk)];
        facts.cgroups.never_swapped = vec![0, 1];
    });
    assert_eq!(kept_out, [], "guests that may not be swapped are not concerned");
}

#[test]
fn the_hosts_kernel() {
    gives(WARNING, "kernel.no-pressure", "psi=1", |facts| {
        facts.host.pressure = Sight::Unseen(Absence::Unsupported)
    });
    // 100,000 pages take a quarter of a second, then 20 ms of pause follow: 92 % of a CPU.
    gives(WARNING, "ksm.busy", "about 92 % of a CPU", |facts| {
        ksm(facts).run = KsmRun::Scanning;
        ksm(facts).pages_to_scan = 100_000;
    });
    gives(HINT, "kernel.old", "4.19", |facts| facts.host.release = Some("4.19.0-27-amd64".to_owned()));
    gives(HINT, "thp.never", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", |facts| {
        thp(facts).enabled = "never".to_owned()
    });
    gives(HINT, "thp.stalls", "echo defer+madvise", |facts| thp(facts).defrag = "always".to_owned());
    gives(HINT, "ksm.unmerges", "echo 0 > /sys/kernel/mm/ksm/run", |facts| ksm(facts).run = KsmRun::Unmerged);
    // 2 GiB are 524,288 pages: at 1 page in 20 ms 10,485 s.
    gives(HINT, "ksm.slow", "takes 174 minutes", |facts| {
        ksm(facts).run = KsmRun::Scanning;
        ksm(facts).pages_to_scan = 1;
    });
    gives(HINT, "ksm.guest-off", "-machine mem-merge=on", |facts| {
        ksm(facts).run = KsmRun::Scanning;
        equipment(facts).mem_merge = false;
    });
    // Between two bursts, and where somebody else switches it on and off, nothing scans.
    gives(HINT, "ksm.guest-off", "-machine mem-merge=on", |facts| {
        facts.host.ksm_saves = Some(mib(1));
        equipment(facts).mem_merge = false;
    });
    gives(HINT, "ksm.guest-off", "-machine mem-merge=on", |facts| {
        facts.config.ksm.mode = KsmMode::Govern;
        facts.config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().share = true;
        equipment(facts).mem_merge = false;
    });
    // What the process has marked counts more than its command line, and what its VMM tells counts most.
    gives(HINT, "ksm.guest-off", "-machine mem-merge=on", |facts| {
        facts.host.ksm_saves = Some(mib(1));
        first(facts).marked = Some(false);
    });
    let told = found(|facts| {
        facts.host.ksm_saves = Some(mib(1));
        equipment(facts).mem_merge = false;
        first(facts).marked = Some(false);
        first(facts).told.merges = Reading::now(true);
    });
    assert_eq!(told, []);
    let share = |facts: &mut Facts| {
        facts.config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().share = true;
    };
    gives(HINT, "ksm.guest-unmergeable", "share=on", |facts| {
        share(facts);
        first(facts).process.ram =
            vec![MemoryBlock { backing: Backing::Memfd, shared: true, ..MemoryBlock::default() }];
    });
    let huge = found(|facts| {
        share(facts);
        first(facts).memory_files = vec![("/dev/hugepages/web".into(), Some("hugetlbfs".to_owned()))];
    });
    let huge = huge.iter().find(|finding| finding.rule == "ksm.guest-unmergeable").unwrap();
    assert!(text(huge).contains("hugetlbfs pages: KSM cannot merge it"), "{huge:#?}");
    gives(HINT, "ksm.shares", "share = false", |facts| {
        facts.config.ksm.mode = KsmMode::Govern;
        facts.config.classes.get_mut(Config::DEFAULT_CLASS).unwrap().share = true;
    });
    // memtide cannot change what it does not manage.
    let foreign = found(|facts| {
        facts.config.ksm.mode = KsmMode::Govern;
        facts.guests.iter_mut().for_each(|guest| guest.managed = false);
    });
    let shares = foreign.iter().find(|finding| finding.rule == "ksm.shares").unwrap();
    assert!(
        text(shares).contains("-machine mem-merge=off") && !text(shares).contains("share = false"),
        "{shares:#?}"
    );
    gives(HINT, "tcg.code-buffer", "tb-size=64", |facts| first(facts).process.accel = Accel::Tcg);
    let shared = found(|facts| {
        thp(facts).enabled = "never".to_owned();
        for guest in &mut facts.guests {
            guest.process.ram =
                vec![MemoryBlock { backing: Backing::Memfd, shared: true, ..MemoryBlock::default() }];
        }
    });
    assert_eq!(shared, [], "anonymous huge pages are nothing to shared memory");
}

/// Puts the memory files into small tmpfs that only the instances see.
fn small(facts: &mut Facts, ids: [u64; 2]) {
    for (instance, id) in facts.instances.iter_mut().zip(ids) {
        let file = instance.file.as_mut().unwrap();
        file.directory = format!("/dev/shm/{id}").into();
        let tmpfs = file.tmpfs.as_mut().unwrap();
        (tmpfs.id, tmpfs.is_here) = (TmpfsId(id), false);
        tmpfs.space = Space { size: mib(250), free: mib(50) };
    }
}

/// Gives the first instance another file of the same size, and changes it. The other instance uses its image in the same way.
fn image(facts: &mut Facts, change: fn(&mut ImageFacts)) {
    let image = &mut facts.instances[0].images[0];
    (image.path, image.file, image.sample) = ("/srv/copy.img".into(), (1, 2), Some(2));
    change(image);
    facts.instances[1].images[0].is_backing = facts.instances[0].images[0].is_backing;
}

#[test]
fn what_uml_instances_lack() {
    let with = |spoil: fn(&mut Facts)| {
        move |facts: &mut Facts| {
            facts.instances = vec![instance("lab1", 201), instance("lab2", 202)];
            spoil(facts);
        }
    };
    assert_eq!(found(with(|_| ())), []);
    gives(
        PROBLEM,
        "uml.console",
        "/home/u/.uml/lab1/mconsole",
        with(|facts| facts.instances[0].has_console = false),
    );
    gives(
        PROBLEM,
        "uml.memory_on_disk",
        "export TMPDIR=/dev/shm",
        with(|facts| facts.instances[0].file.as_mut().unwrap().kind = Some("ext4".to_owned())),
    );
    gives(
        WARNING,
        "uml.tmpfs_small",
        "sudo mount -o remount,size=587M /dev/shm",
        with(|facts| {
            for instance in &mut facts.instances {
                let tmpfs = instance.file.as_mut().unwrap().tmpfs.as_mut().unwrap();
                tmpfs.space = Space { size: mib(500), free: mib(290) };
            }
        }),
    );
    gives(
        WARNING,
        "uml.tmpfs_small",
        "other files there hold 300 MiB",
        // 2 × 256 MiB of 1 GiB, of which each holds 100: other files hold 300, so 812 of 1024 is enough, and 212 more are not.
        with(|facts| {
            for instance in &mut facts.instances {
                let tmpfs = instance.file.as_mut().unwrap().tmpfs.as_mut().unwrap();
                tmpfs.space = Space { size: mib(800), free: mib(300) };
            }
        }),
    );
    gives(
        HINT,
        "uml.copies",
        "ubd0=NAME.cow,/srv/copy.img",
        with(|facts| image(facts, |image| image.is_backing = false)),
    );
    // The same content in two files: copies, also below COW files.
    gives(
        HINT,
        "uml.copies",
        "have the same content: /srv/copy.img, /srv/root.img",
        with(|facts| image(facts, |image| image.sample = Some(1))),
    );
    // Backing files of one size with different content are no copies. Nor is one file with two names.
    assert_eq!(found(with(|facts| image(facts, |image| image.is_backing = true))), []);
    assert_eq!(found(with(|facts| image(facts, |image| image.file = (1, 1)))), []);
    // Two directories of one tmpfs are one finding; two tmpfs at the same place in two mount namespaces are two.
    let one = found(with(|facts| small(facts, [26, 26])));
    assert_eq!(kinds(&one), [("uml.tmpfs_small", WARNING)]);
    let two = found(with(|facts| small(facts, [26, 27])));
    assert_eq!(kinds(&two), [("uml.tmpfs_small", WARNING); 2]);
    // Root runs nothing in a mount namespace of a user: the programs there are the user's.
    let said = text(&two[1]);
    assert!(said.contains("as its owner") && said.contains("export TMPDIR="), "{said}");
    assert!(["sudo", "nsenter", "remount"].iter().all(|word| !said.contains(word)), "{said}");
    let liar = found(with(|facts| {
        (facts.instances[0].memory, facts.instances[0].claims) = (mib(4), Some(mib(900 << 10)));
    }));
    assert_eq!(kinds(&liar), [("guest.claims", WARNING)]);
    let unmanaged = found(with(|facts| {
        facts.instances[0].has_console = false;
        facts.instances[0].managed = false;
    }));
    assert_eq!(kinds(&unmanaged), [("uml.console", WARNING)]);
}

#[test]
fn more_is_promised_than_there_is() {
    let many = |facts: &mut Facts| {
        // 9 GiB on 8.
        facts.guests = (0..9).map(|n| guest(&format!("web{n}"), 100 + n)).collect();
    };
    let findings = found(many);
    assert_eq!(rules(&findings), ["promises.unmanaged", "ksm.off"]);
    // 8 GiB less 5 %.
    assert!(
        findings[0].fact.contains("promised 9 GiB together, 1.40 GiB more than the 7.60 GiB"),
        "{}",
        findings[0].fact
    );
    assert!(findings[0].cost.contains("up to 1 GiB"), "{}", findings[0].cost);
    let managed = found(|facts| {
        many(facts);
        facts.daemon =
            Daemon::Runs { version: "0.1.0".to_owned(), mode: Mode::Manage, guests: Default::default() };
    });
    assert_eq!(rules(&managed), ["ksm.off"], "memtide is made for this");
    let fixed = found(|facts| {
        many(facts);
        facts.guests.iter_mut().for_each(|guest| guest.managed = false);
    });
    assert_eq!(rules(&fixed), ["promises.held", "ksm.off"]);
    assert_eq!(fixed[0].severity, PROBLEM);
}

#[test]
fn one_guest_is_no_plural() {
    let alone = |spoil: fn(&mut Facts)| {
        found(move |facts| {
            facts.guests.truncate(1);
            spoil(facts);
        })
    };
    let held = alone(|facts| {
        first(facts).full = mib(9216);
        first(facts).managed = false;
    });
    assert_eq!(held[0].fact, "1 guest that memtide can take nothing from was promised 9 GiB of 8 GiB");
    let unmanaged = alone(|facts| first(facts).full = mib(9216));
    assert!(unmanaged[0].fact.starts_with("the guest was promised 9 GiB, 1.40 GiB more"), "{unmanaged:#?}");
    let hidden = alone(|facts| absent(facts, Absence::Forbidden));
    assert!(text(&hidden[0]).contains("cannot reach the monitor of web1"), "{hidden:#?}");
    let nine = alone(|facts| facts.slow = (0..9).map(|n| format!("the mappings of web{n}")).collect());
    assert!(nine[0].fact.contains("web7 and 1 other took too long"), "{nine:#?}");
    let libvirts = alone(|facts| {
        first(facts).owner = Owner::Libvirt;
        absent(facts, Absence::OwnedBy("libvirt".to_owned()));
    });
    assert!(text(&libvirts[0]).contains("never connects to its monitor"), "{libvirts:#?}");
    let room = alone(|facts| {
        facts.instances = vec![instance("lab1", 201)];
        let tmpfs = facts.instances[0].file.as_mut().unwrap().tmpfs.as_mut().unwrap();
        tmpfs.space = Space { size: mib(200), free: mib(50) };
    });
    assert!(room[0].fact.contains("its UML instance may take 256 MiB"), "{room:#?}");
}

#[test]
fn guests_of_another_user_are_counted_as_they_are() {
    let outside = |count: u32| {
        found(|facts| {
            let all = (0..count).map(|n| Outsider::new("web", n, Some(1001)));
            facts.outsiders = Outsiders::of(all.collect());
        })
    };
    assert!(
        text(&outside(1)[0]).contains("counts its memory with the host's other use, and does not manage it")
    );
    let two = text(&outside(2)[0]);
    assert!(two.contains("belong to a user") && two.contains("does not manage them\n"), "{two}");
    let nine = text(&outside(9)[0]);
    assert!(nine.contains("; 1 more such guest is not listed"), "{nine}");
}

#[test]
fn a_reserve_that_leaves_nothing_is_a_problem() {
    let with_a_reserve_of =
        |gib: u64| found(|facts| facts.config.reserve = Amount::Bytes(Bytes::from_mib(gib * 1024)));
    let all = with_a_reserve_of(8);
    assert_eq!(kinds(&all)[0], ("promises.reserve", PROBLEM));
    assert!(
        text(&all[0]).contains("8 GiB leaves nothing of 8 GiB") && text(&all[0]).contains("reserve = \"5%\""),
        "{all:#?}"
    );
    let more = with_a_reserve_of(900);
    assert!(text(&more[0]).contains("900 GiB leaves nothing of 8 GiB"), "as it was written: {more:#?}");
    assert_eq!(with_a_reserve_of(4), []);
}

#[test]
fn limits_of_cgroups_that_memtide_does_not_guard() {
    let spoil = |list: &[(&str, u64, &[usize])], host: Option<(&str, u64)>| {
        found(|facts| {
            facts.cgroups.kill =
                list.iter().map(|(dir, limit, guests)| limited(dir, *limit, guests)).collect();
            facts.cgroups.small_host = host.map(|(dir, limit)| (PathBuf::from(dir), mib(limit)));
        })
    };
    let one = spoil(&[("/sys/fs/cgroup/vm.slice/web1.scope", 512, &[0])], None);
    assert_eq!(kinds(&one)[0], ("cgroup.limit", PROBLEM));
    assert!(text(&one[0]).contains("systemctl set-property web1.scope MemoryMax=infinity"), "{one:#?}");
    let plain = found(|facts| facts.cgroups.throttle = vec![limited("/sys/fs/cgroup/vm", 512, &[0])]);
    assert_eq!(kinds(&plain)[0], ("cgroup.high", WARNING));
    assert!(text(&plain[0]).contains("echo max > /sys/fs/cgroup/vm/memory.high"), "{plain:#?}");
    // The guest fits, but its QEMU does not fit beside it.
    let tight = found(|facts| {
        facts.cgroups.kill = vec![limited("/sys/fs/cgroup/nomad", 1024, &[0])];
        first(facts).overhead_bound = Some(mib(60));
    });
    assert_eq!(kinds(&tight)[0], ("cgroup.limit", PROBLEM));
    assert!(tight[0].fact.ends_with("the guest has 1 GiB, and QEMU may need 60 MiB more"), "{tight:#?}");
    // A slice for all guests has room for that, too.
    assert!(text(&tight[0]).contains("set-property guests.slice MemoryMax=2108M"), "{tight:#?}");
    // Each guest fits, but both together do not.
    let both = spoil(&[("/sys/fs/cgroup/a.slice", 1536, &[0, 1])], None);
    assert!(both[0].fact.contains("its guests web1, web2 were promised 2 GiB"), "{both:#?}");
    assert_eq!(spoil(&[("/sys/fs/cgroup/a.slice", 4096, &[0, 1])], None), [], "it is enough");
    // The limit far above the guest counts, too; of two, the nearest is told.
    let pod = "/sys/fs/cgroup/kubepods/pod7";
    let above = spoil(&[(pod, 1000, &[0]), ("/sys/fs/cgroup/kubepods/pod7/qemu", 4096, &[0])], None);
    assert!(above[0].fact.contains("its cgroup /sys/fs/cgroup/kubepods/pod7 is limited"), "{above:#?}");
    let two = spoil(&[(pod, 1000, &[0]), ("/sys/fs/cgroup/kubepods/pod7/qemu", 900, &[0])], None);
    assert_eq!(rules(&two), ["cgroup.limit"]);
    assert!(two[0].fact.contains("pod7/qemu is limited to 900 MiB"), "{two:#?}");
    // A cgroup above the guests' host has a higher limit.
    let above = spoil(&[("/sys/fs/cgroup/a", 1800, &[0, 1])], Some(("/sys/fs/cgroup/a/b", 1500)));
    // The guests were promised 2 GiB, and their host has 1.5.
    assert_eq!(rules(&above), ["promises.unmanaged", "ksm.off"]);
}

#[test]
fn a_template_is_a_problem_and_nobody_is_told_to_punch_holes_into_it() {
    gives(PROBLEM, "pinned.private-file", "/dev/shm/template", |facts| {
        spoil_balloon(facts);
        first(facts).withheld = Some(Withheld::PrivateFile("/dev/shm/template".to_owned()));
    });
    gives(PROBLEM, "pinned.withheld", "its memory is locked", |facts| {
        spoil_balloon(facts);
        first(facts).withheld = Some(Withheld::Locked);
    });
}

/// The balloon of the first guest lacks its options.
fn spoil_balloon(facts: &mut Facts) {
    let device = device(facts);
    (device.free_page_reporting, device.deflate_on_oom) = (false, false);
    let balloon = balloon(facts);
    (balloon.free_page_reporting, balloon.deflate_on_oom) = (false, false);
}

#[test]
fn free_page_reporting_is_not_advised_where_discarding_is_unsafe_or_in_vain() {
    let backing =
        |path: &str, shared| MemoryArgument { path: Some(path.into()), shared, ..MemoryArgument::default() };
    let unread = move |facts: &mut Facts, shared| {
        first(facts).mappings = Err(Absence::Forbidden);
        equipment(facts).memory = vec![backing("/srv/ram", shared)];
    };
    let unsafe_ones: Vec<Box<Spoiler>> = vec![
        Box::new(|facts| equipment(facts).pinning = vec!["vfio-pci 0000:65:00.0".to_owned()]),
        Box::new(|facts| equipment(facts).pinning = vec!["vhost-vdpa".to_owned()]),
        Box::new(|facts| equipment(facts).confidential = Some("tdx-guest".to_owned())),
        Box::new(|facts| equipment(facts).mem_lock = true),
        Box::new(|facts| locked(facts).locked = mib(1024)),
        Box::new(|facts| locked(facts).pinned = mib(1024)),
        Box::new(|facts| status(facts).huge = mib(512)),
        Box::new(|facts| first(facts).memory_files = vec![("/huge".into(), Some("hugetlbfs".into()))]),
        Box::new(|facts| {
            equipment(facts).memory = vec![MemoryArgument { hugetlb: true, ..MemoryArgument::default() }];
        }),
        Box::new(|facts| first(facts).withheld = Some(Withheld::PrivateFile("/t".to_owned()))),
        Box::new(|facts| first(facts).withheld = Some(Withheld::Pinned("by a device".to_owned()))),
        Box::new(move |facts| unread(facts, false)),
    ];
    for (number, spoil) in unsafe_ones.iter().enumerate() {
        for without_device in [false, true] {
            let findings = found(|facts| {
                spoil_balloon(facts);
                spoil(facts);
                if without_device {
                    equipment(facts).balloon = None;
                    absent(facts, Absence::NoBalloon);
                }
                first(facts).launch.by = Launcher::Kata;
            });
            let told = findings.iter().map(text).collect::<String>();
            let advises =
                ["free-page-reporting=on", "free-page-reporting\":true", "reclaim_guest_freed_memory"];
            assert!(!advises.iter().any(|line| told.contains(line)), "{number}: {told}");
        }
    }
    let safe = found(|facts| {
        spoil_balloon(facts);
        unread(facts, true);
    });
    assert!(safe.iter().any(|finding| finding.rule == "balloon.free-page-reporting"), "{safe:#?}");
}

#[test]
fn a_driver_without_statistics_is_there_if_its_balloon_moves() {
    gives(WARNING, "driver.no-statistics", "reports no statistics", |facts| {
        first(facts).told.stats = Reading::absent(Absence::Silent);
        balloon(facts).actual = mib(700);
    });
}

#[test]
fn what_runs_guests_and_is_not_counted_is_named() {
    let with = |kind, name: &'static str, pids: &'static [u32]| {
        move |facts: &mut Facts| facts.others = pids.iter().map(|&pid| other(pid, name, kind)).collect()
    };
    gives(
        WARNING,
        "vmm.not-counted",
        "Firecracker (processes 51, 52) runs guests",
        with(OtherKind::Known, "Firecracker", &[51, 52]),
    );
    gives(
        WARNING,
        "vmm.not-counted",
        "its growth is in no promise",
        with(OtherKind::Known, "VirtualBox", &[51]),
    );
    gives(WARNING, "vmm.not-counted", "name = \"vm-run\"", with(OtherKind::HoldsKvm, "vm-run", &[51]));
    gives(
        HINT,
        "vmm.device-model",
        "QEMU (process 51) is a device model of Xen",
        with(OtherKind::XenDeviceModel, "QEMU", &[51]),
    );
}

fn other(pid: u32, name: &str, kind: OtherKind) -> OtherVmm {
    OtherVmm { pid, name: name.to_owned(), kind, parent: None }
}

#[test]
fn what_could_not_be_seen_is_said() {
    gives(PROBLEM, "sight.no-processes", "cannot read /proc", |facts| {
        facts.no_guests = Some("cannot read /proc".to_owned())
    });
    gives(PROBLEM, "configuration.refused", "x:1:1: no", |facts| {
        facts.trouble = Some(Trouble::Refused("x:1:1: no".to_owned()))
    });
    gives(WARNING, "sight.mappings", "CAP_SYS_PTRACE", |facts| {
        first(facts).mappings = Err(Absence::Forbidden)
    });
    gives(WARNING, "sight.processes", "hidepid", |facts| {
        facts.user = 1000;
        facts.host.hides_processes = true;
    });
    gives(WARNING, "sight.daemon", "/run/m.sock", |facts| {
        facts.daemon = Daemon::Forbidden { socket: "/run/m.sock".into() }
    });
    gives(WARNING, "sight.daemon", "no daemon answers at /run/m.sock", |facts| {
        facts.daemon = Daemon::Silent { socket: "/run/m.sock".into() }
    });
    gives(WARNING, "sight.daemon", "sudo systemctl restart memtide", |facts| {
        facts.daemon = Daemon::Silent { socket: "/run/m.sock".into() }
    });
    gives(WARNING, "sight.daemon", "another version", |facts| {
        facts.daemon = Daemon::Strange { socket: "/run/m.sock".into(), why: "another version".to_owned() }
    });
    gives(WARNING, "sight.cgroups", "web1: no", |facts| facts.cgroups.unseen = vec!["web1: no".to_owned()]);
    gives(WARNING, "sight.configuration", "x: no", |facts| {
        facts.trouble = Some(Trouble::Unreadable("x: no".to_owned()))
    });
    gives(WARNING, "sight.slow", "the mappings of evil (process 7) took too long to read", |facts| {
        facts.slow = vec!["the mappings of evil (process 7)".to_owned()];
    });
    gives(WARNING, "guest.unmatched", "process 7 listens there, and runs no guest", |facts| {
        let why = SocketTrouble::NoGuest(7);
        facts.unmatched = vec![Unmatched { name: "db".to_owned(), qmp: "/run/a".into(), why }];
    });
    gives(WARNING, "journal.room", r#"journal = { dir = "/var/j", max = "50 MiB" }"#, |facts| {
        facts.host.journal = Some(Journal { dir: "/var/j".into(), free: mib(100), needed: mib(256) })
    });
    gives(WARNING, "guest.unmatched", "-qmp unix:/run/a,,b,server=on,wait=off", |facts| {
        facts.unmatched =
            vec![Unmatched { name: "db".to_owned(), qmp: "/run/a,b".into(), why: SocketTrouble::Gone }]
    });
}

#[test]
fn mends_name_the_configuration_that_was_named() {
    let spoils: &[Spoil] = &[
        |facts| absent(facts, Absence::ControlTaken),
        |facts| equipment(facts).mem_lock = true,
        |facts| facts.trouble = Some(Trouble::Refused("no".to_owned())),
        |facts| facts.trouble = Some(Trouble::Unreadable("no".to_owned())),
        |facts| facts.host.journal = Some(Journal { dir: "/var/j".into(), free: mib(1), needed: mib(2) }),
        |facts| {
            facts.unmatched =
                vec![Unmatched { name: "db".into(), qmp: "/q".into(), why: SocketTrouble::Gone }]
        },
        |facts| facts.daemon = Daemon::Silent { socket: "/run/m.sock".into() },
        |facts| first(facts).mappings = Err(Absence::Forbidden),
        |facts| first(facts).told.polling = Polling::Off,
        |facts| facts.guests = (0..9).map(|n| guest(&format!("web{n}"), 100 + n)).collect(),
    ];
    for spoil in spoils {
        let findings = found(|facts| {
            facts.configuration = Configuration { path: "/srv/my hosts.toml".into(), is_named: true };
            spoil(facts);
        });
        let all: String = findings.iter().map(text).collect();
        assert!(all.contains("/srv/my hosts.toml"), "{all}");
        assert!(!all.contains("/etc/memtide"), "{all}");
    }
}

#[test]
fn who_may_not_look_is_not_told_of_problems() {
    // The path means something else in the guest's own mounts, which this user may not see.
    let findings = found(|facts| {
        absent(facts, Absence::Disconnected);
        first(facts).mappings = Err(Absence::Forbidden);
    });
    assert_eq!(findings.iter().map(|finding| finding.severity).max(), Some(WARNING), "{findings:#?}");
}

#[test]
fn a_device_that_was_plugged_in_later_may_be_there() {
    let findings = found(|facts| {
        equipment(facts).balloon = None;
        absent(facts, Absence::Forbidden);
    });
    assert_eq!(kinds(&findings), [("sight.monitors", WARNING), ("balloon.none", WARNING)]);
    let without_monitor = found(|facts| {
        equipment(facts).balloon = None;
        first(facts).monitors.clear();
        absent(facts, Absence::NoControl);
    });
    assert_eq!(without_monitor.iter().filter(|finding| finding.severity == PROBLEM).count(), 2);
}

#[test]
fn what_matters_most_comes_first() {
    let findings = found(|facts| {
        ksm(facts).run = KsmRun::Unmerged;
        facts.host.overcommit = Some(2);
        untold(&mut facts.guests[1], Absence::NoControl);
    });
    let severities: Vec<_> = findings.iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [PROBLEM, WARNING, HINT]);
}
