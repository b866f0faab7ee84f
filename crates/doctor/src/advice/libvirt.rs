//! libvirt's XML, and the settings of programs that write this XML anew at each start: KubeVirt, OpenStack, oVirt.

use memtide_vmm::qemu::Launcher;

use super::{Change, at, balloon_options, shell_lines};
use crate::facts::GuestFacts;
use crate::finding::Fix;
use crate::quote::shell;

pub(super) fn fix(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    match guest.launch.by {
        Launcher::KubeVirt => kubevirt(guest, change),
        Launcher::OpenStack => openstack(change),
        Launcher::Ovirt => ovirt(change),
        _ => xml(guest, change),
    }
}

/// The guest's name in libvirt, as an argument of virsh, which treats a leading dash as an option.
pub(crate) fn domain(guest: &GuestFacts) -> String {
    let name = match &guest.launch.project {
        Some(namespace) if guest.launch.by == Launcher::KubeVirt => {
            &format!("{namespace}_{}", guest.launch.name)
        }
        _ => &guest.launch.name,
    };
    if name.starts_with('-') { format!("--domain={}", shell(name)) } else { shell(name) }
}

/// Elements of libvirt's XML: `docs/formatdomain.rst` of libvirt, "Memory Backing", "Memory balloon device", "Channel", "Hypervisor features"
/// (`tcg`, since 8.0).
fn xml(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    let (what, line) = match change {
        Change::Balloon | Change::DeflateOnOom | Change::Reporting | Change::Polling => {
            ("", memballoon(guest))
        }
        Change::AgentPort => (
            "",
            "<channel type='unix'><target type='virtio' name='org.memtide.agent.0'/></channel>".to_owned(),
        ),
        Change::RootPort => ("", "<controller type='pci' model='pcie-root-port'/>".to_owned()),
        Change::Unlocked => (": remove from <memoryBacking>", "<locked/>".to_owned()),
        Change::NoHugePages => (": remove from <memoryBacking>", "<hugepages/>".to_owned()),
        Change::Without(_) => (": remove", "<hostdev …>".to_owned()),
        Change::OwnMemory => (": remove from <memoryBacking>", "<source type='file'/>".to_owned()),
        Change::NotOnDisk => (", in <memoryBacking>", "<source type='memfd'/>".to_owned()),
        Change::NoPrealloc => (": remove from <memoryBacking>", "<allocation mode='immediate'/>".to_owned()),
        Change::TranslationLimit => {
            (", in <features>", "<tcg><tb-cache unit='MiB'>64</tb-cache></tcg>".to_owned())
        }
        Change::Mergeable => (": remove from <memoryBacking>", "<nosharepages/>".to_owned()),
        Change::NotMergeable => (", in <memoryBacking>", "<nosharepages/>".to_owned()),
        Change::Private => (": remove from <memoryBacking>", "<access mode='shared'/>".to_owned()),
        Change::Monitor(_) => return None,
    };
    Some(at(format!("virsh edit {} (from the next start){what}", domain(guest)), [line]))
}

fn memballoon(guest: &GuestFacts) -> String {
    let options: String = balloon_options(guest)
        .into_iter()
        .map(|option| match option {
            "deflate-on-oom" => " autodeflate='on'",
            _ => " freePageReporting='on'",
        })
        .collect();
    format!("<memballoon model='virtio'{options}><stats period='1'/></memballoon>")
}

/// `KubeVirt`'s API: `autoattachMemBalloon` and `memory.hugepages` of a virtual machine's domain, `disableFreePageReporting` in
/// `virtualMachineOptions` of the cluster's `KubeVirt` (`staging/src/kubevirt.io/api/core/v1`). There is nothing for deflate-on-oom.
fn kubevirt(guest: &GuestFacts, change: Change<'_>) -> Option<Fix> {
    let namespace = guest.launch.project.as_deref().map(|name| format!(" -n {}", shell(name)));
    let namespace = namespace.unwrap_or_default();
    let patch = |kind: &str, patch: &str| {
        let name = shell(&guest.launch.name);
        shell_lines([format!("kubectl patch vm {name}{namespace} --type {kind} -p '{patch}'")])
    };
    Some(match change {
        Change::Balloon => patch(
            "merge",
            r#"{"spec":{"template":{"spec":{"domain":{"devices":{"autoattachMemBalloon":true}}}}}}"#,
        ),
        Change::Reporting => shell_lines([r#"kubectl patch kubevirt kubevirt -n kubevirt --type merge -p '{"spec":{"configuration":{"virtualMachineOptions":{"disableFreePageReporting":null}}}}'"#.to_owned()]),
        Change::NoHugePages => {
            patch("json", r#"[{"op":"remove","path":"/spec/template/spec/domain/memory/hugepages"}]"#)
        }
        _ => return None,
    })
}

/// nova's `mem_stats_period_seconds` (0: no balloon) and `file_backed_memory` in `[libvirt]`, the flavor's `hw:mem_page_size` and
/// `hw:locked_memory` (`nova/conf/libvirt.py`, "Extra specs" of nova's manual). Since 2025.2, every balloon has both options.
fn openstack(change: Change<'_>) -> Option<Fix> {
    let conf = |line: &str| {
        at(
            "[libvirt] in /etc/nova/nova.conf, then restart nova-compute (from the guest's next hard reboot)",
            [line.to_owned()],
        )
    };
    let flavor = |property: &str| {
        at(
            "a shell, with the guest's FLAVOR (from its next resize)",
            [format!("openstack flavor unset FLAVOR --property {property}")],
        )
    };
    Some(match change {
        Change::Balloon => conf("mem_stats_period_seconds = 10"),
        Change::DeflateOnOom | Change::Reporting => at(
            "the host's package manager (from the guest's next hard reboot)",
            ["nova 2025.2 or newer sets both options".to_owned()],
        ),
        Change::NotOnDisk => conf("file_backed_memory = 0"),
        Change::NoHugePages => flavor("hw:mem_page_size"),
        Change::Unlocked => flavor("hw:locked_memory"),
        _ => return None,
    })
}

/// "Memory Balloon Device Enabled" in oVirt's manual of virtual machines, "Resource Allocation". `VDSM` writes the rest.
fn ovirt(change: Change<'_>) -> Option<Fix> {
    (change == Change::Balloon).then(|| {
        at(
            "oVirt's Administration Portal, Edit Virtual Machine, Resource Allocation (from the next start)",
            ["Memory Balloon Device Enabled".to_owned()],
        )
    })
}
