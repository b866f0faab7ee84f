//! Notices the end of a process at once, not only at the next scan.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;

use memtide_host::{Root, start_time};

/// A living process whose end can be awaited.
#[derive(Debug)]
pub(crate) struct ExitWatch {
    pidfd: AsyncFd<OwnedFd>,
}

impl ExitWatch {
    /// Watches the process `pid` that started at `start`. Must be called within a runtime.
    ///
    /// # Errors
    /// If the process has ended, another process has its number, or the kernel has no pidfds.
    pub(crate) fn new(pid: u32, start: u64) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(number, PidfdFlags::NONBLOCK)?;
        // Before the pidfd was opened, the number may have gone to another process.
        if start_time(&Root::system(), pid).ok() != Some(start) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { pidfd: register(pidfd)? })
    }

    /// Waits for the end of the process.
    pub(crate) async fn ended(&self) {
        if self.pidfd.readable().await.is_err() {
            // The runtime is shutting down, and nobody waits for an answer.
            std::future::pending::<()>().await;
        }
    }
}

#[expect(
    deprecated,
    reason = "the successor is unsafe for types that misuse their descriptor; `OwnedFd` does not"
)]
fn register(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(pidfd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_testing::Mortal;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[tokio::test(flavor = "current_thread")]
    async fn the_end_of_a_process_is_noticed() {
        // `cat` ends with its input.
        let mut child = Mortal::start(Command::new("cat").stdin(Stdio::piped()));
        let start = start_time(&Root::system(), child.id()).unwrap();
        assert!(ExitWatch::new(child.id(), start + 1).is_err());
        let watch = ExitWatch::new(child.id(), start).unwrap();
        drop(child.stdin.take());
        tokio::time::timeout(Duration::from_secs(10), watch.ended()).await.unwrap();
        child.wait().unwrap();
        assert!(ExitWatch::new(child.id(), start).is_err());
    }
}
