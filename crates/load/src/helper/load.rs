//! A load: an exerciser in its own process, from its first page to its end.
//!
//! The helper starts its own program again, with the options of the request and `--lines --control -`. Before the load takes
//! memory, the helper makes it the guest's first choice for the OOM killer. The process reports its progress, one JSON object
//! a line, and reads commands from its standard input. When the helper ends, the process ends too, and its memory is freed.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use serde::Deserialize;
use serde_json::Value;

use super::wire::Answer;
use super::{Event, Helper};
use crate::exerciser::report::Second;

/// The bytes kept of a load's error output.
const MAX_COMPLAINT: u64 = 4096;

/// A line that a load writes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The load is filling its memory.
    Filling {
        /// Bytes filled so far.
        bytes: u64,
    },
    /// The load has filled its memory.
    Filled {
        /// The bytes of the whole memory.
        bytes: u64,
    },
    /// The touches of another second.
    Second(Second),
    /// All touches are done.
    Done(Value),
    /// The answer to a command.
    Ok(Value),
    /// A command was refused.
    Error(String),
}

/// Starts a load and keeps it until its end.
pub(super) fn keep(helper: &Arc<Helper>, id: u64, options: &[String], events: &Receiver<Event>) {
    match start(helper, id, options) {
        Ok((child, commands)) => {
            Keeper { helper, id, child, commands, asked: VecDeque::new(), done: false }.keep(events);
        }
        Err(error) => helper.error(id, &format!("no process for the load: {error}")),
    }
}

struct Keeper<'a> {
    helper: &'a Helper,
    id: u64,
    child: Child,
    commands: ChildStdin,
    /// The requests whose commands the load has not answered yet. The load answers in order.
    asked: VecDeque<u64>,
    /// All touches are done: the job is answered, and the load keeps its memory.
    done: bool,
}

impl Keeper<'_> {
    fn keep(mut self, events: &Receiver<Event>) {
        let mut cancelled_by = Vec::new();
        for event in events {
            match event {
                Event::Said(line) => self.forward(line),
                Event::Order(asked, line) => self.command(asked, &line),
                Event::Cancel(asked) => {
                    cancelled_by.push(asked);
                    // A process that has just ended needs no signal. `Closed` follows.
                    let _ = self.child.kill();
                }
                Event::Closed(complaint) => return self.end(&cancelled_by, &complaint),
                Event::Collected(_) => {}
            }
        }
    }

    fn forward(&mut self, line: Line) {
        let progress = |bytes, second| self.helper.say(self.id, Answer::Progress { bytes, second });
        match line {
            Line::Filling { bytes } | Line::Filled { bytes } => progress(bytes, None),
            Line::Second(second) if second.touched_bytes == 0 => progress(second.filled_bytes, None),
            Line::Second(second) => progress(second.touched_bytes, Some(Box::new(second))),
            Line::Done(summary) => {
                self.done = true;
                self.helper.say(self.id, Answer::Done(summary));
            }
            Line::Ok(value) => self.answer(Answer::Done(value)),
            Line::Error(why) => self.answer(Answer::Error(why)),
        }
    }

    fn answer(&mut self, answer: Answer) {
        if let Some(asked) = self.asked.pop_front() {
            self.helper.say(asked, answer);
        }
    }

    fn command(&mut self, asked: u64, line: &str) {
        if line.trim().is_empty() || line.contains('\n') {
            return self.helper.error(asked, &"a command is one line");
        }
        self.asked.push_back(asked);
        // If this fails, the process is dead, and `Closed` follows.
        let _ = writeln!(self.commands, "{line}");
    }

    fn end(mut self, cancelled_by: &[u64], complaint: &str) {
        let status = self.child.wait();
        let killed = status.as_ref().is_ok_and(|status| status.signal().is_some());
        let why = match status {
            _ if !cancelled_by.is_empty() => "was cancelled".to_owned(),
            Ok(status) => describe(status, complaint),
            Err(error) => error.to_string(),
        };
        for asked in &self.asked {
            self.helper.error(*asked, &format!("the load {why}"));
        }
        if !self.done {
            self.helper.error(self.id, &format!("the load {why}"));
        } else if killed && cancelled_by.is_empty() {
            self.helper.say(self.id, Answer::Lost(format!("the load {why}")));
        }
        for asked in cancelled_by {
            self.helper.done(*asked, &());
        }
    }
}

fn describe(status: ExitStatus, complaint: &str) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (signal 9): by the guest's OOM killer, as a rule".to_owned(),
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, _) if !complaint.is_empty() => format!("ended: {complaint}"),
        (None, code) => format!("ended with code {}", code.unwrap_or(-1)),
    }
}

fn start(helper: &Helper, id: u64, options: &[String]) -> io::Result<(Child, ChildStdin)> {
    let to = helper.sender(id).ok_or_else(|| io::Error::other("the job has vanished"))?;
    let mut child = Command::new(helper.program())
        .args(options)
        .args(["--lines", "--control", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // If this fails, the process has just ended.
    let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
    match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
        (Some(commands), Some(lines), Some(complaints)) => {
            thread::spawn(move || listen(lines, complaints, &to));
            Ok((child, commands))
        }
        _ => Err(io::Error::other("the process has no pipes")),
    }
}

fn listen(lines: ChildStdout, complaints: ChildStderr, to: &Sender<Event>) {
    for line in BufReader::new(lines).lines().map_while(Result::ok) {
        if let Ok(line) = serde_json::from_str(&line)
            && to.send(Event::Said(line)).is_err()
        {
            return;
        }
    }
    let mut complaint = String::new();
    // A read error does no harm: the exit code says enough.
    let _ = complaints.take(MAX_COMPLAINT).read_to_string(&mut complaint);
    let first = complaint.lines().next().unwrap_or_default();
    let _gone = to.send(Event::Closed(first.trim_start_matches("memtide-load: ").to_owned()));
}
