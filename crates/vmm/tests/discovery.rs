//! Discovery in trees like /proc.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::{Process, Tree};
use memtide_model::{Bytes, Users};
use memtide_vmm::Backend;
use memtide_vmm::qemu::{Accel, Discovery, Launcher, Qemu, QemuProcess, SetsBalloon, Source};

const QEMU: &str = "qemu-system-x86";

/// A guest as libvirt 9 starts it, without parts that say nothing about memory.
const LIBVIRT: &[&str] = &[
    "/usr/bin/qemu-system-x86_64",
    "-name",
    "guest=eco2,debug-threads=on",
    "-S",
    "-object",
    r#"{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/var/lib/libvirt/qemu/domain-2-eco2/master-key.aes"}"#,
    "-machine",
    "pc-q35-7.2,usb=off,dump-guest-core=off,memory-backend=pc.ram",
    "-accel",
    "tcg",
    "-cpu",
    "max",
    "-m",
    "size=1310720k",
    "-object",
    r#"{"qom-type":"memory-backend-memfd","id":"pc.ram","share":true,"x-use-canonical-path-for-ramblock-id":false,"size":1342177280}"#,
    "-overcommit",
    "mem-lock=off",
    "-uuid",
    "4dea22b3-1d52-d8f3-2516-782e98ab3fa0",
    "-no-user-config",
    "-nodefaults",
    "-chardev",
    "socket,id=charmonitor,fd=22,server=on,wait=off",
    "-mon",
    "chardev=charmonitor,id=monitor,mode=control",
    "-device",
    r#"{"driver":"virtio-balloon-pci","id":"balloon0","deflate-on-oom":true,"free-page-reporting":true,"bus":"pci.1"}"#,
];

fn qemu(pid: u32, args: &[&str]) -> Tree {
    let tree = Tree::new();
    tree.add(&Process { pid, parent: 1, start: 777, comm: QEMU, args });
    tree
}

fn scan(tree: &Tree) -> Vec<QemuProcess> {
    let mut discovery = Discovery::new(tree.root());
    discovery.scan().expect("a tree that can be read");
    discovery.processes().cloned().collect()
}

/// What people are told of the guest in a tree: subject, text and source.
fn told(tree: &Tree) -> Vec<String> {
    let found = Qemu::new(tree.root(), []).discover(true).expect("a tree that can be read").expect("news");
    let facts = found.iter().flat_map(|found| &found.facts);
    facts.map(|fact| format!("{}: {} ({})", fact.about, fact.says, fact.source)).collect()
}

#[test]
fn people_are_told_what_is_known_and_from_where() {
    let of_libvirt = told(&qemu(1, LIBVIRT));
    for fact in [
        "size: 1.25 GiB (the command line)",
        "RAM: base memory 1.25 GiB, a shared memfd (the command line)",
        "monitor: none: libvirt's daemon speaks for this guest (the command line)",
        "started by: libvirt (the command line)",
    ] {
        assert!(of_libvirt.contains(&fact.to_owned()), "{fact}: {of_libvirt:#?}");
    }
    let program = "/usr/bin/qemu-system-x86_64";
    let plain = told(&qemu(
        1,
        &[
            program,
            "-machine",
            "q35",
            "-device",
            "vfio-pci,host=65:00.0",
            "-qmp",
            "unix:/a\u{7}b,server=on",
            "-object",
            "memory-backend-file,id=m,size=64M,mem-path=/x,share=on",
            "-device",
            "ivshmem-plain,memdev=m",
        ],
    ));
    for fact in [
        "size: 128 MiB (a default of its VMM)",
        "RAM: base memory 128 MiB, anonymous (a default of its VMM)",
        "beside RAM: ivshmem 64 MiB, a shared mapping of /x (the command line)",
        "monitor: /a\\u{7}b (the command line)",
    ] {
        assert!(plain.contains(&fact.to_owned()), "{fact}: {plain:#?}");
    }
    assert!(plain.iter().any(|fact| fact.starts_with("gives back: nothing: a device pins")), "{plain:#?}");
    let many: Vec<String> =
        (0..20).map(|number| format!("memory-backend-ram,id=m{number},size=1M")).collect();
    let mut args = vec![program, "-m", "8"];
    args.extend(many.iter().flat_map(|backend| ["-object", backend]));
    let many = told(&qemu(1, &args));
    assert!(many.contains(&"RAM: 5 further pieces (the command line)".to_owned()), "{many:#?}");
}

