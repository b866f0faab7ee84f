//! The lines for each launcher, as they are typed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::guest;
use memtide_doctor::advice::{Change, fix, socket_of};
use memtide_doctor::facts::{GuestFacts, Launch};
use memtide_model::Withheld;
use memtide_vmm::qemu::{InFile, Launcher, Source};

/// A guest of 1 GiB that this launcher started and calls `name`.
fn of(by: Launcher, name: &str) -> GuestFacts {
    let mut guest = guest(name, 7);
    guest.launch = Launch { by, name: name.to_owned(), ..Launch::default() };
    guest
}

#[track_caller]
fn gives(guest: &GuestFacts, change: Change<'_>, place: &str, lines: &[&str]) {
    let fix = fix(guest, change);
    assert!(fix.place.contains(place), "{change:?}: {fix:?}");
    assert_eq!(fix.lines, lines, "{change:?}: {fix:?}");
}

const GPU: Change<'static> = Change::Without("vfio-pci 0000:65:00.0");
const MONITOR: &str = "/run/vm/m.qmp";
const GLOBALS: &str =
    "-global virtio-balloon-device.deflate-on-oom=on -global virtio-balloon-device.free-page-reporting=on";

#[test]
fn qemu_alone() {
    let web = of(Launcher::Unknown, "web");
    let line = "QEMU's command line (from the next start";
    let device = "-device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on";
    for (change, lines) in [
        (Change::Balloon, &[device][..]),
        (Change::DeflateOnOom, &[device]),
        (Change::Reporting, &[device]),
        (Change::Monitor(MONITOR), &["-qmp unix:/run/vm/m.qmp,server=on,wait=off"]),
        (Change::Unlocked, &["-overcommit mem-lock=off"]),
        (
            Change::NoHugePages,
            &["-machine memory-backend=mem0 -object memory-backend-ram,id=mem0,size=1024M"],
        ),
        (
            Change::NotOnDisk,
            &["-machine memory-backend=mem0 -object memory-backend-memfd,id=mem0,size=1024M,share=on"],
        ),
        (GPU, &["-device vfio-pci,host=0000:65:00.0"]),
        (Change::Without("vhost-vdpa"), &["-netdev vhost-vdpa"]),
        (Change::TranslationLimit, &["-accel tcg,thread=multi,tb-size=64"]),
        (Change::Mergeable, &["-machine mem-merge=on"]),
        (Change::NotMergeable, &["-machine mem-merge=off"]),
    ] {
        gives(&web, change, line, lines);
    }
}

