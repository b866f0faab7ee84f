//! Memory cgroups in trees laid out as systemd does: v1 beside v2, v2 alone, nested limits, and broken files.

use crate::tree::{HYBRID_MOUNTS, Tree, UNIFIED_MOUNTS, v1_group, v2_group};
use memtide_host::{Cgroup, CgroupEvents, CgroupReader, CgroupVersion, HostError, Kill, Kills, Scratch};
use memtide_model::{Bytes, Limit, MIB, Pressure, Reading};

const NO_LIMIT: &str = "9223372036854771712";
const MEMORY: Bytes = Bytes::from_mib(8192);

fn mib(mib: u64) -> String {
    (mib * MIB).to_string()
}

fn hybrid() -> Tree {
    let tree = Tree::new();
    tree.file("proc/self/mountinfo", HYBRID_MOUNTS)
        .file("proc/10/cgroup", "4:memory:/vms/a\n1:cpu:/\n0::/vms.slice\n")
        .file("proc/11/cgroup", "4:memory:/vms/b\n0::/\n")
        .file("proc/12/cgroup", "4:memory:/elsewhere\n0::/\n");
    v1_group(&tree, "", NO_LIMIT, NO_LIMIT, 4000, 1000);
    v1_group(&tree, "/vms", &mib(2000), &mib(2000), 1500, 200);
    v1_group(&tree, "/vms/a", NO_LIMIT, &mib(2000), 700, 100);
    v1_group(&tree, "/vms/b", &mib(1000), &mib(1000), 600, 100);
    v1_group(&tree, "/elsewhere", NO_LIMIT, NO_LIMIT, 100, 0);
    tree
}

fn unified() -> Tree {
    let tree = Tree::new();
    tree.file("proc/self/mountinfo", UNIFIED_MOUNTS)
        .file("proc/10/cgroup", "0::/machine.slice/a.scope/libvirt/emulator\n")
        .file("proc/11/cgroup", "0::/machine.slice/b.scope\n")
        .file("proc/12/cgroup", "0::/\n")
        .file("sys/fs/cgroup/memory.stat", "anon 1\n")
        // A threaded cgroup: it has no memory controller of its own.
        .file("sys/fs/cgroup/machine.slice/a.scope/libvirt/emulator/cgroup.procs", "10\n");
    v2_group(&tree, "/machine.slice", &mib(2000), "max", 1500, 200);
    v2_group(&tree, "/machine.slice/a.scope", "max", "0", 700, 100);
    v2_group(&tree, "/machine.slice/b.scope", &mib(3000), "max", 600, 100);
    tree
}

fn of(tree: &Tree, pid: u32) -> Cgroup {
    Cgroup::of(&tree.root(), pid).unwrap().unwrap()
}

fn small_host(tree: &Tree, pids: &[u32]) -> Option<String> {
    let found = Cgroup::small_host(&tree.root(), pids, MEMORY).unwrap()?;
    Some(found.dir().strip_prefix(tree.path()).unwrap().display().to_string())
}

#[test]
fn v1_counts_where_it_has_the_memory_controller() {
    let tree = hybrid();
    let cgroup = of(&tree, 10);
    assert_eq!(cgroup.version(), CgroupVersion::V1);
    assert_eq!(cgroup.own_limit().unwrap(), Limit::Max);
    let seen = CgroupReader::open(cgroup).unwrap().read(&mut Scratch::default()).unwrap();
    assert_eq!(seen.limit, Limit::At(Bytes::from_mib(2000)), "the limit of the parent is effective");
    assert_eq!((seen.usage, seen.reclaimable), (Bytes::from_mib(700), Bytes::from_mib(100)));
    assert_eq!(seen.anon, Bytes::from_mib(600));
    assert_eq!(seen.events, CgroupEvents { oom_kills: Some(3), limit_hits: Some(17), ooms: None });
    assert!(seen.pressure.latest().is_none() && seen.swap.latest().is_none());
}

#[test]
fn v2_counts_in_the_closest_group_with_the_controller() {
    let tree = unified();
    let cgroup = of(&tree, 10);
    assert_eq!(cgroup.version(), CgroupVersion::V2);
    assert!(cgroup.dir().ends_with("machine.slice/a.scope"), "{cgroup:?}");
    let seen = CgroupReader::open(cgroup).unwrap().read(&mut Scratch::default()).unwrap();
    assert_eq!(seen.limit, Limit::At(Bytes::from_mib(2000)), "the lowest limit up to the root");
    assert_eq!((seen.usage, seen.reclaimable), (Bytes::from_mib(700), Bytes::from_mib(100)));
    assert_eq!(seen.events, CgroupEvents { oom_kills: Some(1), limit_hits: Some(4), ooms: Some(2) });
    assert_eq!(seen.pressure, Reading::now(Pressure { some_us: 11, full_us: 7 }));
    assert!(!seen.may_swap);
}

