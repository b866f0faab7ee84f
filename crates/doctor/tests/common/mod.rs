//! A healthy host with two good guests, to be spoiled; and trees like a host's.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use memtide_doctor::facts::{
    CgroupFacts, Configuration, Daemon, Facts, GuestFacts, HostFacts, ImageFacts, Informant, InstanceFacts,
    Launch, MemoryCgroups, MemoryFile, ProcessStatus, Sight, Thp, TmpfsFacts,
};
use memtide_doctor::{Finding, Question, diagnose};
use memtide_host::{Locked, Meminfo, Root};
use memtide_model::{
    Absence, Balloon, Bytes, Config, GuestStats, KsmRun, KsmSettings, Mode, Polling, Reading, Space, Span,
    TmpfsId, Told,
};
use memtide_stand_in::qemu::{Behaviour, Machine, StandIn};
use memtide_vmm::qemu::{Accel, BalloonArgument, CommandLine, Equipment, ProcessFacts, Source};
use serde_json::json;
use tempfile::TempDir;

/// The balloon device of a guest that lacks nothing.
pub const BALLOON: &str = "virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on";

pub const fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// A guest of 1 GiB that lacks nothing.
pub fn guest(name: &str, pid: u32) -> GuestFacts {
    let balloon = Balloon { actual: mib(1024), deflate_on_oom: true, free_page_reporting: true };
    let stats = GuestStats {
        available: Some(mib(700)),
        alloc_stalls: Some(0),
        async_scans: Some(0),
        ..GuestStats::default()
    };
    let device = BalloonArgument {
        driver: "virtio-balloon-pci".to_owned(),
        id: Some("balloon0".to_owned()),
        deflate_on_oom: true,
        free_page_reporting: true,
        source: Source::CommandLine,
    };
    GuestFacts {
        is_configured: false,
        name: name.to_owned(),
        pid,
        user: Some(0),
        full: mib(1024),
        claims: None,
        age: Some(Span::from_secs(3600)),
        managed: true,
        launch: Launch { name: name.to_owned(), ..Launch::default() },
        monitors: vec![PathBuf::from(format!("/run/vm/{name}.qmp"))],
        left_behind: None,
        pretty_monitors: Vec::new(),
        tcp_monitors: Vec::new(),
        agent: Some(PathBuf::from(format!("/run/vm/{name}-agent.sock"))),
        process: ProcessFacts {
            accel: Accel::Kvm,
            tb_size: None,
            ram: Vec::new(),
            device_memory: Vec::new(),
            memory: Some(mib(1024)),
            memory_source: Source::CommandLine,
            incoming: false,
            reads_files: false,
        },
        equipment: Some(Equipment { balloon: Some(device), mem_merge: true, ..Equipment::default() }),
        memory_files: Vec::new(),
        status: Some(ProcessStatus::default()),
        locked: Some(Locked::default()),
        mappings: Ok(()),
        marked: None,
        withheld: None,
        overhead_bound: None,
        ram_mapped: Some(mib(1024)),
        informant: Informant::Monitor,
        told: Told {
            claimed: false,
            full: mib(1024),
            balloon: Reading::now(balloon),
            hotplug: Reading::absent(Absence::Unsupported),
            stats: Reading::now(stats),
            agent: Reading::unsupported(),
            disks: Reading::unsupported(),
            merges: Reading::unsupported(),
            polling: Polling::Every(Span::from_secs(1)),
            reset: false,
            fence: None,
            terms: None,
        },
        qemu: None,
    }
}

/// A guest of 512 MiB whose driver tells all that a new one does.
pub fn machine() -> Machine {
    let mut machine = Machine::new(512);
    machine.interval = 1;
    machine.update_stats(7);
    for (key, value) in
        [("stat-available-memory", 200 << 20), ("stat-alloc-stalls", 0), ("stat-async-scans", 0)]
    {
        machine.stats.insert(key.to_owned(), json!(value));
    }
    machine
}

/// The configuration file that commands read by themselves.
fn usual() -> Configuration {
    Configuration { path: "/etc/memtide/memtide.toml".into(), is_named: false }
}