#[test]
fn what_a_file_of_options_sets_is_changed_there() {
    let mut web = of(Launcher::Unknown, "web");
    let file = "the file of -readconfig (from the next start)";
    let device = "-device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on";
    // A file that sets nothing of this.
    gives(&web, Change::Polling, "command line", &[&format!("{device},guest-stats-polling-interval=1")]);
    let equipment = web.equipment.as_mut().unwrap();
    equipment.balloon.as_mut().unwrap().source = Source::ConfigFile;
    equipment.in_file =
        InFile { devices: true, memory: true, accel: true, accel_of_machine: false, mem_merge: true };
    let balloon = format!("{file}, in [device \"balloon0\"]");
    let options = ["deflate-on-oom = \"on\"", "free-page-reporting = \"on\""];
    let backend = "in the [object] section of its memory";
    for (change, place, lines) in [
        (Change::DeflateOnOom, balloon.as_str(), &options[..]),
        (Change::Reporting, &balloon, &options),
        (Change::Polling, &balloon, &["guest-stats-polling-interval = \"1\""]),
        (Change::NoHugePages, backend, &["qom-type = \"memory-backend-ram\""]),
        (Change::OwnMemory, backend, &["qom-type = \"memory-backend-ram\""]),
        (Change::NotOnDisk, backend, &["qom-type = \"memory-backend-memfd\"", "share = \"on\""]),
        (Change::Private, backend, &["qom-type = \"memory-backend-ram\"", "share = \"off\""]),
        (Change::NoPrealloc, "of its memory: remove", &["prealloc = \"on\""]),
        (Change::TranslationLimit, "in [accel]", &["tb-size = \"64\""]),
        (Change::Mergeable, "in [machine]", &["mem-merge = \"on\""]),
        (Change::NotMergeable, "in [machine]", &["mem-merge = \"off\""]),
        (
            GPU,
            "the file of -readconfig, or QEMU's command line",
            &["driver = \"vfio-pci\" and host = \"0000:65:00.0\"", "-device vfio-pci,host=0000:65:00.0"],
        ),
        // These are added, whatever is in the file.
        (Change::Balloon, "command line", &[device]),
        (Change::Monitor(MONITOR), "command line", &["-qmp unix:/run/vm/m.qmp,server=on,wait=off"]),
    ] {
        gives(&web, change, place, lines);
    }
    // QEMU takes one of these two.
    let in_file = &mut web.equipment.as_mut().unwrap().in_file;
    (in_file.accel, in_file.accel_of_machine) = (false, true);
    let lines = ["[accel]", "accel = \"tcg\"", "tb-size = \"64\""];
    gives(&web, Change::TranslationLimit, "in place of accel in [machine]", &lines);
    // The monitor tells of a balloon that only a file can have, which memtide may not read.
    let mut unread = of(Launcher::Unknown, "web");
    unread.process.reads_files = true;
    unread.equipment.as_mut().unwrap().balloon = None;
    gives(&unread, Change::DeflateOnOom, "the [device] section of the balloon", &options);
}

#[test]
fn libvirt_and_its_users() {
    let web = of(Launcher::Libvirt, "a b");
    let edit = "virsh edit 'a b' (from the next start)";
    for (change, place, line) in [
        (
            Change::Balloon,
            "",
            "<memballoon model='virtio' autodeflate='on' freePageReporting='on'><stats period='1'/></memballoon>",
        ),
        (Change::Unlocked, ": remove from <memoryBacking>", "<locked/>"),
        (Change::NoHugePages, ": remove from <memoryBacking>", "<hugepages/>"),
        (Change::NotOnDisk, ", in <memoryBacking>", "<source type='memfd'/>"),
        (Change::OwnMemory, ": remove from <memoryBacking>", "<source type='file'/>"),
        (Change::NoPrealloc, ": remove from <memoryBacking>", "<allocation mode='immediate'/>"),
        (Change::Mergeable, ": remove from <memoryBacking>", "<nosharepages/>"),
        (Change::TranslationLimit, ", in <features>", "<tcg><tb-cache unit='MiB'>64</tb-cache></tcg>"),
        (GPU, ": remove", "<hostdev …>"),
    ] {
        gives(&web, change, &format!("{edit}{place}"), &[line]);
    }
    let mut long = of(Launcher::Libvirt, "web");
    // The name that memtide shows is cut.
    (long.name, long.launch.name) = (format!("{}…", "n".repeat(125)), format!("--{}", "n".repeat(200)));
    let edit = format!("virsh edit --domain={} ", long.launch.name);
    gives(&long, Change::Unlocked, &edit, &["<locked/>"]);
    let mut pod = of(Launcher::KubeVirt, "web");
    pod.launch.project = Some("shop".to_owned());
    gives(
        &pod,
        Change::Balloon,
        "a shell",
        &[
            r#"kubectl patch vm web -n shop --type merge -p '{"spec":{"template":{"spec":{"domain":{"devices":{"autoattachMemBalloon":true}}}}}}'"#,
        ],
    );
    gives(
        &pod,
        Change::NoHugePages,
        "a shell",
        &[
            r#"kubectl patch vm web -n shop --type json -p '[{"op":"remove","path":"/spec/template/spec/domain/memory/hugepages"}]'"#,
        ],
    );
    gives(
        &pod,
        Change::Reporting,
        "a shell",
        &[
            r#"kubectl patch kubevirt kubevirt -n kubevirt --type merge -p '{"spec":{"configuration":{"virtualMachineOptions":{"disableFreePageReporting":null}}}}'"#,
        ],
    );
    nothing(&pod, Change::DeflateOnOom, "KubeVirt");
    let instance = of(Launcher::OpenStack, "instance-00000001");
    gives(&instance, Change::Balloon, "/etc/nova/nova.conf", &["mem_stats_period_seconds = 10"]);
    gives(
        &instance,
        Change::NoHugePages,
        "FLAVOR",
        &["openstack flavor unset FLAVOR --property hw:mem_page_size"],
    );
    gives(&of(Launcher::Ovirt, "web"), Change::Balloon, "oVirt", &["Memory Balloon Device Enabled"]);
}

