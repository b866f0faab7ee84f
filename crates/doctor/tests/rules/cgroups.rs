//! Limits of the guests' cgroups.

use super::*;

#[test]
fn limits_of_cgroups_that_memtide_does_not_guard() {
    let spoil = |list: &[(&str, u64, &[usize])], host: Option<(&str, u64)>| {
        found(|facts| {
            facts.cgroups.kill =
                list.iter().map(|(dir, limit, guests)| limited(dir, *limit, guests)).collect();
            facts.cgroups.small_host = host.map(|(dir, limit)| (PathBuf::from(dir), mib(limit)));
        })
    };
    let one = spoil(&[("/sys/fs/cgroup/vm.slice/web1.scope", 512, &[0])], None);
    assert_eq!(kinds(&one)[0], ("cgroup.limit", PROBLEM));
    assert!(text(&one[0]).contains("systemctl set-property web1.scope MemoryMax=infinity"), "{one:#?}");
    let plain = found(|facts| facts.cgroups.throttle = vec![limited("/sys/fs/cgroup/vm", 512, &[0])]);
    assert_eq!(kinds(&plain)[0], ("cgroup.high", WARNING));
    assert!(text(&plain[0]).contains("echo max > /sys/fs/cgroup/vm/memory.high"), "{plain:#?}");
    // The guest fits, but its QEMU does not fit beside it.
    let tight = found(|facts| {
        facts.cgroups.kill = vec![limited("/sys/fs/cgroup/nomad", 1024, &[0])];
        first(facts).overhead_bound = Some(mib(60));
    });
    assert_eq!(kinds(&tight)[0], ("cgroup.limit", PROBLEM));
    assert!(tight[0].fact.ends_with("the guest has 1 GiB, and QEMU may need 60 MiB more"), "{tight:#?}");
    // A slice for all guests has room for that, too.
    assert!(text(&tight[0]).contains("set-property guests.slice MemoryMax=2108M"), "{tight:#?}");
    // Each guest fits, but both together do not.
    let both = spoil(&[("/sys/fs/cgroup/a.slice", 1536, &[0, 1])], None);
    assert!(both[0].fact.contains("its guests web1, web2 were promised 2 GiB"), "{both:#?}");
    assert_eq!(spoil(&[("/sys/fs/cgroup/a.slice", 4096, &[0, 1])], None), [], "it is enough");
    // The limit far above the guest counts, too; of two, the nearest is told.
    let pod = "/sys/fs/cgroup/kubepods/pod7";
    let above = spoil(&[(pod, 1000, &[0]), ("/sys/fs/cgroup/kubepods/pod7/qemu", 4096, &[0])], None);
    assert!(above[0].fact.contains("its cgroup /sys/fs/cgroup/kubepods/pod7 is limited"), "{above:#?}");
    let two = spoil(&[(pod, 1000, &[0]), ("/sys/fs/cgroup/kubepods/pod7/qemu", 900, &[0])], None);
    assert_eq!(rules(&two), ["cgroup.limit"]);
    assert!(two[0].fact.contains("pod7/qemu is limited to 900 MiB"), "{two:#?}");
    // A cgroup above the guests' host has a higher limit.
    let above = spoil(&[("/sys/fs/cgroup/a", 1800, &[0, 1])], Some(("/sys/fs/cgroup/a/b", 1500)));
    // The guests were promised 2 GiB, and their host has 1.5.
    assert_eq!(rules(&above), ["promises.unmanaged", "ksm.off"]);
}