/// A host of 8 GiB with the defaults of a distribution, and two good guests.
pub fn healthy() -> Facts {
    let memory = Meminfo { total: mib(8192), available: mib(6144), ..Meminfo::default() };
    Facts {
        user: 0,
        mode: Mode::Observe,
        config: Config::default(),
        configuration: usual(),
        trouble: None,
        daemon: Daemon::None { socket: "/run/memtide/memtide.sock".into() },
        host: HostFacts {
            release: Some("6.12.9-amd64".to_owned()),
            memory: Sight::Seen(memory),
            arc: Bytes::ZERO,
            huge_pool: Bytes::ZERO,
            commit: Some((mib(4096), mib(3000))),
            overcommit: Some(0),
            swappiness: Some(60),
            min_free: Some(mib(66)),
            swaps: Vec::new(),
            zswap: false,
            torn: Some(Bytes::ZERO),
            cannot_split: None,
            zram: true,
            thp: Some(Thp { enabled: "madvise".to_owned(), defrag: "madvise".to_owned() }),
            ksm: Some(KsmSettings {
                run: KsmRun::Stopped,
                pages_to_scan: 100,
                sleep_millisecs: 20,
                smart_scan: None,
                advisor: Some(false),
            }),
            ksm_saves: Some(Bytes::ZERO),
            pressure: Sight::Seen(()),
            hides_processes: false,
            journal: None,
        },
        guests: vec![guest("web1", 101), guest("web2", 102)],
        instances: Vec::new(),
        left_out: 0,
        outsiders: memtide_model::Outsiders::default(),
        no_guests: None,
        others: Vec::new(),
        slow: Vec::new(),
        unmatched: Vec::new(),
        cgroups: CgroupFacts { version: MemoryCgroups::V2, ..CgroupFacts::default() },
    }
}

/// What is found where a healthy host is spoiled.
pub fn found(spoil: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = healthy();
    spoil(&mut facts);
    diagnose(&facts)
}

/// A tree with `proc` and `sys`.
pub struct Tree(TempDir);