#[test]
fn the_lowest_common_limit_plays_the_host() {
    let vms = Some("sys/fs/cgroup/memory/vms".to_owned());
    let tree = hybrid();
    assert_eq!(small_host(&tree, &[10, 11]), vms);
    assert_eq!(small_host(&tree, &[10]), vms, "the closest cgroup has no limit of its own");
    assert_eq!(small_host(&tree, &[11]), Some("sys/fs/cgroup/memory/vms/b".to_owned()));
    assert_eq!(small_host(&tree, &[10, 12]), None, "only the root is common");
    assert_eq!(small_host(&tree, &[]), None);
    assert_eq!(small_host(&tree, &[10, 99, 11]), vms, "a process that is gone is not asked");

    let slice = Some("sys/fs/cgroup/machine.slice".to_owned());
    let tree = unified();
    assert_eq!(small_host(&tree, &[10, 11]), slice);
    assert_eq!(small_host(&tree, &[11]), slice, "3000 MiB in a group of 2000 limit nothing");
    assert_eq!(small_host(&tree, &[10, 12]), None);
}

#[test]
fn a_limit_above_all_memory_limits_nothing() {
    let tree = Tree::new();
    tree.file("proc/self/mountinfo", UNIFIED_MOUNTS).file("proc/10/cgroup", "0::/vms\n");
    v2_group(&tree, "/vms", &mib(8192), "max", 100, 0);
    assert_eq!(small_host(&tree, &[10]), None);
}

#[test]
fn without_a_mounted_controller_there_is_no_cgroup() {
    let tree = Tree::new();
    tree.file("proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n")
        .file("proc/10/cgroup", "4:memory:/a\n0::/\n")
        .file("proc/11/cgroup", "0::/\n")
        .file("proc/12/cgroup", [0xff, 0xfe]);
    for pid in [10, 11] {
        assert_eq!(Cgroup::of(&tree.root(), pid).unwrap(), None);
    }
    assert!(matches!(Cgroup::of(&tree.root(), 12), Err(HostError::Malformed { .. })));
    assert!(matches!(Cgroup::of(&tree.root(), 13), Err(HostError::Gone { pid: 13 })));
}

#[test]
fn broken_files_are_refused_by_name() {
    let tree = hybrid();
    let reader = CgroupReader::open(of(&tree, 11)).unwrap();
    tree.file("sys/fs/cgroup/memory/vms/b/memory.stat", "total_rss 1\n");
    let error = reader.read(&mut Scratch::default()).unwrap_err();
    assert!(error.to_string().contains("/vms/b/memory.stat"), "{error}");

    let tree = unified();
    tree.file("sys/fs/cgroup/machine.slice/b.scope/memory.max", "9".repeat(30));
    assert!(Cgroup::small_host(&tree.root(), &[11], MEMORY).is_err());
}

/// The limits at all levels above a process, the nearest first: the directory and its MiB.
fn limits(tree: &Tree, pid: u32) -> Vec<(String, u64)> {
    let limits = of(tree, pid).limits().unwrap();
    let name = |cgroup: &Cgroup| cgroup.dir().strip_prefix(tree.path()).unwrap().display().to_string();
    limits.iter().map(|(cgroup, limit)| (name(cgroup), limit.whole_mib())).collect()
}

#[test]
fn limits_are_read_at_each_level() {
    let tree = hybrid();
    let [b, vms] = ["vms/b", "vms"].map(|dir| format!("sys/fs/cgroup/memory/{dir}"));
    assert_eq!(limits(&tree, 10), [(vms.clone(), 2000)]);
    assert_eq!(limits(&tree, 11), [(b, 1000), (vms, 2000)]);
    assert_eq!(limits(&tree, 12), []);
    let tree = unified();
    let [b, slice] = ["machine.slice/b.scope", "machine.slice"].map(|dir| format!("sys/fs/cgroup/{dir}"));
    assert_eq!(limits(&tree, 10), [(slice.clone(), 2000)]);
    assert_eq!(limits(&tree, 11), [(b, 3000), (slice, 2000)]);

    // Somebody nests cgroups deeper than anybody needs: the nearest 64 are read.
    let tree = Tree::new();
    let path = "/x".repeat(64);
    tree.file("proc/self/mountinfo", UNIFIED_MOUNTS).file("proc/10/cgroup", format!("0::/top{path}\n"));
    v2_group(&tree, "/top", &mib(1), "max", 0, 0);
    v2_group(&tree, "/top/x", &mib(2), "max", 0, 0);
    v2_group(&tree, &format!("/top{path}"), &mib(3), "max", 0, 0);
    assert_eq!(limits(&tree, 10).iter().map(|(_, limit)| *limit).collect::<Vec<_>>(), [3, 2]);
}

