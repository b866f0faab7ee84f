//! A tree of files that replaces the system's.

use std::path::Path;

use memtide_host::Root;
use tempfile::TempDir;

/// A directory that tests fill file by file.
pub struct Tree(TempDir);

impl Tree {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a path in the tree")).expect("a directory in it");
        std::fs::write(path, content).expect("a file in it");
        self
    }

    pub fn root(&self) -> Root {
        Root::at(self.path())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A host of 8 GiB with 5 GiB available, with or without swap.
pub fn meminfo(swap_kib: u64) -> String {
    format!(
        "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nMemAvailable: 5242880 kB\nBuffers: 1 kB\nCached: 9 kB\n\
         Shmem: 1 kB\nAnonPages: 5 kB\nDirty: 0 kB\nSwapTotal: {swap_kib} kB\nSwapFree: {swap_kib} kB\n"
    )
}

/// A machine with the memory controller in v1 beside v2: systemd's hybrid layout.
pub const HYBRID_MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

/// A machine with v2 alone.
pub const UNIFIED_MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
";

const MIB: u64 = 1 << 20;

/// A v1 cgroup with its own limit and its effective limit.
pub fn v1_group(tree: &Tree, path: &str, own_limit: &str, effective: &str, usage_mib: u64, cache_mib: u64) {
    let dir = format!("sys/fs/cgroup/memory{path}");
    let stat = format!(
        "cache 0\nrss 0\nhierarchical_memory_limit {effective}\nhierarchical_memsw_limit 9223372036854771712\n\
         total_cache {cache}\ntotal_rss {rss}\ntotal_shmem 0\ntotal_dirty 0\ntotal_writeback 0\n\
         total_inactive_file {cache}\ntotal_active_file 0\n",
        cache = cache_mib * MIB,
        rss = (usage_mib - cache_mib) * MIB,
    );
    tree.file(&format!("{dir}/memory.limit_in_bytes"), format!("{own_limit}\n"))
        .file(&format!("{dir}/memory.usage_in_bytes"), format!("{}\n", usage_mib * MIB))
        .file(&format!("{dir}/memory.stat"), stat)
        .file(&format!("{dir}/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
        .file(&format!("{dir}/memory.failcnt"), "17\n");
}

/// A v2 cgroup.
pub fn v2_group(tree: &Tree, path: &str, max: &str, swap_max: &str, usage_mib: u64, cache_mib: u64) {
    let dir = format!("sys/fs/cgroup{path}");
    let stat = format!(
        "anon {anon}\nfile {cache}\nkernel 0\nshmem 0\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\n\
         inactive_file {cache}\nactive_file 0\n",
        anon = (usage_mib - cache_mib) * MIB,
        cache = cache_mib * MIB,
    );
    tree.file(&format!("{dir}/memory.max"), format!("{max}\n"))
        .file(&format!("{dir}/memory.swap.max"), format!("{swap_max}\n"))
        .file(&format!("{dir}/memory.current"), format!("{}\n", usage_mib * MIB))
        .file(&format!("{dir}/memory.stat"), stat)
        .file(&format!("{dir}/memory.events"), "low 0\nhigh 0\nmax 4\noom 2\noom_kill 1\noom_group_kill 0\n")
        .file(
            &format!("{dir}/memory.pressure"),
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        );
}