impl Tree {
    /// A host of 8 GiB without guests.
    pub fn new() -> Self {
        let tree = Self(tempfile::tempdir().expect("a temporary directory"));
        tree.file(
            "proc/meminfo",
            "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nMemAvailable: 5242880 kB\nBuffers: 1 kB\nCached: 9 kB\nShmem: 1 kB\n\
             AnonPages: 5 kB\nDirty: 0 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nCommitLimit: 4194304 kB\nCommitted_AS: 1048576 kB\n\
             HugePages_Total: 0\nHugepagesize: 2048 kB\n",
        );
        tree.file("proc/sys/kernel/random/boot_id", "b0071d\n");
        tree.file("proc/sys/kernel/osrelease", "6.12.9-amd64\n");
        tree.file("proc/sys/vm/overcommit_memory", "0\n");
        tree.file("proc/sys/vm/swappiness", "60\n");
        tree.file("proc/sys/vm/min_free_kbytes", "67584\n");
        tree.file("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
        tree.file("proc/uptime", "5000.25 9000.00\n");
        tree.file("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n");
        tree.file("proc/self/mountinfo", MOUNTS);
        tree.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        tree.file(
            "sys/kernel/mm/transparent_hugepage/defrag",
            "always defer defer+madvise [madvise] never\n",
        );
        for (name, value) in [("run", "0"), ("pages_to_scan", "100"), ("sleep_millisecs", "20")] {
            tree.file(&format!("sys/kernel/mm/ksm/{name}"), format!("{value}\n"));
        }
        tree
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a path in the tree")).expect("a directory in it");
        fs::write(path, content).expect("a file in it");
    }

    /// A QEMU with these arguments, as old as the host, that has mapped its guest's memory.
    pub fn qemu(&self, pid: u32, args: &[&str]) {
        let dir = format!("proc/{pid}");
        let cmdline = format!("qemu-system-x86_64\0{}\0", args.join("\0"));
        let memory = CommandLine::parse(cmdline.as_bytes()).memory.unwrap_or_default();
        self.file(&format!("{dir}/comm"), "qemu-system-x86\n");
        self.file(&format!("{dir}/cmdline"), cmdline);
        self.file(
            &format!("{dir}/stat"),
            format!("{pid} (qemu-system-x86) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 4 0 100 900 100\n"),
        );
        let size = memory.get() >> 10;
        self.file(&format!("{dir}/status"), format!("Name:\tqemu\nState:\tS (sleeping)\nVmSize:\t{size} kB\nVmLck:\t       0 kB\nVmPin:\t       0 kB\nVmRSS:\t    4096 kB\nVmSwap:\t       0 kB\nHugetlbPages:\t       0 kB\n"));
        self.mapping(pid, memory);
        self.file(&format!("{dir}/cgroup"), "0::/\n");
        fs::create_dir_all(self.path().join(&dir).join("ns")).expect("a directory");
        for (name, target) in [("root", "/"), ("cwd", "/srv/vm")] {
            symlink(target, self.path().join(&dir).join(name)).expect("a link");
        }
    }

    /// Makes this the only mapping of a process that can be its guest's memory. KSM may merge it.
    pub fn mapping(&self, pid: u32, memory: Bytes) {
        let (from, size) = (1_u64 << 32, memory.get());
        let one = format!("{from:x}-{:x} rw-p 00000000 00:00 0 \nVmFlags: rd wr dc mg \n", from + size);
        self.file(&format!("proc/{pid}/smaps"), if size == 0 { String::new() } else { one });
    }

    /// A QEMU under KVM that lacks nothing, with an honest monitor at the path `qmp` of the tree, and these arguments.
    pub fn guest(&self, pid: u32, name: &str, qmp: &str, more: &[&str]) -> StandIn {
        let path = self.path().join(qmp);
        fs::create_dir_all(path.parent().expect("a path in the tree")).expect("a directory in it");
        let monitor = format!("unix:{},server=on,wait=off", path.display());
        let agent = "virtserialport,chardev=agent,name=org.memtide.agent.0";
        let chardev = format!("socket,id=agent,path=/run/{name}-agent.sock,server=on,wait=off");
        let devices = ["-device", BALLOON, "-chardev", &chardev, "-device", agent];
        let args = [&["-name", name, "-accel", "kvm", "-m", "512", "-qmp", &monitor][..], &devices].concat();
        self.qemu(pid, &[&args, more].concat());
        StandIn::start(&path, machine(), Behaviour::Honest).expect("a stand-in")
    }

    pub fn question(&self) -> Question {
        Question {
            root: Root::at(self.path()),
            config: Config::default(),
            discover: vec!["*".to_owned()],
            configured: Vec::new(),
            libvirt: Vec::new(),
            journal: PathBuf::from("/var/lib/memtide/journal"),
            journal_max: Bytes::ZERO,
            daemon: Daemon::None { socket: "/run/memtide/memtide.sock".into() },
            configuration: usual(),
            trouble: None,
            user: 0,
        }
    }
}

const MOUNTS: &str = "\
21 1 0:20 / / rw,relatime - ext4 /dev/vda1 rw
22 27 0:21 / /proc rw,relatime - proc proc rw
25 27 0:24 / /dev/hugepages rw,relatime - hugetlbfs hugetlbfs rw
26 27 0:25 / /dev/shm rw,relatime - tmpfs tmpfs rw
31 23 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
";

/// A UML instance of 256 MiB that lacks nothing.
pub fn instance(name: &str, pid: u32) -> InstanceFacts {
    InstanceFacts {
        name: name.to_owned(),
        pid,
        memory: mib(256),
        claims: None,
        managed: true,
        console: format!("/home/u/.uml/{name}/mconsole").into(),
        has_console: true,
        images: vec![ImageFacts {
            path: "/srv/root.img".into(),
            file: (1, 1),
            size: mib(512),
            is_backing: true,
            sample: Some(1),
        }],
        file: Some(MemoryFile {
            directory: "/dev/shm".into(),
            kind: Some("tmpfs".to_owned()),
            tmpfs: Some(TmpfsFacts {
                id: TmpfsId(26),
                at: "/dev/shm".into(),
                is_here: true,
                space: Space { size: mib(1024), free: mib(800) },
                held: mib(100),
            }),
        }),
    }
}
