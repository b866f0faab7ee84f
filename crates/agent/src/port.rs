//! The channel to the host: a virtio-serial port, a terminal or a Unix socket.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::termios::{OptionalActions, isatty, tcgetattr, tcsetattr};

/// An open channel. Neither reading nor writing waits.
#[derive(Debug)]
pub struct Port {
    fd: OwnedFd,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// This many bytes.
    Bytes(usize),
    /// Nothing at the moment.
    Nothing,
    /// Nobody is at the other end: of a port, not yet or not any more; of a socket, never again.
    Nobody,
}

impl Port {
    /// Opens the channel at `path`: a socket is connected to, a terminal is made to pass all bytes.
    ///
    /// # Errors
    /// If it does not exist, or another process has it.
    pub fn open(path: &Path) -> io::Result<Self> {
        if std::fs::metadata(path)?.file_type().is_socket() {
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            return Ok(Self { fd: stream.into() });
        }
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        if isatty(&file) {
            let mut settings = tcgetattr(&file)?;
            settings.make_raw();
            tcsetattr(&file, OptionalActions::Now, &settings)?;
        }
        Ok(Self { fd: file.into() })
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// If the channel is broken.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Got> {
        match rustix::io::read(&self.fd, buffer) {
            Ok(0) => Ok(Got::Nobody),
            Ok(bytes) => Ok(Got::Bytes(bytes)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Got::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much as the channel takes.
    ///
    /// # Errors
    /// If the channel is broken.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match rustix::io::write(&self.fd, bytes) {
            Ok(written) => Ok(written),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
