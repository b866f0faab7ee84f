//! A file descriptor that wakes up when tasks have stalled for memory.
//!
//! The kernel watches a sliding window and reports at most once per window. Without `CAP_SYS_RESOURCE` it accepts only windows that are
//! multiples of 2 s (since 6.4); with it, 0.5 s to 10 s.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{HostError, pressure};

/// A trigger on a pressure file, active until this value is dropped.
#[derive(Debug)]
pub struct Trigger {
    file: File,
}

impl Trigger {
    /// The window to request: the shortest that needs no capability.
    pub const WINDOW: Duration = Duration::from_secs(2);

    /// Asks for a wake-up when at least one task has stalled for `stall` within `window`.
    ///
    /// `path` is `/proc/pressure/memory`, or `memory.pressure` of a v2 cgroup.
    ///
    /// # Errors
    /// [`HostError::NoPressure`] if the kernel has no pressure stall information; [`HostError::Trigger`] if it refuses this stall or
    /// window.
    pub fn open(path: &Path, stall: Duration, window: Duration) -> Result<Self, HostError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|source| pressure::missing(HostError::read(path, source)))?;
        let (stall_us, window_us) = (stall.as_micros(), window.as_micros());
        // The kernel overwrites the last byte with a NUL, so the request ends in a spare one. The kernel takes only a single write.
        let request = format!("some {stall_us} {window_us}\0");
        match file.write(request.as_bytes()) {
            Ok(written) if written == request.len() => Ok(Self { file }),
            Ok(_) => Err(HostError::read(path, io::ErrorKind::WriteZero.into())),
            Err(source) if Errno::from_io_error(&source) == Some(Errno::OPNOTSUPP) => {
                Err(HostError::NoPressure { path: path.to_owned() })
            }
            Err(source) => Err(HostError::Trigger {
                path: path.to_owned(),
                stall_us: u64::try_from(stall_us).unwrap_or(u64::MAX),
                window_us: u64::try_from(window_us).unwrap_or(u64::MAX),
                source,
            }),
        }
    }

    /// Waits until the trigger fires, for at most `timeout`. Returns whether it fired.
    ///
    /// # Errors
    /// If the wait fails or is interrupted, or if the cgroup is gone (`ENODEV`).
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.file, PollFlags::PRI)];
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        poll(&mut fds, Some(&timeout))?;
        let events = fds[0].revents();
        if events.contains(PollFlags::ERR) {
            return Err(Errno::NODEV.into());
        }
        Ok(events.contains(PollFlags::PRI))
    }
}

/// For a poll loop: wait for `POLLPRI`.
impl AsFd for Trigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Root;

    #[test]
    fn a_trigger_is_written_as_the_kernel_reads_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        Trigger::open(file.path(), Duration::from_millis(150), Trigger::WINDOW).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"some 150000 2000000\0");
    }

    #[test]
    fn a_kernel_without_pressure_says_so() {
        let error = Trigger::open(Path::new("/nowhere/memory"), Duration::from_millis(1), Trigger::WINDOW);
        assert!(matches!(error, Err(HostError::NoPressure { .. })));
    }

    /// The running kernel accepts the trigger, which then stays silent, or refuses it with a reason.
    #[test]
    fn the_running_kernel_takes_a_trigger_or_says_why_not() {
        let path = Root::system().proc("pressure/memory");
        match Trigger::open(&path, Duration::from_millis(1_900), Trigger::WINDOW) {
            Ok(trigger) => assert!(!trigger.wait(Duration::ZERO).unwrap()),
            Err(error) => assert!(
                matches!(error, HostError::NoPressure { .. } | HostError::Read { .. }),
                "2 s are always accepted: {error}"
            ),
        }
        let wrong = Trigger::open(&path, Duration::from_secs(3), Trigger::WINDOW);
        assert!(wrong.is_err(), "a stall longer than its window is refused");
    }
}
