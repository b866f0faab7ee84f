//! Processes that run guests and are no guests of memtide: other VMMs, and device models of Xen.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use memtide_host::{ProcFs, Root};
use memtide_model::Bytes;
use memtide_vmm::qemu::{CommandLine, resembles_qemu};

use super::small::{kib, text};

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
    /// A program of another name with QEMU's arguments, and as much memory as its guest would have. memtide recognises such a QEMU by its virtual
    /// machine of KVM, or by a QMP socket.
    UnknownQemu(NoSocket),
}

/// Why an unknown QEMU is not recognised by a QMP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoSocket {
    /// Its QMP monitor is on TCP.
    Tcp,
    /// It has a monitor for people alone.
    Hmp,
    /// It has no monitor.
    NoMonitor,
    /// It does not listen at its QMP socket.
    Unheard,
    /// This user may not see what it has open.
    Unseen,
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

/// The memory of a guest whose size is not told.
const LEAST_MEMORY: Bytes = Bytes::from_mib(128);
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
        found.extend(of_process(root, &proc_fs, pid));
    }
    Some(found)
}

/// The parents of these processes.
pub(super) fn parents(root: &Root, pids: &BTreeSet<u32>) -> BTreeSet<u32> {
    let proc_fs = ProcFs::new(&root.path(Path::new("/proc")));
    pids.iter().filter_map(|&pid| proc_fs.stat(pid)).map(|stat| stat.parent).collect()
}

/// Those of `found` that are no process of `guests`, no child of one of these, and no program that started a guest: `parents` are those of the
/// guests.
pub(super) fn beside(
    guests: &BTreeSet<u32>,
    mut parents: BTreeSet<u32>,
    found: Vec<OtherVmm>,
) -> Vec<OtherVmm> {
    let mut seen = guests.clone();
    let mut others = found;
    // `sudo my-qemu …` has the same arguments.
    let is_unknown = |one: &&OtherVmm| matches!(one.kind, OtherKind::UnknownQemu(_));
    parents.extend(others.iter().filter(is_unknown).filter_map(|one| one.parent));
    others.retain(|one| !is_unknown(&one) || !parents.contains(&one.pid));
    others.retain(|one| {
        let is_helper = one.parent.is_some_and(|parent| seen.contains(&parent));
        !guests.contains(&one.pid) && !is_helper && seen.insert(one.pid)
    });
    others
}

fn of_process(root: &Root, proc_fs: &ProcFs, pid: u32) -> Option<OtherVmm> {
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
        if line.no_machine || holds != Some(true) {
            return None;
        }
    }
    let program = exe.as_deref().unwrap_or(&comm);
    if holds == Some(true) {
        return other(program, OtherKind::HoldsKvm);
    }
    let kind = unknown_qemu(root, proc_fs, pid, holds.is_some())?;
    other(program, kind)
}

/// The kind of a process that has QEMU's arguments and has mapped as much memory as its guest would have. `is_seen`: what it has open can be read.
fn unknown_qemu(root: &Root, proc_fs: &ProcFs, pid: u32, is_seen: bool) -> Option<OtherKind> {
    if !resembles_qemu(&proc_fs.start_of_cmdline(pid)?) {
        return None;
    }
    let cmdline = proc_fs.cmdline(pid)?;
    let line = CommandLine::parse(&cmdline);
    let memory = line.memory.unwrap_or(LEAST_MEMORY);
    let mapped = kib(&text(&root.process(pid, "status")).ok()?, "VmSize")?;
    if line.no_machine || memory.is_zero() || mapped < memory {
        return None;
    }
    if line.of_xen {
        return Some(OtherKind::XenDeviceModel);
    }
    let is_of_monitor = |word: &[u8]| matches!(word, b"-monitor" | b"--monitor" | b"-mon" | b"--mon");
    Some(OtherKind::UnknownQemu(if !is_seen {
        NoSocket::Unseen
    } else if !(line.monitors.is_empty() && line.passed_monitors.is_empty()) {
        NoSocket::Unheard
    } else if !line.tcp_monitors.is_empty() {
        NoSocket::Tcp
    } else if cmdline.split(|&byte| byte == 0).any(is_of_monitor) {
        NoSocket::Hmp
    } else {
        NoSocket::NoMonitor
    }))
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
        let left = |found: Vec<OtherVmm>| {
            let left = beside(&[10].into(), [9].into(), found);
            left.iter().map(|one| one.pid).collect::<Vec<_>>()
        };
        assert_eq!(left(found), [20]);
        // What started a guest, or another such process, only has its arguments.
        let unknown =
            |pid, parent| OtherVmm { kind: OtherKind::UnknownQemu(NoSocket::Hmp), ..other(pid, parent) };
        assert_eq!(left(vec![unknown(9, Some(1)), unknown(30, Some(1)), unknown(31, Some(30))]), [31]);
    }
}
