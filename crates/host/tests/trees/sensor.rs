//! The host as the ledger sees it, read from trees.

use crate::tree::{HYBRID_MOUNTS, Tree, UNIFIED_MOUNTS, meminfo, v1_group, v2_group};
use memtide_host::{Cgroup, GuestCost, HostSensor, page_size};
use memtide_model::{Absence, Budget, Bytes, HostSeen, MIB, Pages, Pressure, Reading, SwapCounters};

const COST: GuestCost = GuestCost { all: Bytes::from_mib(1024), in_small_host: Bytes::from_mib(1024) };

fn mib(mib: u64) -> String {
    (mib * MIB).to_string()
}

fn host(tree: &Tree, swap_kib: u64) {
    tree.file("proc/meminfo", meminfo(swap_kib))
        .file("proc/vmstat", "nr_free_pages 1\npswpin 1\npswpout 2\n")
        .file("proc/pressure/memory", "some avg10=0.00 total=5\nfull avg10=0.00 total=3\n");
}

fn swap() -> SwapCounters {
    let pages = |count| Pages::new(count).to_bytes(page_size());
    SwapCounters { swapped_in: pages(1), swapped_out: pages(2) }
}

fn sensor_in_small_host(tree: &Tree) -> HostSensor {
    let mut sensor = HostSensor::open(&tree.root(), Budget::Host).unwrap();
    let cgroup = Cgroup::small_host(&tree.root(), &[10], Bytes::from_mib(8192)).unwrap();
    assert!(cgroup.is_some());
    sensor.set_small_host(cgroup).unwrap();
    sensor
}

#[test]
fn the_whole_host() {
    let tree = Tree::new();
    host(&tree, 4096);
    let mut sensor = HostSensor::open(&tree.root(), Budget::Host).unwrap();
    let expected = HostSeen {
        capacity: Bytes::from_mib(8192),
        // 8192 − 5120 available − 1024 of guests.
        other: Bytes::from_mib(2048),
        ending: Bytes::ZERO,
        torn: Reading::unsupported(),
        splits: false,
        tiers: false,
        swap: Reading::now(swap()),
        pressure: Reading::now(Pressure { some_us: 5, full_us: 3 }),
        ksm: Reading::unsupported(),
        missed: None,
    };
    assert_eq!(sensor.observe(COST).unwrap(), expected);
    tree.file("proc/pressure/memory", "some avg10=0.00 total=50\nfull avg10=0.00 total=30\n");
    let again = sensor.observe(COST).unwrap();
    assert_eq!(again.pressure, Reading::now(Pressure { some_us: 50, full_us: 30 }));
    sensor.set_budget(Budget::Size(Bytes::from_mib(2000)));
    let budget = sensor.observe(COST).unwrap();
    assert_eq!((budget.capacity, budget.other), (Bytes::from_mib(2000), Bytes::ZERO));
}

/// Linux 6.18 with a process in a cgroup of v1: it filled 512 MiB in huge pages, then gave back 40 % of its pages.
#[test]
fn torn_huge_pages_of_a_host_and_of_a_small_host() {
    let captured = |name: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/6.18/torn/");
        std::fs::read_to_string(format!("{path}{name}")).unwrap()
    };
    let tree = Tree::new();
    tree.file("proc/meminfo", captured("meminfo"));
    let mut sensor = HostSensor::open(&tree.root(), Budget::Host).unwrap();
    let guests = GuestCost { all: Bytes::from_mib(309), in_small_host: Bytes::from_mib(309) };
    let seen = sensor.observe(guests).unwrap();
    // 1,568 active + 824,436 inactive + 14,308 unevictable − 622,060 mapped − 8,872 shared.
    assert_eq!(seen.torn, Reading::now(Bytes::from_kib(209_380)));
    // 24,684,084 in all − 23,305,788 available − 309 MiB of guests − 209,380 torn.
    assert_eq!(seen.other, Bytes::from_kib(852_500));

    tree.file("proc/self/mountinfo", HYBRID_MOUNTS).file("proc/10/cgroup", "4:memory:/vms\n0::/\n");
    v1_group(&tree, "", "9223372036854771712", "9223372036854771712", 5000, 0);
    v1_group(&tree, "/vms", &mib(1024), &mib(1024), 0, 0);
    tree.file("sys/fs/cgroup/memory/vms/memory.usage_in_bytes", "748945408\n")
        .file("sys/fs/cgroup/memory/vms/memory.stat", captured("memory.stat"));
    let seen = sensor_in_small_host(&tree).observe(GuestCost::default()).unwrap();
    // 537,919,488 inactive − 323,502,080 mapped.
    assert_eq!(seen.torn, Reading::now(Bytes::new(214_417_408)));
    // 748,945,408 charged − 209,715,200 of page cache − the torn memory.
    assert_eq!(seen.other, Bytes::new(324_812_800));
}

