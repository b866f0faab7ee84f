//! The host's kernel: its age, pressure, transparent huge pages, KSM.

use std::collections::BTreeSet;

use memtide_model::{Absence, Bytes, KsmMode, KsmRun};

use super::{of_guest, promises};
use crate::advice::{self, Change};
use crate::facts::{Facts, GuestFacts, Sight};
use crate::finding::{Finding, Fix, Severity};

/// `pidfd_open`.
const PIDFD: (u32, u32) = (5, 3);
/// The measured number of pages that ksmd compares per CPU second.
const KSM_PAGES_PER_SECOND: u64 = 400_000;
/// If a pass over all guests takes longer, most pages have changed before they are merged.
const LONG_PASS: u64 = 3600;
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const KSM: &str = "/sys/kernel/mm/ksm";
/// memtide's own way with KSM: bursts.
const GOVERN: &str = "ksm = { mode = \"govern\" }";

/// There is no pressure stall information.
pub(super) fn pressure(facts: &Facts) -> Option<Finding> {
    let Sight::Unseen(Absence::Unsupported) = facts.host.pressure else { return None };
    Some(
        Finding::of_host("kernel.no-pressure", Severity::Warning, "the host's kernel has no pressure stall information")
            .costs("memtide sees a shortage only by the free memory, not by stalled tasks")
            .fix(
                "the kernel's command line (Debian: GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub), and a reboot",
                ["psi=1"],
            ),
    )
}

/// The kernel is too old to report the end of a guest at once.
pub(super) fn too_old(facts: &Facts) -> Option<Finding> {
    let (major, minor) = facts.host.kernel().filter(|&version| version < PIDFD)?;
    Some(
        Finding::of_host(
            "kernel.old",
            Severity::Hint,
            format!("the host's kernel is {major}.{minor}, without pidfd_open"),
        )
        .costs("memtide notices the end of a guest up to a second later")
        .fix("the host's package manager", ["Linux 5.3 or newer"]),
    )
}

/// Whether some guest's memory is anonymous, so that it can use transparent huge pages.
fn uses_thp(facts: &Facts) -> bool {
    facts.guests.iter().any(|guest| !guest.process.ram.iter().any(|ram| ram.shared))
}

/// Transparent huge pages are off.
pub(super) fn thp_off(facts: &Facts) -> Option<Finding> {
    let thp = facts.host.thp.as_ref().filter(|thp| thp.enabled == "never" && uses_thp(facts))?;
    Some(
        Finding::of_host("thp.never", Severity::Hint, format!("transparent huge pages are off (enabled: {})", thp.enabled))
            .costs(
                "guests miss the TLB more often, and memory that they report as free comes back page by page: 32 GiB in blocks of 2 MiB \
                 came back per CPU second, and 300 GiB with huge pages",
            )
            .fix("a shell (QEMU asks for them: madvise is enough)", [format!("echo madvise > {THP}/enabled")]),
    )
}

/// Page faults wait for compaction.
pub(super) fn thp_stalls(facts: &Facts) -> Option<Finding> {
    let thp = facts.host.thp.as_ref().filter(|thp| thp.enabled != "never" && thp.defrag == "always")?;
    if !uses_thp(facts) {
        return None;
    }
    Some(
        Finding::of_host(
            "thp.stalls",
            Severity::Hint,
            format!("page faults wait for the kernel to make huge pages (defrag: {})", thp.defrag),
        )
        .costs("on a full host, a guest that touches granted memory waits for compaction")
        .fix("a shell", [format!("echo defer+madvise > {THP}/defrag")]),
    )
}

/// Guests whose memory KSM could merge.
fn mergeable(facts: &Facts) -> impl Iterator<Item = &GuestFacts> {
    facts.guests.iter().filter(|guest| {
        let allowed = guest.equipment.as_ref().is_some_and(|equipment| equipment.mem_merge);
        allowed && !guest.process.ram.iter().any(|ram| ram.shared)
    })
}

