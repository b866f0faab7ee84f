//! The cost of a decision: `decide()` on a scarce strict host and on an elastic one, and `check()` of the strict plan. The host
//! has 10 to 10,000 guests of all kinds and a state warmed by two earlier decisions. Goals: 1 ms for 1,000 guests, 10 ms for
//! 10,000, linear.
//!
//! ```text
//! cargo bench -p memtide-policy --bench decide
//! ```
//!
//! After a run of all benches `target/bench/decide.json` holds criterion's estimates:
//!
//! ```json
//! { "schema": 1, "unit": "ns", "guests": { "10": { "strict": { "median": 1, "low": 1, "high": 1 }, … }, … } }
//! ```
//!
//! - `schema`: 1;
//! - `unit`: the unit of all times, `ns`;
//! - `guests`: by number of guests, then by measurement: `strict` and `elastic` are one `decide()` each, `check` is one
//!   `check()`;
//! - `median`, `low`, `high`: the median time of one call, and its 95 % confidence interval.
#![allow(clippy::disallowed_methods, reason = "a bench reads its own results; the policy does not")]

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode};
use memtide_model::{
    Absence, Amount, Backend, Balloon, Budget, Bytes, Capabilities, Class, Commitment, Config, Cost, GuestId,
    GuestSeen, GuestStats, HostSeen, Limit, Mode, Moment, Plan, Polling, Reading, Snapshot, Span, State,
    Told, WallClock, Witness,
};
use memtide_policy::{check, decide, witness};
use serde_json::{Map, Value, json};

const SIZES: [u64; 4] = [10, 100, 1_000, 10_000];
const MEASURED: [&str; 3] = ["strict", "elastic", "check"];

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn config(commitment: Commitment) -> Config {
    let mut config = Config {
        mode: Mode::Manage,
        commitment,
        budget: Budget::Size(Bytes::MAX),
        reserve: Amount::Bytes(mib(256)),
        ..Config::default()
    };
    let class = |pattern: &str| Class { patterns: vec![pattern.to_owned()], ..Class::default() };
    let database = Class { shares: 4000, reservation: mib(512), squeeze: false, ..class("db-*") };
    config.classes.insert("database".into(), database);
    config
        .classes
        .insert("batch".into(), Class { shares: 250, limit: Limit::At(mib(3072)), ..class("ci-*") });
    config
}

/// A number below `most` that differs from guest to guest and from tick to tick.
fn vary(index: u64, tick: u64, most: u64) -> u64 {
    let mixed = (index * 3 + tick + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 33) % most
}

/// A guest of 4 GiB: a sixth are databases, a third batch. One in ten stalls, one in 16 reports no statistics, one in 20 has no
/// driver, one in three may deflate its own balloon.
fn guest(index: u64, tick: u64, target: Option<Bytes>) -> GuestSeen {
    let kind = ["web", "db", "ci", "web", "ci", "app"][usize::try_from(index % 6).expect("below 6")];
    let full = mib(4096);
    let actual = target.unwrap_or_else(|| mib(2048 + vary(index, 0, 2048)));
    let used = actual.mul_div(300 + vary(index, tick, 600), 1000);
    let available = actual.saturating_sub(used);
    let cache = available.mul_div(vary(index, 7, 1000), 1000);
    let stalls = if index.is_multiple_of(10) { tick * 100 } else { 0 };
    let stats = GuestStats {
        total: Some(full),
        free: Some(available.saturating_sub(cache)),
        available: Some(available),
        disk_caches: Some(cache),
        swapped_in: Some(Bytes::ZERO),
        major_faults: Some(tick * vary(index, tick, 50)),
        oom_kills: Some(0),
        alloc_stalls: Some(stalls),
        direct_scans: Some(stalls),
        async_scans: Some(tick * vary(index, tick, 5000)),
        ..GuestStats::default()
    };
    let balloon = Balloon {
        actual,
        deflate_on_oom: index.is_multiple_of(3),
        free_page_reporting: index.is_multiple_of(2),
    };
    let silent = index % 16 == 5;
    let deaf = index % 20 == 7;
    GuestSeen {
        id: GuestId::new(&format!("{kind}-{index:05}"), 1000 + index, "0d3a8b1e-5f0c-4b57-9d5e-6c1f2a7b9e44"),
        pid: 1,
        user: None,
        backend: Backend::new("QEMU"),
        capabilities: Capabilities::BALLOON,
        cost: Cost::of(Reading::now(used.saturating_add(cache)), Bytes::ZERO, mib(64), &Absence::Unsupported),
        tmpfs: None,
        withheld: None,
        told: Told {
            claimed: false,
            full,
            balloon: if deaf { Reading::absent(Absence::NoDriver) } else { Reading::now(balloon) },
            hotplug: Reading::absent(Absence::Unsupported),
            stats: if silent { Reading::absent(Absence::Silent) } else { Reading::now(stats) },
            agent: Reading::unsupported(),
            disks: Reading::unsupported(),
            merges: Reading::unsupported(),
            polling: if tick == 0 { Polling::Off } else { Polling::Every(Span::from_secs(1)) },
            reset: false,
            fence: None,
            terms: None,
        },
    }
}

