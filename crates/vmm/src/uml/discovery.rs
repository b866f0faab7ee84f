//! Finds the UML instances of this host without configuration.
//!
//! An instance is a process whose arguments are those of a UML kernel, and whose number is in the file `pid` of a directory in its `uml_dir`. One
//! instance is several processes: the kernel, its helper threads, and one for each address space in the instance. They all have the same arguments, and
//! only the kernel's number is in that file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_host::{read_regular, within};
use memtide_model::{Bytes, GuestId, Users};

use crate::processes::{DiscoveryError, Processes, Scan};

/// The memory of an instance that was started without `mem=` (`CONFIG_UML` since Linux 5.14; 32 MiB before).
const DEFAULT_MEMORY: Bytes = Bytes::from_mib(64);
/// Where instances have their directories, if `uml_dir=` does not say otherwise.
const DEFAULT_DIRECTORY: &str = "~/.uml/";
/// The argument that names the agent's terminal in the instance. The agent reads it, too.
const AGENT: &[u8] = b"memtide_agent";
/// The most disks of an instance (`MAX_DEV` in Linux).
const MOST_DISKS: usize = 16;
/// The most directories of instances that are examined for one user.
const MOST_DIRECTORIES: usize = 4096;
/// The most bytes that are read of a file with a process's number.
const LONGEST_NUMBER: u64 = 32;
/// The longest accepted file with users.
const LONGEST_PASSWD: u64 = 1 << 20;
/// The longest search for the files of one process.
const SEARCHES_WITHIN: Duration = Duration::from_millis(500);
/// How often discovery looks for the directory of a process that looks like an instance: it is there after the kernel's first second.
const LOOKS: u8 = 60;

/// A UML instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its identity. The name is its `umid`.
    pub id: GuestId,
    /// The process of its kernel.
    pub pid: u32,
    /// The real user of the process, as the kernel says.
    pub user: u32,
    /// This user is not admitted: no more is known than the command line tells.
    pub is_outside: bool,
    /// Its console, as a path that works in this process.
    pub console: PathBuf,
    /// Its memory.
    pub memory: Bytes,
    /// The memory file as the kernel shows it, without the mark of a deleted file; `None` if it cannot be found out.
    pub file: Option<PathBuf>,
    /// The serial line of its agent: the number of an `ssl` device.
    pub agent: Option<u8>,
    /// Its disks, with paths that work in this process.
    pub disks: Vec<Disk>,
}

/// A disk of an instance (`ubd0=FILE` or `ubd0=COW,BACKING`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its file; the COW file if it has a backing file.
    pub file: PathBuf,
    /// The backing file, if the command line names it. A COW file names its own, too.
    pub backing: Option<PathBuf>,
}

/// The instances of this host, kept up to date by [`Discovery::scan`].
#[derive(Debug)]
pub struct Discovery {
    processes: Processes,
    known: BTreeMap<u32, Instance>,
    /// Processes that look like instances and have no directory yet, with the number of looks for it.
    early: BTreeMap<u32, u8>,
    /// The users whose instances are read; `None`: all.
    users: Option<Users>,
    /// Others may be guests since the last scan.
    admits_anew: bool,
}

/// What the files of an instance tell.
#[derive(Debug)]
struct Files {
    umid: String,
    directory: PathBuf,
    file: Option<PathBuf>,
}

/// The search for the files of a process that looks like an instance. Its user chooses where they are, so it has a time budget.
struct Search {
    processes: Processes,
    pid: u32,
    user: u32,
    arguments: Arguments,
    by: Instant,
}

/// The arguments of a UML kernel that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Arguments {
    is_kernel: bool,
    umid: Option<String>,
    directory: Option<PathBuf>,
    memory: Option<Bytes>,
    agent: Option<u8>,
    disks: Vec<Disk>,
}

impl Arguments {
    /// The instance's memory.
    fn size(&self) -> Bytes {
        self.memory.unwrap_or(DEFAULT_MEMORY)
    }

