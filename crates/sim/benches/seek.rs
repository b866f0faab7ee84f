//! How long it takes to show any moment of a full journal: 100 guests, 256 MiB.
//!
//! `cargo bench -p memtide-sim --bench seek [-- DIR]`: DIR keeps the journal for the next time.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_engine::journal::Writer;
use memtide_engine::{Engine, EventKind, Recorded, World};
use memtide_model::{Bytes, Config, Mode};
use memtide_sim::{Machine, Scenario};

const MOST: Bytes = Bytes::from_mib(256);
const SCENARIO: &str = r#"
about = "100 guests whose programs drift."
lasts = "24h"

[host]
memory = "68000 MiB"

[memtide]
self_deflations = 0

[[guest]]
name = "vm"
count = 100
program = [{ uses = "60 MiB", drifts_to = "700 MiB", drift = "15 MiB/s" }]
"#;

fn size(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// A full journal in `dir`.
fn write(dir: &Path) {
    let setup = Scenario::parse(SCENARIO).unwrap().setup;
    let (writer, _) = Writer::open(dir, MOST).unwrap();
    let config = Config { mode: Mode::Manage, ..setup.config.clone() };
    let mut engine = Engine::new(Machine::new(&setup), config).with_journal(writer);
    let mut last = 0;
    loop {
        let began = engine.world_mut().now();
        let _step = engine.step();
        let now = size(dir);
        // The oldest segment was deleted: it is full.
        if now < last || engine.world_mut().is_over() {
            return;
        }
        last = now;
        engine.wait(began);
    }
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let value = run();
    let took = begun.elapsed();
    println!("{what}: {:.1} ms", took.as_secs_f64() * 1000.0);
    (value, took)
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let scratch = tempfile::tempdir().unwrap();
    let dir = arguments.next().map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    if !dir.exists() || size(&dir) < MOST.get() / 2 {
        timed("written", || write(&dir));
    }
    let (mut recorded, _) = timed("opened", || Recorded::open(&dir).unwrap());
    println!("{} MiB, {} decisions", size(&dir) >> 20, recorded.len());
    let mut took = Vec::new();
    // Places all over the journal, in no order.
    for number in 0..60 {
        let place = number * 7_919_usize % recorded.len();
        let begun = Instant::now();
        let past = recorded.show(place).unwrap();
        took.push(begun.elapsed());
        assert!(past.differs.is_none());
    }
    took.sort_unstable();
    println!("seek: median {:?}, worst {:?}", took[took.len() / 2], took[took.len() - 1]);
    let ends: Vec<usize> = (1..=8).map(|part| recorded.len() * part / 8 - 1).collect();
    let mut fresh = Recorded::open(&dir).unwrap();
    let cold: Vec<Duration> =
        ends.iter().map(|place| timed("  first look", || fresh.show(*place).unwrap()).1).collect();
    println!("first look at the end of a segment: worst {:?}", cold.iter().max().unwrap());
    timed("one step forth", || recorded.next().unwrap());
    timed("one step back", || recorded.previous().unwrap());
    recorded.show(0).unwrap();
    let host = |event: &memtide_engine::Event| event.kind == EventKind::Kill;
    timed("next kill (none in the whole journal)", || recorded.next_event(host).unwrap());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap());
}
