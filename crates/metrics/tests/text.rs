//! `/metrics` as a strict reader finds it: each family once, described before its samples, with the labels of the list and exact sums.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use memtide_api::view::Status;
use memtide_engine::{Board, LastTick, Published};
use memtide_metrics::{Kind, METRICS, Scrape, Sums, encode};
use memtide_model::{
    Absence, Agent, AgentStalls, Backend, Balloon, Bytes, Capabilities, Config, Cost, GuestId, GuestReport,
    GuestSeen, GuestStats, HostReport, HostSeen, Moment, Plan, Pressure, Reading, Report, Snapshot, Span,
    State, Told, Verdict, WallClock,
};

const fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// A guest of 1024 MiB that keeps `actual`.
fn seen(id: &GuestId, actual: Bytes) -> GuestSeen {
    let stats = GuestStats {
        available: Some(mib(500)),
        free: Some(mib(200)),
        disk_caches: Some(mib(310)),
        oom_kills: Some(2),
        ..GuestStats::default()
    };
    let balloon = Balloon { actual, deflate_on_oom: false, free_page_reporting: true };
    GuestSeen {
        id: id.clone(),
        pid: 1,
        user: None,
        backend: Backend::new("QEMU"),
        capabilities: Capabilities::BALLOON,
        cost: Cost {
            merged: Reading::now(mib(10)),
            swapped: Reading::now(mib(5)),
            ..Cost::of(Reading::now(mib(640)), mib(40), mib(40), &Absence::Unsupported)
        },
        tmpfs: None,
        withheld: None,
        told: Told {
            balloon: Reading::now(balloon),
            stats: Reading::now(stats),
            ..Told::nothing(mib(1024), Absence::NotYet)
        },
    }
}

fn report(id: &GuestId, actual: Bytes, verdict: Verdict) -> GuestReport {
    GuestReport {
        id: id.clone(),
        class: "default".into(),
        footprint: Some(mib(640)),
        merged: Some(mib(10)),
        reach: mib(1024),
        actual,
        full: mib(1024),
        used: Some(mib(300)),
        cache: mib(100),
        headroom: Bytes::ZERO,
        demand: mib(400),
        entitlement: mib(512),
        target: None,
        unordered: Bytes::ZERO,
        bound_by: None,
        verdict,
    }
}

/// A tick at `second` with one guest, whose name needs escapes.
fn tick(second: u64, actual: Bytes, verdict: Verdict) -> LastTick {
    let id = GuestId::new("a\"b\\c", 1, "boot");
    let host = HostReport {
        capacity: mib(4096),
        reserve: mib(256),
        footprints: mib(640),
        other: mib(1000),
        free: mib(2200),
        ..HostReport::default()
    };
    LastTick {
        seen: Snapshot {
            taken_at: Moment::from_millis(second * 1000),
            wall: WallClock(0),
            host: HostSeen::of(mib(4096), mib(1000)),
            guests: vec![seen(&id, actual)],
            tmpfs: Vec::new(),
            orders: Vec::new(),
        },
        plan: Plan::default(),
        report: Report { host, guests: vec![report(&id, actual, verdict)] },
        state: State::default(),
        refusals: Vec::new(),
        answers: Vec::new(),
        took: Span::from_millis(5),
    }
}

/// The metrics after these ticks.
fn after(ticks: Vec<LastTick>) -> String {
    let mut sums = Sums::default();
    ticks.iter().for_each(|tick| sums.add(tick));
    let published = Board::new(Config::default()).latest();
    let published = Published { last: ticks.into_iter().next_back(), ..(*published).clone() };
    let status = Status { age: Some(Span::from_millis(1500)), ..Status::new(&published) };
    encode(&Scrape { status: &status, last: published.last.as_ref(), sums: &sums })
}

/// The samples of a text, by name and labels.
type Samples = BTreeMap<(String, Vec<(String, String)>), f64>;

/// Reads the text, and accepts nothing that the format does not allow.
fn read(text: &str) -> Samples {
    let (mut samples, mut families) = (Samples::new(), BTreeSet::new());
    let mut lines = text.strip_suffix('\n').unwrap().lines().peekable();
    while let Some(help) = lines.next() {
        let (name, said) = help.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
        let metric = METRICS.iter().find(|metric| metric.name == name).unwrap();
        assert_eq!(said, metric.help);
        assert_eq!(lines.next().unwrap(), format!("# TYPE {name} {}", metric.kind.name()));
        assert!(families.insert(name), "{name} twice");
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (sample, labels, value) = sample(line);
            let end = sample.strip_prefix(name).unwrap();
            assert!(end.is_empty() != (metric.kind == Kind::Histogram), "{line}");
            let named: Vec<_> = labels.iter().map(|(name, _)| name.as_str()).collect();
            let expected: Vec<_> = metric.labels.iter().map(|label| label.name).collect();
            assert!(named == expected || end == "_bucket" && named == ["le"], "{line}");
            for (label, (_, value)) in metric.labels.iter().zip(&labels) {
                assert!(label.values.is_empty() || label.values.contains(&value.as_str()), "{line}");
            }
            assert!(value >= 0.0 || metric.kind == Kind::Gauge, "{line}");
            assert!(samples.insert((sample, labels), value).is_none(), "twice: {line}");
        }
    }
    samples
}