#[test]
fn of_a_process_of_another_user_only_the_command_line_is_read() {
    let tree = qemu(7, &[QEMU, "-name", "theirs", "-m", "64", "-qmp", "unix:/run/q,server=on"]);
    let mut discovery = Discovery::new(tree.root());
    let nobody = Users::new(Vec::new(), Vec::new());
    discovery.admit(Some(nobody));
    discovery.scan().unwrap();
    let process = discovery.processes().next().unwrap();
    assert_eq!((process.id.name(), process.is_outside), ("theirs", true));
    assert!(process.monitors.is_empty() && process.bound.is_empty());
    discovery.admit(None);
    discovery.scan().unwrap();
    let process = discovery.processes().next().unwrap();
    assert!(!process.is_outside && process.monitors == [Path::new("/run/q")], "{process:?}");
}

#[test]
fn guests_are_named_by_name_else_uuid_else_process() {
    for (args, name) in [
        (&["qemu", "-name", "web", "-uuid", "u"][..], "web"),
        (&["qemu", "-uuid", "u"], "u"),
        (&["qemu", "-m", "512"], "qemu-42"),
    ] {
        let found = scan(&qemu(42, args));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id.name(), found[0].id.start(), found[0].pid), (name, 777, 42));
        assert_eq!(format!("{:?}", found[0].id), format!("{name}@777@b0071d"));
    }
}

#[test]
fn only_qemu_is_found_under_whatever_name_it_has() {
    let tree = Tree::new();
    let process = |pid, comm, args| Process { pid, parent: 1, start: 5, comm, args };
    tree.add(&process(10, "kvm", &["/usr/bin/kvm", "-id", "100", "-name", "proxmox"]));
    tree.add(&process(11, "kvm-nx-lpage-re", &[]));
    tree.add(&process(12, "kvm", &[]));
    tree.add(&process(13, "bash", &["bash", "qemu-system-x86_64"]));
    tree.add(&process(14, "renamed", &["/usr/bin/qemu-system-aarch64", "-name", "arm,process=renamed"]));
    symlink("/usr/bin/qemu-system-aarch64", tree.file(14, "exe")).unwrap();
    tree.add(&process(15, "qemu-img", &["qemu-img", "create"]));
    let names: Vec<_> = scan(&tree).iter().map(|found| found.id.name().to_owned()).collect();
    assert_eq!(names, ["proxmox", "arm"]);
}