/// All guests at a tick, on a host with 2.5 GiB for each guest's 4 GiB.
fn seen(guests: u64, tick: u64, state: &State) -> Snapshot {
    let mut all: Vec<GuestSeen> = (0..guests).map(|index| guest(index, tick, None)).collect();
    for guest in &mut all {
        let target = state.guests.get(&guest.id).and_then(|before| before.target);
        if let (Some(target), Reading::Fresh { value, .. }) = (target, &mut guest.told.balloon) {
            value.actual = target;
        }
    }
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let host = HostSeen::of(mib(2560 * guests), mib(512));
    Snapshot {
        taken_at: Moment::from_millis(250 * tick + if tick == 0 { 100_000 } else { 200_000 }),
        wall: WallClock(0),
        host,
        guests: all,
        tmpfs: Vec::new(),
        orders: Vec::new(),
    }
}

/// The state after two decisions, and the third snapshot. Between the first two, the guests have time to boot; the third comes 250 ms later.
fn warmed(config: &Config, guests: u64) -> (State, Snapshot) {
    let mut state = State::default();
    for tick in 0..2 {
        state = decide(config, &state, &seen(guests, tick, &state)).state;
    }
    let seen = seen(guests, 2, &state);
    (state, seen)
}

fn valid_plan(config: &Config, (state, witness): (&State, &Witness), seen: &Snapshot) -> Plan {
    let plan = decide(config, state, seen).plan;
    assert!(!plan.actions.is_empty(), "a scarce host is one with something to do");
    assert_eq!(check(config, witness, seen, &plan), []);
    plan
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    group.sampling_mode(SamplingMode::Flat).sample_size(30);
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    for guests in SIZES {
        for (name, commitment) in [("strict", Commitment::Strict), ("elastic", Commitment::Elastic)] {
            let config = config(commitment);
            let (state, seen) = warmed(&config, guests);
            let mut witness = Witness::from(&state);
            witness::looks(&mut witness, &config, &seen);
            let plan = valid_plan(&config, (&state, &witness), &seen);
            group.bench_function(BenchmarkId::new(name, guests), |bencher| {
                bencher.iter(|| decide(black_box(&config), black_box(&state), black_box(&seen)));
            });
            if commitment == Commitment::Strict {
                group.bench_function(BenchmarkId::new("check", guests), |bencher| {
                    bencher.iter(|| check(black_box(&config), black_box(&witness), black_box(&seen), &plan));
                });
            }
        }
    }
    group.finish();
}

/// The target directory: the bench itself is in `target/release/deps`.
fn target_directory() -> Result<PathBuf, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).ok_or("the bench is not run from a target directory")?;
    Ok(target.to_owned())
}

fn estimate(target: &Path, measured: &str, guests: u64) -> Result<Value, Box<dyn Error>> {
    let file = target.join(format!("criterion/decide/{measured}/{guests}/new/estimates.json"));
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let median = &serde_json::from_str::<Value>(&text)?["median"];
    let interval = &median["confidence_interval"];
    Ok(json!({
        "median": median["point_estimate"],
        "low": interval["lower_bound"],
        "high": interval["upper_bound"],
    }))
}

/// Writes `target/bench/decide.json` and prints it as a table.
fn publish() -> Result<(), Box<dyn Error>> {
    let target = target_directory()?;
    let mut all = Map::new();
    println!("{:>8} {:>12} {:>12} {:>12}   median, µs", "guests", "strict", "elastic", "check");
    for guests in SIZES {
        let mut of_size = Map::new();
        print!("{guests:>8}");
        for measured in MEASURED {
            let estimate = estimate(&target, measured, guests)?;
            print!(" {:>12.1}", estimate["median"].as_f64().ok_or("an estimate is a number")? / 1000.0);
            of_size.insert(measured.to_owned(), estimate);
        }
        println!();
        all.insert(guests.to_string(), Value::Object(of_size));
    }
    let written = json!({ "schema": 1, "unit": "ns", "guests": all });
    let directory = target.join("bench");
    fs::create_dir_all(&directory)?;
    let file = directory.join("decide.json");
    fs::write(&file, serde_json::to_string_pretty(&written)? + "\n")?;
    println!("written: {}", file.display());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    benches(&mut criterion);
    criterion.final_summary();
    // `cargo test --benches` and a filter leave no estimates of this run behind.
    let measures = std::env::args().any(|argument| argument == "--bench");
    if measures { publish() } else { Ok(()) }
}
