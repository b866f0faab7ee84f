//! Recorded runs of real guests (traces/): deciding again gives the same plans and the same state, byte for byte.
//!
//! After an intended change of the policy, new runs are recorded, and `cargo xtask golden` shows the changes as text.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use memtide_engine::journal::Reader;
use memtide_engine::replay_journal;

fn traces() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let mut found: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "mtj"))
        .collect();
    found.sort();
    found
}

#[test]
fn recorded_runs_are_decided_again_the_same_way() {
    let traces = traces();
    assert!(!traces.is_empty(), "there are recorded runs");
    for trace in traces {
        let mut reader = Reader::open(&trace).unwrap();
        let summary =
            replay_journal(&mut reader).unwrap_or_else(|error| panic!("{}: {error}", trace.display()));
        assert!(summary.ticks > 0, "{}", trace.display());
        assert_eq!(summary.refused, 0, "{}", trace.display());
        assert_eq!(reader.torn(), None, "{}", trace.display());
    }
}

#[test]
fn a_run_decided_again_by_the_same_policy_is_the_same_run() {
    for trace in traces() {
        let records: Vec<_> = Reader::open(&trace).unwrap().map(Result::unwrap).collect();
        // Not assert_eq: a whole journal is not a useful message.
        assert!(memtide_engine::redecide(records.clone()) == records, "{}", trace.display());
    }
}
