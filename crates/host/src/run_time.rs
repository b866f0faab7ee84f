//! How long a process has run, to the nanosecond: `/proc/PID/schedstat`.
//!
//! `/proc/PID/stat` counts in clock ticks of 10 ms. That is too coarse to tell a process that has only answered a question from one that has
//! worked for some milliseconds.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::text::number;
use crate::{ParseError, ProcFs};

/// The longest file: three numbers of 64 bits, their spaces, the end of the line.
const LONGEST: usize = 3 * 21;

/// The run time of a process with one thread.
#[derive(Debug)]
pub struct RunTime(File);

impl RunTime {
    /// Opens the counter of a process. The file counts its first thread alone, so `None` if it has more; also if the kernel has no such file
    /// (`CONFIG_SCHED_INFO`), or if the process has ended.
    #[must_use]
    pub fn open(proc_fs: &ProcFs, pid: u32) -> Option<Self> {
        let file = File::open(proc_fs.file(pid, "schedstat")).ok()?;
        let threads = std::fs::read_dir(proc_fs.file(pid, "task")).ok()?.take(2).count();
        (threads == 1).then_some(Self(file))
    }

    /// Time on a processor since the process was started.
    ///
    /// # Errors
    /// If it cannot be read, or is malformed. The process has ended, for example.
    pub fn read(&self) -> io::Result<Duration> {
        let mut buffer = [0; LONGEST];
        let filled = self.0.read_at(&mut buffer, 0)?;
        let text = String::from_utf8_lossy(buffer.get(..filled).unwrap_or_default());
        parse(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

fn parse(text: &str) -> Result<Duration, ParseError> {
    let field = "sum_exec_runtime";
    number(field, text.split_ascii_whitespace().next().ok_or(ParseError::Missing(field))?)
        .map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_first_number_is_the_time_on_a_processor() {
        assert_eq!(parse("1153449335 2395653 3755\n"), Ok(Duration::from_nanos(1_153_449_335)));
        assert_eq!(parse("18446744073709551615"), Ok(Duration::from_nanos(u64::MAX)));
        for text in ["", "\n", "x 1 2\n", "-1 2 3\n"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_process_that_runs_is_told_from_one_that_sleeps_and_from_one_with_threads() {
        let proc_fs = ProcFs::new(Path::new("/proc"));
        let mut command = std::process::Command::new("sh");
        let busy = memtide_testing::Mortal::start(command.args(["-c", "while :; do :; done"]));
        let run_time = RunTime::open(&proc_fs, busy.id());
        if let Some(run_time) = run_time {
            let before = run_time.read().unwrap();
            let begun = std::time::Instant::now();
            while run_time.read().unwrap() == before {
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not run");
            }
            drop(busy);
            assert!(run_time.read().is_err(), "it has ended");
        }
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let second = std::thread::spawn(move || ended.recv());
        assert!(RunTime::open(&proc_fs, std::process::id()).is_none(), "this process has several threads");
        drop(end);
        assert!(second.join().unwrap().is_err());
    }
}