/// Writes the counters of a v2 cgroup: kills in it and below, and how often a limit in it and below, and its own one, was in the way.
fn events(tree: &Tree, path: &str, kills: u64, (all, own): (u64, u64)) {
    let dir = format!("sys/fs/cgroup{path}");
    tree.file(&format!("{dir}/memory.events"), format!("max 9\noom {all}\noom_kill {kills}\n"))
        .file(&format!("{dir}/memory.events.local"), format!("max 9\noom {own}\noom_kill 0\n"));
}

/// What a kill says, with paths as in the running system.
fn told(tree: &Tree, kill: Option<Kill>) -> String {
    kill.map_or_else(String::new, |kill| kill.to_string().replace(&tree.path().display().to_string(), ""))
}

#[test]
fn a_kill_in_a_v2_cgroup_names_the_limit_that_was_in_the_way() {
    const A: &str = "/machine.slice/a.scope";
    let began = "the kernel killed a process in cgroup /sys/fs/cgroup/machine.slice";
    let tree = unified();
    let write = |a: (u64, (u64, u64)), slice: (u64, (u64, u64))| {
        events(&tree, A, a.0, a.1);
        events(&tree, "/machine.slice", slice.0, slice.1);
    };
    write((0, (0, 0)), (5, (2, 1)));
    let before = Kills::read(&of(&tree, 10));
    let kill = || told(&tree, before.kill_until(&before.again()));
    assert_eq!(kill(), "");
    // A neighbour was killed.
    write((0, (0, 0)), (6, (3, 1)));
    assert_eq!(kill(), "");
    write((1, (1, 1)), (6, (3, 1)));
    assert_eq!(kill(), format!("{began}/a.scope at the cgroup's memory limit"));
    write((1, (0, 0)), (6, (3, 2)));
    assert_eq!(kill(), format!("{began}/a.scope at the memory limit of cgroup /sys/fs/cgroup/machine.slice"));
    // The host was short.
    write((1, (0, 0)), (6, (2, 1)));
    assert_eq!(kill(), format!("{began}/a.scope for lack of memory"));
    // The cgroup was removed at once.
    write((1, (1, 1)), (6, (3, 1)));
    std::fs::remove_dir_all(tree.path().join(format!("sys/fs/cgroup{A}"))).unwrap();
    assert_eq!(kill(), format!("{began} at the memory limit of a cgroup below it"));
    // The next guest that ends is not told the same.
    let mut other = Kills::read(&of(&tree, 11));
    events(&tree, "/machine.slice", 7, (4, 1));
    let later = before.again();
    other.learn(&later);
    std::fs::remove_dir_all(tree.path().join("sys/fs/cgroup/machine.slice/b.scope")).unwrap();
    assert_eq!(other.kill_until(&other.again()), None);
}

#[test]
fn a_kill_in_a_v1_cgroup_is_known_while_the_cgroup_exists() {
    let tree = hybrid();
    let count = |path: &str, kills: u64, hits: u64| {
        let dir = format!("sys/fs/cgroup/memory{path}");
        tree.file(&format!("{dir}/memory.oom_control"), format!("under_oom 0\noom_kill {kills}\n"))
            .file(&format!("{dir}/memory.failcnt"), format!("{hits}\n"));
    };
    let before = Kills::read(&of(&tree, 11));
    let kill = || told(&tree, before.kill_until(&before.again()));
    let began = "the kernel killed a process in cgroup /sys/fs/cgroup/memory/vms/b for lack of memory";
    count("/vms/b", 3, 18);
    assert_eq!(kill(), "");
    count("/vms/b", 4, 18);
    assert_eq!(kill(), format!("{began}, and the cgroup had reached its memory limit"));
    count("/vms/b", 4, 17);
    count("/vms", 3, 18);
    assert_eq!(kill(), format!("{began}, and cgroup /sys/fs/cgroup/memory/vms had reached its memory limit"));
    count("/vms", 3, 17);
    assert_eq!(kill(), began);
    // v1 counts it in no cgroup above.
    count("/vms", 4, 18);
    std::fs::remove_dir_all(tree.path().join("sys/fs/cgroup/memory/vms/b")).unwrap();
    assert_eq!(kill(), "");
}
