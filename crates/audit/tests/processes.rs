//! The audit of real processes against a count of all their pages.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memtide_audit::{Audit, Group, Merging, Options, run_with};
use memtide_host::Root;
use memtide_model::Bytes;
use sha2::{Digest as _, Sha256};

const PAGE: u64 = 4096;

/// What a process holds, in pages.
#[derive(Clone, Copy, Default)]
struct Mix {
    own: u64,
    shared: u64,
    repeated: u64,
    zeros: u64,
    changing: u64,
}

/// A process with a known mix, ended when it is dropped.
struct Process(Child);

impl Process {
    fn start(mix: Mix, seed: u64) -> Self {
        let numbers = [mix.own, mix.shared, mix.repeated, mix.zeros, mix.changing, seed];
        let mut child = Command::new(program())
            .args(numbers.map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn group(&self, nth: usize) -> Group {
        Group { name: format!("process-{nth}"), pids: vec![self.0.id()] }
    }

    /// Its resident anonymous memory, in KiB. Pages of its program come and go with what it does.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Waits until its memory stays the same: what it does after it said that it is ready may touch some.
    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut last, mut same) = (self.resident(), 0);
        while same < 5 {
            assert!(Instant::now() < deadline, "its memory stays the same");
            std::thread::sleep(Duration::from_millis(20));
            same = if self.resident() == last { same + 1 } else { 0 };
            last = self.resident();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The example program, built together with the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples/pages")
}

fn start(mixes: &[Mix]) -> Vec<Process> {
    mixes.iter().zip(0..).map(|(mix, seed)| Process::start(*mix, seed)).collect()
}

fn audit(processes: &[Process], exact: bool, wait: u64, seed: u64) -> Audit {
    let groups: Vec<Group> = processes.iter().enumerate().map(|(nth, process)| process.group(nth)).collect();
    let options =
        Options { wait: Duration::from_millis(wait), exact, seed, cpu: 1.0, merging: Merging::default() };
    memtide_audit::run(&Root::system(), &groups, options, || {}).unwrap()
}

/// What merging would save: all present pages of private anonymous memory, compared by SHA-256.
fn truth(processes: &[Process]) -> Bytes {
    let mut classes: HashMap<[u8; 32], u64> = HashMap::new();
    for process in processes {
        let pid = process.0.id();
        let (memory, pagemap) = (
            File::open(format!("/proc/{pid}/mem")).unwrap(),
            File::open(format!("/proc/{pid}/pagemap")).unwrap(),
        );
        for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines() {
            let mut words = line.split(' ');
            let (range, rights) = (words.next().unwrap(), words.next().unwrap());
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            if !rights.ends_with('p') || line.ends_with("[vsyscall]") {
                continue;
            }
            for address in (start..end).step_by(4096) {
                let mut entry = [0; 8];
                pagemap.read_exact_at(&mut entry, address / PAGE * 8).unwrap();
                let entry = u64::from_ne_bytes(entry);
                // Present, anonymous.
                if entry >> 63 & 1 == 0 || entry >> 61 & 1 == 1 {
                    continue;
                }
                let mut page = vec![0; 4096];
                memory.read_exact_at(&mut page, address).unwrap();
                *classes.entry(Sha256::digest(&page).into()).or_default() += 1;
            }
        }
    }
    let saved = classes.values().map(|members| members - members.div_ceil(256)).sum::<u64>();
    Bytes::new(saved * PAGE)
}

fn part(bytes: Bytes, of: u64) -> f64 {
    bytes.get() as f64 / (of * PAGE) as f64
}

/// Mixes with 0 to 95 % equal pages, within and across processes, sparse ones and one large class.
const MIXES: [[Mix; 4]; 6] = [
    [Mix { own: 6000, shared: 0, repeated: 0, zeros: 0, changing: 0 }; 4],
    [Mix { own: 300, shared: 5700, repeated: 0, zeros: 0, changing: 0 }; 4],
    [Mix { own: 3000, shared: 3000, repeated: 0, zeros: 0, changing: 0 }; 4],
    [Mix { own: 3000, shared: 0, repeated: 3000, zeros: 0, changing: 0 }; 4],
    [Mix { own: 5900, shared: 100, repeated: 0, zeros: 0, changing: 0 }; 4],
    [Mix { own: 2000, shared: 2000, repeated: 0, zeros: 2000, changing: 0 }; 4],
];

#[test]
fn all_pages_compared_are_the_truth() {
    for mix in &MIXES {
        let processes = start(mix);
        processes.iter().for_each(Process::wait);
        let before: Vec<u64> = processes.iter().map(Process::resident).collect();
        let found = audit(&processes, true, 0, 1).estimate.saving;
        let after: Vec<u64> = processes.iter().map(Process::resident).collect();
        assert_eq!(before, after, "nothing becomes resident");
        let truth = truth(&processes);
        assert_eq!((found.low, found.high), (found.value, found.value));
        // The processes' own pages (stacks, the heap's beginning) may differ by a few between the two counts.
        assert!(found.value.abs_diff(truth) <= Bytes::from_kib(128), "{} {truth}", found.value);
    }
}

#[test]
fn a_sample_is_near_the_truth_and_its_interval_tells_how_near() {
    const SEEDS: u64 = 10;
    let mut held = 0;
    for mix in &MIXES {
        let processes = start(mix);
        let truth = truth(&processes);
        let mut sum = 0.0;
        for seed in 0..SEEDS {
            let found = audit(&processes, false, 0, seed).estimate.saving;
            held += u64::from(found.low <= truth && truth <= found.high);
            sum += part(found.value, 24_000) / SEEDS as f64;
        }
        let truth = part(truth, 24_000);
        assert!((sum - truth).abs() < 0.02, "without bias: {sum} {truth}");
    }
    let all = MIXES.len() as u64 * SEEDS;
    assert!(held * 10 >= all * 9, "{held} of {all} intervals hold the truth");
}

#[test]
fn pages_that_change_are_not_counted() {
    let mixes = [Mix { own: 1000, shared: 1000, repeated: 0, zeros: 0, changing: 1000 }; 2];
    let found = audit(&start(&mixes), true, 200, 1).estimate;
    assert!((0.3..0.37).contains(&found.groups[0].changes), "{}", found.groups[0].changes);
    assert!((0.98..1.02).contains(&part(found.saving.value, 1000)), "{:?}", found.saving);
}

#[test]
fn savings_within_a_process_across_processes_and_of_zeros_are_told_apart() {
    let within = Mix { own: 1000, shared: 0, repeated: 512, zeros: 0, changing: 0 };
    let across = Mix { own: 1000, shared: 800, repeated: 0, zeros: 300, changing: 0 };
    let processes = start(&[within, across, across]);
    let found = audit(&processes, true, 0, 1).estimate;
    let is_about = |bytes: Bytes, pages: u64| (bytes.get() / PAGE).abs_diff(pages) <= 16;
    assert!(is_about(found.groups[0].within, 510), "{found:?}");
    assert!(is_about(found.across, 800), "{found:?}");
    assert!(is_about(found.groups[1].zeros, 300) && is_about(found.zeros, 597), "{found:?}");
    assert_eq!(found.pairs[0].groups, (1, 2));
    assert!(is_about(found.pairs[0].saving, 800), "{found:?}");
}

#[test]
fn a_process_that_has_ended_is_told() {
    let processes = start(&[Mix { own: 100, ..Mix::default() }]);
    let mut groups = vec![processes[0].group(0)];
    groups.push(Group { name: "gone".to_owned(), pids: vec![u32::try_from(i32::MAX).unwrap()] });
    let options =
        Options { wait: Duration::ZERO, exact: true, seed: 1, cpu: 1.0, merging: Merging::default() };
    let found = memtide_audit::run(&Root::system(), &groups, options, || {}).unwrap();
    assert_eq!(found.unread.len(), 1);
    assert_eq!(found.unread[0].group, "gone");
    assert!(memtide_audit::run(&Root::system(), &groups[1..], options, || {}).is_err());
}

#[test]
fn nothing_of_a_process_that_ends_during_the_audit_counts() {
    // All three have the same 3,000 pages. One of them ends, before the first look or before the second.
    let mix = Mix { own: 500, shared: 3000, repeated: 0, zeros: 500, changing: 0 };
    for is_first in [true, false] {
        let mut processes = start(&[mix; 3]);
        processes.iter().for_each(Process::wait);
        let groups: Vec<Group> =
            processes.iter().enumerate().map(|(nth, process)| process.group(nth)).collect();
        let options =
            Options { wait: Duration::ZERO, exact: true, seed: 1, cpu: 1.0, merging: Merging::default() };
        let last = std::cell::RefCell::new(processes.pop());
        let pid = groups[2].pids[0];
        let end = |is_now: bool| {
            if is_now {
                last.take();
            }
        };
        let found = run_with(&Root::system(), &groups, options, || end(is_first), || end(!is_first)).unwrap();
        let [unread] = &found.unread[..] else { panic!("{:?}", found.unread) };
        assert_eq!((unread.group.as_str(), unread.pid), ("process-2", pid));
        assert_eq!(unread.why, "it ended during the audit");
        let gone = found.estimate.groups[2];
        assert_eq!((gone.memory, gone.saving.value, gone.zeros), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
        assert_eq!(found.mergeable[2], Bytes::ZERO);
        // The other two have 3,000 pages in common, and what their program starts with.
        let across = part(found.estimate.across, 3000);
        assert!((0.95..1.1).contains(&across), "{across}");
    }
}
