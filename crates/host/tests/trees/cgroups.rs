//! Memory cgroups in trees laid out as systemd does: v1 beside v2, v2 alone, nested limits, and broken files.

use crate::tree::{HYBRID_MOUNTS, Tree, UNIFIED_MOUNTS, v1_group, v2_group};
use memtide_host::{Cgroup, CgroupEvents, CgroupReader, CgroupVersion, HostError, Scratch};
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