/// What it is, its executable, its arguments, its descriptors, and whether it is a guest.
type Case<'a> = (&'a str, &'a str, &'a [&'a str], &'a [&'a str], bool);

#[test]
fn a_qemu_under_another_name_is_known_by_what_it_does() {
    let machine = ["my-vm", "-name", "renamed", "-m", "256", "-machine", "q35,accel=kvm"];
    let monitor = ["my-vm", "-name", "listens", "-m", "256", "-qmp", "unix:/run/q,server=on"];
    let kvm = "anon_inode:kvm-vm";
    let cases: &[Case<'_>] = &[
        ("a wrapped binary", "/nix/.qemu-system-x86_64-wrapped", &["x", "-name", "a"], &[], true),
        ("its argv[0]", "/usr/bin/python3", &["/opt/qemu-system-arm", "-name", "a"], &[], true),
        ("a machine of KVM", "/opt/my-vm", &machine, &["/dev/null", kvm], true),
        ("its own monitor", "/opt/my-vm", &monitor, &["socket:[77]"], true),
        ("a monitor of somebody else", "/opt/my-vm", &monitor, &["socket:[78]"], false),
        ("QEMU's arguments alone", "/usr/bin/strace", &machine, &["/dev/null"], false),
        ("a file with the name of a machine", "/opt/my-vm", &machine, &["/tmp/anon_inode:kvm-vm"], false),
        ("another VMM", "/usr/bin/lkvm", &["lkvm", "run", "--name", "a", "-m", "512"], &[kvm], false),
        (
            "a program called kvm",
            "/usr/local/bin/kvm",
            &["kvm", "-name", "a", "-m", "1G"],
            &["/dev/null"],
            false,
        ),
        ("a comm of QEMU alone", "/usr/bin/python3", &["python3", "x.py"], &[kvm], false),
        ("Proxmox's kvm", "/usr/bin/qemu-system-x86_64", &["/usr/bin/kvm", "-id", "100"], &[], true),
    ];
    for (what, exe, args, descriptors, is_guest) in cases {
        let tree = Tree::new();
        tree.add(&Process { pid: 10, parent: 1, start: 5, comm: QEMU, args });
        tree.link(10, "exe", exe);
        tree.open(10, descriptors);
        tree.list_listener(10, 77, "/run/q");
        assert_eq!(scan(&tree).len(), usize::from(*is_guest), "{what}");
    }
}

#[test]
fn a_renamed_qemu_is_found_once_it_listens() {
    let tree = Tree::new();
    let args = ["my-vm", "-m", "256", "-qmp", "unix:/run/q,server=on"];
    tree.add(&Process { pid: 10, parent: 1, start: 5, comm: "my-vm", args: &args });
    tree.link(10, "exe", "/opt/my-vm");
    tree.open(10, &["socket:[77]"]);
    let mut discovery = Discovery::new(tree.root());
    for _ in 0..40 {
        assert!(discovery.scan().unwrap().appeared.is_empty());
    }
    tree.list_listener(10, 77, "/run/q");
    assert!((0..16).any(|_| !discovery.scan().unwrap().appeared.is_empty()));
}

#[test]
fn a_guest_of_libvirt_is_marked_and_its_memory_is_known() {
    let found = scan(&qemu(7, LIBVIRT)).remove(0);
    assert_eq!((found.id.name(), found.launcher), ("eco2", Launcher::Libvirt));
    assert_eq!(found.facts.memory, Some(Bytes::from_mib(1280)));
    assert_eq!(found.facts.accel, Accel::Tcg);
    assert!(found.facts.ram[0].shared);
    assert_eq!(found.monitors, Vec::<PathBuf>::new());
}

/// Options as Incus writes them.
const INCUS: &str = r#"# Memory
[memory]
size = "768M"

[device "qemu_balloon"]
driver = "virtio-balloon-pci"

[chardev "monitor"]
backend = "socket"
path = "/run/incus/c1/qemu.monitor"
server = "on"

[mon]
chardev = "monitor"
mode = "control"

[chardev "memtide"]
backend = "socket"
path = "/run/incus/c1/c1-memtide.qmp"
server = "on"

[mon "memtide"]
chardev = "memtide"
mode = "control"
"#;

/// A process with its own root directory, which holds the file of options.
fn contained(args: &[&str]) -> (Tree, tempfile::TempDir) {
    let (tree, root) = (qemu(9, args), tempfile::tempdir().expect("a temporary directory"));
    fs::create_dir_all(root.path().join("run/incus/c1")).expect("a directory");
    fs::write(root.path().join("run/incus/c1/qemu.conf"), INCUS).expect("a file");
    symlink("/run", root.path().join("var")).expect("a link");
    for (link, to) in [("root", root.path().to_owned()), ("cwd", root.path().join("run/incus"))] {
        fs::remove_file(tree.file(9, link)).expect("a link");
        symlink(to, tree.file(9, link)).expect("a link");
    }
    (tree, root)
}

#[test]
fn a_file_of_options_is_read_as_the_process_sees_it() {
    for path in ["/run/incus/c1/qemu.conf", "/var/incus/c1/qemu.conf", "c1/qemu.conf", "./c1/qemu.conf"] {
        let (tree, root) = contained(&["qemu", "-name", "c1", "-readconfig", path]);
        let found = scan(&tree).remove(0);
        assert_eq!(found.facts.memory, Some(Bytes::from_mib(768)), "{path}");
        assert_eq!(found.facts.memory_source, Source::ConfigFile);
        assert!(!found.facts.reads_files && found.equipment.balloon.is_some());
        assert_eq!(found.monitor_source, Source::ConfigFile);
        // Incus holds its own one as long as the guest runs.
        assert_eq!(found.bound, [PathBuf::from("/run/incus/c1/c1-memtide.qmp")]);
        assert!(found.kept_monitors[0].ends_with("run/incus/c1/qemu.monitor"), "{found:?}");
        drop(root);
    }
}

#[test]
fn a_size_in_a_file_that_cannot_be_read_is_unknown() {
    for path in ["/run/incus/c1", "/run/other.conf", "../incus/c1/qemu.conf", "/proc/self/fd/0", ""] {
        let (tree, _root) = contained(&["qemu", "-name", "c1", "-readconfig", path]);
        let found = scan(&tree).remove(0);
        assert!(found.facts.reads_files && found.facts.is_of_unknown_size(), "{path}");
    }
}

#[test]
fn the_launcher_tells_who_sets_the_balloon() {
    let args = ["/usr/bin/kvm", "-id", "7", "-pidfile", "/var/run/qemu-server/7.pid", "-m", "512"];
    let found = scan(&qemu(7, &args)).remove(0);
    assert_eq!(found.launcher, Launcher::Proxmox);
    assert_eq!(
        (found.launcher.sets_balloon(), found.launcher.keeps_monitor()),
        (SetsBalloon::Perhaps, false)
    );
    let found = scan(&qemu(7, LIBVIRT)).remove(0);
    assert_eq!(found.launcher, Launcher::Libvirt);
    assert_eq!((found.launcher.sets_balloon(), found.launcher.keeps_monitor()), (SetsBalloon::No, true));
}

#[test]
fn memory_of_other_devices_is_told_apart_by_its_files() {
    let args = [
        "qemu",
        "-m",
        "256",
        "-device",
        "nvdimm,memdev=n",
        "-object",
        "memory-backend-file,id=n,mem-path=images/root.img,size=128M,share=on",
    ];
    let found = scan(&qemu(7, &args)).remove(0);
    let file = &found.device_files[0];
    // It is not there: nobody knows that it is on a disk.
    assert_eq!((file.path.as_path(), file.is_on_disk), ("/srv/vm/images/root.img".as_ref(), false));
    assert_eq!((found.facts.ram.len(), found.facts.device_memory.len()), (1, 1));
}

#[test]
fn what_looks_like_a_guest_and_is_none_is_left_out() {
    let tree = Tree::new();
    let probe = ["qemu", "-S", "-machine", "none,accel=kvm:tcg", "-daemonize"];
    tree.add(&Process { pid: 5, parent: 1, start: 1, comm: QEMU, args: &probe });
    // The launcher of -daemonize waits for its child.
    let daemon = ["qemu", "-name", "daemon", "-daemonize"];
    tree.add(&Process { pid: 20, parent: 1, start: 2, comm: QEMU, args: &daemon });
    tree.add(&Process { pid: 21, parent: 20, start: 3, comm: QEMU, args: &daemon });
    // A copy about to execute a helper.
    let plain = ["qemu", "-name", "plain"];
    tree.add(&Process { pid: 30, parent: 1, start: 4, comm: QEMU, args: &plain });
    tree.add(&Process { pid: 31, parent: 30, start: 5, comm: QEMU, args: &plain });
    let pids: Vec<_> = scan(&tree).iter().map(|found| found.pid).collect();
    assert_eq!(pids, [21, 30]);
}

#[test]
fn sockets_are_reached_from_here() {
    let args = ["qemu", "-qmp", "unix:/run/a,server=on", "-qmp", "unix:b.sock,server=on"];
    let tree = qemu(8, &args);
    assert_eq!(scan(&tree)[0].monitors, [PathBuf::from("/run/a"), "/srv/vm/b.sock".into()]);

    fs::remove_file(tree.file(8, "ns/mnt")).unwrap();
    symlink("mnt:[2]", tree.file(8, "ns/mnt")).unwrap();
    assert_eq!(scan(&tree)[0].monitors, [tree.file(8, "root/run/a"), tree.file(8, "cwd/b.sock")]);
}

#[test]
fn sockets_bound_before_a_chroot_are_reached_at_the_given_path() {
    let tree = qemu(8, &["qemu", "-qmp", "unix:/run/a,server=on"]);
    tree.link(8, "root", "/srv/jail");
    tree.link(8, "cwd", "/srv/jail");
    assert_eq!(scan(&tree)[0].monitors, [tree.file(8, "root/run/a"), PathBuf::from("/run/a")]);
}

#[test]
fn a_relative_path_is_looked_for_where_the_process_may_have_started() {
    let tree = qemu(8, &["qemu", "-daemonize", "-qmp", "unix:vm.qmp,server=on"]);
    tree.link(8, "cwd", "/");
    fs::write(tree.file(8, "environ"), "HOME=/root\0PWD=/srv/start\0OLDPWD=/x\0").unwrap();
    tree.open(8, &["/dev/null", "/var/log/vm/log", "/srv/disks/a.img", "/srv/disks/b.img", "pipe:[5]"]);
    let mut found = scan(&tree).remove(0);
    assert_eq!(found.bound, [PathBuf::from("vm.qmp")]);
    // Only the kernel lists descriptors in their order.
    found.monitors[2..].sort();
    let places = ["/vm.qmp", "/srv/start/vm.qmp", "/srv/disks/vm.qmp", "/var/log/vm/vm.qmp"];
    assert_eq!(found.monitors, places.map(PathBuf::from));
}

#[test]
fn a_relative_monitor_is_looked_for_at_few_places() {
    let monitors: Vec<String> = (0..8).map(|number| format!("unix:{number}.qmp,server=on")).collect();
    let args: Vec<&str> = ["qemu", "-daemonize"]
        .into_iter()
        .chain(monitors.iter().flat_map(|monitor| ["-qmp", monitor]))
        .collect();
    let tree = qemu(8, &args);
    tree.link(8, "cwd", "/");
    let files: Vec<String> = (0..50).map(|number| format!("/srv/{number}/disk")).collect();
    tree.open(8, &files.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(scan(&tree)[0].monitors.len(), 16);
}

#[test]
fn a_passed_descriptor_is_found_at_the_path_of_its_listener() {
    for args in [
        &["qemu", "-chardev", "socket,id=m,fd=1,server=on,wait=off", "-mon", "chardev=m,mode=control"][..],
        &["qemu", "-qmp", "unix:fd=1,server=on,wait=off"],
        &[
            "qemu",
            "-chardev",
            r#"{"id":"m","backend":{"type":"socket","data":{"addr":{"type":"fd","data":{"str":"1"}},"server":true}}}"#,
            "-mon",
            "m,mode=control",
        ],
    ] {
        let tree = qemu(8, args);
        tree.open(8, &["/dev/null", "socket:[77]"]);
        tree.list_listener(8, 77, "/run/passed.qmp");
        let found = scan(&tree).remove(0);
        assert_eq!(
            (&found.monitors, &found.bound),
            (&vec!["/run/passed.qmp".into()], &found.monitors),
            "{args:?}"
        );
        // Another socket than the one that listens.
        tree.list_listener(8, 78, "/run/passed.qmp");
        assert!(scan(&tree)[0].monitors.is_empty());
    }
}

#[test]
fn many_monitors_are_bounded() {
    let monitors: Vec<String> = (0..500).map(|number| format!("unix:/run/{number},server=on")).collect();
    let args = monitors.iter().flat_map(|monitor| ["-qmp", monitor]);
    let args: Vec<&str> = std::iter::once("qemu").chain(args).collect();
    assert_eq!(scan(&qemu(8, &args))[0].monitors.len(), 8);
}

#[test]
fn the_accelerator_is_looked_up_where_the_command_line_leaves_it_open() {
    let tree = qemu(9, &["qemu", "-machine", "q35,accel=kvm:tcg"]);
    fs::create_dir(tree.file(9, "fd")).unwrap();
    symlink("/dev/null", tree.file(9, "fd/0")).unwrap();
    assert_eq!(scan(&tree)[0].facts.accel, Accel::Tcg);
    symlink("anon_inode:kvm-vm", tree.file(9, "fd/1")).unwrap();
    assert_eq!(scan(&tree)[0].facts.accel, Accel::Kvm);
}

#[test]
fn guests_come_and_go() {
    let tree = qemu(50, &["qemu", "-name", "a"]);
    let mut discovery = Discovery::new(tree.root());
    let names =
        |ids: Vec<memtide_model::GuestId>| -> Vec<String> { ids.iter().map(ToString::to_string).collect() };
    assert_eq!(names(discovery.scan().unwrap().appeared), ["a"]);
    assert_eq!(discovery.scan().unwrap(), memtide_vmm::qemu::Changes::default());

    // The process number goes to another guest of the same name. The two are different guests.
    tree.execute(&Process { pid: 50, parent: 1, start: 888, comm: QEMU, args: &["qemu", "-name", "a"] });
    let changes = discovery.scan().unwrap();
    assert_eq!((changes.vanished[0].start(), changes.appeared[0].start()), (777, 888));

    // A process that has ended but still waits for its parent is gone, too.
    let stat = fs::read_to_string(tree.file(50, "stat")).unwrap().replace(") S ", ") Z ");
    fs::write(tree.file(50, "stat"), stat).unwrap();
    assert_eq!(names(discovery.scan().unwrap().vanished), ["a"]);
}

/// Makes the tree's numbers this system's numbers; `last` was assigned last.
fn give_numbers_up_to(tree: &Tree, last: u32) {
    let this = tree.root().join("self");
    if this.is_dir() && !this.is_symlink() {
        fs::remove_dir_all(&this).expect("a directory");
        symlink(std::process::id().to_string(), &this).expect("a link");
    }
    fs::write(tree.root().join("loadavg"), format!("0.20 0.18 0.12 1/80 {last}\n")).expect("a file");
}

#[test]
fn processes_are_listed_anew_where_one_can_be_new() {
    let tree = qemu(50, &["qemu", "-name", "a"]);
    give_numbers_up_to(&tree, 70);
    let mut discovery = Discovery::new(tree.root());
    let mut appeared = move || discovery.scan_for_new().unwrap().appeared.len();
    assert_eq!(appeared(), 1);
    let process = |pid, name| Process { pid, parent: 1, start: 9, comm: QEMU, args: name };
    // The kernel did not assign its number, so it is not looked for at once, but it is found.
    tree.add(&process(60, &["qemu", "-name", "b"]));
    assert_eq!(appeared(), 0);
    assert!((0..4).any(|_| appeared() == 1));
    tree.add(&process(71, &["qemu", "-name", "c"]));
    give_numbers_up_to(&tree, 71);
    assert_eq!(appeared(), 1);
}

#[test]
fn a_script_that_becomes_qemu_is_found() {
    for looks_before in [1, 40] {
        let tree = Tree::new();
        tree.add(&Process { pid: 60, parent: 1, start: 9, comm: "bash", args: &["bash", "start.sh"] });
        let mut discovery = Discovery::new(tree.root());
        for _ in 0..looks_before {
            assert!(discovery.scan().unwrap().appeared.is_empty());
        }
        tree.execute(&Process { pid: 60, parent: 1, start: 9, comm: QEMU, args: &["qemu", "-name", "late"] });
        let found = (0..16).any(|_| !discovery.scan().unwrap().appeared.is_empty());
        assert!(found, "after {looks_before} looks");
    }
}

#[test]
fn two_guests_of_one_name_in_one_tick_stay_two() {
    let tree = Tree::new();
    for pid in [70, 71] {
        tree.add(&Process {
            pid,
            parent: 1,
            start: 9,
            comm: QEMU,
            args: &["qemu", "-name", "twin", "-m", &pid.to_string()],
        });
    }
    let names: Vec<_> = scan(&tree).iter().map(|found| found.id.name().to_owned()).collect();
    assert_eq!(names, ["twin", "twin-71"]);
}

#[test]
fn a_missing_tree_is_an_error_with_its_path() {
    let error = Discovery::new("/nonexistent".as_ref()).scan().unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nonexistent/sys/kernel/random/boot_id");
}
