//! Recording rules and alerts.
//!
//! A recorded series is called `LEVEL:METRIC:OPERATION`, as Prometheus advises. Each alert says what happened, to whom, and what to do next.

use anyhow::Result;

use crate::query;

/// A series that Prometheus records.
pub(crate) struct Recording {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it is, for people.
    about: &'static str,
    expr: &'static str,
}

/// An alert.
pub(crate) struct Alert {
    /// Its name.
    pub(crate) name: &'static str,
    expr: &'static str,
    /// How long it must hold before somebody hears of it.
    lasts: &'static str,
    severity: &'static str,
    summary: &'static str,
    description: &'static str,
}

/// The recorded series.
pub(crate) const RECORDINGS: &[Recording] = &[
    Recording {
        name: "instance_guest:memtide_guest_size_bytes:sum",
        about: "The full size of each guest",
        expr: "sum by (job, instance, guest) (memtide_guest_size_bytes)",
    },
    Recording {
        name: "instance_guest:memtide_guest_cost_bytes:sum",
        about: "The cost of each guest",
        expr: "sum by (job, instance, guest) (memtide_guest_cost_bytes)",
    },
    Recording {
        name: "instance:memtide_overcommit:ratio",
        about: "The full sizes of all guests in relation to the memory of the host",
        expr: "sum by (job, instance) (memtide_guest_size_bytes) / on (job, instance) memtide_host_capacity_bytes",
    },
    Recording {
        name: "instance:memtide_guests_waiting:sum",
        about: "The number of guests that wait for memory",
        expr: "sum by (job, instance) (memtide_guest_state{state=\"waits\"})",
    },
    Recording {
        name: "instance_state:memtide_guest_state:sum",
        about: "The number of guests in each state",
        expr: "sum by (job, instance, state) (memtide_guest_state)",
    },
    Recording {
        name: "instance:memtide_moved_bytes:rate5m",
        about: "Memory that moves, in each direction",
        expr: "sum by (job, instance, direction) (rate(memtide_moved_bytes_total[5m]))",
    },
    Recording {
        name: "instance:memtide_host_swapped_in_bytes:rate5m",
        about: "Memory that the host reads back from swap",
        expr: "rate(memtide_host_swapped_in_bytes_total[5m])",
    },
    Recording {
        name: "instance:memtide_guest_wait_seconds:p95_1h",
        about: "Of 20 waits for memory, 19 were at most this long",
        expr: "histogram_quantile(0.95, sum by (job, instance, le) (rate(memtide_guest_wait_seconds_bucket[1h])))",
    },
    Recording {
        name: "instance:memtide_decision_seconds:mean5m",
        about: "The mean time of a decision",
        expr: "rate(memtide_decision_seconds_total[5m]) / rate(memtide_decisions_total[5m])",
    },
];

