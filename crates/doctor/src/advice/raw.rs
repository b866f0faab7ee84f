//! QEMU's own options, and where launchers take them from their users.

use memtide_vmm::qemu::{Launcher, Source};

use super::own::configuration;
use super::{Change, at, balloon_options, client, shell_lines, socket_of, while_stopped};
use crate::facts::GuestFacts;
use crate::finding::Fix;
use crate::quote::{shell, string};

/// The property of a balloon device that is the interval of its statistics, in seconds.
const POLLING: &str = "guest-stats-polling-interval";

/// QEMU's options for a change.
enum Options {
    /// More of them.
    Add(Vec<String>),
    /// Without these.
    Remove(Vec<String>),
}

pub(super) fn fix(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    if guest.launch.by == Launcher::Unknown {
        return Some(in_file(guest, change).unwrap_or_else(|| plain(guest, change)));
    }
    match options(guest, change)? {
        Options::Add(options) => add(guest, &options.join(" ")),
        Options::Remove(options) => Some(at(format!("{}: remove", place(guest)?), options)),
    }
}

/// The change with QEMU's options alone, for a launcher that writes all others. A balloon is there already: `-global` sets its options
/// (tried with QEMU 10.0, also before and after the device).
fn options(guest: &GuestFacts, change: Change<'_>) -> Option<Options> {
    let one = |option: &str| vec![option.to_owned()];
    Some(match change {
        Change::Balloon => Options::Add(vec![device(guest, "virtio-balloon-pci")]),
        Change::DeflateOnOom | Change::Reporting => {
            let global = |option| format!("-global virtio-balloon-device.{option}=on");
            Options::Add(balloon_options(guest).into_iter().map(global).collect())
        }
        Change::Monitor(path) => Options::Add(vec![monitor(path)]),
        Change::AgentPort => Options::Add(agent_port(guest)),
        Change::RootPort => Options::Add(one(ROOT_PORT)),
        Change::Mergeable => Options::Add(one("-machine mem-merge=on")),
        Change::NotMergeable => Options::Add(one("-machine mem-merge=off")),
        Change::Unlocked => Options::Remove(one("-overcommit mem-lock=on")),
        Change::NoPrealloc => Options::Remove(one("-mem-prealloc")),
        Change::Without(device) => Options::Remove(vec![host_device(device)]),
        Change::NoHugePages
        | Change::OwnMemory
        | Change::NotOnDisk
        | Change::TranslationLimit
        | Change::Polling
        | Change::Private => return None,
    })
}

/// Where a launcher keeps QEMU's options of its users: `args` of qm(1), `raw.qemu` of Incus and LXD, `kvm_extra` of gnt-instance(8),
/// `microvm.qemu.extraArgs`, `-qemu` of the Android emulator (developer.android.com, "Start the emulator from the command line"),
/// `extra_args` of `quickemu_conf(5)`, and Lima's `QEMU_SYSTEM_X86_64` (lima-vm.io, "Environment variables").
fn place(guest: &GuestFacts) -> Option<String> {
    let name = shell(&guest.launch.name);
    Some(match guest.launch.by {
        Launcher::Proxmox => format!("args of /etc/pve/qemu-server/{name}.conf (from the next start)"),
        Launcher::Incus | Launcher::Lxd => format!("raw.qemu in {} config edit {name}", client(guest)),
        Launcher::Ganeti => format!("kvm_extra of gnt-instance info {name} (from the next start)"),
        Launcher::NixosMicrovm => format!("microvm.qemu.extraArgs in {}", configuration(guest)),
        Launcher::AndroidEmulator => "the emulator's options after -qemu (from the next start)".to_owned(),
        Launcher::Quickemu => format!("extra_args in {name}.conf (from the next start)"),
        Launcher::Lima => format!("{} (from the next start)", lima_variable(guest)),
        _ => return None,
    })
}

