//! Runs each input of the corpora through its fuzz target, and mutations of them, too. libFuzzer does the same with more
//! patience; `PROPTEST_CASES` gives this test more.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use rustix::time::{ClockId, clock_gettime};

/// The name of a fuzz target and of its corpus, and the target's function.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 7] = [
    ("config", memtide_fuzz::config::run),
    ("journal", memtide_fuzz::journal::run),
    ("proc", memtide_fuzz::proc::run),
    ("qmp", memtide_fuzz::qmp::run),
    ("agent", memtide_fuzz::agent::run),
    ("mconsole", memtide_fuzz::mconsole::run),
    ("libvirt", memtide_fuzz::libvirt::run),
];
/// For each target, an input as an honest program sends it.
const HONEST: [&str; 7] = [
    "documented",
    "segment",
    "cmdline-of-libvirt",
    "qemu-10.0-linux-6.12",
    "a-whole-report",
    "booted",
    "honest",
];
/// How much longer an input may take than an honest one of its size.
const MOST_TIMES: u32 = 30;
/// What it may take besides, for what does not depend on the size.
const BESIDES: Duration = Duration::from_millis(200);
/// The largest committed input, in bytes: people read the inputs, and each test run uses all of them.
const LARGEST: usize = 64 << 10;

/// The inputs of a corpus, by file name.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut inputs: Vec<(PathBuf, Vec<u8>)> = entries
        .map(|entry| {
            let path = entry.expect("an entry of the corpus").path();
            let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path, bytes)
        })
        .collect();
    inputs.sort();
    inputs
}

fn run_corpus((name, run): Target) {
    let inputs = corpus(name);
    assert!(inputs.len() >= 10, "{name}: {} inputs", inputs.len());
    for (path, bytes) in inputs {
        // Shown if the next line fails.
        println!("{}", path.display());
        assert!(bytes.len() <= LARGEST, "{} bytes", bytes.len());
        run(&bytes);
    }
}

#[test]
fn every_configuration_of_the_corpus() {
    run_corpus(TARGETS[0]);
}

#[test]
fn every_journal_of_the_corpus() {
    run_corpus(TARGETS[1]);
}

/// A journal of another format is refused at its first bytes, and then its records test nothing.
#[test]
fn the_journals_of_the_corpus_have_the_present_format() {
    let inputs = corpus(TARGETS[1].0);
    let (_, honest) = inputs.iter().find(|(path, _)| path.ends_with(HONEST[1])).expect("an honest journal");
    assert!(honest.starts_with(&memtide_engine::journal::header()));
}

#[test]
fn every_tree_of_the_corpus() {
    run_corpus(TARGETS[2]);
}

#[test]
fn every_monitor_of_the_corpus() {
    run_corpus(TARGETS[3]);
}

#[test]
fn every_agent_of_the_corpus() {
    run_corpus(TARGETS[4]);
}

#[test]
fn every_console_of_the_corpus() {
    run_corpus(TARGETS[5]);
}

#[test]
fn every_daemon_of_the_corpus() {
    run_corpus(TARGETS[6]);
}

/// The processor time of this thread.
fn worked() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).expect("less than a second"))
}

/// The processor time of a run: what a target waits for, such as the end of a flood, is no work.
fn took(run: fn(&[u8]), bytes: &[u8]) -> Duration {
    let begun = worked();
    run(bytes);
    worked() - begun
}