#[test]
fn proxmox() {
    let vm = of(Launcher::Proxmox, "101");
    let args =
        |options: &str| format!(r#"qm set 101 --args "$(qm config 101 | sed -n 's/^args: //p') {options}""#);
    let shell = "a shell";
    gives(&vm, Change::Balloon, shell, &["qm set 101 --delete balloon"]);
    gives(&vm, Change::DeflateOnOom, shell, &[&args(GLOBALS)]);
    gives(&vm, Change::Reporting, shell, &[&args(GLOBALS)]);
    gives(&vm, Change::Monitor(MONITOR), shell, &[&args("-qmp unix:/run/vm/m.qmp,server=on,wait=off")]);
    gives(&vm, Change::NoHugePages, shell, &["qm set 101 --delete hugepages"]);
    gives(&vm, Change::Mergeable, shell, &["qm set 101 --allow-ksm 1"]);
    gives(&vm, Change::NotMergeable, shell, &["qm set 101 --allow-ksm 0"]);
    gives(&vm, GPU, shell, &["qm config 101 | grep hostpci", "qm set 101 --delete hostpci0"]);
    gives(&vm, Change::Unlocked, "args of /etc/pve/qemu-server/101.conf", &["-overcommit mem-lock=on"]);
    nothing(&vm, Change::TranslationLimit, "Proxmox VE");
}

#[test]
fn incus_and_lxd() {
    let mut web = of(Launcher::Incus, "web");
    web.launch.project = Some("shop".to_owned());
    web.launch.directory = Some("/run/incus/shop_web".into());
    let stopped = |line: &str| {
        [
            "incus --project shop stop web".to_owned(),
            line.to_owned(),
            "incus --project shop start web".to_owned(),
        ]
    };
    let section = |section: &str| {
        stopped(&format!(
            r"{{ incus --project shop config get web raw.qemu.conf; printf '\n{section}\n'; }} | incus --project shop config set web raw.qemu.conf -"
        ))
    };
    for (change, lines) in [
        (
            Change::Reporting,
            section(r#"[device "qemu_balloon"]\ndeflate-on-oom = "on"\nfree-page-reporting = "on""#),
        ),
        (Change::Mergeable, section(r#"[machine]\nmem-merge = "on""#)),
        (Change::NoHugePages, stopped("incus --project shop config unset web limits.memory.hugepages")),
        (
            Change::Monitor(MONITOR),
            stopped(
                r#"incus --project shop config set web raw.qemu="$(incus --project shop config get web raw.qemu) -qmp unix:/run/vm/m.qmp,server=on,wait=off""#,
            ),
        ),
    ] {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        gives(&web, change, "a shell", &lines);
    }
    gives(
        &web,
        Change::Unlocked,
        "raw.qemu in incus --project shop config edit web: remove",
        &["-overcommit mem-lock=on"],
    );
    assert_eq!(socket_of(&web, "-memtide.qmp"), "/run/incus/shop_web/web-memtide.qmp");
    let lxd = of(Launcher::Lxd, "it's");
    gives(
        &lxd,
        GPU,
        "DEVICE",
        &[r"lxc config device list 'it'\''s'", r"lxc config device remove 'it'\''s' DEVICE"],
    );
}

#[test]
fn kata() {
    let pod = of(Launcher::Kata, "sandbox-1");
    let qemu = "[hypervisor.qemu] in Kata's configuration.toml";
    for change in [Change::Balloon, Change::DeflateOnOom, Change::Reporting] {
        gives(&pod, change, qemu, &["reclaim_guest_freed_memory = true"]);
    }
    gives(&pod, Change::NoHugePages, qemu, &["enable_hugepages = false"]);
    gives(&pod, Change::NoPrealloc, qemu, &["enable_mem_prealloc = false"]);
    gives(&pod, GPU, qemu, &[r#"cold_plug_vfio = "no-port""#, r#"hot_plug_vfio = "no-port""#]);
    gives(&pod, Change::OwnMemory, "[factory]", &["enable_template = false"]);
    nothing(&pod, Change::Monitor(MONITOR), "Kata Containers");
    let mut clone = pod;
    clone.withheld = Some(Withheld::PrivateFile("/run/vc/vm/template/memory".to_owned()));
    nothing(&clone, Change::Balloon, "Kata Containers");
}

#[test]
fn launchers_that_take_options_of_qemu() {
    let monitor = "-qmp unix:/run/vm/m.qmp,server=on,wait=off";
    let web = of(Launcher::NixosMicrovm, "web");
    let nix = "the NixOS configuration of web, rebuilt (then systemctl restart microvm@web)";
    gives(&web, Change::Balloon, nix, &["microvm.balloon = true;"]);
    gives(&web, Change::DeflateOnOom, nix, &["microvm.deflateOnOOM = true;"]);
    gives(
        &web,
        Change::Monitor(MONITOR),
        nix,
        &[r#"microvm.qemu.extraArgs = [ "-qmp" "unix:/run/vm/m.qmp,server=on,wait=off" ];"#],
    );
    gives(&web, GPU, "microvm.devices", &[r#"{ bus = "pci"; path = "0000:65:00.0"; }"#]);
    let phone = of(Launcher::AndroidEmulator, "Pixel_8");
    gives(
        &phone,
        Change::Balloon,
        "before -qemu",
        &[
            "emulator -avd Pixel_8 -qemu -device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on",
        ],
    );
    let quick = of(Launcher::Quickemu, "web");
    gives(
        &quick,
        Change::Monitor(MONITOR),
        "web.conf",
        &[&format!(r#"extra_args="${{extra_args}} {monitor}""#)],
    );
    let mut lima = of(Launcher::Lima, "web");
    lima.launch.architecture = Some("aarch64".to_owned());
    gives(
        &lima,
        Change::Reporting,
        "a shell",
        &[
            "limactl stop web",
            &format!(r#"QEMU_SYSTEM_AARCH64="qemu-system-aarch64 {GLOBALS}" limactl start web"#),
        ],
    );
    let ganeti = of(Launcher::Ganeti, "web");
    gives(&ganeti, Change::NoHugePages, "a shell", &["gnt-instance modify -H mem_path= web"]);
    gives(
        &ganeti,
        Change::Monitor(MONITOR),
        "gnt-instance info web",
        &[r#"gnt-instance modify -H kvm_extra="-qmp unix:/run/vm/m.qmp\,server=on\,wait=off" web"#],
    );
    for launcher in [Launcher::Multipass, Launcher::Podman] {
        nothing(&of(launcher, "web"), Change::Balloon, launcher.name());
    }
}

/// The launcher has no setting for this change.
#[track_caller]
fn nothing(guest: &GuestFacts, change: Change<'_>, launcher: &str) {
    let place = format!("{launcher} has no setting for this");
    gives(guest, change, &place, &["leave the guest as it is, or start it with QEMU's own options"]);
}