/// The alerts.
pub(crate) const ALERTS: &[Alert] = &[
    Alert {
        name: "MemtideDown",
        expr: "up{job=\"memtide\"} == 0",
        lasts: "2m",
        severity: "critical",
        summary: "{{ $labels.instance }}: no metrics from memtide",
        description: "Guests keep their sizes while memtide is down, and no guest gets more memory. See: systemctl status memtide.service",
    },
    Alert {
        name: "MemtideDoesNotDecide",
        expr: "memtide_decision_age_seconds > 10 or memtide_decisions_total == 0",
        lasts: "1m",
        severity: "critical",
        summary: "{{ $labels.instance }}: memtide no longer decides",
        description: "Decisions are at most 2 s apart. Until the next one, no guest gets more memory. See: journalctl -u memtide.service",
    },
    Alert {
        name: "MemtideHostLow",
        expr: "memtide_host_state{state=\"low\"} == 1",
        lasts: "1m",
        severity: "critical",
        summary: "{{ $labels.instance }}: the host is almost out of memory",
        description: "memtide takes memory from guests at full speed, and that is not enough. Stop or migrate a guest, or stop other programs. See: memtide status",
    },
    Alert {
        name: "MemtideHostShort",
        expr: "sum by (job, instance) (memtide_host_state{state=~\"hard|low\"}) > 0",
        lasts: "15m",
        severity: "warning",
        summary: "{{ $labels.instance }}: the host has been short of memory for 15 minutes",
        description: "The guests need more than the host has. Plan for fewer guests here, or for more memory. See: memtide status",
    },
    Alert {
        name: "MemtideGuestWaits",
        expr: "memtide_guest_awaited_bytes > 0",
        lasts: "5m",
        severity: "warning",
        summary: "{{ $labels.instance }}: {{ $labels.guest }} waits for {{ $value | humanize1024 }}B of memory",
        description: "The guest needs more memory than memtide can give it. See: memtide explain {{ $labels.guest }}",
    },
    Alert {
        name: "MemtideHostSwapsIn",
        expr: "instance:memtide_host_swapped_in_bytes:rate5m > 65536",
        lasts: "5m",
        severity: "critical",
        summary: "{{ $labels.instance }}: the host reads {{ $value | humanize1024 }}B/s back from swap",
        description: "Guests or other programs wait for the disk for their memory, which memtide should prevent. Look at memtide status, and at what else runs on the host.",
    },
    Alert {
        name: "MemtideCommitmentNotKept",
        expr: "memtide_host_breach_bytes > 0 or memtide_tmpfs_breach_bytes > 0",
        lasts: "10m",
        severity: "warning",
        summary: "{{ $labels.instance }}: the commitment is missed by {{ $value | humanize1024 }}B",
        description: "If all guests grow at once, there is not enough memory. See: memtide status",
    },
    Alert {
        name: "MemtideGuestKilled",
        expr: "increase(memtide_guests_killed_total[15m]) > 0",
        lasts: "0m",
        severity: "critical",
        summary: "{{ $labels.instance }}: a guest was killed for lack of memory",
        description: "The kernel killed the process of a guest. The log names the guest: journalctl -u memtide.service",
    },
    Alert {
        name: "MemtideProgramKilledInGuest",
        expr: "increase(memtide_guest_oom_kills_total[15m]) > 0",
        lasts: "0m",
        severity: "warning",
        summary: "{{ $labels.instance }}: {{ $labels.guest }} killed a program for lack of memory",
        description: "The guest ran out of memory. If it had its full size, it is too small. See: memtide explain {{ $labels.guest }}",
    },
    Alert {
        name: "MemtideJournalNotWritten",
        expr: "memtide_journal_behind_seconds > 10 or increase(memtide_decisions_not_journalled_total[15m]) > 0",
        lasts: "1m",
        severity: "warning",
        summary: "{{ $labels.instance }}: memtide cannot write its journal",
        description: "Decisions go on, but nobody can look at them later, and a restart may forget holds. Check the disk of /var/lib/memtide/journal",
    },
    Alert {
        name: "MemtideChangeRefused",
        expr: "increase(memtide_actions_total{result=\"refused\"}[1h]) > 0",
        lasts: "0m",
        severity: "warning",
        summary: "{{ $labels.instance }}: memtide refused a change that would have broken a promise",
        description: "No guest was harmed, but this is a mistake of memtide: please report it with the journal. The log names the guest and the promise.",
    },
];

/// The names of the recorded series.
pub(crate) fn recorded() -> Vec<&'static str> {
    RECORDINGS.iter().map(|recording| recording.name).collect()
}

/// Both as a file for Prometheus.
pub(crate) fn yaml() -> Result<String> {
    let mut text = String::from(
        "# Recording rules and alerts for memtide. Written by `cargo xtask dashboards`: to change them, change crates/dashboards.\n\
         # MemtideDown expects the job name of memtide-scrape.yml.\ngroups:\n- name: memtide_recorded\n  rules:\n",
    );
    for Recording { name, about, expr } in RECORDINGS {
        query::check(expr, &[])?;
        text.push_str(&format!("  # {about}.\n  - record: {name}\n    expr: {}\n", quoted(expr)));
    }
    text.push_str("- name: memtide_alerts\n  rules:\n");
    for Alert { name, expr, lasts, severity, summary, description } in ALERTS {
        query::check(expr, &recorded())?;
        text.push_str(&format!("  - alert: {name}\n    expr: {}\n", quoted(expr)));
        if *lasts != "0m" {
            text.push_str(&format!("    for: {lasts}\n"));
        }
        text.push_str(&format!("    labels:\n      severity: {severity}\n    annotations:\n"));
        text.push_str(&format!("      summary: {}\n", quoted(summary)));
        text.push_str(&format!("      description: {}\n", quoted(description)));
    }
    Ok(text)
}

/// As a string of YAML, without escapes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
