//! `memtide-lab seeds` and `memtide-lab search` as users type them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use memtide_testing::Mortal;
use rustix::process::{Pid, Signal, kill_process};

/// The longest wait for a program: generous, because the machine may be busy.
const PLENTY: Duration = Duration::from_secs(120);

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtide-lab"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: Output) -> (String, String, Option<i32>) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(output.stdout), text(output.stderr), output.status.code())
}

/// Runs it with these arguments, interrupts it once it has made the directory `out`, and returns what it says.
fn interrupted(arguments: &[&str], out: &Path) -> (String, String, Option<i32>) {
    let child = Mortal::start(lab(arguments).arg("--out").arg(out));
    let deadline = Instant::now() + PLENTY;
    while !out.exists() {
        assert!(Instant::now() < deadline, "it makes no directory");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    said(child.output(PLENTY))
}

#[test]
fn an_interrupt_ends_both_with_what_was_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let (out, err, code) = interrupted(&["seeds", "--count", "1000000"], &dir.path().join("seeds"));
    assert!(err.contains("stopped early, after ") && err.contains(" of 1000000 seeds"), "{err}");
    assert!(out.contains("of virtual time") && matches!(code, Some(0 | 3)), "{out}{code:?}");
    let found = dir.path().join("found");
    let (out, err, code) = interrupted(&["search", "--minutes", "600"], &found);
    assert!(err.contains("stopped early"), "{err}");
    let files = fs::read_dir(found).expect("its directory").count();
    assert_eq!(code, Some(if files > 0 { 3 } else { 0 }), "{out}");
}

#[test]
fn a_few_seeds_are_told_in_words_and_as_json() {
    let (out, err, code) = said(lab(&["seeds", "--first", "7", "--count", "2"]).output().expect("it runs"));
    assert!(out.starts_with("2 seeds, ") && code == Some(0), "{out}{err}");
    let (json, ..) =
        said(lab(&["seeds", "--first", "7", "--count", "2", "--json"]).output().expect("it runs"));
    let sweep: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&sweep["seeds"], &sweep["failures"]), (&2.into(), &serde_json::json!([])), "{json}");
    let (_, err, code) = said(lab(&["seeds", "--count", "0"]).output().expect("it runs"));
    assert_eq!(code, Some(2), "{err}");
}
