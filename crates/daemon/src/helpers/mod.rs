//! Small helpers with one right each.
//!
//! **Problem.** Some mechanisms need a right that the daemon gives up, such as writing to cgroups. One more right for the whole daemon would
//! be one more right for every mistake in it.
//!
//! **Rule.** A helper is a process of its own, with one right and a few typed requests. It hears one client on its standard input: one line
//! of JSON for each request, one for each answer, both bounded. It ends with that client. The daemon of the package finds its helpers at
//! sockets of systemd, which starts each in a sandbox of its own. Without such a socket, the daemon starts its own program as the helper,
//! before it gives its rights up.
//!
//! A helper that does not answer in time is busy: it gets no other request before its late answer has come. [`journal`] has a protocol of its
//! own, for more bytes.

pub mod journal;
pub mod knocks;
pub mod ksm;
pub mod reclaim;
pub mod split;
pub mod tier;

mod passing;

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memtide_model::Absence;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use self::passing::Passed;
use crate::confine::Applied;

/// The longest line in either direction, in bytes.
const LONGEST_LINE: u64 = 4096;
/// The longest wait for a helper that starts.
const STARTS_WITHIN: Duration = Duration::from_secs(5);
/// The longest wait for an answer of a helper that works: the engine waits as well.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// A request or an answer with its number.
#[derive(Debug, Serialize, Deserialize)]
struct Numbered<T> {
    number: u64,
    what: T,
}

/// A running helper.
#[derive(Debug)]
pub struct Helper {
    stream: BufReader<Passed>,
    last: u64,
    /// The answer to the last request has not come yet.
    is_busy: bool,
    /// The process, if this daemon started it.
    process: Option<Child>,
}

impl Drop for Helper {
    fn drop(&mut self) {
        let_go(self.stream.get_ref().stream(), self.process.as_mut());
    }
}

/// Ends the use of a helper: it ends when its client is gone. It may be waiting for the kernel or for a disk: nobody waits for it.
fn let_go(socket: &UnixStream, process: Option<&mut Child>) {
    let _closed = socket.shutdown(std::net::Shutdown::Both);
    if let Some(process) = process {
        let _perhaps_ended = process.try_wait();
    }
}

impl Helper {
    /// The helper `name`, once it has said that it may do its work. It answers `check` like a request that does nothing.
    ///
    /// # Errors
    /// Why there is no helper, or why it may not do its work.
    pub fn start_checked<Q: Serialize>(name: &str, socket: &Path, check: &Q) -> Result<Self, String> {
        let helper =
            Self::start(name, socket).map_err(|error| format!("cannot start the helper: {error}"))?;
        helper.checked(check, STARTS_WITHIN)
    }

    /// The same helper, once it has said within this time that it may do its work.
    fn checked<Q: Serialize>(mut self, check: &Q, within: Duration) -> Result<Self, String> {
        let asked = self.ask(check, within).map_err(|why| format!("cannot start the helper: {why}"));
        let may: Result<IgnoredAny, String> = asked?;
        may.map(|_| self)
    }

    /// The helper `name` at systemd's `socket`; if nobody listens there, this program as the helper.
    ///
    /// # Errors
    /// If there is none at the socket, and this program cannot be started.
    pub fn start(name: &str, socket: &Path) -> io::Result<Self> {
        let (stream, process) = match UnixStream::connect(socket) {
            Ok(stream) => (stream, None),
            Err(_) => spawn(name).map(|(stream, process)| (stream, Some(process)))?,
        };
        Ok(Self::new(stream, process))
    }

    fn new(stream: UnixStream, process: Option<Child>) -> Self {
        Self { stream: BufReader::new(Passed::new(stream)), last: 0, is_busy: false, process }
    }

