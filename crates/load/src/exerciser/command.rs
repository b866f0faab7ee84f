//! Commands to a running exerciser: one a line, from standard input or from clients of a Unix socket. Each gets one line as its
//! answer.
//!
//! ```text
//! → rate 1GiB
//! ← {"ok":null}
//! → check
//! ← {"ok":{"bytes":536870912,"checksum":1234,"mismatches":0,"described":[]}}
//! → rate fast
//! ← {"error":"rate: `fast` has no number"}
//! ```

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::{Bytes, Share};
use serde_json::{Value, json};

use super::options::{self, UsageError};
use super::schedule::{Rate, Shape};
use super::walk::Pattern;

/// The longest line in bytes.
const MAX_LINE: u64 = 4096;

/// A command to change something or to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Touch at this rate.
    Rate(Rate),
    /// Let this share of the touches write.
    Writes(Share),
    /// Fill pages or give pages back, to reach this size.
    Size(Bytes),
    /// From now on, vary the rate in this way.
    Shape(Shape),
    /// Touch in this pattern.
    Pattern(Pattern),
    /// Compare all pages with their expected content.
    Check,
    /// Report the touches so far.
    Status,
    /// Give all memory back.
    Free,
    /// End.
    Stop,
}

impl Command {
    /// Parses a line.
    ///
    /// # Errors
    /// If the line is not understood.
    pub fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let said = |error: UsageError| error.to_string();
        match *words.as_slice() {
            ["rate", rate] => options::rate("rate", rate).map(Self::Rate).map_err(said),
            ["writes", share] => options::share("writes", share).map(Self::Writes).map_err(said),
            ["size", size] => options::size("size", size).map(Self::Size).map_err(said),
            ["shape", shape] => options::shape("shape", shape).map(Self::Shape).map_err(said),
            ["sequential"] => Ok(Self::Pattern(Pattern::Sequential)),
            ["random"] => Ok(Self::Pattern(Pattern::Random)),
            ["hot", hot] => hot_order(hot, None).map_err(said),
            ["hot", hot, shift] => hot_order(hot, Some(shift)).map_err(said),
            ["check"] => Ok(Self::Check),
            ["status"] => Ok(Self::Status),
            ["free"] => Ok(Self::Free),
            ["stop"] => Ok(Self::Stop),
            _ => Err(format!(
                "`{}` is none of rate R, writes P, size S, shape S, sequential, random, hot P:T [TIME], check, status, \
                 free, stop",
                line.trim()
            )),
        }
    }
}

fn hot_order(hot: &str, shift: Option<&str>) -> Result<Command, UsageError> {
    let (part, touches) = options::hot("hot", hot)?;
    let shift = shift.map(|shift| options::time("hot", shift)).transpose()?;
    Ok(Command::Pattern(Pattern::Hot { part, touches, shift }))
}

/// A command, and the channel for its answer.
#[derive(Debug)]
pub struct Asked {
    /// The command.
    pub command: Command,
    answers: Sender<Result<Value, String>>,
}

impl Asked {
    /// Sends the answer. If the client has gone, the answer is dropped.
    pub fn answer(self, answer: Result<Value, String>) {
        let _gone = self.answers.send(answer);
    }
}

/// The longest time for writing the last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The source of commands.
#[derive(Debug)]
pub struct Commands {
    commands: Receiver<Asked>,
    socket: Option<PathBuf>,
    /// The number of commands whose answers are not written yet.
    open: Arc<AtomicUsize>,
}

impl Commands {
    /// Listens on the Unix socket `path`, or on standard input for `-`. Replaces a socket if nobody answers on it.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub fn listen(path: &Path) -> io::Result<Self> {
        let (to, commands) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&open);
        if path == Path::new("-") {
            thread::spawn(move || converse(io::stdin().lock(), io::stdout(), &to, &counted));
            return Ok(Self { commands, socket: None, open });
        }
        if fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket())
            && UnixStream::connect(path).is_err()
        {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (to, counted) = (to.clone(), Arc::clone(&counted));
                thread::spawn(move || {
                    if let Ok(back) = stream.try_clone() {
                        converse(BufReader::new(stream), back, &to, &counted);
                    }
                });
            }
        });
        Ok(Self { commands, socket: Some(path.to_owned()), open })
    }

    /// The channel of the commands. It closes when standard input ends.
    #[must_use]
    pub const fn channel(&self) -> &Receiver<Asked> {
        &self.commands
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        let begun = Instant::now();
        while self.open.load(Ordering::Acquire) > 0 && begun.elapsed() < LAST_ANSWERS {
            // Commands that come at the end are refused.
            while let Ok(asked) = self.commands.try_recv() {
                asked.answer(Err(ENDED.to_owned()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(path) = &self.socket {
            // At the end, nobody can be told about an error.
            let _ = fs::remove_file(path);
        }
    }
}

fn converse(mut from: impl BufRead, mut back: impl Write, to: &Sender<Asked>, open: &AtomicUsize) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match io::Read::take(&mut from, MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if line.trim_ascii().is_empty() => continue,
            Ok(_) => {}
        }
        open.fetch_add(1, Ordering::AcqRel);
        let answer = Command::parse(&String::from_utf8_lossy(&line)).and_then(|command| ask(command, to));
        let answer = match answer {
            Ok(value) => json!({ "ok": value }),
            Err(error) => json!({ "error": error }),
        };
        let written = back.write_all(format!("{answer}\n").as_bytes()).and_then(|()| back.flush());
        open.fetch_sub(1, Ordering::AcqRel);
        if written.is_err() {
            return;
        }
    }
}

const ENDED: &str = "the exerciser has ended";

fn ask(command: Command, to: &Sender<Asked>) -> Result<Value, String> {
    let (answers, answer) = channel();
    let ended = || ENDED.to_owned();
    to.send(Asked { command, answers }).map_err(|_| ended())?;
    answer.recv().map_err(|_| ended())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_understood_and_others_refused() {
        let hot = Pattern::Hot {
            part: Share::percent(20).unwrap(),
            touches: Share::percent(80).unwrap(),
            shift: Some(Duration::from_secs(5)),
        };
        for (line, command) in [
            ("rate 1GiB\n", Command::Rate(Rate::PerSecond(Bytes::from_mib(1024)))),
            ("rate max", Command::Rate(Rate::Unpaced)),
            ("size 64M", Command::Size(Bytes::from_mib(64))),
            ("hot 20%:80% 5s", Command::Pattern(hot)),
            ("check", Command::Check),
        ] {
            assert_eq!(Command::parse(line), Ok(command), "{line}");
        }
        for (line, message) in [
            ("rate fast", "rate: "),
            ("size 0", "size: write 4 KiB or more"),
            ("jump", "`jump` is none of rate R"),
            ("rate", "`rate` is none of"),
        ] {
            let error = Command::parse(line).unwrap_err();
            assert!(error.starts_with(message), "{line}: {error}");
        }
    }

    #[test]
    fn each_line_is_answered_with_a_line() {
        let (to, commands) = channel::<Asked>();
        let server = thread::spawn(move || {
            for asked in commands {
                asked.answer(Ok(json!(7)));
            }
        });
        let mut out = Vec::new();
        converse(b"status\n\nnons\xe9nse\nstop".as_slice(), &mut out, &to, &AtomicUsize::new(0));
        drop(to);
        server.join().unwrap();
        let lines: Vec<Value> =
            String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0], &lines[2], lines.len()), (&json!({ "ok": 7 }), &json!({ "ok": 7 }), 3));
        assert!(lines[1]["error"].as_str().unwrap().contains("nons\u{fffd}nse"));
    }
}
