//! The kernel's files: `/proc`, KSM, cgroups of both versions, and the command lines of QEMU processes.
//!
//! An input is a tree of files as text: a line `@NAME` begins the file with this name (see [`FILES`]), and its content
//! follows up to the next such line. Files missing from an input are as on a real host, so one odd file meets healthy ones.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use memtide_host::{
    Cgroup, CgroupReader, GuestCost, HostError, HostSensor, KsmReader, Mapping, Mappings, Meminfo,
    ProcessReader, RamBlock, Root, Scratch, Vmstat, pressure, start_time, statm,
};
use memtide_model::{Budget, Bytes, HostSeen};
use memtide_vmm::qemu::{Backing, CommandLine, Discovery};
use tempfile::TempDir;

use crate::scratch;
use crate::texts::{is_for_people, survives_json};

/// The process in all files of a process.
const PID: u32 = 7;
const V1: &str = "sys/fs/cgroup/memory/vms";
const V2: &str = "sys/fs/cgroup/unified/vms";

/// The files of the tree: the name in an input, the path, and a healthy content.
pub const FILES: [(&str, &str, &str); 27] = [
    (
        "meminfo",
        "proc/meminfo",
        "MemTotal: 24683708 kB\nMemFree: 22059264 kB\nMemAvailable: 23711920 kB\nBuffers: 97416 kB\n\
         Cached: 1788248 kB\nShmem: 8832 kB\nAnonPages: 460012 kB\nDirty: 120 kB\nSwapTotal: 4096 kB\nSwapFree: 4096 kB\n",
    ),
    ("vmstat", "proc/vmstat", "pgpgin 5\npswpin 3\npswpout 4\n"),
    (
        "pressure",
        "proc/pressure/memory",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=11220657\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=11041234\n",
    ),
    ("boot_id", "proc/sys/kernel/random/boot_id", "1a643db6-fa83-4b75-8782-fb36c02fcd74\n"),
    (
        "mountinfo",
        "proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw shared:14 - cgroup cgroup rw,memory\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    ),
    ("cgroup", "proc/7/cgroup", "4:memory:/vms\n0::/vms\n"),
    ("comm", "proc/7/comm", "qemu-system-x86\n"),
    (
        "cmdline",
        "proc/7/cmdline",
        "qemu-system-x86_64\0-name\0web\0-m\x00512\0-qmp\0unix:/run/web.qmp,server=on,wait=off\0",
    ),
    (
        "unix",
        "proc/7/net/unix",
        "Num       RefCount Protocol Flags    Type St Inode Path\n\
         000000006b943e35: 00000002 00000000 00010000 0001 01 77754 /run/web.qmp\n\
         0000000087d3b57e: 00000003 00000000 00000000 0001 03 77760 /run/web.qmp\n",
    ),
    (
        "stat",
        "proc/7/stat",
        "7 (qemu-system-x86) S 1 7 7 0 -1 138412416 15389 0 11 0 443 56 0 0 20 0 4 0 218027 894980096 45861 1\n",
    ),
    ("statm", "proc/7/statm", "218501 45868 6279 1657 0 159749 0\n"),
    (
        "smaps",
        "proc/7/smaps",
        "7f0000000000-7f0020000000 rw-p 00000000 00:00 0 \nRss: 94208 kB\nAnonymous: 94208 kB\nSwap: 8 kB\n\
         VmFlags: rd wr dc \n",
    ),
    ("ksm_merging_pages", "proc/7/ksm_merging_pages", "100\n"),
    ("pages_shared", "sys/kernel/mm/ksm/pages_shared", "100\n"),
    ("pages_sharing", "sys/kernel/mm/ksm/pages_sharing", "300\n"),
    ("v1/usage", "sys/fs/cgroup/memory/vms/memory.usage_in_bytes", "536870912\n"),
    ("v1/limit", "sys/fs/cgroup/memory/vms/memory.limit_in_bytes", "734003200\n"),
    (
        "v1/stat",
        "sys/fs/cgroup/memory/vms/memory.stat",
        "hierarchical_memory_limit 734003200\ntotal_rss 4534272\ntotal_shmem 8192\ntotal_dirty 40960\n\
         total_writeback 4096\ntotal_inactive_file 290816\ntotal_active_file 3796992\n",
    ),
    (
        "v1/oom_control",
        "sys/fs/cgroup/memory/vms/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    ),
    ("v1/failcnt", "sys/fs/cgroup/memory/vms/memory.failcnt", "0\n"),
    ("v2/current", "sys/fs/cgroup/unified/vms/memory.current", "536870912\n"),
    ("v2/max", "sys/fs/cgroup/unified/vms/memory.max", "734003200\n"),
    ("v2/swap.max", "sys/fs/cgroup/unified/vms/memory.swap.max", "max\n"),
    (
        "v2/stat",
        "sys/fs/cgroup/unified/vms/memory.stat",
        "anon 104857600\nfile 62914560\nshmem 4096\nfile_dirty 4096\nfile_writeback 0\ninactive_file 20971520\n\
         active_file 41943040\npswpin 3\npswpout 4\n",
    ),
    ("v2/events", "sys/fs/cgroup/unified/vms/memory.events", "low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\n"),
    (
        "v2/pressure",
        "sys/fs/cgroup/unified/vms/memory.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=90\n",
    ),
    ("v2/top.max", "sys/fs/cgroup/unified/memory.max", "max\n"),
];

/// The files of a host, and those that an input has changed.
struct Tree {
    directory: TempDir,
    changed: Vec<usize>,
}

thread_local! {
    static TREE: RefCell<Tree> = RefCell::new(Tree::new());
}

impl Tree {
    fn new() -> Self {
        let tree = Self { directory: scratch::directory(), changed: Vec::new() };
        let at = |path: &str| tree.directory.path().join(path);
        for directory in ["proc/7/ns", "proc/self/ns", "proc/7/fd", "proc/7/net", V1, V2] {
            fs::create_dir_all(at(directory)).expect("a directory of the tree");
        }
        for link in ["proc/7/ns/mnt", "proc/self/ns/mnt"] {
            symlink("mnt:[1]", at(link)).expect("a link of the tree");
        }
        symlink("/", at("proc/7/root")).expect("a link of the tree");
        symlink("/srv/vm", at("proc/7/cwd")).expect("a link of the tree");
        symlink("socket:[77754]", at("proc/7/fd/3")).expect("a link of the tree");
        for (_, path, healthy) in FILES {
            tree.write(path, healthy.as_bytes());
        }
        tree
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().expect("a file is in a directory"))
            .expect("a directory of the tree");
        fs::write(path, content).expect("a file of the tree");
    }

    /// Writes the files of `input`, and restores healthy ones elsewhere.
    fn set(&mut self, input: &[u8]) {
        for at in std::mem::take(&mut self.changed) {
            let (_, path, healthy) = FILES[at];
            self.write(path, healthy.as_bytes());
        }
        let mut current: Option<(usize, Vec<u8>)> = None;
        for line in input.split_inclusive(|&byte| byte == b'\n') {
            if let Some(name) = line.strip_prefix(b"@") {
                self.put(current.take());
                let name = name.strip_suffix(b"\n").unwrap_or(name);
                let found = FILES.iter().position(|(known, _, _)| known.as_bytes() == name);
                current = found.map(|at| (at, Vec::new()));
            } else if let Some((_, content)) = &mut current {
                content.extend_from_slice(line);
            }
        }
        self.put(current);
    }

    fn put(&mut self, file: Option<(usize, Vec<u8>)>) {
        if let Some((at, content)) = file {
            self.write(FILES[at].1, &content);
            self.changed.push(at);
        }
    }
}

/// Reads the tree described by `bytes`.
///
/// # Panics
/// If a property does not hold.
pub fn run(bytes: &[u8]) {
    TREE.with(|tree| {
        let mut tree = tree.borrow_mut();
        tree.set(bytes);
        let root = Root::at(tree.directory.path());
        host(&root);
        process(&root);
        guests(&tree.directory.path().join("proc"));
    });
}

/// The value, if it could be read. An error must be fit for people.
fn good<T>(read: Result<T, HostError>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            is_for_people(&error.absence().to_string());
            if let HostError::Malformed { source, .. } = &error {
                is_for_people(&source.to_string());
            }
            None
        }
    }
}

