//! The processes of a host, for the discovery of guests: the few files of /proc that it reads, each with bounded length.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{self, Stat};
use crate::{regular, shared_ram, within};

/// The longest accepted command line, in bytes. Linux allows 2 MiB; QEMU's have some ten KiB.
const LONGEST_CMDLINE: u64 = 1 << 20;
/// The part of a command line that shows what kind of program it is, in bytes.
const START_OF_CMDLINE: u64 = 4096;
/// The longest accepted environment, in bytes.
const LONGEST_ENVIRONMENT: u64 = 128 << 10;
/// The most descriptors of a process that are looked at. What a VMM opens at its start has the lowest numbers.
const MOST_DESCRIPTORS: usize = 4096;
/// The longest accepted small file, in bytes.
const LONGEST_LINE: u64 = 4096;
/// The longest that one reading may take of what the kernel reads from the memory of a process (its command line), or of a file that a process names: it
/// may be on a file system that never answers. On a busy machine, a thread that has nothing to wait for takes a tenth of this.
const READS_WITHIN: Duration = Duration::from_millis(500);
/// The longest accepted list of sockets, in bytes: some ten thousand sockets.
const LONGEST_LIST: u64 = 4 << 20;

/// A tree like /proc.
#[derive(Clone, Debug)]
pub struct ProcFs {
    root: PathBuf,
}

