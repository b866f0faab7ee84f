//! The memory cgroups of guests: limits that memtide does not guard.

use std::path::Path;

use memtide_host::{CgroupVersion, Limited};
use memtide_model::Bytes;

use super::of_guest;
use crate::advice::domain;
use crate::facts::{Facts, GuestFacts};
use crate::finding::{Finding, Severity};
use crate::quote::shell;

/// The effect of a limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitKind {
    /// `memory.max`: the OOM killer acts.
    Kills,
    /// `memory.high`: processes are slowed down, and their memory goes to swap.
    Throttles,
}

/// Cgroups whose limit is below the memory promised to their guests, with what their VMMs may cost besides, except the host that memtide guards.
pub(super) fn limits(facts: &Facts) -> Vec<Finding> {
    let needs = |index: usize| facts.guests.get(index).map_or(Bytes::ZERO, needs);
    let unguarded = facts.cgroups.kill.iter().filter(|limited| !is_guarded(facts, limited));
    let kill = Limited::too_low(unguarded, needs).into_iter().map(|(low, _)| (low, LimitKind::Kills));
    let throttle = Limited::too_low(&facts.cgroups.throttle, needs);
    let throttle = throttle.into_iter().map(|(low, _)| (low, LimitKind::Throttles));
    kill.chain(throttle).filter_map(|(low, kind)| limit(facts, low, kind)).collect()
}

/// The most that a guest may need: its memory, and that of its VMM.
fn needs(guest: &GuestFacts) -> Bytes {
    guest.full.saturating_add(guest.overhead_bound.unwrap_or_default())
}

fn limit(facts: &Facts, limited: &Limited, kind: LimitKind) -> Option<Finding> {
    let guests: Vec<&GuestFacts> =
        limited.guests.iter().filter_map(|&index| facts.guests.get(index)).collect();
    let besides = Bytes::sum(guests.iter().filter_map(|guest| guest.overhead_bound));
    let (rule, severity, file, cost) = match kind {
        LimitKind::Kills => (
            "cgroup.limit",
            Severity::Problem,
            "memory.max",
            "at the limit, the kernel kills a QEMU in this cgroup, even if the host has free memory: memtide guards only a limit that \
             all guests share",
        ),
        LimitKind::Throttles => (
            "cgroup.high",
            Severity::Warning,
            "memory.high",
            "above it, the kernel slows the guests down, and swaps them out if there is swap: it takes back what memtide grants",
        ),
    };
    let file = if limited.version == CgroupVersion::V1 { "memory.limit_in_bytes" } else { file };
    let dir = limited.dir.display();
    let finding = match guests.as_slice() {
        [] => return None,
        [guest] => of_guest(
            guest,
            rule,
            severity,
            format!(
                "its cgroup {dir} is limited to {} ({file}), but the guest has {}{}",
                limited.limit,
                guest.full,
                and_besides(besides)
            ),
        ),
        many => {
            let names: Vec<&str> = many.iter().map(|guest| guest.name.as_str()).collect();
            let fact = format!(
                "the cgroup {dir} is limited to {} ({file}), but its guests {} were promised {}{}",
                limited.limit,
                names.join(", "),
                Bytes::sum(guests.iter().map(|guest| guest.full)),
                and_besides(besides)
            );
            Finding::of_host(rule, severity, fact)
        }
    };
    let finding = finding.costs(cost);
    Some(fix(facts, finding, (limited, kind), &guests))
}

fn and_besides(besides: Bytes) -> String {
    if besides.is_zero() { String::new() } else { format!(", and QEMU may need {besides} more") }
}

/// Whether the cgroup is the guarded host, or above it with a higher limit.
fn is_guarded(facts: &Facts, limited: &Limited) -> bool {
    facts.cgroups.small_host.as_ref().is_some_and(|(host, _)| host.starts_with(&limited.dir))
}

fn fix(
    facts: &Facts,
    finding: Finding,
    (limited, kind): (&Limited, LimitKind),
    guests: &[&GuestFacts],
) -> Finding {
    let (property, file, none) = match (limited.version, kind) {
        (CgroupVersion::V1, _) => ("MemoryLimit", "memory.limit_in_bytes", "-1"),
        (CgroupVersion::V2, LimitKind::Kills) => ("MemoryMax", "memory.max", "max"),
        (CgroupVersion::V2, LimitKind::Throttles) => ("MemoryHigh", "memory.high", "max"),
    };
    if let ([guest], LimitKind::Kills) = (guests, kind)
        && guest.is_of_libvirt()
    {
        return finding
            .fix("a shell", [format!("virsh memtune {} --hard-limit -1 --live --config", domain(guest))]);
    }
    let finding = match unit(&limited.dir) {
        Some(unit) => {
            finding.fix("a shell", [format!("systemctl set-property {} {property}=infinity", shell(unit))])
        }
        None => finding.fix(
            "a shell",
            [format!("echo {none} > {}", shell(&limited.dir.join(file).display().to_string()))],
        ),
    };
    let together = Bytes::sum(facts.guests.iter().map(needs)).get().div_ceil(1 << 20);
    finding.fix(
        "or start all guests in one slice with a limit: memtide treats the slice as the host",
        [
            format!("systemctl set-property guests.slice MemoryMax={together}M"),
            "systemd-run --scope --slice=guests.slice qemu-system-x86_64 …".to_owned(),
        ],
    )
}

/// The systemd unit of this cgroup.
pub(super) fn unit(dir: &Path) -> Option<&str> {
    let name = dir.file_name()?.to_str()?;
    [".slice", ".scope", ".service"].iter().any(|kind| name.ends_with(kind)).then_some(name)
}

/// Cgroups that could not be read.
pub(super) fn unseen(facts: &Facts) -> Option<Finding> {
    let first = facts.cgroups.unseen.first()?;
    Some(
        Finding::of_host(
            "sight.cgroups",
            Severity::Warning,
            format!("cannot read all memory cgroups of the guests: {first}"),
        )
        .costs("memtide may overlook a limit that kills a guest, or a cgroup that plays the guests' host")
        .fix("a shell", [facts.as_root("doctor")]),
    )
}