    /// Makes a request, and waits at most `within` for its answer.
    ///
    /// # Errors
    /// [`Absence::Timeout`] if no answer came in time, [`Absence::Refused`] while an earlier request is under way, [`Absence::Gone`] if
    /// the helper has ended.
    pub fn ask<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        what: &Q,
        within: Duration,
    ) -> Result<A, Absence> {
        let by = Instant::now() + within;
        if self.is_busy && self.answer_to_last::<A>(Instant::now())?.is_none() {
            return Err(Absence::Refused("an earlier request is still under way".to_owned()));
        }
        // A file that came with a late answer is nobody's.
        drop(self.passed());
        self.last += 1;
        let mut line =
            serde_json::to_vec(&Numbered { number: self.last, what }).map_err(|_| Absence::Malformed)?;
        line.push(b'\n');
        let mut stream = self.stream.get_ref().stream();
        stream.set_write_timeout(Some(within)).map_err(|error| absence(&error))?;
        stream.write_all(&line).map_err(|error| absence(&error))?;
        self.is_busy = true;
        self.answer_to_last(by)?.ok_or(Absence::Timeout)
    }

    /// The answer to the last request; `None` if it has not come at `by`.
    fn answer_to_last<A: DeserializeOwned>(&mut self, by: Instant) -> Result<Option<A>, Absence> {
        let left = by.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.get_ref().stream().set_read_timeout(Some(left)).map_err(|error| absence(&error))?;
        let line = match read_line(&mut self.stream, LONGEST_LINE).map_err(|error| absence(&error)) {
            Err(Absence::Timeout) => return Ok(None),
            line => line?.ok_or(Absence::Gone)?,
        };
        let answer: Numbered<A> = serde_json::from_slice(&line).map_err(|_| Absence::Malformed)?;
        if answer.number != self.last {
            return Err(Absence::Malformed);
        }
        self.is_busy = false;
        Ok(Some(answer.what))
    }

    /// The open file that came with the last answer.
    fn passed(&mut self) -> Option<OwnedFd> {
        self.stream.get_mut().take()
    }
}

/// This program as the helper `name`, and the socket to it.
fn spawn(name: &str) -> io::Result<(UnixStream, Child)> {
    let (ours, its) = UnixStream::pair()?;
    let process = Command::new("/proc/self/exe")
        .args(["helper", name])
        // A Ctrl-C at the daemon's terminal is not for it: it ends with its client.
        .process_group(0)
        .stdin(Stdio::from(OwnedFd::from(its)))
        .stdout(Stdio::null())
        .spawn()?;
    Ok((ours, process))
}

fn absence(error: &io::Error) -> Absence {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Absence::Timeout,
        _ => Absence::Gone,
    }
}

/// One line of at most `longest` bytes, without its end; `None` at the end of the stream. A line that is cut by a timeout is lost.
fn read_line(stream: &mut BufReader<impl Read>, longest: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    stream.take(longest).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => Ok(Some(line)),
        Some(_) => Err(ErrorKind::InvalidData.into()),
        None => Ok(None),
    }
}

/// What is said of a helper that has ended.
const ENDED: &str = "the helper has ended: restart memtide";

fn has_ended(helper: &Result<Helper, Absence>) -> bool {
    matches!(helper, Err(Absence::Refused(why)) if why == ENDED)
}

/// Finds a helper that has ended again, at systemd's `socket`. Returns whether there is a new one.
fn find_again<Q: Serialize>(helper: &mut Result<Helper, Absence>, socket: &Path, check: &Q) -> bool {
    if !has_ended(helper) {
        return false;
    }
    let Ok(stream) = UnixStream::connect(socket) else { return false };
    let Ok(new) = Helper::new(stream, None).checked(check, ANSWERS_WITHIN) else { return false };
    *helper = Ok(new);
    true
}

/// Asks a helper as the daemon has it: the helper, or why there is none.
///
/// # Errors
/// If there is none, if it is busy or refuses, or as [`Helper::ask`]. One that has ended is gone unless systemd starts it: the daemon has given the
/// right to start programs up.
fn ask<Q: Serialize, A: DeserializeOwned>(
    helper: &mut Result<Helper, Absence>,
    what: &Q,
) -> Result<A, Absence> {
    ask_within(helper, what, ANSWERS_WITHIN)
}

/// The same, and waits at most `within` for the answer.
///
/// # Errors
/// As [`ask`].
fn ask_within<Q: Serialize, A: DeserializeOwned>(
    helper: &mut Result<Helper, Absence>,
    what: &Q,
    within: Duration,
) -> Result<A, Absence> {
    let asked = helper.as_mut().map_err(|why| why.clone())?.ask(what, within);
    if matches!(asked, Err(Absence::Gone | Absence::Malformed)) {
        *helper = Err(Absence::Refused(ENDED.to_owned()));
    }
    let done: Result<A, String> = asked?;
    done.map_err(Absence::Refused)
}