/// Where memtide's own way with KSM is chosen.
fn governed(facts: &Facts) -> String {
    format!("{}, with mode = \"manage\"; then restart memtide", facts.configuration.path.display())
}

/// Whether memtide is to govern KSM: it rests most of the time, and a burst ends.
fn is_governed(facts: &Facts) -> bool {
    facts.config.ksm.mode == KsmMode::Govern
}

/// Equal pages are not merged.
pub(super) fn ksm_off(facts: &Facts) -> Option<Finding> {
    facts.host.ksm.filter(|ksm| ksm.run == KsmRun::Stopped && !is_governed(facts))?;
    let count = mergeable(facts).count();
    // If all guests fit anyway, merging gains nothing.
    if count < 2 || !promises::is_overcommitted(facts) {
        return None;
    }
    Some(
        Finding::of_host("ksm.off", Severity::Hint, format!("KSM is off: equal pages of {count} guests are not merged"))
            .costs(
                "each guest keeps its own copy of pages that other guests have, too: `memtide audit` tells how much that is. (If guests do \
                 not trust each other, leave it off: merging can tell a guest which pages another has)",
            )
            .fix(governed(facts), [GOVERN]),
    )
}

/// KSM unmerges all pages.
pub(super) fn ksm_unmerges(facts: &Facts) -> Option<Finding> {
    facts.host.ksm.filter(|ksm| ksm.run == KsmRun::Unmerged)?;
    Some(
        Finding::of_host("ksm.unmerges", Severity::Hint, "KSM was told to unmerge all pages (run: 2)")
            .costs("nothing is merged until `run` is 1")
            .fix("a shell: off, or 1 for on", [format!("echo 0 > {KSM}/run")]),
    )
}

/// ksmd uses much CPU time.
pub(super) fn ksm_busy(facts: &Facts) -> Option<Finding> {
    let ksm = facts
        .host
        .ksm
        .filter(|ksm| ksm.run == KsmRun::Scanning && ksm.advisor != Some(true) && !is_governed(facts))?;
    let scanned = ksm.pages_to_scan.saturating_mul(1000);
    // A turn takes its own time, then the pause follows.
    let busy_ms = scanned / KSM_PAGES_PER_SECOND;
    let share = busy_ms.saturating_mul(100) / busy_ms.saturating_add(ksm.sleep_millisecs).max(1);
    if share < 50 {
        return None;
    }
    let fact = format!("ksmd scans {} pages every {} ms", ksm.pages_to_scan, ksm.sleep_millisecs);
    Some(
        Finding::of_host("ksm.busy", Severity::Warning, fact)
            .costs(format!("about {share} % of a CPU all the time, even if there is nothing left to merge"))
            .fix(governed(facts), [GOVERN]),
    )
}

/// ksmd is too slow for these guests.
pub(super) fn ksm_idle(facts: &Facts) -> Option<Finding> {
    let ksm = facts.host.ksm.filter(|ksm| ksm.run == KsmRun::Scanning && ksm.advisor != Some(true))?;
    let memory = Bytes::sum(mergeable(facts).map(|guest| guest.full));
    let pages = memory.get() >> 12;
    let pass = pages.saturating_mul(ksm.sleep_millisecs) / ksm.pages_to_scan.max(1) / 1000;
    if pass < LONG_PASS {
        return None;
    }
    let fact = format!(
        "ksmd scans {} pages every {} ms: one pass over {memory} takes {} minutes",
        ksm.pages_to_scan,
        ksm.sleep_millisecs,
        pass / 60
    );
    Some(
        Finding::of_host("ksm.slow", Severity::Hint, fact)
            .costs("a page is merged only after two passes: most equal pages stay unmerged")
            .fix(governed(facts), [GOVERN]),
    )
}

