//! Settings that launchers have for such changes.

use memtide_vmm::qemu::Launcher;

use super::{Change, at, balloon_options, client, is_of_balloon, shell_lines, while_stopped};
use crate::facts::GuestFacts;
use crate::finding::Fix;
use crate::quote::{shell, string};

pub(super) fn fix(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    match guest.launch.by {
        Launcher::Proxmox => proxmox(guest, change),
        Launcher::Incus | Launcher::Lxd => incus(guest, change),
        Launcher::Kata => kata(guest, change),
        Launcher::Ganeti => ganeti(guest, change),
        Launcher::NixosMicrovm => microvm(guest, change),
        _ => None,
    }
}

/// `balloon`, `hugepages`, `allow-ksm` and `hostpci` of `src/PVE/QemuServer.pm` in proxmox/qemu-server: a guest has a balloon unless `balloon`
/// is 0, and pvestatd leaves it alone without `balloon`.
fn proxmox(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    let id = shell(&guest.launch.name);
    let set = |what: &str| shell_lines([format!("qm set {id} {what}")]);
    Some(match change {
        Change::Balloon => set("--delete balloon"),
        Change::NoHugePages => set("--delete hugepages"),
        Change::Mergeable => set("--allow-ksm 1"),
        Change::NotMergeable => set("--allow-ksm 0"),
        Change::Without(device) if device.starts_with("vfio-pci") => {
            let lines = [format!("qm config {id} | grep hostpci"), format!("qm set {id} --delete hostpci0")];
            at("a shell, with the number that the first line shows (from the next start)", lines)
        }
        _ => return None,
    })
}

/// `doc/reference/instance_options.md` of lxc/incus, "Override QEMU configuration" (`raw.qemu.conf`, in LXD since 5.0), and
/// `limits.memory.hugepages`. The balloon is the device `qemu_balloon`, and the memory is `mem0` (`driver_qemu_templates.go`). Neither key
/// can be set while the guest runs. A `-` reads the value from the standard input.
fn incus(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    let (client, name) = (client(guest), shell(&guest.launch.name));
    let section = |head: &str, keys: &[(&str, &str)]| {
        let keys: String = keys.iter().map(|(key, value)| format!(r#"\n{key} = "{value}""#)).collect();
        let add = format!(r"printf '\n{head}{keys}\n'");
        let line = format!(
            "{{ {client} config get {name} raw.qemu.conf; {add}; }} | {client} config set {name} raw.qemu.conf -"
        );
        while_stopped(guest, line)
    };
    Some(match change {
        Change::DeflateOnOom | Change::Reporting => {
            let keys: Vec<_> = balloon_options(guest).into_iter().map(|option| (option, "on")).collect();
            section(r#"[device "qemu_balloon"]"#, &keys)
        }
        Change::Mergeable => section("[machine]", &[("mem-merge", "on")]),
        Change::NotMergeable => section("[machine]", &[("mem-merge", "off")]),
        Change::Private => section(r#"[object "mem0"]"#, &[("share", "off")]),
        Change::NoHugePages => {
            while_stopped(guest, format!("{client} config unset {name} limits.memory.hugepages"))
        }
        Change::Without(_) => {
            let lines = [
                format!("{client} config device list {name}"),
                format!("{client} config device remove {name} DEVICE"),
            ];
            at("a shell, with the DEVICE that the first line shows", lines)
        }
        _ => return None,
    })
}

/// `src/runtime/config/configuration-qemu.toml.in` of kata-containers. A guest has a balloon only with `reclaim_guest_freed_memory`, and then
/// with both options (`virtcontainers/qemu.go`). The second monitor is for debugging only.
fn kata(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    let (section, lines): (&str, &[&str]) = match change {
        change if is_of_balloon(change) && guest.may_report() => {
            ("hypervisor.qemu", &["reclaim_guest_freed_memory = true"])
        }
        Change::NoHugePages => ("hypervisor.qemu", &["enable_hugepages = false"]),
        Change::NoPrealloc => ("hypervisor.qemu", &["enable_mem_prealloc = false"]),
        Change::NotOnDisk => ("hypervisor.qemu", &[r#"file_mem_backend = """#]),
        Change::Without(_) => {
            ("hypervisor.qemu", &[r#"cold_plug_vfio = "no-port""#, r#"hot_plug_vfio = "no-port""#])
        }
        Change::OwnMemory => ("factory", &["enable_template = false"]),
        _ => return None,
    };
    let place = format!("[{section}] in Kata's configuration.toml, for new sandboxes");
    Some(at(place, lines.iter().map(|line| (*line).to_owned())))
}

/// `mem_path` of gnt-instance(8). Ganeti gives each guest a balloon without options (`lib/hypervisor/hv_kvm`).
fn ganeti(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    let is_path = matches!(change, Change::NoHugePages | Change::NotOnDisk | Change::OwnMemory);
    is_path.then(|| shell_lines([format!("gnt-instance modify -H mem_path= {}", shell(&guest.launch.name))]))
}

/// `nixos-modules/microvm/options.nix` of microvm.nix. Its balloon always reports free pages (`lib/runners/qemu.nix`).
fn microvm(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    let line = match change {
        Change::Balloon if guest.may_report() => "microvm.balloon = true;".to_owned(),
        Change::DeflateOnOom => "microvm.deflateOnOOM = true;".to_owned(),
        Change::Without(device) => {
            let (driver, address) = device.split_once(' ')?;
            let line = format!("{{ bus = \"pci\"; path = {}; }}", string(address));
            let place = format!("microvm.devices in {}: remove", configuration(guest));
            return (driver == "vfio-pci").then(|| at(place, [line]));
        }
        _ => return None,
    };
    Some(at(configuration(guest), [line]))
}

/// Where the options of a guest of microvm.nix are.
pub(super) fn configuration(guest: &GuestFacts) -> String {
    let name = shell(&guest.launch.name);
    format!("the NixOS configuration of {name}, rebuilt (then systemctl restart microvm@{name})")
}
