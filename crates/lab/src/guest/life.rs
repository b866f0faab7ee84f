//! The process of a guest: the lab's child, or one that a daemon has started.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use memtide_host::{Root, start_time};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// The longest time for a killed process to end: its memory has to be freed.
const ENDS: Duration = Duration::from_secs(20);

/// The process of a guest.
#[derive(Debug)]
pub(super) enum Life {
    /// It is the lab's child, first of its group.
    Child(Child),
    /// Somebody else has started it; `start` tells it from a later process with its number.
    Other { pid: u32, start: u64 },
}

impl Life {
    /// A process that somebody else has started.
    ///
    /// # Errors
    /// If it has ended already.
    pub(super) fn of_other(pid: u32) -> io::Result<Self> {
        let start = start_time(&Root::system(), pid).map_err(io::Error::other)?;
        Ok(Self::Other { pid, start })
    }

    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Other { pid, .. } => *pid,
        }
    }

    /// How it ended; `None` while it runs.
    pub(super) fn ended(&mut self) -> io::Result<Option<String>> {
        match self {
            Self::Child(child) => Ok(child.try_wait()?.map(described)),
            Self::Other { pid, start } => {
                let runs = start_time(&Root::system(), *pid).is_ok_and(|now| now == *start);
                Ok((!runs).then(|| "ended".to_owned()))
            }
        }
    }

    /// Kills it, and waits until it has ended. A child is killed with its group: an instance of UML is several processes.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let raw = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let runs = self.ended()?.is_none();
        match (self, raw.filter(|_| runs)) {
            (Self::Child(child), number) => {
                if let Some(number) = number {
                    kill_process_group(number, Signal::KILL)?;
                }
                child.wait().map(|_| ())
            }
            (Self::Other { .. }, None) => Ok(()),
            (other @ Self::Other { .. }, Some(number)) => {
                kill_process(number, Signal::KILL)?;
                let begun = Instant::now();
                while other.ended()?.is_none() {
                    if begun.elapsed() > ENDS {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            }
        }
    }
}

fn described(status: ExitStatus) -> String {
    match status.signal() {
        Some(9) => "killed (signal 9)".to_owned(),
        None if status.success() => "ended".to_owned(),
        _ => status.to_string(),
    }
}