#[test]
fn what_a_host_does_not_have_is_absent() {
    let tree = Tree::new();
    tree.file("proc/meminfo", meminfo(0)).file("proc/vmstat", "pswpin 0\npswpout 0\n");
    let seen = HostSensor::open(&tree.root(), Budget::Host).unwrap().observe(COST).unwrap();
    assert_eq!(seen.swap, Reading::absent(Absence::Unsupported));
    assert_eq!(seen.pressure, Reading::absent(Absence::Unsupported));
    tree.file("proc/meminfo", meminfo(4096)).file("proc/vmstat", "pswpin zero\n");
    let seen = HostSensor::open(&tree.root(), Budget::Host).unwrap().observe(COST).unwrap();
    assert!(matches!(seen.swap, Reading::Absent { why: Absence::Refused(_) }), "{:?}", seen.swap);
    tree.file("proc/meminfo", "MemTotal: 1 kB\n");
    assert!(HostSensor::open(&tree.root(), Budget::Host).unwrap().observe(COST).is_err());
    assert!(HostSensor::open(&Tree::new().root(), Budget::Host).is_err());
}

#[test]
fn a_small_host_of_v1() {
    let tree = Tree::new();
    host(&tree, 4096);
    tree.file("proc/self/mountinfo", HYBRID_MOUNTS).file("proc/10/cgroup", "4:memory:/vms/a\n0::/\n");
    v1_group(&tree, "", "9223372036854771712", "9223372036854771712", 5000, 0);
    v1_group(&tree, "/vms", &mib(2000), &mib(2000), 1500, 200);
    v1_group(&tree, "/vms/a", "9223372036854771712", &mib(2000), 1400, 150);
    let mut sensor = sensor_in_small_host(&tree);
    let expected = HostSeen {
        capacity: Bytes::from_mib(2000),
        other: Bytes::from_mib(1500 - 200 - 1024),
        ending: Bytes::ZERO,
        torn: Reading::unsupported(),
        splits: false,
        tiers: false,
        swap: Reading::now(swap()),
        pressure: Reading::absent(Absence::Unsupported),
        ksm: Reading::unsupported(),
        missed: None,
    };
    assert_eq!(sensor.observe(COST).unwrap(), expected);
    v1_group(&tree, "/vms", &mib(1800), &mib(1800), 1500, 200);
    assert_eq!(sensor.observe(COST).unwrap().capacity, Bytes::from_mib(1800), "limits are read each time");
}

#[test]
fn a_small_host_of_v2() {
    let tree = Tree::new();
    host(&tree, 4096);
    tree.file("proc/self/mountinfo", UNIFIED_MOUNTS).file("proc/10/cgroup", "0::/vms\n");
    v2_group(&tree, "/vms", &mib(2000), "0", 1500, 200);
    let mut sensor = sensor_in_small_host(&tree);
    let expected = HostSeen {
        capacity: Bytes::from_mib(2000),
        other: Bytes::from_mib(1500 - 200 - 1024),
        ending: Bytes::ZERO,
        torn: Reading::unsupported(),
        splits: false,
        tiers: false,
        swap: Reading::absent(Absence::Unsupported),
        pressure: Reading::now(Pressure { some_us: 11, full_us: 7 }),
        ksm: Reading::unsupported(),
        missed: None,
    };
    assert_eq!(sensor.observe(COST).unwrap(), expected);
    sensor.set_small_host(None).unwrap();
    assert_eq!(sensor.observe(COST).unwrap().capacity, Bytes::from_mib(8192));
}