/// Name, labels and value of a line.
fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let (head, value) = line.rsplit_once(' ').unwrap();
    let value = value.parse().unwrap();
    let Some((name, rest)) = head.split_once('{') else { return (head.to_owned(), Vec::new(), value) };
    let mut chars = rest.strip_suffix('}').unwrap().chars();
    let mut labels = Vec::new();
    while !chars.as_str().is_empty() {
        let label: String = chars.by_ref().take_while(|c| *c != '=').collect();
        assert_eq!(chars.next(), Some('"'), "{line}");
        let mut text = String::new();
        loop {
            match chars.next().unwrap() {
                '"' => break,
                '\\' => text.push(match chars.next().unwrap() {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    other => panic!("{line}: \\{other}"),
                }),
                c => text.push(c),
            }
        }
        labels.push((label, text));
        assert!(matches!(chars.next(), None | Some(',')), "{line}");
    }
    (name.to_owned(), labels, value)
}

/// The sum of the samples with this name and, if not empty, this value of a label.
fn sum(samples: &Samples, name: &str, label: &str) -> f64 {
    let is_it =
        |labels: &[(String, String)]| label.is_empty() || labels.iter().any(|(_, value)| value == label);
    let found = samples.iter().filter(|((found, labels), _)| found == name && is_it(labels));
    found.map(|(_, value)| value).sum()
}

#[test]
fn a_daemon_that_has_not_decided_yet_has_no_host_and_no_zeros_for_it() {
    let text = after(Vec::new());
    let samples = read(&text);
    assert!(text.contains("memtide_decisions_total 0\n") && !text.contains("memtide_host_"), "{text}");
    assert_eq!(sum(&samples, "memtide_guest_wait_seconds_count", ""), 0.0);
}

#[test]
fn the_parts_add_up() {
    let samples = read(&after(vec![tick(1, mib(800), Verdict::Steady)]));
    let is = |name: &str, label: &str, expected: Bytes| {
        assert_eq!(sum(&samples, name, label), expected.get() as f64, "{name} {label}");
    };
    is("memtide_host_memory_bytes", "", mib(4096));
    is("memtide_guest_size_bytes", "", mib(1024));
    is("memtide_guest_size_bytes", "given", mib(224));
    // 640 resident and 5 in swap; what KSM merged is in neither.
    is("memtide_guest_cost_bytes", "", mib(645));
    is("memtide_guest_merged_bytes", "", mib(10));
    let torn =
        samples.keys().any(|(name, labels)| name == "memtide_guest_cost_bytes" && labels[1].1 == "torn");
    assert!(!torn, "nobody knows what is torn: no sample");
    for state in ["memtide_host_state", "memtide_guest_state"] {
        assert_eq!(sum(&samples, state, ""), 1.0, "one {state} holds");
    }
    assert_eq!(sum(&samples, "memtide_guest_oom_kills_total", ""), 2.0);
    assert!(samples.keys().any(|(_, labels)| labels.iter().any(|(_, value)| value == "a\"b\\c")));
}

#[test]
fn times_of_pressure_are_seconds() {
    let mut last = tick(1, mib(800), Verdict::Steady);
    last.seen.host.pressure = Reading::now(Pressure { some_us: 1_500_000, full_us: 250_000 });
    let stalls = AgentStalls { memory_some_us: 3_000_000, memory_full_us: 500_000, ..AgentStalls::default() };
    last.seen.guests[0].told.agent = Reading::now(Agent { stalls: Some(stalls), ..Agent::default() });
    let samples = read(&after(vec![last]));
    let is = |name: &str| sum(&samples, name, "");
    assert_eq!(is("memtide_host_pressure_waiting_seconds_total"), 1.5);
    assert_eq!(is("memtide_host_pressure_stalled_seconds_total"), 0.25);
    assert_eq!(is("memtide_guest_pressure_waiting_seconds_total"), 3.0);
    assert_eq!(is("memtide_guest_pressure_stalled_seconds_total"), 0.5);
}

#[test]
fn moves_and_waits_are_added_up_from_tick_to_tick() {
    let waits = || Verdict::WaitsForMemory { lacks: mib(64) };
    let text = after(vec![
        tick(1, mib(800), Verdict::Steady),
        tick(2, mib(700), Verdict::Shrunk),
        tick(3, mib(700), waits()),
        tick(4, mib(720), waits()),
        tick(6, mib(760), Verdict::Steady),
    ]);
    let samples = read(&text);
    assert_eq!(sum(&samples, "memtide_moved_bytes_total", "to_host"), mib(100).get() as f64);
    assert_eq!(sum(&samples, "memtide_moved_bytes_total", "to_guests"), mib(60).get() as f64);
    // It waited from second 3 to second 6.
    assert_eq!(sum(&samples, "memtide_guest_wait_seconds_sum", ""), 3.0);
    let bucket = |le| sum(&samples, "memtide_guest_wait_seconds_bucket", le);
    assert_eq!([bucket("2.0"), bucket("4.0"), bucket("300.0"), bucket("+Inf")], [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(sum(&samples, "memtide_decision_seconds_total", ""), 0.025);
}
