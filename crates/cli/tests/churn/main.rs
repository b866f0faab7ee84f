//! The real daemon beside guests that start and end all the time: nothing of them is left behind.
//!
//! The guests are stand-ins in their own processes. `MEMTIDE_CHURN_SECONDS` sets the time, which is short without it: an hour is
//! `MEMTIDE_CHURN_SECONDS=3600 cargo test -p memtide --test churn`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use common::{Daemon, MIB, memtide, needs_costs, play_or_run, until};
use memtide_stand_in::qemu::process::{Actor, Stage};
use memtide_stand_in::qemu::{Behaviour, Workload};
use memtide_testing::trial;

/// The time between two starts.
const BETWEEN: Duration = Duration::from_millis(100);
/// How many guests live at once.
const AT_ONCE: usize = 20;
/// The time without `MEMTIDE_CHURN_SECONDS`.
const SHORT: Duration = Duration::from_secs(40);
/// What the daemon has is noted so often in a run. The first of them is its beginning.
const NOTES: u32 = 5;
/// The most by which its memory may have grown from the second note to the last, in KiB: its history is full by then in a long run.
const MOST_GROWN: u64 = 4 << 10;
/// The same of its descriptors: those of the guests that live at the moment.
const MOST_DESCRIPTORS: usize = 10 * AT_ONCE;
/// The same of its threads: readings that hang leave some behind for a moment.
const MOST_THREADS: usize = 4;

fn main() -> ExitCode {
    play_or_run(1, || vec![trial("guests_that_start_and_end_leave_nothing_behind", churn)])
}

/// What the daemon has at a moment.
#[derive(Clone, Copy, Debug)]
struct Note {
    resident_kib: u64,
    descriptors: usize,
    threads: usize,
}

impl Note {
    fn of(daemon: &Daemon) -> Self {
        let process = format!("/proc/{}", daemon.pid());
        let count = |name: &str| fs::read_dir(Path::new(&process).join(name)).unwrap().count();
        let status = fs::read_to_string(Path::new(&process).join("status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Self {
            resident_kib: resident.trim().trim_end_matches(" kB").parse().unwrap(),
            descriptors: count("fd"),
            threads: count("task"),
        }
    }
}

fn churn() {
    needs_costs();
    let seconds = std::env::var("MEMTIDE_CHURN_SECONDS").ok().map(|text| text.parse().unwrap());
    let lasts = seconds.map_or(SHORT, Duration::from_secs);
    let directory = tempfile::tempdir().unwrap();
    let stage = Stage::new(directory.path()).unwrap();
    let prefix = format!("churn{}", std::process::id());
    let journal = directory.path().join("journal");
    let configuration = format!(
        "mode = \"manage\"\nbudget = \"3 GiB\"\ndiscover = [\"{prefix}-*\"]\njournal = {{ dir = {journal:?}, max = \"8 MiB\" }}"
    );
    let daemon = Daemon::start(memtide(), directory.path(), &configuration, &[]);
    let empty = Note::of(&daemon);
    let workload = Workload { base: 20 * MIB, cache: 4 * MIB, ..Workload::default() };
    let (begun, mut guests, mut started, mut notes) =
        (Instant::now(), VecDeque::<Actor>::new(), 0_u64, Vec::new());
    while begun.elapsed() < lasts {
        let name = format!("{prefix}-{started}");
        guests.push_back(stage.start(&name, 64, Behaviour::Honest, workload).unwrap());
        started += 1;
        if guests.len() > AT_ONCE {
            drop(guests.pop_front());
        }
        if begun.elapsed() >= lasts / NOTES * u32::try_from(notes.len() + 1).unwrap() {
            notes.push(Note::of(&daemon));
        }
        thread::sleep((BETWEEN * u32::try_from(started).unwrap()).saturating_sub(begun.elapsed()));
    }
    notes.push(Note::of(&daemon));
    println!("{started} guests; {notes:#?}");
    let status = daemon.status();
    assert!(status.age.is_none_or(|age| age.as_millis() < 10_000), "it decides: {:?}", status.age);
    assert_eq!(status.counters.actions_refused, 0);
    let (before, last) = (notes[1], notes.last().unwrap());
    assert!(last.resident_kib <= before.resident_kib + MOST_GROWN, "{notes:#?}");
    assert!(last.descriptors <= before.descriptors + MOST_DESCRIPTORS, "{notes:#?}");
    assert!(last.threads <= before.threads + MOST_THREADS, "{notes:#?}");
    // Once they are gone, nothing of them is left.
    guests.clear();
    daemon.until("no guests", |status| status.guests.is_empty());
    let is_clean = || Note::of(&daemon).descriptors < empty.descriptors + 10;
    until("few descriptors", is_clean, || format!("{empty:?} {:?}", Note::of(&daemon)));
    daemon.end();
}