fn host(root: &Root) {
    let meminfo = good(Meminfo::read(root));
    good(Vmstat::read(root));
    good(pressure::read(root));
    let memory = meminfo.map_or(Bytes::MAX, |meminfo| meminfo.total);
    let cgroup = good(Cgroup::of(root, PID)).flatten();
    if let Some(seen) = cgroup.and_then(|cgroup| good(CgroupReader::open(cgroup)))
        && let Some(seen) = good(seen.read(&mut Scratch::default()))
    {
        survives_json(&seen.pressure);
        survives_json(&seen.swap);
    }
    let small_host = good(Cgroup::small_host(root, &[PID], memory)).flatten();
    for budget in [Budget::Host, Budget::Size(Bytes::from_mib(512)), Budget::Size(Bytes::MAX)] {
        let Some(mut sensor) = good(HostSensor::open(root, budget)) else { continue };
        for cgroup in [None, small_host.clone()] {
            let in_cgroup = cgroup.is_some();
            if good(sensor.set_small_host(cgroup)).is_none() {
                continue;
            }
            let cost = GuestCost { all: Bytes::from_mib(100), in_small_host: Bytes::from_mib(50) };
            let Some(seen) = good(sensor.observe(cost)) else { continue };
            is_a_host(&seen, memory, budget, in_cgroup);
        }
    }
}