    fn parse(cmdline: &[u8]) -> Self {
        let mut found = Self::default();
        for argument in cmdline.split(|byte| *byte == 0).skip(1) {
            let Some(at) = argument.iter().position(|byte| *byte == b'=') else { continue };
            let (key, value) = (&argument[..at], &argument[at + 1..]);
            match key {
                b"umid" => found.umid = Some(String::from_utf8_lossy(value).into_owned()),
                b"uml_dir" => found.directory = Some(PathBuf::from(OsStr::from_bytes(value))),
                b"mem" => found.memory = size(value),
                AGENT => found.agent = line(value),
                _ => {}
            }
            let is_disk = key.starts_with(b"ubd") && key.len() > 3;
            if is_disk && found.disks.len() < MOST_DISKS {
                let mut files =
                    value.splitn(2, |byte| *byte == b',').map(|file| OsStr::from_bytes(file).into());
                let file = files.next().unwrap_or_default();
                found.disks.push(Disk { file, backing: files.next() });
            }
            found.is_kernel |=
                is_disk || matches!(key, b"umid" | b"uml_dir" | b"mem" | b"initrd" | b"root" | b"rootfstype");
        }
        found
    }
}

/// The number of the serial line behind a terminal in the instance: `/dev/ttyS1` is `ssl1`.
fn line(terminal: &[u8]) -> Option<u8> {
    str::from_utf8(terminal.strip_prefix(b"/dev/ttyS")?).ok()?.parse().ok()
}

/// A number with the suffix of a size (`memparse` in Linux).
fn size(text: &[u8]) -> Option<Bytes> {
    let text = str::from_utf8(text).ok()?;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).map(Bytes::new)
}

impl Files {
    /// That of a process whose files are not read.
    fn unread(pid: u32, arguments: &Arguments) -> Self {
        let umid = arguments.umid.clone().unwrap_or_else(|| format!("linux-{pid}"));
        Self { umid, directory: PathBuf::new(), file: None }
    }
}

impl Discovery {
    /// Discovery in the tree `root`, usually `/proc`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            processes: Processes::new(root),
            known: BTreeMap::new(),
            early: BTreeMap::new(),
            users: None,
            admits_anew: false,
        }
    }

    /// Of instances of other users, nothing is read from now on but their command lines.
    pub fn admit(&mut self, users: Option<Users>) {
        self.users = users;
        // Some of them may be admitted now.
        self.known.retain(|_, instance| !instance.is_outside);
        self.admits_anew = true;
        self.processes.limit_scans();
    }

    /// The instances of the last scan, by process.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.known.values()
    }

    /// A path of the instance's process as a path that works in this process.
    #[must_use]
    pub fn reachable(&self, instance: &Instance, path: &Path) -> PathBuf {
        self.processes.reachable(instance.pid, path)
    }

    /// Looks for new processes, and at all known instances if `ended`, else at a part of them. Returns whether any came or went.
    ///
    /// # Errors
    /// If the tree cannot be listed, or if the host's boot id cannot be read. The known instances stay as they are.
    pub fn scan(&mut self, ended: bool) -> Result<bool, DiscoveryError> {
        let scan = if ended { Scan::All } else { Scan::ForNew };
        let boot = self.processes.boot()?;
        let pids = self.processes.list(scan)?;
        let before = self.known.len();
        let processes = &self.processes;
        self.known.retain(|&pid, instance| processes.has_still(&pids, pid, instance.id.start(), scan));
        self.early.retain(|pid, looks| pids.binary_search(pid).is_ok() && *looks < LOOKS);
        let mut changed = self.known.len() != before || std::mem::take(&mut self.admits_anew);
        for pid in self.processes.in_order(pids) {
            if self.known.contains_key(&pid) {
                continue;
            }
            if !self.processes.has_time_for(pid) {
                break;
            }
            let is_early = self.early.contains_key(&pid);
            if is_early || (self.processes.is_due(pid) && self.looks_like_uml(pid)) {
                changed |= self.read(pid, &boot);
            }
        }
        Ok(changed)
    }

    /// Looks for the files of a process. If that overruns its time, they are not there.
    fn search(&self, pid: u32, user: u32, arguments: &Arguments) -> Option<Files> {
        let (root, arguments) = (self.processes.proc_fs().root().to_owned(), arguments.clone());
        // If the directory is merely large, the thread stops soon after the budget, and the process is left alone for a while.
        let by = Instant::now() + 2 * SEARCHES_WITHIN;
        within(pid, SEARCHES_WITHIN, move || {
            Search { processes: Processes::new(&root), pid, user, arguments, by }.files()
        })
        .flatten()
    }

    /// Whether the program is called as UML's kernels are: `linux`, `linux.uml`, `linux-6.12`, `vmlinux`, `uml`.
    fn looks_like_uml(&self, pid: u32) -> bool {
        let named = |name: String| ["linux", "vmlinux", "uml"].iter().any(|start| name.starts_with(start));
        let proc_fs = self.processes.proc_fs();
        proc_fs.comm(pid).is_some_and(named) || proc_fs.exe_name(pid).is_some_and(named)
    }

    /// Reads a process, and keeps it if it is an instance's kernel.
    fn read(&mut self, pid: u32, boot: &str) -> bool {
        let proc_fs = self.processes.proc_fs();
        let Some(stat) = proc_fs.stat(pid).filter(|stat| !stat.dead) else { return false };
        let Some(user) = proc_fs.user(pid) else { return false };
        let is_outside = self.users.as_ref().is_some_and(|users| !users.have(Some(user)));
        let line = if is_outside { proc_fs.start_of_cmdline(pid) } else { proc_fs.cmdline(pid) };
        let Some(arguments) = line.map(|line| Arguments::parse(&line)) else { return false };
        // A process of the instance: its kernel is its parent.
        if !arguments.is_kernel
            || self.known.contains_key(&stat.parent)
            || self.early.contains_key(&stat.parent)
            // Nothing else tells an outsider's kernel from its helpers, and their parent may be read later.
            || (is_outside && self.looks_like_uml(stat.parent))
        {
            return false;
        }
        let files = match is_outside {
            true => Some(Files::unread(pid, &arguments)),
            false => self.search(pid, user, &arguments),
        };
        let Some(Files { umid, directory, file }) = files else {
            *self.early.entry(pid).or_default() += 1;
            return false;
        };
        let memory = arguments.size();
        let id = GuestId::new(&umid, stat.start, boot);
        let is_taken = self.known.values().any(|other| other.id == id);
        let id = if is_taken { GuestId::new(&format!("{umid}-{pid}"), stat.start, boot) } else { id };
        let (console, agent) = (directory.join("mconsole"), arguments.agent);
        let reachable = |path: &PathBuf| self.processes.reachable(pid, path);
        let disk =
            |disk: &Disk| Disk { file: reachable(&disk.file), backing: disk.backing.as_ref().map(reachable) };
        let disks = arguments.disks.iter().map(disk).collect();
        let instance = Instance { id, pid, user, is_outside, console, memory, file, agent, disks };
        self.early.remove(&pid);
        self.processes.is_a_guest(pid);
        self.known.insert(pid, instance);
        true
    }
}

