//! The host's memory: swap, overcommit, memory kept aside.

use memtide_model::Bytes;

use super::{cgroups, of_guest};
use crate::facts::{Facts, GuestFacts, SwapKind};
use crate::finding::{Finding, Severity};
use crate::quote::shell;

/// The part of the memory that the kernel may keep free without a finding.
const KEPT_PART: u64 = 20;

/// Guests may be swapped to a disk.
pub(super) fn swap_on_disk(facts: &Facts) -> Option<Finding> {
    let swaps: Vec<_> = facts.host.disk_swaps().collect();
    let reach_it = facts.guests.len() > facts.cgroups.never_swapped.len();
    if swaps.is_empty() || !reach_it {
        return None;
    }
    let names: Vec<String> = swaps.iter().map(|swap| format!("{} ({})", swap.name, swap.size)).collect();
    let zram = swaps.iter().all(|swap| swap.kind == SwapKind::ZramWithDisk);
    let (severity, how) = match (zram, facts.host.zswap) {
        (true, _) => (Severity::Hint, "compressed memory that writes back to a disk"),
        (false, true) => (Severity::Hint, "behind zswap, which compresses first"),
        (false, false) => (Severity::Warning, "on a disk"),
    };
    let finding = Finding::of_host("swap.disk", severity, format!("the host can swap guests out to {}, {how}", names.join(", ")))
        .costs("a guest waits milliseconds for each page that comes back, as if its vCPU stood still, and none of its counters shows why");
    let limits = facts.cgroups.swap_limits.iter().map(|dir| match cgroups::unit(dir) {
        Some(unit) => format!("systemctl set-property {} MemorySwapMax=0", shell(unit)),
        None => format!("echo 0 > {}", shell(&dir.join("memory.swap.max").display().to_string())),
    });
    let disks = swaps.iter().filter(|swap| swap.kind == SwapKind::Disk);
    let finding = finding.fix("a shell: keep only the guests' cgroup out of swap", limits).fix(
        "a shell: turn off swap on disks (and remove their lines from /etc/fstab)",
        disks.map(|swap| format!("swapoff {}", shell(&swap.name))),
    );
    Some(if facts.host.swappiness.is_some_and(|swappiness| swappiness > 10) {
        persistent(
            finding.fix("or a shell: swap only when nothing else is left", ["sysctl -w vm.swappiness=1"]),
            "vm.swappiness = 1",
        )
    } else {
        finding
    })
}

/// Makes the setting permanent in its own file.
fn persistent(mut finding: Finding, setting: &str) -> Finding {
    if let (Some(fix), Some(name)) = (finding.fixes.last_mut(), setting.split(' ').next()) {
        fix.lines.push(format!("echo '{setting}' > /etc/sysctl.d/60-{name}.conf"));
    }
    finding
}

/// Parts of a guest are in swap.
pub(super) fn swapped(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    // A few swapped pages of QEMU itself do no harm.
    const WORTH_A_WORD: u64 = 100;
    let swapped = guest.status?.swapped;
    if swapped < guest.full.mul_div(1, WORTH_A_WORD).max(Bytes::from_mib(1)) {
        return None;
    }
    let finding =
        of_guest(guest, "swap.guest", Severity::Warning, format!("{swapped} of it are in the host's swap"))
            .costs("it waits when it touches one of these pages; the host was short of memory, or still is");
    Some(finding.fix("a shell, when memory is free again: bring all of it back", ["swapoff -a && swapon -a"]))
}

/// `vm.overcommit_memory=2`.
pub(super) fn strict_overcommit(facts: &Facts) -> Option<Finding> {
    if facts.host.overcommit != Some(2) {
        return None;
    }
    let committed = facts.host.commit.map_or(String::new(), |(limit, committed)| {
        format!(": {} of {limit} are left", limit.saturating_sub(committed))
    });
    let finding = Finding::of_host("overcommit.strict", Severity::Warning, format!("vm.overcommit_memory is 2{committed}"))
        .costs(
            "the kernel counts each guest at its full size, whatever its balloon holds: another guest fails to start with \
             \"cannot allocate memory\" although memory is free",
        )
        .fix("a shell", ["sysctl -w vm.overcommit_memory=0"]);
    Some(persistent(finding, "vm.overcommit_memory = 0"))
}

/// The kernel keeps much free.
pub(super) fn kept_free(facts: &Facts) -> Option<Finding> {
    let total = facts.host.memory.value()?.total;
    let kept = facts.host.min_free.filter(|&kept| kept > total.mul_div(1, KEPT_PART))?;
    Some(
        Finding::of_host(
            "memory.min-free",
            Severity::Hint,
            format!("vm.min_free_kbytes keeps {kept} of {total} free"),
        )
        .costs("guests cannot use it, and memtide keeps its own reserve free besides")
        .fix(
            "a shell, for example",
            [format!("sysctl -w vm.min_free_kbytes={}", total.mul_div(1, 100).get() >> 10)],
        ),
    )
}

/// Torn huge pages.
pub(super) fn torn(facts: &Facts) -> Option<Finding> {
    // A few torn pages are always there.
    const WORTH_A_WORD: Bytes = Bytes::from_mib(64);
    let torn = facts.host.torn.filter(|&torn| torn >= WORTH_A_WORD && !facts.guests.is_empty())?;
    let fact = format!(
        "the kernel holds {torn} in torn huge pages: guests gave this memory back, and the host does not have it"
    );
    Some(match &facts.host.cannot_split {
        None => Finding::of_host("memory.torn", Severity::Hint, fact).costs(
            "nothing while memory is free; in manage mode, memtide makes the kernel split these pages as soon as memory is needed",
        ),
        Some(why) => Finding::of_host("memory.torn", Severity::Warning, format!("{fact}; it cannot be split here: {why}"))
            .costs("it comes back only when the host itself is short of memory; until then, guests may give page cache in its place")
            .fix("a shell, on Linux 5.10 or newer: run memtide as the service of the package", ["systemctl enable --now memtide"]),
    })
}

/// Memory in the pool of hugetlbfs that no guest uses.
pub(super) fn huge_pool(facts: &Facts) -> Option<Finding> {
    let used = Bytes::sum(facts.guests.iter().filter_map(|guest| guest.status).map(|status| status.huge));
    let idle = facts.host.huge_pool.saturating_sub(used);
    let total = facts.host.memory.value()?.total;
    if facts.guests.is_empty() || idle <= total.mul_div(1, KEPT_PART) {
        return None;
    }
    let fact = format!("the hugetlbfs pool holds {}; guests use {used} of it", facts.host.huge_pool);
    Some(
        Finding::of_host("memory.huge-pool", Severity::Hint, fact)
            .costs(format!("nobody else can use the other {idle}; memtide counts them as used by others"))
            .fix("a shell, if no program of yours needs them", ["sysctl -w vm.nr_hugepages=0"]),
    )
}
