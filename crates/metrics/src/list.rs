//! The list of metrics.
//!
//! **Rules** (Prometheus's conventions, which a test checks): each name begins with `memtide_` and has the base unit of its value, `_bytes` or
//! `_seconds`. Only counters end in `_total`. A number that only identifies is 1 and ends in `_info`. No unit is in a label, and of the labels only
//! `guest`, `class`, `vmm`, `version`, `mount` and `device` have values that the list does not name. The samples of one metric can be added up: what
//! overlaps (time in which some tasks waited, time in which all did) has two metrics, named as node_exporter names them.
//!
//! **One exception.** Prometheus advises to tell when something happened, not how long ago. `memtide_decision_age_seconds` is an age because the alert on it
//! has a limit of ten seconds: a timestamp would need clocks that agree, and would count the time since the last scrape, which alone can be longer.

use memtide_model::{Bytes, KsmRun, KsmVerdict, Mode, Verdict};

use crate::metric::{Kind, Label, Metric};
use crate::read;

use Kind::{Counter, Gauge, Histogram};

const fn label(name: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, values }
}

const GUEST: Label = label("guest", &[]);
const TMPFS: &[Label] = &[label("mount", &[]), label("device", &[])];

/// All metrics, in the order of `/metrics`.
pub const METRICS: &[Metric] = &[
    // The daemon.
    Metric {
        name: "memtide_build_info",
        kind: Gauge,
        labels: &[label("version", &[])],
        help: "The version of the daemon; always 1",
        source: "the program",
        read: |scrape, samples| samples.with(&[&scrape.status.version], true),
    },
    Metric {
        name: "memtide_managing",
        kind: Gauge,
        labels: &[],
        help: "Whether memtide may act: 0 observes, 1 manages",
        source: "the configuration",
        read: |scrape, samples| samples.one(scrape.status.mode == Mode::Manage),
    },
    Metric {
        name: "memtide_warnings",
        kind: Gauge,
        labels: &[],
        help: "Number of warnings that memtide status shows",
        source: "the status",
        read: |scrape, samples| samples.one(scrape.status.warnings.len()),
    },
    Metric {
        name: "memtide_outsiders",
        kind: Gauge,
        labels: &[],
        help: "Number of guests that are left out because of their users",
        source: "the list users of the configuration",
        read: |scrape, samples| samples.one(scrape.status.outsiders.count),
    },
    Metric {
        name: "memtide_decisions_total",
        kind: Counter,
        labels: &[],
        help: "Decisions made",
        source: "the engine",
        read: |scrape, samples| samples.one(scrape.status.counters.ticks),
    },
    Metric {
        name: "memtide_decision_seconds_total",
        kind: Counter,
        labels: &[],
        help: "Time spent observing, deciding and acting",
        source: "the engine, in whole milliseconds",
        read: |scrape, samples| samples.one(scrape.sums.decided),
    },
    Metric {
        name: "memtide_decision_age_seconds",
        kind: Gauge,
        labels: &[],
        help: "Time since the last decision, by the clock of the host",
        source: "the engine",
        read: |scrape, samples| scrape.status.age.into_iter().for_each(|age| samples.one(age)),
    },
    Metric {
        name: "memtide_decisions_not_journalled_total",
        kind: Counter,
        labels: &[],
        help: "Decisions that could not be written to the journal",
        source: "the engine",
        read: |scrape, samples| samples.one(scrape.status.counters.ticks_not_journalled),
    },
    Metric {
        name: "memtide_journal_behind_seconds",
        kind: Gauge,
        labels: &[],
        help: "How long the oldest decision waits that is to be written to the journal; 0 if none waits for long",
        source: "the engine",
        read: |scrape, samples| samples.one(scrape.status.unwritten.unwrap_or_default()),
    },
    Metric {
        name: "memtide_actions_total",
        kind: Counter,
        labels: &[label("result", &read::RESULTS)],
        help: "Actions that were decided, by result; the check refuses an action that would break a promise",
        source: "the engine",
        read: |scrape, samples| {
            let counters = &scrape.status.counters;
            let counts = [counters.actions_done, counters.actions_failed, counters.actions_refused];
            read::RESULTS.iter().zip(counts).for_each(|(result, count)| samples.with(&[result], count));
        },
    },
    Metric {
        name: "memtide_reloads_total",
        kind: Counter,
        labels: &[],
        help: "Configurations accepted while running",
        source: "the engine",
        read: |scrape, samples| samples.one(scrape.status.counters.reloads),
    },
    // The host.
    Metric {
        name: "memtide_host_capacity_bytes",
        kind: Gauge,
        labels: &[],
        help: "All memory that the ledger counts",
        source: "the ledger",
        read: |scrape, samples| read::host(scrape, samples, scrape.status.host.capacity),
    },
    Metric {
        name: "memtide_host_memory_bytes",
        kind: Gauge,
        labels: &[label("part", &read::HOST_PARTS)],
        help: "What the memory of the host is used for; the parts add up to the capacity while the reserve is kept",
        source: "the ledger",
        read: read::host_parts,
    },
    Metric {
        name: "memtide_host_state",
        kind: Gauge,
        labels: &[label("state", &read::HOST_STATES)],
        help: "Shortage of memory on the host, from high (enough is free) to low (emergency): 1 for the state that holds",
        source: "the policy",
        read: read::host_state,
    },
    Metric {
        name: "memtide_host_reach_bytes",
        kind: Gauge,
        labels: &[],
        help: "Worst-case cost of the guests without asking",
        source: "the ledger",
        read: |scrape, samples| read::host(scrape, samples, scrape.status.host.reach),
    },
    Metric {
        name: "memtide_host_self_deflation_bytes",
        kind: Gauge,
        labels: &[],
        help: "Strict: self-deflations that must also fit",
        source: "the ledger",
        read: |scrape, samples| read::host(scrape, samples, scrape.status.host.self_deflation),
    },
    Metric {
        name: "memtide_host_envelope_bytes",
        kind: Gauge,
        labels: &[],
        help: "Elastic: memory kept free for the growth of guests",
        source: "the ledger",
        read: |scrape, samples| read::host(scrape, samples, scrape.status.host.envelope),
    },
    Metric {
        name: "memtide_host_room_bytes",
        kind: Gauge,
        labels: &[],
        help: "Memory that the commitment leaves for grants",
        source: "the ledger",
        read: |scrape, samples| read::host(scrape, samples, scrape.status.host.room),
    },
    Metric {
        name: "memtide_host_breach_bytes",
        kind: Gauge,
        labels: &[],
        help: "Amount by which the commitment is not kept",
        source: "the ledger",
        read: |scrape, samples| read::host(scrape, samples, scrape.status.host.breach),
    },
    Metric {
        name: "memtide_host_unmet_bytes",
        kind: Gauge,
        labels: &[],
        help: "Memory that guests need and do not have",
        source: "the policy",
        read: |scrape, samples| read::host(scrape, samples, scrape.status.host.unmet),
    },
    Metric {
        name: "memtide_host_pressure_waiting_seconds_total",
        kind: Counter,
        labels: &[],
        help: "Time in which some tasks of the host waited for memory",
        source: "/proc/pressure/memory (some), or the cgroup that plays the host",
        read: |scrape, samples| read::host_pressure(scrape, samples, |pressure| pressure.some_us),
    },
    Metric {
        name: "memtide_host_pressure_stalled_seconds_total",
        kind: Counter,
        labels: &[],
        help: "Time in which all tasks of the host waited for memory",
        source: "/proc/pressure/memory (full), or the cgroup that plays the host",
        read: |scrape, samples| read::host_pressure(scrape, samples, |pressure| pressure.full_us),
    },
    Metric {
        name: "memtide_host_swapped_in_bytes_total",
        kind: Counter,
        labels: &[],
        help: "Memory that the host has read back from swap since its boot, of guests or of others",
        source: "pswpin of /proc/vmstat",
        read: |scrape, samples| scrape.status.swap.iter().for_each(|swap| samples.one(swap.swapped_in)),
    },
    Metric {
        name: "memtide_host_swapped_out_bytes_total",
        kind: Counter,
        labels: &[],
        help: "Memory that the host has written to swap since its boot, of guests or of others",
        source: "pswpout of /proc/vmstat",
        read: |scrape, samples| scrape.status.swap.iter().for_each(|swap| samples.one(swap.swapped_out)),
    },
    Metric {
        name: "memtide_moved_bytes_total",
        kind: Counter,
        labels: &[label("direction", &read::DIRECTIONS)],
        help: "Memory that balloons moved between the guests and the host",
        source: "the sizes that VMMs told, compared from decision to decision",
        read: |scrape, samples| {
            let moved = [scrape.sums.to_host, scrape.sums.to_guests];
            read::DIRECTIONS.iter().zip(moved).for_each(|(direction, sum)| samples.with(&[direction], sum));
        },
    },
    Metric {
        name: "memtide_guests_killed_total",
        kind: Counter,
        labels: &[],
        help: "Guests that were killed for lack of memory, as far as their cgroups tell",
        source: "memory.events of the guests' cgroups",
        read: |scrape, samples| samples.one(scrape.status.counters.guests_killed),
    },
    // KSM.
    Metric {
        name: "memtide_ksm_saved_bytes",
        kind: Gauge,
        labels: &[],
        help: "Memory that merging equal pages saves, zero pages apart",
        source: "/sys/kernel/mm/ksm",
        read: |scrape, samples| read::ksm(scrape, samples, |ksm| Some(ksm.seen.saved)),
    },
    Metric {
        name: "memtide_ksm_zeros_bytes",
        kind: Gauge,
        labels: &[],
        help: "Memory full of zeros that the kernel's zero page replaces",
        source: "/sys/kernel/mm/ksm",
        read: |scrape, samples| read::ksm(scrape, samples, |ksm| Some(ksm.seen.zeros)),
    },
    Metric {
        name: "memtide_ksm_shared_bytes",
        kind: Gauge,
        labels: &[],
        help: "Copies that several pages share",
        source: "/sys/kernel/mm/ksm",
        read: |scrape, samples| read::ksm(scrape, samples, |ksm| Some(ksm.seen.shared)),
    },
    Metric {
        name: "memtide_ksm_mergeable_bytes",
        kind: Gauge,
        labels: &[],
        help: "Memory of processes that let KSM merge some of it",
        source: "/proc",
        read: |scrape, samples| read::ksm(scrape, samples, |ksm| Some(ksm.seen.mergeable)),
    },
    Metric {
        name: "memtide_ksm_profit_bytes",
        kind: Gauge,
        labels: &[],
        help: "Savings less the memory of the kernel's records; it can be negative",
        source: "/sys/kernel/mm/ksm",
        read: |scrape, samples| read::ksm(scrape, samples, |ksm| ksm.seen.profit),
    },
    Metric {
        name: "memtide_ksm_scanning",
        kind: Gauge,
        labels: &[],
        help: "Whether the kernel looks for equal pages now",
        source: "/sys/kernel/mm/ksm",
        read: |scrape, samples| {
            read::ksm(scrape, samples, |ksm| Some(ksm.seen.settings.run == KsmRun::Scanning));
        },
    },
    Metric {
        name: "memtide_ksm_state",
        kind: Gauge,
        labels: &[label("state", &KsmVerdict::NAMES)],
        help: "What memtide does about KSM: 1 for the state that holds",
        source: "the policy",
        read: |scrape, samples| {
            scrape.status.host.ksm.iter().for_each(|ksm| samples.state(&[], ksm.verdict.name()));
        },
    },
    Metric {
        name: "memtide_ksm_passes_total",
        kind: Counter,
        labels: &[],
        help: "Passes over all mergeable memory",
        source: "/sys/kernel/mm/ksm",
        read: |scrape, samples| read::ksm(scrape, samples, |ksm| Some(ksm.seen.full_scans)),
    },
    Metric {
        name: "memtide_ksm_cpu_seconds_total",
        kind: Counter,
        labels: &[],
        help: "Processor time of the kernel's thread",
        source: "/proc",
        read: |scrape, samples| read::ksm(scrape, samples, |ksm| ksm.seen.cpu_time),
    },
    // The tmpfs and NUMA nodes that bound guests.
    Metric {
        name: "memtide_tmpfs_size_bytes",
        kind: Gauge,
        labels: TMPFS,
        help: "Size of a tmpfs that holds guests' memory, or of a NUMA node that guests are bound to",
        source: "the ledger",
        read: |scrape, samples| read::tmpfs(scrape, samples, |one| one.space.size),
    },
    Metric {
        name: "memtide_tmpfs_free_bytes",
        kind: Gauge,
        labels: TMPFS,
        help: "What is free of it",
        source: "the ledger",
        read: |scrape, samples| read::tmpfs(scrape, samples, |one| one.space.free),
    },
    Metric {
        name: "memtide_tmpfs_room_bytes",
        kind: Gauge,
        labels: TMPFS,
        help: "Memory that may be granted to its guests",
        source: "the ledger",
        read: |scrape, samples| read::tmpfs(scrape, samples, |one| one.room),
    },
    Metric {
        name: "memtide_tmpfs_breach_bytes",
        kind: Gauge,
        labels: TMPFS,
        help: "Amount by which the commitment is not kept in it",
        source: "the ledger",
        read: |scrape, samples| read::tmpfs(scrape, samples, |one| one.breach),
    },
    // The guests.
    Metric {
        name: "memtide_guest_info",
        kind: Gauge,
        labels: &[GUEST, label("class", &[]), label("vmm", &[])],
        help: "The class and the VMM of a guest; always 1",
        source: "the configuration, and the guest's process",
        read: |scrape, samples| {
            for (guest, _) in scrape.guests() {
                samples.with(&[&guest.name, &guest.report.class, &guest.backend.to_string()], true);
            }
        },
    },
    Metric {
        name: "memtide_guest_size_bytes",
        kind: Gauge,
        labels: &[GUEST, label("part", &read::SIZE_PARTS)],
        help: "What the memory of a guest is, as seen from inside; the parts add up to its full size",
        source: "the VMM, the balloon's driver and the search for page cache",
        read: read::size_parts,
    },
    Metric {
        name: "memtide_guest_cost_bytes",
        kind: Gauge,
        labels: &[GUEST, label("part", &read::COST_PARTS)],
        help: "What a guest costs the host; the parts add up to its cost, without what KSM merged",
        source: "the guest's process",
        read: read::cost_parts,
    },
    Metric {
        name: "memtide_guest_merged_bytes",
        kind: Gauge,
        labels: &[GUEST],
        help: "Memory of the guest that KSM merged; its cost does not count it",
        source: "the guest's process",
        read: |scrape, samples| read::guests(scrape, samples, |guest, _| guest.report.merged),
    },
    Metric {
        name: "memtide_guest_free_on_host_bytes",
        kind: Gauge,
        labels: &[GUEST],
        help: "Memory that is free in the guest and that the host still holds: at least this much",
        source: "its size and its cost",
        read: |scrape, samples| read::guests(scrape, samples, |guest, _| guest.parts?.free_on_host()),
    },
    Metric {
        name: "memtide_guest_actual_bytes",
        kind: Gauge,
        labels: &[GUEST],
        help: "Memory that the guest keeps",
        source: "the VMM",
        read: |scrape, samples| read::guests(scrape, samples, |guest, _| Some(guest.report.actual)),
    },
    Metric {
        name: "memtide_guest_target_bytes",
        kind: Gauge,
        labels: &[GUEST],
        help: "Memory that the guest is asked to keep",
        source: "the policy",
        read: |scrape, samples| read::guests(scrape, samples, |guest, _| guest.report.target),
    },
    Metric {
        name: "memtide_guest_demand_bytes",
        kind: Gauge,
        labels: &[GUEST],
        help: "Memory that the guest needs",
        source: "the policy",
        read: |scrape, samples| {
            read::guests(scrape, samples, |guest, _| guest.report.used.map(|_| guest.report.demand));
        },
    },
    Metric {
        name: "memtide_guest_entitlement_bytes",
        kind: Gauge,
        labels: &[GUEST],
        help: "The guest's fair share",
        source: "the policy",
        read: |scrape, samples| read::guests(scrape, samples, |guest, _| Some(guest.report.entitlement)),
    },
    Metric {
        name: "memtide_guest_awaited_bytes",
        kind: Gauge,
        labels: &[GUEST],
        help: "Memory that the guest needs and waits for; 0 if it waits for none",
        source: "the policy",
        read: |scrape, samples| {
            read::guests(scrape, samples, |guest, _| match guest.report.verdict {
                Verdict::WaitsForMemory { lacks } => Some(lacks),
                _ => Some(Bytes::ZERO),
            });
        },
    },
    Metric {
        name: "memtide_guest_state",
        kind: Gauge,
        labels: &[GUEST, label("state", &read::GUEST_STATES)],
        help: "What memtide does about a guest: 1 for the state that holds",
        source: "the policy",
        read: read::guest_states,
    },
    Metric {
        name: "memtide_guest_wait_seconds",
        kind: Histogram,
        labels: &[],
        help: "How long guests waited for memory until they had it, or needed it no longer",
        source: "the policy, from decision to decision",
        read: |scrape, samples| samples.histogram(&scrape.sums.waits),
    },
    Metric {
        name: "memtide_guest_allocation_stalls_total",
        kind: Counter,
        labels: &[GUEST],
        help: "Allocations in the guest that had to wait, since its boot",
        source: "the balloon's driver (Linux 6.12 or newer), or the agent",
        read: |scrape, samples| {
            read::guest_counter(scrape, samples, (|stats| stats.alloc_stalls, |agent| agent.alloc_stalls));
        },
    },
    Metric {
        name: "memtide_guest_oom_kills_total",
        kind: Counter,
        labels: &[GUEST],
        help: "Programs that the guest killed for lack of memory, since its boot",
        source: "the balloon's driver (Linux 6.12 or newer), or the agent",
        read: |scrape, samples| {
            read::guest_counter(scrape, samples, (|stats| stats.oom_kills, |agent| agent.oom_kills));
        },
    },
    Metric {
        name: "memtide_guest_pressure_waiting_seconds_total",
        kind: Counter,
        labels: &[GUEST],
        help: "Time in which some tasks of the guest waited for memory, since its boot",
        source: "the agent",
        read: |scrape, samples| read::guest_pressure(scrape, samples, |stalls| stalls.memory_some_us),
    },
    Metric {
        name: "memtide_guest_pressure_stalled_seconds_total",
        kind: Counter,
        labels: &[GUEST],
        help: "Time in which all tasks of the guest waited for memory, since its boot",
        source: "the agent",
        read: |scrape, samples| read::guest_pressure(scrape, samples, |stalls| stalls.memory_full_us),
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_prometheus() {
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len(), "each name once");
        for metric in METRICS {
            let Metric { name, kind, labels, help, .. } = metric;
            assert!(name.starts_with("memtide_"), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Counter, "{name}");
            // These endings belong to the samples of histograms.
            assert!(!["_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)), "{name}");
            let units = ["_kib", "_mib", "_kilobytes", "_ms", "_millis", "_percent", "_pages", "_minutes"];
            assert!(!units.iter().any(|unit| name.contains(unit)), "{name}");
            assert!(!help.contains(['\\', '\n']) && !help.ends_with('.'), "{name}");
            for label in *labels {
                let unnamed = ["guest", "class", "vmm", "version", "mount", "device"];
                assert_eq!(label.values.is_empty(), unnamed.contains(&label.name), "{name} {}", label.name);
                assert!(label.name != "le" && !label.name.starts_with("__"), "{name}");
            }
        }
    }
}
