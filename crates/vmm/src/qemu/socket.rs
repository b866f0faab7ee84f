//! Connects to a Unix socket with a path of any length.
//!
//! The kernel's `sun_path` holds 107 bytes and a NUL. A longer path is reached through its opened directory:
//! `/proc/self/fd/N/name`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;

/// The longest path that fits in `sun_path`, in bytes.
const LONGEST_PATH: usize = 107;

/// Connects to the socket at `path`.
///
/// # Errors
/// The errors of connect(2); `WouldBlock` if the listener's queue is full; `InvalidInput` if even the name alone is too
/// long.
pub(crate) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let reach = Reach::of(path)?;
    UnixStream::connect(&reach.path).await
}

/// The process that listens at `path` and its user, according to the kernel. Never waits, and closes the connection at once.
///
/// # Errors
/// See [`connect`].
pub(super) fn listener_of(path: &Path) -> io::Result<(u32, u32)> {
    let reach = Reach::of(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(&reach.path)?)?;
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)?;
    Ok((pid, peer.uid.as_raw()))
}

/// A path that fits, valid until this value is dropped.
struct Reach {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl Reach {
    fn of(path: &Path) -> io::Result<Self> {
        if fits(path) {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        if !fits(&path) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { path, _directory: Some(directory) })
    }
}

fn fits(path: &Path) -> bool {
    path.as_os_str().as_bytes().len() <= LONGEST_PATH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_path_longer_than_the_kernel_takes_is_reached() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        // Bound by a short path, like QEMU would with a relative path, and reached by the long one.
        let short = root.path().join("s");
        std::os::unix::fs::symlink(&deep, &short).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(short.join("qmp")).unwrap();
        connect(&deep.join("qmp")).await.unwrap();
        assert_eq!(listener_of(&deep.join("qmp")).unwrap().0, std::process::id());
        assert_eq!(connect(&deep.join("absent")).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let too_long = connect(&deep.join("n".repeat(120))).await.unwrap_err();
        assert_eq!(too_long.kind(), io::ErrorKind::InvalidInput);
    }
}
