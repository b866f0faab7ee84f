//! The program as the lab uses it: lines in, lines out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use memtide_load::meminfo::Meminfo;
use memtide_load::pattern::{self, Tally};
use memtide_load::wire::{Answer, Ask, Hello, Output, Reply, Request};
use serde::de::DeserializeOwned;

struct Load {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Load {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_memtide-load"))
            .arg("agent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }

    fn write(&mut self, line: &str) {
        writeln!(self.to.as_mut().unwrap(), "{line}").unwrap();
    }

    fn ask(&mut self, id: u64, ask: Ask) {
        self.write(&serde_json::to_string(&Request { id, ask }).unwrap());
    }

    /// The next answer that is no progress.
    fn reply(&mut self) -> Reply {
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the program has ended");
            let reply: Reply = serde_json::from_str(&line).unwrap();
            if !matches!(reply.answer, Answer::Progress { .. }) {
                return reply;
            }
        }
    }

    fn done<T: DeserializeOwned>(&mut self, id: u64, ask: Ask) -> T {
        self.ask(id, ask);
        match self.reply() {
            Reply { id: found, answer: Answer::Done(value) } if found == id => {
                serde_json::from_value(value).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    fn error(&mut self, id: u64) -> String {
        match self.reply() {
            Reply { id: found, answer: Answer::Error(why) } if found == id => why,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.to = None;
        self.child.wait().unwrap();
    }
}

fn anon(seed: u64, mib: u64, mib_per_s: Option<u64>) -> Ask {
    Ask::Anon { seed, mib, mib_per_s }
}

#[test]
fn a_block_lives_from_anon_to_free() {
    let mut load = Load::start();
    let hello: Hello = load.done(1, Ask::Hello);
    assert_eq!(hello.version, env!("CARGO_PKG_VERSION"));
    load.done::<serde_json::Value>(2, anon(7, 8, None));
    let tally: Tally = load.done(3, Ask::Verify { seed: 7 });
    assert_eq!((tally.bytes, tally.mismatches), (8 << 20, 0));
    assert_eq!(tally.checksum, pattern::checksum(7, 0, 2048));
    load.ask(4, anon(7, 1, None));
    assert!(load.error(4).contains("seed 7"));
    let freed: serde_json::Value = load.done(5, Ask::Free { seed: 7 });
    assert_eq!(freed["bytes"], 8 << 20);
    load.ask(6, Ask::Verify { seed: 7 });
    assert!(load.error(6).contains("no block"));
}

#[test]
fn memory_that_cannot_be_had_is_an_answer() {
    let mut load = Load::start();
    load.ask(1, anon(7, 1 << 40, None));
    assert!(load.error(1).contains("refused"));
    // Its process ends after that, and the seed is free again once the end was noticed.
    let _: Meminfo = load.done(2, Ask::Meminfo);
}

#[test]
fn a_killed_block_is_reported_and_the_channel_goes_on() {
    let mut load = Load::start();
    load.done::<serde_json::Value>(1, anon(7, 4, None));
    let parent = load.child.id();
    let kill = format!(
        "for t in /proc/{parent}/task/*/children; do cat $t; done | tr ' ' '\\n' | while read p; do grep -qa block /proc/$p/cmdline && kill -9 $p; done; true"
    );
    load.ask(2, Ask::Sh { cmd: kill });
    let mut seen = [load.reply(), load.reply()];
    seen.sort_by_key(|reply| reply.id);
    assert!(
        matches!(&seen[0], Reply { id: 1, answer: Answer::Lost(why) } if why.contains("signal 9")),
        "{seen:?}"
    );
    assert!(matches!(seen[1], Reply { id: 2, answer: Answer::Done(_) }), "{seen:?}");
    load.ask(3, Ask::Verify { seed: 7 });
    assert!(load.error(3).contains("no block"));
}

#[test]
fn slow_jobs_can_be_cancelled_while_others_run() {
    let mut load = Load::start();
    load.ask(1, anon(7, 1024, Some(1)));
    load.ask(2, Ask::Sh { cmd: "sleep 1000".to_owned() });
    let output: Output = load.done(3, Ask::Sh { cmd: "echo hi".to_owned() });
    assert_eq!(output, Output { code: Some(0), text: "hi\n".to_owned(), cut: false });
    for (id, job) in [(4, 1), (5, 2)] {
        load.ask(id, Ask::Cancel { job });
        let mut seen = [load.reply(), load.reply()];
        seen.sort_by_key(|reply| reply.id);
        assert!(matches!(&seen[0], Reply { id, answer: Answer::Error(_) } if *id == job), "{seen:?}");
        assert_eq!(seen[1], Reply { id, answer: Answer::Done(serde_json::Value::Null) });
    }
    load.ask(6, Ask::Cancel { job: 1 });
    assert!(load.error(6).contains("no job"));
}

#[test]
fn nonsense_gets_an_answer() {
    let mut load = Load::start();
    for line in ["{", r#"{"id":1,"do":"fly"}"#, r#"{"id":1,"do":"anon","seed":-1,"mib":1}"#, "[]"] {
        load.write(line);
        assert!(load.error(0).contains("not understood"), "{line}");
    }
    load.ask(
        9,
        Ask::Cache { path: "/nonexistent".to_owned(), seed: 1, offset_mib: 0, mib: 1, mib_per_s: None },
    );
    assert!(load.error(9).contains("/nonexistent"));
}
