//! The few files of /proc that discovery reads, below a given root, each with bounded length.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The longest accepted command line, in bytes. Linux allows 2 MiB; QEMU's have some ten KiB.
const LONGEST_CMDLINE: u64 = 1 << 20;
/// The longest accepted small file, in bytes.
const LONGEST_LINE: u64 = 4096;
/// The longest accepted list of sockets, in bytes: some ten thousand sockets.
const LONGEST_LIST: u64 = 4 << 20;

/// A tree like /proc.
#[derive(Clone, Debug)]
pub(super) struct ProcFs {
    root: PathBuf,
}

/// The needed fields of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// The parent process.
    pub(super) parent: u32,
    /// Start in clock ticks after the boot.
    pub(super) start: u64,
    /// The process has ended and waits for its parent.
    pub(super) dead: bool,
}

impl ProcFs {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Whether this is the running system's /proc and not a captured tree. Only then its numbers are living processes.
    pub(super) fn is_live(&self) -> bool {
        self.root == Path::new("/proc")
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn file(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    pub(super) fn boot_id_path(&self) -> PathBuf {
        self.root.join("sys/kernel/random/boot_id")
    }

    pub(super) fn boot_id(&self) -> io::Result<String> {
        let bytes = read(&self.boot_id_path(), LONGEST_LINE)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The present processes, ascending.
    pub(super) fn pids(&self) -> io::Result<Vec<u32>> {
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
    pub(super) fn last_pid(&self) -> Option<u32> {
        let ours = fs::read_link(self.root.join("self")).ok()?;
        if ours != Path::new(&std::process::id().to_string()) {
            return None;
        }
        // `0.20 0.18 0.12 1/80 11206`
        let loads = read(&self.root.join("loadavg"), LONGEST_LINE).ok()?;
        String::from_utf8_lossy(&loads).split_ascii_whitespace().nth(4)?.parse().ok()
    }

    /// The command's name, cut at 15 bytes by the kernel.
    pub(super) fn comm(&self, pid: u32) -> Option<String> {
        let bytes = read(&self.file(pid, "comm"), LONGEST_LINE).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())
    }

    /// The program's file name; `None` also if it may not be read.
    pub(super) fn exe_name(&self, pid: u32) -> Option<String> {
        let exe = fs::read_link(self.file(pid, "exe")).ok()?;
        Some(exe.file_name()?.to_string_lossy().into_owned())
    }

    /// The arguments with a NUL after each; `None` if there are none (a kernel thread, or a process that has ended).
    pub(super) fn cmdline(&self, pid: u32) -> Option<Vec<u8>> {
        read(&self.file(pid, "cmdline"), LONGEST_CMDLINE).ok().filter(|bytes| !bytes.is_empty())
    }

    pub(super) fn stat(&self, pid: u32) -> Option<Stat> {
        parse_stat(&String::from_utf8_lossy(&read(&self.file(pid, "stat"), LONGEST_LINE).ok()?))
    }

    /// The Unix sockets of the process's network namespace, one per line.
    pub(super) fn unix_sockets(&self, pid: u32) -> io::Result<Vec<u8>> {
        read(&self.file(pid, "net/unix"), LONGEST_LIST)
    }

    /// The destination of a symbolic link of the process; `None` also if it may not be read.
    pub(super) fn link(&self, pid: &str, name: &str) -> Option<PathBuf> {
        fs::read_link(self.root.join(pid).join(name)).ok()
    }

    /// Whether the process holds a KVM virtual machine. `None` if its descriptors may not be read.
    pub(super) fn holds_kvm(&self, pid: u32) -> Option<bool> {
        let descriptors = fs::read_dir(self.file(pid, "fd")).ok()?;
        Some(descriptors.flatten().any(|entry| {
            fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().contains("kvm-vm"))
        }))
    }
}

fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(longest).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The command's name is in parentheses and can contain anything, even parentheses and spaces. So fields count from its end.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // Field 22 of the whole line. The state is field 3, the parent is field 4.
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, start, dead: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let line = "7029 (qemu) S) x) S 7021 7029 7029 0 -1 4194560 58 0 0 0 1 2 0 0 20 0 4 0 216512 900 100 18446744073709551615\n";
        assert_eq!(parse_stat(line), Some(Stat { parent: 7021, start: 216_512, dead: false }));
        assert_eq!(parse_stat(&line.replace(" S 7021", " Z 7021")).map(|stat| stat.dead), Some(true));
        for text in ["", "7029 (qemu", "7029 (qemu) S 1 2 3", "7029 (qemu) S x"] {
            assert_eq!(parse_stat(text), None, "{text}");
        }
    }
}