impl Search {
    /// Finds everything; `None` if there is no such directory yet.
    fn files(&self) -> Option<Files> {
        let (umid, directory) = self.directory()?;
        Some(Files { umid, directory, file: self.memory_file() })
    }

    /// The instance's name and directory.
    fn directory(&self) -> Option<(String, PathBuf)> {
        let parent = self.arguments.directory.clone().unwrap_or_else(|| DEFAULT_DIRECTORY.into());
        let parent = match parent.strip_prefix("~") {
            Ok(below) => self.home()?.join(below),
            Err(_) => parent,
        };
        let parent = self.processes.reachable(self.pid, &parent);
        let number = self.own_number();
        let is_its = |directory: &Path| {
            // The user may have put a pipe there.
            let text = read_regular(&directory.join("pid"), LONGEST_NUMBER).ok()?;
            (str::from_utf8(&text).ok()?.trim().parse() == Ok(number)).then_some(())
        };
        if let Some(umid) = &self.arguments.umid {
            let directory = parent.join(umid);
            return is_its(&directory).map(|()| (umid.clone(), directory));
        }
        // A kernel without `umid=` makes up a name.
        let entries = fs::read_dir(&parent).ok()?.flatten().take(MOST_DIRECTORIES);
        entries.take_while(|_| Instant::now() < self.by).map(|entry| entry.path()).find_map(|directory| {
            is_its(&directory)?;
            Some((directory.file_name()?.to_string_lossy().into_owned(), directory))
        })
    }

    /// The process's number in its own namespace.
    fn own_number(&self) -> u32 {
        // The kernel's own file.
        let status = self.processes.proc_fs().file(self.pid, "status");
        let status = fs::read_to_string(status).unwrap_or_default(); // tidy-allow: read_to_string
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers
            .and_then(|numbers| numbers.split_ascii_whitespace().next_back()?.parse().ok())
            .unwrap_or(self.pid)
    }

