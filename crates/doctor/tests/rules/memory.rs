//! The host's memory.

use super::*;

#[test]
fn the_hosts_memory() {
    gives(WARNING, "swap.disk", "swapoff /dev/vda2", |facts| facts.host.swaps = vec![swap(SwapKind::Disk)]);
    gives(WARNING, "swap.guest", "100 MiB of it are in the host's swap", |facts| {
        status(facts).swapped = mib(100)
    });
    gives(WARNING, "overcommit.strict", "1.07 GiB of 4 GiB are left", |facts| {
        facts.host.overcommit = Some(2)
    });
    gives(HINT, "swap.disk", "sysctl -w vm.swappiness=1", |facts| {
        facts.host.swaps = vec![swap(SwapKind::Disk)];
        facts.host.zswap = true;
    });
    gives(HINT, "swap.disk", "writes back to a disk", |facts| {
        facts.host.swaps = vec![swap(SwapKind::ZramWithDisk)]
    });
    gives(HINT, "memory.min-free", "vm.min_free_kbytes=83886", |facts| facts.host.min_free = Some(mib(1024)));
    gives(HINT, "memory.huge-pool", "sysctl -w vm.nr_hugepages=0", |facts| facts.host.huge_pool = mib(2048));
    let torn = found(|facts| facts.host.torn = Some(mib(200)));
    assert_eq!((torn[0].rule, torn[0].severity), ("memory.torn", HINT));
    gives(WARNING, "memory.torn", "systemctl enable --now memtide", |facts| {
        facts.host.torn = Some(mib(200));
        facts.host.cannot_split = Some("this kernel has no process_madvise (Linux 5.10)".to_owned());
    });
    assert_eq!(found(|facts| facts.host.torn = Some(mib(60))), [], "a few are always there");
    let limits = found(|facts| {
        facts.host.swaps = vec![swap(SwapKind::Disk)];
        facts.cgroups.swap_limits = vec!["/sys/fs/cgroup/machine.slice".into(), "/sys/fs/cgroup/vm".into()];
    });
    let lines = &limits[0].fixes[0].lines;
    assert_eq!(lines[0], "systemctl set-property machine.slice MemorySwapMax=0");
    assert_eq!(lines[1], "echo 0 > /sys/fs/cgroup/vm/memory.swap.max");
    let kept_out = found(|facts| {
        facts.host.swaps = vec![swap(SwapKind::Disk)];
        facts.cgroups.never_swapped = vec![0, 1];
    });
    assert_eq!(kept_out, [], "guests that may not be swapped are not concerned");
}