/// Guests share memory, and could observe each other.
pub(super) fn ksm_shares(facts: &Facts) -> Option<Finding> {
    // memtide does not speak to the VMM of a guest that it does not manage.
    let is_foreign = |guest: &GuestFacts| !guest.managed || guest.is_of_libvirt();
    let sharing: Vec<&GuestFacts> = mergeable(facts)
        .filter(|guest| is_foreign(guest) || facts.config.class_of(&guest.name, guest.user).1.share)
        .collect();
    if !is_governed(facts) || sharing.len() < 2 {
        return None;
    }
    let names: Vec<&str> = sharing.iter().map(|guest| guest.name.as_str()).collect();
    let fact = format!("{} guests share memory: {}", sharing.len(), names.join(", "));
    let mut finding =
        Finding::of_host("ksm.shares", Severity::Hint, fact)
            .costs(
                "each can find out by the time of a write whether another one has a page that it can guess: only guests of people who trust \
                 each other should share",
            );
    if sharing.iter().any(|guest| !is_foreign(guest)) {
        let whose = "in a class of those that should not";
        finding = finding.fix(format!("{}, {whose}", facts.configuration.path.display()), ["share = false"]);
    }
    // One of the guests of each launcher stands for the others.
    let mut launchers = BTreeSet::new();
    for guest in sharing.iter().filter(|guest| is_foreign(guest)) {
        if launchers.insert((guest.is_of_libvirt(), guest.launch.by)) {
            let Fix { place, lines } = advice::fix(guest, Change::NotMergeable);
            finding = finding.fix(format!("{place}, and likewise for others that should not"), lines);
        }
    }
    Some(finding)
}

/// Whether KSM is at work on this host: it scans, memtide lets it scan now and then, or something is merged.
fn ksm_is_used(facts: &Facts) -> bool {
    let scans = facts.host.ksm.is_some_and(|ksm| ksm.run == KsmRun::Scanning);
    let merged = facts.host.ksm_saves.is_some_and(|saves| !saves.is_zero());
    facts.host.ksm.is_some() && (scans || merged || is_governed(facts))
}

/// KSM is used, but may not merge this guest.
pub(super) fn not_mergeable(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    if !ksm_is_used(facts) || (is_governed(facts) && !facts.config.class_of(&guest.name, guest.user).1.share)
    {
        return None;
    }
    let told = guest.told.merges.latest().copied();
    let may = told.or(guest.marked).unwrap_or(guest.equipment.as_ref()?.mem_merge);
    if may || unmergeable(guest).is_some() {
        return None;
    }
    let finding = of_guest(
        guest,
        "ksm.guest-off",
        Severity::Hint,
        "KSM is used on this host, but may not merge its memory (mem-merge=off)",
    )
    .costs("it keeps its own copy of pages that other guests have, too");
    Some(finding.with(unless(advice::fix(guest, Change::Mergeable), "this is intended")))
}

/// The same way to fix a finding, with a reason against it.
fn unless(fix: Fix, what: &str) -> Fix {
    Fix { place: format!("{}, unless {what}", fix.place), ..fix }
}

/// Why KSM can merge none of the guest's memory, whatever is set.
fn unmergeable(guest: &GuestFacts) -> Option<&'static str> {
    let ram = &guest.process.ram;
    if !ram.is_empty() && ram.iter().all(|ram| ram.shared) {
        return Some("is shared with other processes (share=on)");
    }
    guest.is_huge().then_some("is made of hugetlbfs pages")
}

/// The guest's class shares memory, and KSM can merge none of it.
pub(super) fn shares_in_vain(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let why = unmergeable(guest).filter(|_| facts.config.class_of(&guest.name, guest.user).1.share)?;
    let fact = format!("its class has `share = true`, but its memory {why}: KSM cannot merge it");
    let finding = of_guest(guest, "ksm.guest-unmergeable", Severity::Hint, fact)
        .costs("it keeps its own copy of pages that other guests have, too")
        .fix(format!("{}, in a class of its own", facts.configuration.path.display()), ["share = false"]);
    let change = if guest.is_huge() { Change::NoHugePages } else { Change::Private };
    Some(finding.with(unless(advice::fix(guest, change), "a device needs its memory like this")))
}
