//! Which processes are QEMUs.
//!
//! **Problem.** Programs are renamed, copied and wrapped, and any program may be called `kvm` or may set its `comm`.
//!
//! **Rule.** A process is a QEMU if one of these holds:
//!
//! - its executable or its `argv[0]` has QEMU's name (`qemu-system-…`, `qemu-kvm`, with NixOS's dot or without);
//! - its arguments are QEMU's, and it does what a QEMU does: it holds a virtual machine of KVM, or it listens at a QMP socket that the
//!   arguments name.
//!
//! If memtide may not read these facts, the next best one counts: `comm` in place of the executable's name, the name `kvm` in place of the
//! descriptors.
//!
//! A process that is no candidate costs its `comm`, its executable's name, and 4 KiB of its command line once for each program it executes.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use memtide_host::ProcFs;

use super::command_line::CommandLine;
use super::{listed, places};

/// Options of QEMU that other VMMs do not have in this form, except a few; `id` is Proxmox's.
const OF_QEMU: &[&str] = &[
    "machine",
    "M",
    "accel",
    "enable-kvm",
    "cpu",
    "smp",
    "device",
    "chardev",
    "mon",
    "qmp",
    "qmp-pretty",
    "readconfig",
    "no-user-config",
    "object",
    "netdev",
    "nic",
    "drive",
    "blockdev",
    "global",
    "nographic",
    "id",
];
/// Options that other VMMs have, too.
const OF_OTHERS_TOO: &[&str] = &["m", "name", "uuid", "nodefaults"];

/// The processes that are known to be no QEMUs, each with a hash of the program that it executed.
#[derive(Debug, Default)]
pub(super) struct Strangers(HashMap<u32, u64>);

impl Strangers {
    /// Forgets the processes that are not among `pids`, which are ascending.
    pub(super) fn retain(&mut self, pids: &[u32]) {
        self.0.retain(|pid, _| pids.binary_search(pid).is_ok());
    }

    /// Whether the process is a QEMU.
    pub(super) fn is_qemu(&mut self, proc_fs: &ProcFs, pid: u32) -> bool {
        let (exe, comm) = (proc_fs.exe_name(pid), proc_fs.comm(pid));
        let program = exe.as_deref().or(comm.as_deref()).unwrap_or_default();
        if is_qemus(program) {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        (&exe, &comm).hash(&mut hasher);
        let hash = hasher.finish();
        if self.0.get(&pid) == Some(&hash) {
            return false;
        }
        // A process that takes too long to read may be one: it is read again.
        let Some(start) = proc_fs.start_of_cmdline(pid) else { return false };
        let first = start.split(|&byte| byte == 0).next().unwrap_or_default();
        let first = String::from_utf8_lossy(first);
        let called = Path::new(first.as_ref()).file_name().unwrap_or_default().to_string_lossy();
        if is_qemus(&called) {
            return true;
        }
        if !resembles_qemu(&start) {
            self.0.insert(pid, hash);
            return false;
        }
        // What is not there yet may come: it is asked again.
        does_what_qemu_does(proc_fs, pid).unwrap_or(program == "kvm" || called == "kvm")
    }
}

fn is_qemus(name: &str) -> bool {
    let name = name.trim_start_matches('.');
    name.starts_with("qemu-system-") || name.starts_with("qemu-kvm")
}

/// Whether at least two of these NUL-separated arguments are QEMU's options, one of them not common to other VMMs. The name of the program does not
/// matter.
#[must_use]
pub fn resembles_qemu(cmdline: &[u8]) -> bool {
    let arguments = cmdline.split(|&byte| byte == 0).skip(1);
    let options = arguments.filter_map(|argument| {
        let option = argument.strip_prefix(b"--").or_else(|| argument.strip_prefix(b"-"))?;
        str::from_utf8(option).ok()
    });
    let (of_qemu, others): (BTreeSet<&str>, BTreeSet<&str>) =
        options.partition(|option| OF_QEMU.contains(option));
    let common = others.iter().filter(|option| OF_OTHERS_TOO.contains(option)).count();
    !of_qemu.is_empty() && of_qemu.len() + common >= 2
}

/// Whether the process holds a machine of KVM, or listens at a QMP socket of its command line. `None` if its descriptors may not be read.
fn does_what_qemu_does(proc_fs: &ProcFs, pid: u32) -> Option<bool> {
    if proc_fs.holds_kvm(pid)? {
        return Some(true);
    }
    let line = proc_fs.cmdline(pid).map(|cmdline| CommandLine::parse(&cmdline)).unwrap_or_default();
    let bound: Vec<PathBuf> = places::bound(proc_fs, pid, &line);
    Some(!bound.is_empty() && listed::listens(proc_fs, pid, &bound) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_tell_a_qemu_from_other_vmms() {
        let has = |arguments: &str| resembles_qemu(arguments.replace(' ', "\0").as_bytes());
        for qemu in [
            "my-vm -name a -m 512 -machine q35",
            "my-vm -m 512 -qmp unix:/run/a,server=on",
            "kvm -id 100 -name proxmox",
            "x --accel kvm --device virtio-balloon",
        ] {
            assert!(has(qemu), "{qemu}");
        }
        for other in [
            "",
            "kvm",
            "my-vm -m 512 -name a",
            "lkvm run --name a -m 512 --nodefaults -c 2 --kernel bzImage",
            "cloud-hypervisor --kernel vmlinux --memory size=1G --device path=/sys/x --net tap=t",
            "firecracker --id 5 --api-sock /run/fc.sock",
            "crosvm run --mem 2048 --cpus 4 --name a --block disk vmlinux",
            "grep -m 5 -name x",
        ] {
            assert!(!has(other), "{other}");
        }
    }

    #[test]
    fn names_of_qemu_with_and_without_a_wrapper() {
        for name in
            ["qemu-system-x86_64", ".qemu-system-x86_64-wrapped", "qemu-kvm", "qemu-system-x86_64 (deleted)"]
        {
            assert!(is_qemus(name), "{name}");
        }
        for name in ["kvm", "qemu-img", "qemu-x86_64", "my-qemu-system-x86_64", ""] {
            assert!(!is_qemus(name), "{name}");
        }
    }
}
