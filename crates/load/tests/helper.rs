//! The program as the lab uses it: lines in, lines out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use memtide_load::exerciser::content::{Content, Tally};
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::{Answer, Ask, Hello, Output, Reply, Request};
use serde::de::DeserializeOwned;

struct Helper {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Helper {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_memtide-load"))
            .arg("lab-helper")
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

    /// The next answer other than progress.
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

impl Drop for Helper {
    fn drop(&mut self) {
        self.to = None;
        self.child.wait().unwrap();
    }
}

fn load(options: &str) -> Ask {
    Ask::Load { options: options.split_whitespace().map(str::to_owned).collect() }
}

fn order(load: u64, line: &str) -> Ask {
    Ask::Order { load, line: line.to_owned() }
}

#[test]
fn a_load_is_started_checked_changed_and_ended() {
    let mut helper = Helper::start();
    let hello: Hello = helper.done(1, Ask::Hello);
    assert_eq!(hello.version, env!("CARGO_PKG_VERSION"));
    let summary: Summary = helper.done(2, load("--size 8M --grow max --seed 7 --passes 0 --hold"));
    assert_eq!((summary.size_bytes, summary.touched_bytes), (8 << 20, 0));
    let tally: Tally = helper.done(3, order(2, "check"));
    assert_eq!((tally.bytes, tally.mismatches), (8 << 20, 0));
    assert_eq!(tally.checksum, Content::of(7).checksum(0, 2048));
    helper.ask(4, order(2, "dance"));
    assert!(helper.error(4).contains("dance"));
    helper.ask(5, order(2, "two\nlines"));
    assert!(helper.error(5).contains("one line"));
    helper.done::<serde_json::Value>(6, Ask::Cancel { job: 2 });
    helper.ask(7, order(2, "check"));
    assert!(helper.error(7).contains("no job 2"));
}

#[test]
fn a_load_that_is_refused_says_why() {
    let mut helper = Helper::start();
    for (id, options, why) in [
        (1, "--size 100T", "is not available"),
        (2, "--size 1M --kind cache --file /nonexistent/file", "No such file"),
        (3, "--size big", "--size"),
    ] {
        helper.ask(id, load(options));
        let error = helper.error(id);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_killed_load_is_reported_and_the_channel_goes_on() {
    let mut helper = Helper::start();
    helper.done::<Summary>(1, load("--size 4M --passes 0 --hold --seed 987654321"));
    let parent = helper.child.id();
    let kill = format!(
        "for t in /proc/{parent}/task/*/children; do cat $t; done | tr ' ' '\\n' | while read p; do \
         grep -qa 987654321 /proc/$p/cmdline && kill -9 $p; done; true"
    );
    helper.ask(2, Ask::Sh { cmd: kill });
    let mut seen = [helper.reply(), helper.reply()];
    seen.sort_by_key(|reply| reply.id);
    assert!(
        matches!(&seen[0], Reply { id: 1, answer: Answer::Lost(why) } if why.contains("signal 9")),
        "{seen:?}"
    );
    assert!(matches!(seen[1], Reply { id: 2, answer: Answer::Done(_) }), "{seen:?}");
    helper.ask(3, order(1, "check"));
    assert!(helper.error(3).contains("no job 1"));
}

#[test]
fn slow_jobs_can_be_cancelled_while_others_run() {
    let mut helper = Helper::start();
    helper.ask(1, load("--size 1G --grow 1M --rate 0"));
    helper.ask(2, Ask::Sh { cmd: "sleep 1000".to_owned() });
    let output: Output = helper.done(3, Ask::Sh { cmd: "echo hi".to_owned() });
    assert_eq!(output, Output { code: Some(0), text: "hi\n".to_owned(), cut: false });
    for (id, job) in [(4, 1), (5, 2)] {
        helper.ask(id, Ask::Cancel { job });
        let mut seen = [helper.reply(), helper.reply()];
        seen.sort_by_key(|reply| reply.id);
        assert!(matches!(&seen[0], Reply { id, answer: Answer::Error(_) } if *id == job), "{seen:?}");
        assert_eq!(seen[1], Reply { id, answer: Answer::Done(serde_json::Value::Null) });
    }
    helper.ask(6, Ask::Cancel { job: 1 });
    assert!(helper.error(6).contains("no job"));
}

#[test]
fn nonsense_gets_an_answer() {
    let mut helper = Helper::start();
    for line in ["{", r#"{"id":1,"do":"fly"}"#, r#"{"id":1,"do":"load","options":7}"#, "[]"] {
        helper.write(line);
        assert!(helper.error(0).contains("not understood"), "{line}");
    }
}