    /// The home directory as the process sees it: from its environment, or else its user's.
    fn home(&self) -> Option<PathBuf> {
        if let Some(home) = self.processes.proc_fs().variable(self.pid, "HOME") {
            return Some(home);
        }
        let passwd = self.processes.reachable(self.pid, Path::new("/etc/passwd"));
        let passwd = read_regular(&passwd, LONGEST_PASSWD).ok()?;
        String::from_utf8_lossy(&passwd).lines().find_map(|line| {
            let mut fields = line.split(':').skip(2);
            (fields.next()?.parse() == Ok(self.user)).then_some(())?;
            fields.nth(2).map(PathBuf::from)
        })
    }

    /// The memory file: the open file of a deleted name that is large enough. UML creates it, removes its name and maps it. Its size says little:
    /// it begins with a hole.
    fn memory_file(&self) -> Option<PathBuf> {
        let memory = self.arguments.size();
        let descriptors = fs::read_dir(self.processes.proc_fs().file(self.pid, "fd")).ok()?;
        let files = descriptors.flatten().take(MOST_DIRECTORIES).filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            let shown = link.to_str()?.strip_suffix(" (deleted)")?;
            let meta = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
            Some((PathBuf::from(shown), Bytes::new(meta.len())))
        });
        files.filter(|(_, size)| *size >= memory).min_by_key(|(_, size)| *size).map(|(path, _)| path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A captured tree with one instance `u1` of process 42 and its helper 43, whose memory file has 256 MiB.
    fn tree(cmdline: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let write = |path: &str, text: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), text).unwrap();
        };
        write("proc/sys/kernel/random/boot_id", "0b1c\n");
        let uml_dir = at("home/uml");
        for (pid, parent) in [(42, 1), (43, 42), (44, 1)] {
            let cmdline = if pid == 44 { "linux-tool --help" } else { cmdline };
            let cmdline = cmdline.replace("DIR", uml_dir.to_str().unwrap());
            write(&format!("proc/{pid}/cmdline"), &format!("{}\0", cmdline.replace(' ', "\0")));
            write(&format!("proc/{pid}/comm"), "linux.uml\n");
            let rest = " 7".repeat(40);
            write(&format!("proc/{pid}/stat"), &format!("{pid} (linux.uml) S {parent}{rest}\n"));
            let user = rustix::process::getuid().as_raw();
            write(&format!("proc/{pid}/status"), &format!("Name:\tlinux.uml\nUid:\t{user}\t0\t0\t0\n"));
            write(&format!("proc/{pid}/environ"), &format!("A=1\0HOME={}\0", at("home").display()));
        }
        write("memory (deleted)", "");
        fs::File::options().write(true).open(at("memory (deleted)")).unwrap().set_len(256 << 20).unwrap();
        fs::create_dir_all(at("proc/42/fd")).unwrap();
        symlink(at("memory (deleted)"), at("proc/42/fd/3")).unwrap();
        dir
    }

    fn boots(dir: &tempfile::TempDir, uml_dir: &str, umid: &str) -> PathBuf {
        let directory = dir.path().join(uml_dir).join(umid);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("pid"), "42\n").unwrap();
        directory
    }

    #[test]
    fn an_instance_is_found_once_it_has_its_directory() {
        let tree = tree("linux.uml mem=256M umid=u1 uml_dir=DIR root=/dev/ram");
        let mut discovery = Discovery::new(&tree.path().join("proc"));
        assert!(!discovery.scan(true).unwrap());
        let directory = boots(&tree, "home/uml", "u1");
        assert!(discovery.scan(false).unwrap());
        let found: Vec<_> = discovery.instances().collect();
        let [instance] = found.as_slice() else { panic!("one instance: {found:?}") };
        assert_eq!((instance.id.name(), instance.pid), ("u1", 42));
        assert_eq!(instance.console, directory.join("mconsole"));
        assert_eq!(instance.memory, Bytes::from_mib(256));
        assert_eq!(instance.file.as_deref(), Some(tree.path().join("memory").as_path()));
        fs::remove_dir_all(tree.path().join("proc/42")).unwrap();
        assert!(discovery.scan(true).unwrap());
        assert_eq!(discovery.instances().count(), 0);
    }

    #[test]
    fn a_made_up_name_is_found_in_the_home_directory() {
        let tree = tree("./linux ubd0=root_fs");
        boots(&tree, "home/.uml", "Xy12ab");
        fs::create_dir_all(tree.path().join("home/.uml/another")).unwrap();
        let mut discovery = Discovery::new(&tree.path().join("proc"));
        assert!(discovery.scan(true).unwrap());
        let names: Vec<_> = discovery.instances().map(|instance| instance.id.name()).collect();
        assert_eq!(names, ["Xy12ab"]);
    }

    #[test]
    fn nobody_waits_for_pipes_in_place_of_files() {
        let pipe = |path: &Path| {
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        };
        let tree = tree("linux.uml mem=256M umid=u1 uml_dir=DIR root=/dev/ram");
        let directory = tree.path().join("home/uml/u1");
        fs::create_dir_all(&directory).unwrap();
        pipe(&directory.join("pid"));
        let mut discovery = Discovery::new(&tree.path().join("proc"));
        assert!(!discovery.scan(true).unwrap());
        // The file with users, in another root.
        let proc = tree.path().join("proc/42");
        fs::write(proc.join("environ"), "A=1\0").unwrap();
        fs::create_dir_all(proc.join("root/etc")).unwrap();
        fs::create_dir_all(proc.join("ns")).unwrap();
        fs::create_dir_all(tree.path().join("proc/self/ns")).unwrap();
        symlink("mnt:[1]", proc.join("ns/mnt")).unwrap();
        symlink("mnt:[2]", tree.path().join("proc/self/ns/mnt")).unwrap();
        pipe(&proc.join("root/etc/passwd"));
        let search = Search {
            processes: Processes::new(&tree.path().join("proc")),
            pid: 42,
            user: 0,
            arguments: Arguments::default(),
            by: Instant::now(),
        };
        assert_eq!(search.home(), None);
    }

    #[test]
    fn no_file_of_an_outsider_is_read() {
        let tree = tree("linux.uml mem=256M umid=u1 uml_dir=DIR root=/dev/ram");
        let mut discovery = Discovery::new(&tree.path().join("proc"));
        let me = rustix::process::getuid().as_raw();
        let users = |number| Some(Users::new(Vec::new(), vec![(number, number)]));
        discovery.admit(users(me + 1));
        assert!(discovery.scan(true).unwrap());
        let found = discovery.instances().next().unwrap();
        assert_eq!((found.id.name(), found.is_outside, &found.file), ("u1", true, &None));
        // Its user is admitted: without its directory, it is no instance.
        discovery.admit(users(me));
        discovery.scan(true).unwrap();
        assert_eq!(discovery.instances().count(), 0);
        boots(&tree, "home/uml", "u1");
        assert!(discovery.scan(true).unwrap());
        assert!(discovery.instances().next().is_some_and(|found| !found.is_outside && found.file.is_some()));
    }

    #[test]
    fn a_search_ends_in_time() {
        let tree = tree("linux.uml mem=256M uml_dir=DIR root=/dev/ram");
        boots(&tree, "home/uml", "Xy12ab");
        let search = |by| {
            let directory = Some(tree.path().join("home/uml"));
            let arguments = Arguments { directory, ..Arguments::default() };
            let processes = Processes::new(&tree.path().join("proc"));
            Search { processes, pid: 42, user: 0, arguments, by }.files().is_some()
        };
        assert!(search(Instant::now() + Duration::from_secs(60)) && !search(Instant::now()));
    }

    #[test]
    fn arguments_of_other_programs_are_no_instance() {
        let parse = |text: &str| Arguments::parse(text.replace(' ', "\0").as_bytes());
        assert!(!parse("linux-tool --mem 5 con=pty").is_kernel);
        assert!(!parse("mem=5").is_kernel, "the program's own name");
        assert!(parse("linux ubda=x").is_kernel && parse("linux mem=1G").is_kernel);
        assert_eq!(parse("linux mem=1G").memory, Some(Bytes::from_mib(1024)));
        assert_eq!(parse("linux mem=64m").memory, Some(Bytes::from_mib(64)));
        let disks = parse("linux ubd0=root ubd1r=/x ubd2=a.cow,root").disks;
        let disk =
            |file: &str, backing: Option<&str>| Disk { file: file.into(), backing: backing.map(Into::into) };
        assert_eq!(disks, [disk("root", None), disk("/x", None), disk("a.cow", Some("root"))]);
        assert_eq!(parse("linux mem=1G memtide_agent=/dev/ttyS3").agent, Some(3));
        assert_eq!(parse("linux mem=1G memtide_agent=ssl3").agent, None);
        assert_eq!(parse("linux mem=big").memory, None);
        assert_eq!(parse("linux mem=99999999999999999999G").memory, None);
    }
}
