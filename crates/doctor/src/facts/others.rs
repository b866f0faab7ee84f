//! Processes that run guests and are no guests of memtide: other VMMs, and device models of Xen.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use memtide_host::{ProcFs, Root};
use memtide_vmm::qemu::CommandLine;

/// A process that runs a guest and is not counted as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherVmm {
    /// The process.
    pub pid: u32,
    /// What it is: the product, or else the program.
    pub name: String,
    /// Its kind.
    pub kind: OtherKind,
    /// Its parent: a VMM's helpers are its children.
    pub parent: Option<u32>,
}

/// The kind of such a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherKind {
    /// A VMM that memtide knows by name.
    Known,
    /// A program that holds a virtual machine of KVM.
    HoldsKvm,
    /// A QEMU that serves the devices of a Xen domain, whose memory is not in the process.
    XenDeviceModel,
}

/// A VMM: the name of its program, the name for people, and whether only a process that holds a KVM virtual machine is one of its guests.
struct Vmm(&'static str, &'static str, bool);

/// The last three take KVM or a kernel module of their own.
const VMMS: [Vmm; 7] = [
    Vmm("cloud-hypervisor", "cloud-hypervisor", true),
    Vmm("firecracker", "Firecracker", true),
    Vmm("crosvm", "crosvm", true),
    Vmm("lkvm", "kvmtool", true),
    Vmm("VBoxHeadless", "VirtualBox", false),
    Vmm("VirtualBoxVM", "VirtualBox", false),
    Vmm("vmware-vmx", "VMware", false),
];

/// The kernel adds this to the name of a file that was replaced.
const DELETED: &str = " (deleted)";
/// The kernel cuts a process's name to this length.
const COMM: usize = 15;

impl Vmm {
    /// Whether a process's name, or the name of its file, is that of this VMM: as it is, cut, or with a version.
    fn is(&self, name: &str) -> bool {
        let name = name.strip_suffix(DELETED).unwrap_or(name);
        let rest = name.strip_prefix(self.0);
        name == self.0.get(..COMM).unwrap_or(self.0)
            || rest.is_some_and(|rest| rest.is_empty() || is_version(rest))
    }
}

/// Whether this is the end of a released program's name: `-1.7`, `-v1.7.0-x86_64`, `-static`.
fn is_version(end: &str) -> bool {
    let Some(end) = end.strip_prefix(['-', '_', '.']) else { return false };
    let number = end.strip_prefix('v').unwrap_or(end);
    number.starts_with(|c: char| c.is_ascii_digit()) || end == "static" || end.starts_with("static-")
}

/// Finds such processes, memtide's own guests among them; `None` if that takes longer than until `by`.
pub(super) fn look(root: &Root, by: Instant) -> Option<Vec<OtherVmm>> {
    let proc_fs = ProcFs::new(&root.path(Path::new("/proc")));
    let mut found = Vec::new();
    for pid in proc_fs.pids().unwrap_or_default() {
        if Instant::now() >= by {
            return None;
        }
        found.extend(of_process(&proc_fs, pid));
    }
    Some(found)
}

/// Those of `found` that are no process of `guests`, and no child of one of these.
pub(super) fn beside(guests: &BTreeSet<u32>, found: Vec<OtherVmm>) -> Vec<OtherVmm> {
    let mut seen = guests.clone();
    let mut others = found;
    others.retain(|one| {
        let is_helper = one.parent.is_some_and(|parent| seen.contains(&parent));
        !guests.contains(&one.pid) && !is_helper && seen.insert(one.pid)
    });
    others
}

fn of_process(proc_fs: &ProcFs, pid: u32) -> Option<OtherVmm> {
    let comm = proc_fs.comm(pid)?;
    let exe = proc_fs.exe_name(pid);
    let names = [Some(comm.as_str()), exe.as_deref()];
    let is_called = |is: &dyn Fn(&str) -> bool| names.iter().flatten().any(|name| is(name));
    let holds = proc_fs.holds_kvm(pid);
    let other = |name: &str, kind| {
        let parent = proc_fs.stat(pid).map(|stat| stat.parent);
        Some(OtherVmm { pid, name: name.to_owned(), kind, parent })
    };
    if let Some(Vmm(_, name, _)) =
        VMMS.iter().find(|vmm| is_called(&|name| vmm.is(name)) && !(vmm.2 && holds == Some(false)))
    {
        return other(name, OtherKind::Known);
    }
    if is_called(&|name| name.trim_start_matches('.').starts_with("qemu-")) {
        let line = CommandLine::parse(&proc_fs.cmdline(pid)?);
        if line.of_xen {
            return other("QEMU", OtherKind::XenDeviceModel);
        }
        // It only answers questions about its abilities.
        if line.no_machine {
            return None;
        }
    }
    let program = exe.as_deref().unwrap_or(&comm);
    if holds == Some(true) { other(program, OtherKind::HoldsKvm) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vmms_are_told_by_their_programs() {
        let of = |name: &str| VMMS.iter().find(|vmm| vmm.is(name)).map(|vmm| vmm.1);
        for (name, vmm) in [
            ("cloud-hypervisor", Some("cloud-hypervisor")),
            ("cloud-hyperviso", Some("cloud-hypervisor")),
            ("firecracker-v1.13.1-x86_64", Some("Firecracker")),
            ("firecracker-1.7", Some("Firecracker")),
            ("firecracker-v1.", Some("Firecracker")),
            ("firecracker_1.7 (deleted)", Some("Firecracker")),
            ("firecracker (deleted)", Some("Firecracker")),
            ("cloud-hypervisor-static-aarch64", Some("cloud-hypervisor")),
            ("cloud-hypervisor-41.0", Some("cloud-hypervisor")),
            ("firecracker-containerd", None),
            ("firecracker-vsock-proxy", None),
            ("crosvm-statistics", None),
            ("VBoxHeadless", Some("VirtualBox")),
            ("lkvm-static", Some("kvmtool")),
            ("vmware", None),
            ("", None),
        ] {
            assert_eq!(of(name), vmm, "{name}");
        }
    }

    #[test]
    fn guests_and_helpers_are_left_out() {
        let other = |pid, parent| OtherVmm { pid, name: "x".into(), kind: OtherKind::HoldsKvm, parent };
        let found = vec![other(10, Some(1)), other(11, Some(10)), other(20, Some(1)), other(21, Some(20))];
        let left: Vec<u32> = beside(&[10].into(), found).iter().map(|one| one.pid).collect();
        assert_eq!(left, [20]);
    }
}