/// The lines that add options to what is there.
fn add(guest: &GuestFacts, options: &str) -> Option<Fix> {
    let name = shell(&guest.launch.name);
    Some(match guest.launch.by {
        Launcher::Proxmox => shell_lines([format!(
            r#"qm set {name} --args "$(qm config {name} | sed -n 's/^args: //p') {options}""#
        )]),
        Launcher::Incus | Launcher::Lxd => {
            let client = client(guest);
            let line = format!(
                r#"{client} config set {name} raw.qemu="$({client} config get {name} raw.qemu) {options}""#
            );
            while_stopped(guest, line)
        }
        Launcher::Ganeti => {
            let options = options.replace(',', r"\,");
            at(
                format!(
                    "a shell, with what gnt-instance info {name} shows as kvm_extra (from the next start)"
                ),
                [format!(r#"gnt-instance modify -H kvm_extra="{options}" {name}"#)],
            )
        }
        Launcher::NixosMicrovm => {
            let words: Vec<String> = options.split(' ').map(string).collect();
            at(configuration(guest), [format!("microvm.qemu.extraArgs = [ {} ];", words.join(" "))])
        }
        Launcher::AndroidEmulator => at(
            "a shell, with the options that you use, before -qemu (from the next start)",
            [format!("emulator -avd {name} -qemu {options}")],
        ),
        Launcher::Quickemu => at(
            format!("{name}.conf (from the next start)"),
            [format!(r#"extra_args="${{extra_args}} {options}""#)],
        ),
        Launcher::Lima => {
            let variable = lima_variable(guest);
            let program = variable.to_lowercase().replacen("qemu_system_", "qemu-system-", 1);
            at(
                "a shell",
                [
                    format!("limactl stop {name}"),
                    format!(r#"{variable}="{program} {options}" limactl start {name}"#),
                ],
            )
        }
        _ => return None,
    })
}

fn lima_variable(guest: &GuestFacts) -> String {
    let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let architecture = guest.launch.architecture.as_deref().filter(is_plain).unwrap_or("x86_64");
    format!("QEMU_SYSTEM_{}", architecture.to_uppercase())
}

/// What somebody writes into a file of `-readconfig` for what is set there. QEMU refuses a second device or object of the same name, uses only the
/// first accelerator that works, and takes `-accel` only without `accel` of `[machine]` (tried with QEMU 10.0). All other options are merged.
fn in_file(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    const FILE: &str = "the file of -readconfig (from the next start)";
    let equipment = guest.equipment.as_ref()?;
    let (set, unread) = (equipment.in_file, guest.process.reads_files);
    let on = |key: &str| format!("{key} = \"on\"");
    let backend = |kind: &str| format!("qom-type = \"memory-backend-{kind}\"");
    let memory = set.memory || (unread && guest.process.ram.is_empty());
    let of_memory = |lines: Vec<String>| {
        at(
            format!(
                "{FILE}, in the [object] section of its memory: change these lines, and remove mem-path and hugetlb"
            ),
            lines,
        )
    };
    Some(match change {
        Change::DeflateOnOom | Change::Reporting | Change::Polling => {
            let balloon = equipment.balloon.as_ref();
            if !balloon.map_or(unread, |balloon| balloon.source == Source::ConfigFile) {
                return None;
            }
            let id = balloon.and_then(|balloon| balloon.id.as_deref());
            let section = id.map_or("the [device] section of the balloon".to_owned(), |id| {
                format!("[device {}]", string(id))
            });
            let lines = match change {
                Change::Polling => vec![format!("{POLLING} = \"1\"")],
                _ => balloon_options(guest).into_iter().map(on).collect(),
            };
            at(format!("{FILE}, in {section}"), lines)
        }
        Change::NoHugePages | Change::OwnMemory if memory => of_memory(vec![backend("ram")]),
        Change::NotOnDisk if memory => of_memory(vec![backend("memfd"), on("share")]),
        Change::Private if memory => of_memory(vec![backend("ram"), "share = \"off\"".to_owned()]),
        Change::NoPrealloc if memory && !equipment.prealloc => {
            at(format!("{FILE}, in the [object] section of its memory: remove"), [on("prealloc")])
        }
        Change::Without(device) if set.devices || unread => {
            let (driver, host) = device.split_once(' ').unwrap_or((device, ""));
            let key = if driver == "vhost-vdpa" { "type" } else { "driver" };
            let host = if host.is_empty() { String::new() } else { format!(" and host = {}", string(host)) };
            at(
                "the file of -readconfig, or QEMU's command line (from the next start): remove the section with these lines, or the option",
                [format!("{key} = {}{host}", string(driver)), host_device(device)],
            )
        }
        Change::TranslationLimit if set.accel => {
            at(format!("{FILE}, in [accel]"), ["tb-size = \"64\"".to_owned()])
        }
        Change::TranslationLimit if set.accel_of_machine => at(
            format!("{FILE}, in place of accel in [machine]"),
            ["[accel]".to_owned(), "accel = \"tcg\"".to_owned(), "tb-size = \"64\"".to_owned()],
        ),
        Change::Mergeable if set.mem_merge => at(format!("{FILE}, in [machine]"), [on("mem-merge")]),
        Change::NotMergeable if set.mem_merge => {
            at(format!("{FILE}, in [machine]"), ["mem-merge = \"off\"".to_owned()])
        }
        _ => return None,
    })
}

/// What somebody types who starts QEMU without a launcher. QEMU takes one base memory, and accelerators in one of two ways (tried with QEMU 10.0).
fn plain(guest: &GuestFacts, change: Change<'_>) -> Fix {
    const PLACE: &str = "QEMU's command line (from the next start)";
    const IN_PLACE: &str = "in place of -mem-path and the backend of its memory";
    const WITH_SOCKET: &str = "QEMU's command line (from the next start; the directory must exist)";
    let size = guest.process.memory.unwrap_or(guest.full).whole_mib();
    let memory = |backend: &str| {
        format!("-machine memory-backend=mem0 -object memory-backend-{backend},id=mem0,size={size}M")
    };
    match change {
        Change::Balloon => at(PLACE, [device(guest, "virtio-balloon-pci")]),
        Change::DeflateOnOom | Change::Reporting | Change::Polling => {
            let balloon = guest.equipment.as_ref().and_then(|equipment| equipment.balloon.as_ref());
            let driver = balloon.map_or("virtio-balloon-pci", |balloon| balloon.driver.as_str());
            let polling = if change == Change::Polling { format!(",{POLLING}=1") } else { String::new() };
            at(PLACE, [device(guest, driver) + &polling])
        }
        Change::Monitor(path) => at(WITH_SOCKET, [monitor(path)]),
        Change::AgentPort => at(WITH_SOCKET, agent_port(guest)),
        Change::RootPort => at(PLACE, [ROOT_PORT.to_owned()]),
        Change::Unlocked => at(PLACE, ["-overcommit mem-lock=off".to_owned()]),
        Change::NoHugePages => {
            at(format!("{PLACE}, {IN_PLACE}, with transparent huge pages instead"), [memory("ram")])
        }
        Change::Without(device) => at(format!("{PLACE}: remove"), [host_device(device)]),
        Change::OwnMemory => at(format!("{PLACE}, {IN_PLACE}, and without -incoming"), [memory("ram")]),
        Change::NotOnDisk => at(format!("{PLACE}, {IN_PLACE}"), [memory("memfd") + ",share=on"]),
        Change::NoPrealloc => {
            at(format!("{PLACE}: remove"), ["prealloc=on".to_owned(), "-mem-prealloc".to_owned()])
        }
        Change::TranslationLimit => at(
            format!("{PLACE}, in place of -accel and of accel in -machine"),
            ["-accel tcg,thread=multi,tb-size=64".to_owned()],
        ),
        Change::Mergeable => at(PLACE, ["-machine mem-merge=on".to_owned()]),
        Change::NotMergeable => at(PLACE, ["-machine mem-merge=off".to_owned()]),
        Change::Private => at(
            PLACE,
            ["-m SIZE without -mem-path and memory-backend-file; or -object memory-backend-ram,…,share=off"
                .to_owned()],
        ),
    }
}

/// The recommended balloon device.
pub(crate) fn device(guest: &GuestFacts, driver: &str) -> String {
    let options: String = balloon_options(guest).into_iter().map(|option| format!(",{option}=on")).collect();
    format!("-device {driver},id=balloon0{options}")
}

pub(crate) fn monitor(path: &str) -> String {
    format!("-qmp unix:{},server=on,wait=off", path.replace(',', ",,"))
}

/// A port for a device that is plugged while the guest runs.
const ROOT_PORT: &str = "-device pcie-root-port,id=hotplug0,chassis=40";

fn agent_port(guest: &GuestFacts) -> Vec<String> {
    let socket = socket_of(guest, "-agent.sock");
    vec![
        "-device virtio-serial-pci".to_owned(),
        format!("-chardev socket,id=agent,path={socket},server=on,wait=off"),
        "-device virtserialport,chardev=agent,name=org.memtide.agent.0".to_owned(),
    ]
}

/// The option of a device as [`Equipment`](memtide_vmm::qemu::Equipment) names it: `vfio-pci 0000:65:00.0`.
fn host_device(device: &str) -> String {
    match device {
        "vhost-vdpa" => "-netdev vhost-vdpa".to_owned(),
        device => format!("-device {}", device.replacen(' ', ",host=", 1)),
    }
}
