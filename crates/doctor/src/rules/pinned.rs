//! Memory of a guest that a balloon cannot bring back to the host: pinned, locked, huge, or on a disk.

use std::path::Path;

use memtide_model::{Bytes, Withheld, printable};

use super::of_guest;
use crate::advice::{self, Change};
use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity};
use crate::quote::{file_name, string};

/// A class that leaves the guest alone: memtide then counts it at its full size and takes nothing.
fn leave_alone(facts: &Facts, guest: &GuestFacts, finding: Finding) -> Finding {
    let class = format!("[class.{}]", string(&format!("fixed-{}", file_name(&guest.name))));
    // A pattern has no way to write a star itself, and the configuration allows no pair of brackets in it.
    let pattern = guest.name.replace(['[', '*'], "?");
    let mut lines = vec![class, format!("match = [{}]", string(&pattern)), "manage = false".to_owned()];
    if pattern.contains('?') {
        lines.insert(1, "# Each ? matches any character, also in the names of other guests.".to_owned());
    }
    let file = facts.configuration.path.display();
    finding.fix(format!("or leave it alone, in {file} (before other classes that match it)"), lines)
}

/// The effect of a balloon on such a guest.
const IN_VAIN: &str = "a balloon takes memory from the guest, and the host gets none of it";

/// Devices that write to guest memory directly.
pub(super) fn devices(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let devices = &guest.equipment.as_ref()?.pinning;
    if devices.is_empty() || !guest.managed {
        return None;
    }
    let fact = format!("its memory is pinned for {}", devices.join(", "));
    let finding = of_guest(guest, "pinned.device", Severity::Problem, fact).costs(format!(
        "QEMU keeps every page that such a device may write to: {IN_VAIN} (it costs the host {} from the start)",
        guest.full
    ));
    let finding = devices
        .iter()
        .fold(finding, |finding, device| finding.with(advice::fix(guest, Change::Without(device))));
    Some(leave_alone(facts, guest, finding))
}

/// Memory that the host must not read.
pub(super) fn confidential(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let kind = guest.equipment.as_ref()?.confidential.as_ref().filter(|_| guest.managed)?;
    let fact = format!("a confidential guest ({kind}): its memory is pinned");
    Some(leave_alone(
        facts,
        guest,
        of_guest(guest, "pinned.confidential", Severity::Problem, fact)
            .costs(format!("QEMU keeps every page of it: {IN_VAIN}")),
    ))
}

/// Memory that is locked.
pub(super) fn locked(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let equipment = guest.equipment.as_ref()?;
    if !guest.managed || !equipment.pinning.is_empty() || equipment.confidential.is_some() {
        return None;
    }
    let mostly = guest.locked.is_some_and(|locked| locked.withheld(guest.full).is_some());
    if !equipment.mem_lock && !mostly {
        return None;
    }
    let locked = guest.locked.map_or(Bytes::ZERO, |memory| memory.locked.max(memory.pinned));
    let fact = match (equipment.mem_lock, locked) {
        (true, Bytes::ZERO) => "its memory will be locked (mem-lock=on)".to_owned(),
        (true, locked) => format!("its memory is locked (mem-lock=on): {locked}"),
        (false, locked) => format!(
            "{locked} of its process are locked or pinned, by something that is not on its command line"
        ),
    };
    let finding = of_guest(guest, "pinned.locked", Severity::Problem, fact)
        .costs(format!("the kernel frees no locked page: {IN_VAIN}"));
    let finding =
        if equipment.mem_lock { finding.with(advice::fix(guest, Change::Unlocked)) } else { finding };
    Some(leave_alone(facts, guest, finding))
}

/// The guest's file on hugetlbfs.
fn huge_file(guest: &GuestFacts) -> Option<&Path> {
    let file = guest.memory_files.iter().find(|(_, kind)| kind.as_deref() == Some("hugetlbfs"));
    file.map(|(path, _)| path.as_path())
}

/// Memory of hugetlbfs.
pub(super) fn huge_pages(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    if !guest.managed || !guest.is_huge() {
        return None;
    }
    let place = huge_file(guest).map_or(String::new(), |path| format!(" at {}", path.display()));
    let finding = of_guest(guest, "pinned.huge-pages", Severity::Problem, format!("its memory is made of hugetlbfs pages{place}")).costs(
        "a balloon gives back 4 KiB at a time; a huge page is freed only when all of it is in the balloon, and then returns to the \
         hugetlbfs pool: the host's free memory stays the same",
    );
    let finding = finding.with(advice::fix(guest, Change::NoHugePages));
    Some(leave_alone(facts, guest, finding))
}

/// Memory that is a private mapping of a file.
pub(super) fn private_file(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let Some(Withheld::PrivateFile(path)) = guest.withheld.as_ref().filter(|_| guest.managed) else {
        return None;
    };
    let fact = format!("its memory is a private mapping of {}", printable(path));
    let finding = of_guest(guest, "pinned.private-file", Severity::Problem, fact).costs(
        "when its balloon inflates or free page reporting runs, QEMU punches holes into this file, and other guests that use it lose pages; \
         memtide takes nothing from this guest",
    );
    let finding = finding.with(advice::fix(guest, Change::OwnMemory));
    Some(leave_alone(facts, guest, finding))
}

/// Memory that its mappings, or the daemon, call withheld, if no other rule tells why.
pub(super) fn withheld(facts: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let why = guest.withheld.as_ref().filter(|_| guest.managed)?;
    let others = [devices, confidential, locked, huge_pages, private_file];
    if others.iter().any(|rule| rule(facts, guest).is_some()) {
        return None;
    }
    let finding = of_guest(guest, "pinned.withheld", Severity::Problem, why.to_string())
        .costs(format!("{IN_VAIN}; memtide takes nothing from this guest"));
    Some(leave_alone(facts, guest, finding))
}

/// Memory in a file on a disk.
pub(super) fn on_disk(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    // These file systems are in memory, or devices that act as memory. A file of /proc may lead to anything.
    const MEMORY: [&str; 6] = ["tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "rootfs", "proc"];
    let (path, kind) = guest.memory_files.iter().find_map(|(path, kind)| {
        let kind = kind.as_deref().filter(|kind| !MEMORY.contains(kind))?;
        (!path.starts_with("/dev")).then_some((path, kind))
    })?;
    let fact = format!("its memory is a file at {} ({kind}, on a disk)", path.display());
    let finding = of_guest(guest, "pinned.file", Severity::Warning, fact)
        .costs("the kernel writes the guest's memory to that disk, and reads it back under pressure");
    Some(finding.with(advice::fix(guest, Change::NotOnDisk)))
}

/// Memory that is touched at the start.
pub(super) fn filled(_: &Facts, guest: &GuestFacts) -> Option<Finding> {
    let equipment = guest.equipment.as_ref()?;
    // Such memory is there from the start in any case, and stays.
    if !equipment.is_filled_at_start() || guest.why_withheld().is_some() {
        return None;
    }
    let finding = of_guest(guest, "memory.prealloc", Severity::Hint, "all of its memory is touched at the start (prealloc)").costs(format!(
        "it costs {} from its start, whatever it uses, until a balloon or free page reporting gives some of it back",
        guest.full
    ));
    Some(finding.with(advice::fix(guest, Change::NoPrealloc)))
}
