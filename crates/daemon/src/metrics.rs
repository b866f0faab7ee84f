//! The status as Prometheus (OpenMetrics) text.
//!
//! Sizes are gauges in bytes. A guest without a value (no target yet, no statistics) has no sample: missing is never zero.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use memtide_model::{Bytes, HostState, KsmReport, KsmRun, KsmVerdict, Mode, TmpfsReport};
use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use memtide_api::view::Status;

/// A size of a tmpfs.
type Size = fn(&TmpfsReport) -> Bytes;
type Labelled = Family<Vec<(String, String)>, Gauge>;

/// The status as OpenMetrics text.
pub fn encode(status: &Status) -> String {
    let mut registry = Registry::with_prefix("memtide");
    host(&mut registry, status);
    if let Some(ksm) = &status.host.ksm {
        self::ksm(&mut registry, ksm);
    }
    tmpfs(&mut registry, &status.host.tmpfs);
    guests(&mut registry, status);
    counters(&mut registry, status);
    let mut text = String::new();
    // Writing to a String fails only if a Display implementation does; the text written until then is still useful.
    if encode_text(&mut text, &registry).is_err() {
        text.push_str("# EOF\n");
    }
    text
}

fn value(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).unwrap_or(i64::MAX)
}

fn host(registry: &mut Registry, status: &Status) {
    let host = &status.host;
    for (name, help, bytes) in [
        ("host_capacity", "All memory that the ledger counts", host.capacity),
        ("host_reserve", "Memory kept free of guests", host.reserve),
        ("host_footprints", "Cost of the guests now", host.footprints),
        ("host_torn", "The rest of torn huge pages", host.torn),
        ("host_other", "Memory used by everything else, without cache that can be dropped", host.other),
        ("host_free", "Free memory", host.free),
        ("host_reach", "Worst-case cost of the guests without asking", host.reach),
        ("host_self_deflation", "Strict: self-deflations that must also fit", host.self_deflation),
        ("host_room", "Memory that the commitment leaves for grants", host.room),
        ("host_breach", "Amount by which the commitment is not kept", host.breach),
        ("host_unmet", "Memory that guests need and do not have", host.unmet),
        ("host_envelope", "Elastic: memory kept free for the growth of guests", host.envelope),
    ] {
        let gauge: Gauge = Gauge::default();
        gauge.set(value(bytes));
        registry.register_with_unit(name, help, Unit::Bytes, gauge);
    }
    let managing: Gauge = Gauge::default();
    managing.set(i64::from(status.mode == Mode::Manage));
    registry.register("managing", "Whether memtide may act: 0 observes, 1 manages", managing);
    let warnings: Gauge = Gauge::default();
    warnings.set(i64::try_from(status.warnings.len()).unwrap_or(i64::MAX));
    registry.register("warnings", "Number of warnings in the status", warnings);
    if let Some(age) = status.age {
        let gauge: Gauge<f64, AtomicU64> = Gauge::default();
        gauge.set(Duration::from(age).as_secs_f64());
        registry.register_with_unit("decision_age", "Time since the last decision", Unit::Seconds, gauge);
    }
    let behind: Gauge<f64, AtomicU64> = Gauge::default();
    behind.set(status.unwritten.map_or(0.0, |waits| Duration::from(waits).as_secs_f64()));
    let help = "How long the oldest decision waits that is to be written to the journal";
    registry.register_with_unit("journal_behind", help, Unit::Seconds, behind);
    let outsiders: Gauge = Gauge::default();
    outsiders.set(i64::try_from(status.outsiders.count).unwrap_or(i64::MAX));
    let help = "Number of guests that are left out because of their users";
    registry.register("outsiders", help, outsiders);
    let state: Gauge = Gauge::default();
    state.set(match host.state {
        HostState::High => 0,
        HostState::Soft => 1,
        HostState::Hard => 2,
        HostState::Low => 3,
    });
    registry.register("host_state", "Shortage of memory on the host: 0 high, 1 soft, 2 hard, 3 low", state);
}