impl ProcFs {
    /// The tree at `root`, usually `/proc`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Whether this is the running system's /proc and not a captured tree. Only then its numbers are living processes.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/proc")
    }

    /// The root of the tree.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a file of a process.
    #[must_use]
    pub fn file(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    /// The path of the boot id.
    #[must_use]
    pub fn boot_id_path(&self) -> PathBuf {
        self.root.join("sys/kernel/random/boot_id")
    }

    /// The boot id of the host.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn boot_id(&self) -> io::Result<String> {
        let bytes = read(&self.boot_id_path(), LONGEST_LINE)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The present processes, ascending.
    ///
    /// # Errors
    /// If the tree cannot be listed.
    pub fn pids(&self) -> io::Result<Vec<u32>> {
        let mut pids = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
                pids.push(pid);
            }
        }
        pids.sort_unstable();
        Ok(pids)
    }

    /// The number that was last given to a process or a thread. While it stays the same, no process is new. `None` if these are not the
    /// numbers of this tree.
    #[must_use]
    pub fn last_pid(&self) -> Option<u32> {
        let ours = fs::read_link(self.root.join("self")).ok()?;
        if ours != Path::new(&std::process::id().to_string()) {
            return None;
        }
        // `0.20 0.18 0.12 1/80 11206`
        let loads = read(&self.root.join("loadavg"), LONGEST_LINE).ok()?;
        String::from_utf8_lossy(&loads).split_ascii_whitespace().nth(4)?.parse().ok()
    }

    /// The command's name, cut at 15 bytes by the kernel.
    #[must_use]
    pub fn comm(&self, pid: u32) -> Option<String> {
        let bytes = read(&self.file(pid, "comm"), LONGEST_LINE).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())
    }

    /// The program's file name; `None` also if it may not be read.
    #[must_use]
    pub fn exe_name(&self, pid: u32) -> Option<String> {
        let exe = fs::read_link(self.file(pid, "exe")).ok()?;
        Some(exe.file_name()?.to_string_lossy().into_owned())
    }

    /// The arguments with a NUL after each; `None` if there are none (a kernel thread, or a process that has ended), or if they take too long to
    /// read.
    #[must_use]
    pub fn cmdline(&self, pid: u32) -> Option<Vec<u8>> {
        self.memory_of(pid, "cmdline", LONGEST_CMDLINE)?.ok().filter(|bytes| !bytes.is_empty())
    }

    /// The first `most` bytes of the regular file at a path as the process sees it: below its root, or below its working directory.
    ///
    /// # Errors
    /// If there is no such file there, if it may not be read, or if it is not a regular one.
    pub fn regular_file(&self, pid: u32, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let (fs, path) = (self.clone(), path.to_owned());
        within(pid, READS_WITHIN, move || regular::read_regular(&fs.place(pid, &path)?, most))
            .unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Whether the file or directory at a path as the process sees it is on a disk: its mapped pages are page cache. `None` if it cannot be
    /// looked at.
    #[must_use]
    pub fn is_on_disk(&self, pid: u32, path: &Path) -> Option<bool> {
        let (fs, path) = (self.clone(), path.to_owned());
        within(pid, READS_WITHIN, move || shared_ram::is_on_disk(&fs.place(pid, &path)?))?.ok()
    }

    /// Whether there is something at `path`, which the process has named. False if that takes too long to see.
    #[must_use]
    pub fn is_there(&self, pid: u32, path: &Path) -> bool {
        let path = path.to_owned();
        within(pid, READS_WITHIN, move || path.exists()).unwrap_or(false)
    }

    fn place(&self, pid: u32, path: &Path) -> io::Result<PathBuf> {
        let from = self.file(pid, if path.is_absolute() { "root" } else { "cwd" });
        regular::below(&from, path)
    }

    /// The first 4 KiB of the arguments; empty if there are none. `None` if they take too long to read.
    #[must_use]
    pub fn start_of_cmdline(&self, pid: u32) -> Option<Vec<u8>> {
        Some(self.memory_of(pid, "cmdline", START_OF_CMDLINE)?.unwrap_or_default())
    }

    /// The first `most` bytes of a file that the kernel reads from the memory of its process; `None` if that takes too long.
    fn memory_of(&self, pid: u32, name: &str, most: u64) -> Option<io::Result<Vec<u8>>> {
        let path = self.file(pid, name);
        within(pid, READS_WITHIN, move || read(&path, most))
    }

    /// The value of a variable in the environment that the process was started with; `None` also if it may not be read.
    #[must_use]
    pub fn variable(&self, pid: u32, name: &str) -> Option<PathBuf> {
        let environment = self.memory_of(pid, "environ", LONGEST_ENVIRONMENT)?.ok()?;
        let mut variables = environment.split(|&byte| byte == 0);
        let value = variables.find_map(|variable| {
            variable.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
        });
        value.map(|value| OsStr::from_bytes(value).into())
    }

    /// The real user of the process; `None` if there is no such process. (The owner of its directory may be root in place of its user.)
    #[must_use]
    pub fn user(&self, pid: u32) -> Option<u32> {
        process::user_in(&read(&self.file(pid, "status"), LONGEST_LINE).ok()?)
    }

    /// The parent, the start and the end of a process; `None` if there is no such process.
    #[must_use]
    pub fn stat(&self, pid: u32) -> Option<Stat> {
        Stat::parse(&String::from_utf8_lossy(&read(&self.file(pid, "stat"), LONGEST_LINE).ok()?))
    }

    /// The Unix sockets of the process's network namespace, one per line.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn unix_sockets(&self, pid: u32) -> io::Result<Vec<u8>> {
        read(&self.file(pid, "net/unix"), LONGEST_LIST)
    }

    /// The destination of a symbolic link of the process; `None` also if it may not be read.
    #[must_use]
    pub fn link(&self, pid: &str, name: &str) -> Option<PathBuf> {
        fs::read_link(self.root.join(pid).join(name)).ok()
    }

    /// The destinations of the process's descriptors, as the kernel names them: paths, `socket:[INODE]`, `anon_inode:NAME`. At most 4,096.
    /// `None` if they may not be read.
    #[must_use]
    pub fn descriptors(&self, pid: u32) -> Option<Vec<PathBuf>> {
        let descriptors = fs::read_dir(self.file(pid, "fd")).ok()?;
        let descriptors = descriptors.take(MOST_DESCRIPTORS).flatten();
        Some(descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).collect())
    }

    /// Whether the process holds a KVM virtual machine. `None` if its descriptors may not be read.
    #[must_use]
    pub fn holds_kvm(&self, pid: u32) -> Option<bool> {
        Some(self.descriptors(pid)?.iter().any(|target| target == Path::new("anon_inode:kvm-vm")))
    }
}

fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(longest).read_to_end(&mut bytes)?;
    Ok(bytes)
}