/// What a helper `does`, or why there is none: a phrase for the log and the status.
fn phrase(helper: &Result<Helper, Absence>, name: &str, does: &str) -> String {
    match helper {
        Ok(_) => format!("helper {name}: {does}"),
        Err(Absence::Refused(why)) => format!("no helper {name}: {why}"),
        Err(why) => format!("no helper {name}: {why}"),
    }
}

/// The client of the helper `name`, at its standard input. Confines the process, and says what of that was not applied.
///
/// # Errors
/// If the standard input cannot be used.
fn client(name: &str, confine: impl FnOnce() -> Applied) -> io::Result<UnixStream> {
    let stream = client_stream()?;
    report(name, &confine());
    Ok(stream)
}

/// The socket of the client.
fn client_stream() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Says which of these measures were not applied.
fn report(name: &str, applied: &Applied) {
    for phrase in applied.iter().filter(|phrase| phrase.contains(" not ")) {
        eprintln!("memtide: helper {name}: {phrase}");
    }
}

/// Answers the requests on `stream` until its client is gone.
///
/// # Errors
/// If the client sends something else than requests, or does not take its answers.
pub fn serve<Q: DeserializeOwned, A: Serialize>(
    stream: UnixStream,
    mut answer: impl FnMut(Q) -> A,
) -> io::Result<()> {
    serve_files(stream, |ask| (answer(ask), None))
}

/// The same with an open file beside an answer.
///
/// # Errors
/// As [`serve`].
fn serve_files<Q: DeserializeOwned, A: Serialize>(
    stream: UnixStream,
    mut answer: impl FnMut(Q) -> (A, Option<OwnedFd>),
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(line) = read_line(&mut stream, LONGEST_LINE)? {
        let Numbered { number, what } = serde_json::from_slice(&line)?;
        let (what, file) = answer(what);
        let mut line = serde_json::to_vec(&Numbered { number, what })?;
        line.push(b'\n');
        passing::send(stream.get_ref(), &line, file.as_ref())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn helper(
        answer: impl FnMut(u64) -> u64 + Send + 'static,
    ) -> (Helper, thread::JoinHandle<io::Result<()>>) {
        let (ours, its) = UnixStream::pair().unwrap();
        let serving = thread::spawn(move || serve(its, answer));
        (Helper::new(ours, None), serving)
    }

    #[test]
    fn a_helper_answers_until_its_client_is_gone() {
        let (mut helper, serving) = helper(|number| number * 2);
        for number in [1, 21] {
            assert_eq!(helper.ask(&number, Duration::from_secs(10)), Ok(number * 2));
        }
        drop(helper);
        serving.join().unwrap().unwrap();
    }

    #[test]
    fn a_busy_helper_gets_no_request_and_a_late_answer_is_not_taken_for_the_next_one() {
        let (go, wait) = std::sync::mpsc::channel();
        let (mut helper, _serving) = helper(move |number| {
            if number == 1 {
                wait.recv().unwrap();
            }
            number
        });
        assert_eq!(helper.ask::<_, u64>(&1_u64, Duration::from_millis(20)), Err(Absence::Timeout));
        let busy = helper.ask::<_, u64>(&2_u64, Duration::from_secs(10));
        assert!(matches!(busy, Err(Absence::Refused(_))), "{busy:?}");
        go.send(()).unwrap();
        let begun = Instant::now();
        loop {
            match helper.ask::<_, u64>(&3_u64, Duration::from_secs(10)) {
                Ok(answer) => break assert_eq!(answer, 3_u64),
                Err(why) => assert!(begun.elapsed() < Duration::from_secs(60), "{why}"),
            }
        }
    }

    #[test]
    fn garbage_and_endless_lines_end_a_helper() {
        for text in [b"no json\n".to_vec(), vec![b'x'; 10_000]] {
            let (mut ours, its) = UnixStream::pair().unwrap();
            let serving = thread::spawn(move || serve(its, |number: u64| number));
            let _closed_early = ours.write_all(&text);
            assert!(serving.join().unwrap().is_err());
        }
    }
}