/// KSM: what it saves, and what it costs.
fn ksm(registry: &mut Registry, ksm: &KsmReport) {
    let seen = &ksm.seen;
    for (name, help, bytes) in [
        ("ksm_saved", "Memory that merging equal pages saves, zero pages apart", value(seen.saved)),
        ("ksm_zeros", "Memory full of zeros that the kernel's zero page replaces", value(seen.zeros)),
        ("ksm_shared", "Copies that several pages share", value(seen.shared)),
        ("ksm_mergeable", "Memory of processes that let KSM merge some of it", value(seen.mergeable)),
    ] {
        let gauge: Gauge = Gauge::default();
        gauge.set(bytes);
        registry.register_with_unit(name, help, Unit::Bytes, gauge);
    }
    if let Some(profit) = seen.profit {
        let gauge: Gauge = Gauge::default();
        gauge.set(profit);
        let help = "Savings less the memory of the kernel's records";
        registry.register_with_unit("ksm_profit", help, Unit::Bytes, gauge);
    }
    let scans: Gauge = Gauge::default();
    scans.set(i64::from(seen.settings.run == KsmRun::Scanning));
    registry.register("ksm_scans", "Whether the kernel looks for equal pages now", scans);
    let state = Labelled::default();
    for name in KsmVerdict::NAMES {
        let labels = vec![("state".to_owned(), name.to_owned())];
        state.get_or_create(&labels).set(i64::from(name == ksm.verdict.name()));
    }
    registry.register("ksm_state", "What memtide does about KSM: 1 for the state that holds", state);
    registry.register("ksm_passes", "Passes over all mergeable memory", ConstCounter::new(seen.full_scans));
    if let Some(cpu_time) = seen.cpu_time {
        let cpu = ConstCounter::new(std::time::Duration::from(cpu_time).as_secs_f64());
        registry.register_with_unit("ksm_cpu", "Processor time of the kernel's thread", Unit::Seconds, cpu);
    }
}

/// The tmpfs with a limit that hold guests' memory.
fn tmpfs(registry: &mut Registry, all: &[TmpfsReport]) {
    let families: [(&str, &str, Size); 4] = [
        (
            "tmpfs_size",
            "Size of a tmpfs that holds guests' memory, or of a NUMA node that guests are bound to",
            |one| one.space.size,
        ),
        ("tmpfs_free", "What is free of it", |one| one.space.free),
        ("tmpfs_room", "Memory that may be granted to its guests", |one| one.room),
        ("tmpfs_breach", "Amount by which the commitment is not kept in it", |one| one.breach),
    ];
    for (name, help, of) in families {
        let family = Labelled::default();
        for one in all {
            let labels =
                vec![("mount".to_owned(), one.at.clone()), ("device".to_owned(), one.id.0.to_string())];
            family.get_or_create(&labels).set(value(of(one)));
        }
        if !all.is_empty() {
            registry.register_with_unit(name, help, Unit::Bytes, family);
        }
    }
}

fn guests(registry: &mut Registry, status: &Status) {
    let families: [(&str, &str, Labelled); 7] = [
        ("guest_footprint", "Cost of the guest to the host now", Family::default()),
        (
            "guest_merged",
            "Memory of the guest that KSM merged; its cost does not count it",
            Family::default(),
        ),
        ("guest_actual", "Memory that the guest keeps", Family::default()),
        ("guest_demand", "Memory that the guest needs", Family::default()),
        ("guest_entitlement", "The guest's fair share", Family::default()),
        ("guest_target", "Memory that the guest is asked to keep", Family::default()),
        ("guest_used", "Memory that the guest uses", Family::default()),
    ];
    for guest in &status.guests {
        let report = &guest.report;
        let values = [
            report.footprint,
            report.merged,
            Some(report.actual),
            report.used.map(|_| report.demand),
            Some(report.entitlement),
            report.target,
            report.used,
        ];
        for ((_, _, family), bytes) in families.iter().zip(values) {
            if let Some(bytes) = bytes {
                let labels = vec![
                    ("guest".to_owned(), guest.name.clone()),
                    ("class".to_owned(), report.class.to_string()),
                ];
                family.get_or_create(&labels).set(value(bytes));
            }
        }
    }
    for (name, help, family) in families {
        registry.register_with_unit(name, help, Unit::Bytes, family);
    }
}

fn counters(registry: &mut Registry, status: &Status) {
    let counters = &status.counters;
    for (name, help, count) in [
        ("ticks", "Decisions made", counters.ticks),
        ("actions_done", "Actions that a VMM took", counters.actions_done),
        ("actions_failed", "Actions that failed", counters.actions_failed),
        (
            "actions_refused",
            "Actions that would have broken a promise, so nobody tried them",
            counters.actions_refused,
        ),
        (
            "ticks_not_journalled",
            "Ticks that could not be written to the journal",
            counters.ticks_not_journalled,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_state_of_ksm_holds() {
        let report = KsmReport { verdict: KsmVerdict::Bursts { passes: 2 }, ..KsmReport::default() };
        let mut registry = Registry::with_prefix("memtide");
        ksm(&mut registry, &report);
        let mut text = String::new();
        encode_text(&mut text, &registry).unwrap();
        assert!(text.contains("memtide_ksm_state{state=\"bursts\"} 1\n"), "{text}");
        assert!(text.contains("memtide_ksm_state{state=\"sleeps\"} 0\n"), "{text}");
        assert!(!text.contains("memtide_ksm_cpu"), "what cannot be read has no sample: {text}");
        let states = text.lines().filter(|line| line.starts_with("memtide_ksm_state{"));
        assert_eq!(states.count(), KsmVerdict::NAMES.len());
    }
}
