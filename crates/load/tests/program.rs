//! The exerciser as its users run it: exit codes, signals, commands, pauses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memtide_load::exerciser::report::{Ended, Summary};
use memtide_testing::Mortal;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(30);

fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtide-load"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(line: &str) -> Output {
    command(line).output().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// An exerciser that reports in JSON lines.
struct Running {
    child: Mortal,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts an exerciser and waits until it has filled its memory.
    fn start(line: &str) -> Self {
        let mut child = Mortal::start(command(&format!("{line} --lines")).stdin(Stdio::piped()));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut running = Self { child, lines };
        running.next("filled");
        running
    }

    /// The next line with this key.
    fn next(&mut self, key: &str) -> Value {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it has ended without {key}")).unwrap();
            let mut line: Value = serde_json::from_str(&line).unwrap();
            if let Some(found) = line.get_mut(key) {
                return found.take();
            }
        }
    }

    /// The summary and the exit code.
    fn end(mut self) -> (Summary, i32) {
        let summary = serde_json::from_value(self.next("done")).unwrap();
        (summary, self.child.wait().unwrap().code().unwrap())
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "{what} does not come");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_exit_code_says_what_happened() {
    for (line, code, said) in [
        ("--help", 0, "usage: memtide-load"),
        ("--version", 0, "memtide-load "),
        ("--size 1M --passes 1 --quiet", 0, "touched 1 MiB"),
        ("--size 1M --passes 1 --writes 50% --verify --quiet", 0, "verified 1 MiB: all as it was written"),
        ("--kind file --file /nonexistent/file --size 1M", 1, "/nonexistent/file: No such file"),
        ("--size", 2, "missing argument"),
        ("--size 1M --hope 7", 2, "invalid option"),
        ("--size 1000T", 4, "is not available"),
        ("--size 1M --rate 1000T --duration 300ms --quiet", 5, "the rate was not reached"),
    ] {
        let output = run(line);
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {text}");
        assert!(text.contains(said), "{line}: {text}");
    }
}

#[test]
fn a_page_that_changes_under_it_is_an_error_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory");
    let running = Running::start(&format!(
        "--kind file --file {} --size 1M --rate 100M --verify --duration 500ms",
        path.display()
    ));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0x5a; 8], 4096 * 9 + 80).unwrap();
    let (summary, code) = running.end();
    assert_eq!(code, 3);
    assert!(summary.errors > 0);
    let first = &summary.described[0];
    assert_eq!((first.offset, first.found), (4096 * 9 + 80, 0x5a5a_5a5a_5a5a_5a5a));
}

#[test]
fn a_signal_ends_it_with_its_summary() {
    let mut running = Running::start("--size 1M --rate 1M");
    running.next("second");
    signal(&running.child, Signal::INT);
    let (summary, code) = running.end();
    assert_eq!((code, summary.ended), (0, Ended::Interrupted));
    assert!(summary.touched_bytes > 0);
    let all = summary.touched_bytes + summary.missed_bytes;
    assert!(summary.asked_bytes.unwrap().abs_diff(all) <= 4096, "{summary:?}");
}

#[test]
fn a_short_pause_is_made_up_for_and_a_long_one_is_missed_aloud() {
    for (pause, reached) in [(200, true), (1500, false)] {
        let mut running = Running::start("--size 1M --rate 8M --duration 4s");
        running.next("second");
        signal(&running.child, Signal::STOP);
        thread::sleep(Duration::from_millis(pause));
        signal(&running.child, Signal::CONT);
        let (summary, code) = running.end();
        assert_eq!(summary.asked_bytes, Some(32 << 20));
        assert_eq!((summary.reached(), code), if reached { (true, 0) } else { (false, 5) }, "{summary:?}");
        let all = summary.touched_bytes + summary.missed_bytes;
        assert!(all.abs_diff(32 << 20) <= 4096, "{summary:?}");
    }
}

/// Sends commands through the socket and returns the answers.
fn send(socket: &Path, lines: &[&str]) -> Vec<Value> {
    let mut stream = until("the socket", || UnixStream::connect(socket).ok());
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut ask = |line: &&str| {
        writeln!(stream, "{line}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    };
    lines.iter().map(&mut ask).collect()
}

#[test]
fn orders_change_what_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("load.sock");
    let line = format!("--size 8M --rate 0 --verify --writes 50% --json --control {}", socket.display());
    let child = Mortal::start(&mut command(&line));
    let idle = send(&socket, &["status"]);
    assert_eq!(idle[0]["ok"]["touched_bytes"], 0);
    assert_eq!(
        send(&socket, &["rate 20M", "size 4M", "nonsense"])[..2],
        [Value::Null, Value::Null].map(|ok| serde_json::json!({ "ok": ok }))
    );
    until("touches", || {
        let status = send(&socket, &["status"]).remove(0);
        (status["ok"]["touched_bytes"].as_u64() > Some(4 << 20)).then_some(())
    });
    let answers = send(&socket, &["random", "check", "free", "status", "stop"]);
    assert_eq!((&answers[1]["ok"]["bytes"], &answers[1]["ok"]["mismatches"]), (&(4 << 20).into(), &0.into()));
    assert_eq!(answers[3]["ok"]["size_bytes"], 0);
    let output = child.output(Duration::from_secs(120));
    let summary: Summary = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), summary.ended, summary.errors), (Some(0), Ended::Stopped, 0));
    assert!(!socket.exists());
}

#[test]
fn what_is_due_adds_up_however_the_rate_changes() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("load.sock");
    let running = Running::start(&format!(
        "--size 8M --rate 20M --shape square:200ms:100ms --control {}",
        socket.display()
    ));
    for line in ["rate 40M", "rate 10M", "shape square:50ms:50ms", "rate 1000T", "rate 0", "rate 30M", "stop"]
    {
        assert_eq!(send(&socket, &[line])[0]["ok"], Value::Null, "{line}");
        thread::sleep(Duration::from_millis(130));
    }
    let (summary, _) = running.end();
    let accounted = summary.touched_bytes + summary.missed_bytes;
    assert!(summary.asked_bytes.unwrap().abs_diff(accounted) <= 2 * 4096, "{summary:?}");
    assert!(summary.missed_bytes > 0, "1000 TiB/s cannot be reached: {summary:?}");
}

#[test]
fn held_memory_is_given_back_when_it_is_due_and_takes_no_other_orders() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("load.sock");
    let mut running = Running::start(&format!(
        "--size 8M --rate 8M --passes 1 --hold --free-after 1200ms --control {}",
        socket.display()
    ));
    let done = running.next("done");
    assert_eq!((&done["size_bytes"], &done["ended"]), (&(8 << 20).into(), &"done".into()));
    let refused = send(&socket, &["rate 10M"]).remove(0);
    assert_eq!(refused["error"], "all touches are made");
    until("the memory's end", || {
        let status = send(&socket, &["status"]).remove(0);
        assert_eq!(status["ok"]["asked_bytes"], done["asked_bytes"]);
        (status["ok"]["size_bytes"] == 0).then_some(())
    });
    send(&socket, &["stop"]);
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
}

#[test]
fn standard_input_takes_orders_too_and_its_end_is_the_end() {
    let mut running = Running::start("--size 1M --rate 1M --control -");
    let mut commands = running.child.stdin.take().unwrap();
    writeln!(commands, "rate 100M").unwrap();
    assert_eq!(running.next("ok"), Value::Null);
    assert!(running.next("second")["touched_bytes"].as_u64() > Some(1 << 20));
    drop(commands);
    let (summary, code) = running.end();
    assert_eq!((summary.ended, code), (Ended::Stopped, 0));
}