/// The ledger's host is never larger than the machine, the budget or the cgroup.
fn is_a_host(seen: &HostSeen, memory: Bytes, budget: Budget, in_cgroup: bool) {
    assert!(seen.capacity <= memory, "{seen:?} in {memory}");
    if let (Budget::Size(size), false) = (budget, in_cgroup) {
        assert!(seen.capacity <= size && seen.other.is_zero(), "{seen:?} of {size}");
    }
    survives_json(seen);
}

fn process(root: &Root) {
    let statm = good(statm(root, PID));
    let start = good(start_time(root, PID));
    let mut scratch = Scratch::default();
    let pages = good(KsmReader::open(root)).and_then(|reader| good(reader.read(&mut scratch)));
    let mappings = good(Mapping::read_all(root, PID)).unwrap_or_default();
    let line =
        fs::read(root.process(PID, "cmdline")).map(|line| CommandLine::parse(&line)).unwrap_or_default();
    let blocks: Vec<RamBlock> = line
        .ram
        .iter()
        .filter_map(|block| match &block.backing {
            Backing::File(path) => Some(RamBlock::File(path.clone())),
            _ => block.size.map(RamBlock::Size),
        })
        .chain(line.memory.map(RamBlock::Size))
        .collect();
    let seen = Mappings::of(&mappings, &blocks);
    let resident = Bytes::sum(mappings.iter().map(|mapping| mapping.resident));
    let parts = Bytes::sum([seen.ram_resident, seen.program_resident, seen.other_resident]);
    assert_eq!(parts, resident, "each resident page is in one part: {seen:?}");
    assert!(seen.other_bound(Bytes::ZERO) >= seen.other_resident, "{seen:?}");
    let Some(mut reader) = good(ProcessReader::open(root, PID)) else { return };
    assert_eq!(Some(reader.start_time()), start);
    reader.set_program(seen.program_resident);
    if let (Some(pages), Some(statm)) = (pages, statm)
        && let Some(footprint) = good(reader.footprint(pages, &mut scratch))
    {
        assert_eq!(footprint.statm, statm);
        assert!(footprint.total() <= statm.resident, "{footprint:?}");
    }
}

/// The guests that discovery finds in the tree.
fn guests(proc: &Path) {
    let mut discovery = Discovery::new(proc);
    if discovery.scan().is_err() {
        return;
    }
    let found = discovery.processes().count();
    for process in discovery.processes() {
        is_for_people(process.id.name());
        survives_json(&process.id);
        assert!(process.monitors.iter().all(|path| !path.as_os_str().is_empty()), "{process:?}");
    }
    let changes = discovery.scan().expect("what was read can be read again");
    assert!(changes.appeared.is_empty() && changes.vanished.is_empty(), "nothing changed: {changes:?}");
    assert_eq!(discovery.processes().count(), found);
}
