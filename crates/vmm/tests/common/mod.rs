//! Helpers for tests: trees like /proc, and waiting for conditions.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A tree like /proc.
pub struct Tree {
    directory: TempDir,
}

/// A process of such a tree.
pub struct Process<'a> {
    pub pid: u32,
    pub parent: u32,
    pub start: u64,
    pub comm: &'a str,
    pub args: &'a [&'a str],
}

impl Tree {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let boot_id = directory.path().join("sys/kernel/random");
        fs::create_dir_all(&boot_id).expect("a directory");
        fs::write(boot_id.join("boot_id"), "b0071d\n").expect("a file");
        fs::create_dir_all(directory.path().join("self/ns")).expect("a directory");
        symlink("mnt:[1]", directory.path().join("self/ns/mnt")).expect("a link");
        Self { directory }
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn file(&self, pid: u32, name: &str) -> PathBuf {
        self.root().join(pid.to_string()).join(name)
    }

    pub fn add(&self, process: &Process<'_>) {
        let pid = process.pid;
        fs::create_dir_all(self.file(pid, "ns")).expect("a directory");
        symlink("mnt:[1]", self.file(pid, "ns/mnt")).expect("a link");
        symlink("/", self.file(pid, "root")).expect("a link");
        symlink("/srv/vm", self.file(pid, "cwd")).expect("a link");
        self.execute(process);
    }

    /// Makes the process execute another program.
    pub fn execute(&self, process: &Process<'_>) {
        let Process { pid, parent, start, comm, args } = process;
        let mut cmdline = args.join("\0");
        cmdline.push('\0');
        let stat = format!("{pid} ({comm}) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 4 0 {start} 900 100\n");
        fs::write(self.file(*pid, "comm"), format!("{comm}\n")).expect("a file");
        fs::write(self.file(*pid, "cmdline"), if args.is_empty() { "" } else { &cmdline }).expect("a file");
        fs::write(self.file(*pid, "stat"), stat).expect("a file");
    }

    /// Gives the process a real user, and another effective one.
    pub fn owned_by(&self, pid: u32, user: u32) {
        let status = format!("Name:\tx\nPid:\t{pid}\nUid:\t{user}\t0\t0\t0\nGid:\t0\t0\t0\t0\n");
        fs::write(self.file(pid, "status"), status).expect("a file");
    }

    /// Gives the process descriptors, in order, as the kernel names them.
    pub fn open(&self, pid: u32, descriptors: &[&str]) {
        fs::create_dir_all(self.file(pid, "fd")).expect("a directory");
        for (number, target) in descriptors.iter().enumerate() {
            symlink(target, self.file(pid, &format!("fd/{number}"))).expect("a link");
        }
    }

    /// Replaces a link of the process.
    pub fn link(&self, pid: u32, name: &str, target: &str) {
        let _absent = fs::remove_file(self.file(pid, name));
        symlink(target, self.file(pid, name)).expect("a link");
    }

    /// Lists a socket that listens at `path`.
    pub fn list_listener(&self, pid: u32, inode: u64, path: &str) {
        let line = format!("000000006b943e35: 00000002 00000000 00010000 0001 01 {inode:5} {path}\n");
        fs::create_dir_all(self.file(pid, "net")).expect("a directory");
        fs::write(self.file(pid, "net/unix"), line).expect("a file");
    }

    /// Adds a QEMU with a name and a monitor.
    pub fn add_qemu(&self, pid: u32, name: &str, qmp: &Path) {
        let monitor = format!("unix:{},server=on,wait=off", qmp.display());
        let args = ["qemu-system-x86_64", "-name", name, "-m", "512", "-qmp", &monitor];
        self.add(&Process {
            pid,
            parent: 1,
            start: 100 + u64::from(pid),
            comm: "qemu-system-x86",
            args: &args,
        });
    }

    /// Adds a QEMU of libvirt with a name and an identity.
    pub fn add_libvirt(&self, pid: u32, name: &str, uuid: &str) {
        let guest = format!("guest={name},debug-threads=on");
        let monitor = "socket,id=charmonitor,fd=22,server=on,wait=off";
        let args =
            ["qemu-system-x86_64", "-name", &guest, "-S", "-m", "512", "-uuid", uuid, "-chardev", monitor];
        self.add(&Process {
            pid,
            parent: 1,
            start: 100 + u64::from(pid),
            comm: "qemu-system-x86",
            args: &args,
        });
    }

    /// Adds a UML instance with its name, the directory of all instances' directories, and its memory.
    pub fn add_uml(&self, pid: u32, name: &str, uml_dir: &Path, mib: u64) {
        let (umid, uml_dir) = (format!("umid={name}"), format!("uml_dir={}", uml_dir.display()));
        let args = ["linux.uml", &format!("mem={mib}M"), &umid, &uml_dir, "root=/dev/ram"];
        self.add(&Process { pid, parent: 1, start: 100 + u64::from(pid), comm: "linux.uml", args: &args });
        self.owned_by(pid, rustix::process::getuid().as_raw());
    }

    pub fn remove(&self, pid: u32) {
        fs::remove_dir_all(self.root().join(pid.to_string())).expect("the process was there");
    }
}

/// Waits until `condition` holds, or fails after ten seconds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "still waiting: {what}");
        std::thread::yield_now();
    }
}