/// Each input, and the same again and again up to the largest size, takes at most this many times the work of an honest one of its size.
#[test]
fn no_input_takes_much_longer_than_an_honest_one() {
    for ((name, run), honest) in TARGETS.into_iter().zip(HONEST) {
        let inputs = corpus(name);
        let (_, honest) = inputs.iter().find(|(path, _)| path.ends_with(honest)).expect("an honest input");
        // The first run also prepares.
        let of_honest = (0..3).map(|_| took(run, honest)).min().expect("three runs");
        let longest = |bytes: &[u8]| {
            let times = bytes.len().div_ceil(honest.len()).max(1);
            of_honest * u32::try_from(times).unwrap_or(u32::MAX) * MOST_TIMES + BESIDES
        };
        for (path, bytes) in &inputs {
            let repeated = bytes.iter().copied().cycle().take(if bytes.is_empty() { 0 } else { LARGEST });
            for bytes in [bytes.clone(), repeated.collect()] {
                let most = longest(&bytes);
                let took = took(run, &bytes);
                let size = bytes.len();
                assert!(
                    took <= most,
                    "{}, {size} bytes: {took:?}, and an honest one {of_honest:?}",
                    path.display()
                );
            }
        }
    }
}

/// One change of an input.
#[derive(Clone, Debug)]
enum Mutation {
    /// Cut the rest off.
    Cut(Index),
    /// Change a byte.
    Flip(Index, u8),
    /// Remove a part.
    Remove(Index, Index),
    /// Repeat a part.
    Double(Index, Index),
    /// Insert something odd.
    Insert(Index, Index),
    /// Continue with another input.
    Splice(Index, Index, Index),
}

/// Values that often trip programs.
const ODD: [&[u8]; 16] = [
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808",
    b"-1",
    b"0",
    b"1e308",
    b"\n",
    b"\0",
    b"\xff\xfe",
    b"\x1b[31m",
    "\u{202e}\u{1f30a}".as_bytes(),
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"{\"",
    b"null",
    b"%",
    b"\\u0000",
];

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<Index>;
    prop_oneof![
        index().prop_map(Mutation::Cut),
        (index(), any::<u8>()).prop_map(|(at, byte)| Mutation::Flip(at, byte)),
        (index(), index()).prop_map(|(from, to)| Mutation::Remove(from, to)),
        (index(), index()).prop_map(|(from, to)| Mutation::Double(from, to)),
        (index(), index()).prop_map(|(at, what)| Mutation::Insert(at, what)),
        (index(), index(), index()).prop_map(|(at, other, from)| Mutation::Splice(at, other, from)),
    ]
}

impl Mutation {
    fn apply(&self, mut bytes: Vec<u8>, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
        let at = |index: &Index, of: &[u8]| index.index(of.len() + 1);
        let part = |from: &Index, to: &Index, of: &[u8]| {
            let (from, to) = (at(from, of), at(to, of));
            from.min(to)..from.max(to)
        };
        match self {
            Self::Cut(end) => bytes.truncate(at(end, &bytes)),
            Self::Flip(place, byte) => {
                let place = at(place, &bytes);
                if let Some(old) = bytes.get_mut(place) {
                    *old = *byte;
                }
            }
            Self::Remove(from, to) => drop(bytes.drain(part(from, to, &bytes))),
            Self::Double(from, to) => {
                let part = part(from, to, &bytes);
                let twice = bytes[part.clone()].to_vec();
                bytes.splice(part.end..part.end, twice);
            }
            Self::Insert(place, what) => {
                let place = at(place, &bytes);
                bytes.splice(place..place, what.get(&ODD).iter().copied());
            }
            Self::Splice(place, other, from) => {
                let place = at(place, &bytes);
                let other = &other.get(corpus).1;
                bytes.truncate(place);
                bytes.extend_from_slice(&other[at(from, other)..]);
            }
        }
        bytes
    }
}

proptest! {
    // A failure is kept as an input of its corpus. A seed would mean a different input as soon as a corpus grows.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutations_of_the_corpora(
        target in any::<Index>(),
        input in any::<Index>(),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let (name, run) = *target.get(&TARGETS);
        let corpus = corpus(name);
        let bytes = input.get(&corpus).1.clone();
        let mutated = mutations.iter().fold(bytes, |bytes, mutation| mutation.apply(bytes, &corpus));
        run(&mutated);
    }
}
