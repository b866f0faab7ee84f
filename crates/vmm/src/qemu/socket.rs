//! Connects to the Unix sockets of guests.
//!
//! **Problem.** A user names the path of a socket, and may change what it leads to at any moment: to a socket that obeys root, or to a file system that never
//! answers. To connect is an effect already, and the kernel names the listener only afterwards.
//!
//! **Rule.** The path is opened once, without opening the socket (`O_PATH`). What was opened must be a socket, no link to one, and belong to the user of the
//! process that is to listen there. A socket of root counts for another user's process only if only root can have made each step of the path. For a process of root, whose command line
//! nobody else has written, the owner does not matter. The connection is made through the descriptor, to this socket and no other one. The opening happens beside the caller, within a time budget.
//!
//! A path that the operator names is taken as it is. The same way reaches paths that are longer than the 107 bytes of `sun_path`.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use memtide_host::{ProcFs, SeenFile, within};
use rustix::fs::{FileType, OFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The longest that the opening of a path may take.
const OPENS_WITHIN: Duration = Duration::from_millis(200);
/// Bits of a mode: others than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// The process that is to listen at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// It has named the path itself.
    Names(u32),
    /// The operator has named the path of its socket.
    IsNamed(u32),
    /// Another process of this user, who owns the place of the socket.
    OfUser {
        /// A process of the user, for the time budget.
        pid: u32,
        /// The user.
        user: u32,
    },
}

impl Peer {
    /// Its number.
    #[must_use]
    pub const fn pid(self) -> u32 {
        let (Self::Names(pid) | Self::IsNamed(pid) | Self::OfUser { pid, .. }) = self;
        pid
    }
}

/// Connects to the socket at `path`, where `peer` is to listen; `None`: nobody knows who.
///
/// # Errors
/// The errors of open(2) and connect(2); `WouldBlock` if the listener's queue is full; `PermissionDenied` if the socket is not of the process's
/// user; `TimedOut` if the path takes too long.
pub(crate) async fn connect(path: &Path, peer: Option<Peer>) -> io::Result<UnixStream> {
    let seen = match peer {
        None | Some(Peer::IsNamed(_)) => at(path, OFlags::empty())?,
        Some(peer @ (Peer::Names(_) | Peer::OfUser { .. })) => {
            let path = path.to_owned();
            let opening = tokio::task::spawn_blocking(move || {
                within(peer.pid(), OPENS_WITHIN, move || match peer {
                    Peer::OfUser { user, .. } => of_user(&path, user),
                    Peer::Names(pid) | Peer::IsNamed(pid) => of_process(&path, pid),
                })
            });
            opening.await.map_err(io::Error::other)?.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?
        }
    };
    UnixStream::connect(seen.path()).await
}

/// The process that listens at `path`, which the operator has named, and its user, according to the kernel. Never waits for the listener, and closes the connection
/// at once.
///
/// # Errors
/// The errors of open(2) and connect(2), as of `connect`.
pub fn listener_of(path: &Path) -> io::Result<(u32, u32)> {
    let seen = at(path, OFlags::empty())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(seen.path())?)?;
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)?;
    Ok((pid, peer.uid.as_raw()))
}

/// The socket at `path`.
fn at(path: &Path, more: OFlags) -> io::Result<SeenFile> {
    let seen = SeenFile::at(path, more)?;
    if seen.kind() == FileType::Socket { Ok(seen) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
}

/// The socket at `path` of this user.
fn of_user(path: &Path, user: u32) -> io::Result<SeenFile> {
    let seen = at(path, OFlags::NOFOLLOW)?;
    if seen.user() == user { Ok(seen) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// The socket at `path` of the process `pid`.
fn of_process(path: &Path, pid: u32) -> io::Result<SeenFile> {
    let seen = at(path, OFlags::NOFOLLOW)?;
    let proc_fs = ProcFs::new(Path::new("/proc"));
    let user = proc_fs.user(pid).ok_or(io::ErrorKind::NotFound)?;
    let is_its = user == 0 || seen.user() == user;
    if is_its || (seen.user() == 0 && is_of_root(&proc_fs, pid, path)) {
        return Ok(seen);
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

/// Whether only root can have made each step to `path`, in the mounts that this process sees, too: a process that root has started for another user.
fn is_of_root(proc_fs: &ProcFs, pid: u32, path: &Path) -> bool {
    let mounts = |pid: &str| proc_fs.link(pid, "ns/mnt");
    let has_our_mounts = mounts(&pid.to_string()).is_some_and(|its| Some(its) == mounts("self"));
    has_our_mounts && path.is_absolute() && steps_of_root(path)
}

/// Whether root owns each directory and each link on the way, and nobody else may change what is in them.
fn steps_of_root(path: &Path) -> bool {
    let mut so_far = PathBuf::new();
    let Some(directory) = path.parent() else { return false };
    directory.components().all(|step| {
        if step == Component::ParentDir {
            return false;
        }
        so_far.push(step);
        std::fs::symlink_metadata(&so_far).is_ok_and(|step| {
            let is_closed = step.is_symlink() || step.mode() & OTHERS_WRITE == 0;
            step.uid() == 0 && is_closed
        }) && std::fs::metadata(&so_far)
            .is_ok_and(|leads_to| leads_to.uid() == 0 && leads_to.mode() & OTHERS_WRITE == 0)
    }) && !path.starts_with("/proc")
}

/// Sends the beginning of `text` with an open file (`SCM_RIGHTS`). Returns the number of bytes that were sent.
///
/// # Errors
/// If the other end is gone.
pub(super) async fn send_with_file(
    stream: &UnixStream,
    text: &[u8],
    file: BorrowedFd<'_>,
) -> io::Result<usize> {
    let files = [file];
    stream
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            Ok(sendmsg(stream.as_fd(), &[IoSlice::new(text)], &mut control, flags)?)
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_testing::{Mortal, skipped};
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    const NOBODY: u32 = 65534;

    #[tokio::test(flavor = "current_thread")]
    async fn a_path_longer_than_the_kernel_takes_is_reached() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        // Bound by a short path, like QEMU would with a relative path, and reached by the long one.
        let short = root.path().join("s");
        symlink(&deep, &short).unwrap();
        let _listener = UnixListener::bind(short.join("qmp")).unwrap();
        let me = std::process::id();
        for peer in [None, Some(Peer::Names(me)), Some(Peer::IsNamed(me))] {
            connect(&deep.join("qmp"), peer).await.unwrap();
            assert_eq!(
                connect(&deep.join("absent"), peer).await.unwrap_err().kind(),
                io::ErrorKind::NotFound
            );
        }
        assert_eq!(listener_of(&deep.join("qmp")).unwrap().0, me);
        let named = root.path().join("named");
        symlink(deep.join("qmp"), &named).unwrap();
        connect(&named, Some(Peer::IsNamed(me))).await.unwrap();
        assert!(connect(&named, Some(Peer::Names(me))).await.is_err(), "QEMU binds no link");
        std::fs::write(root.path().join("file"), "").unwrap();
        for path in ["file", "."] {
            let refused = connect(&root.path().join(path), Some(Peer::Names(me))).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    }

    /// Root connects for processes of other users: whatever these name, only sockets of theirs are reached.
    #[tokio::test(flavor = "current_thread")]
    async fn a_socket_of_another_user_is_not_connected_to() {
        if !rustix::process::geteuid().is_root() {
            return skipped("only root can connect for another user");
        }
        let root = tempfile::tempdir().unwrap();
        let (roots, theirs) = (root.path().join("roots"), root.path().join("theirs"));
        let (private, own) = (UnixListener::bind(&roots).unwrap(), UnixListener::bind(&theirs).unwrap());
        chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
        let stranger = Mortal::start(Command::new("/bin/sleep").arg("600").uid(NOBODY).gid(NOBODY));
        let peer = Some(Peer::Names(stranger.id()));
        private.set_nonblocking(true).unwrap();
        own.set_nonblocking(true).unwrap();
        symlink(&roots, root.path().join("link")).unwrap();
        symlink(root.path(), root.path().join("directory")).unwrap();
        // The socket itself, a link to it, and a directory that leads to it. `/tmp` lets everybody write: it is no step of root's.
        for path in ["roots", "link", "directory/roots"] {
            let refused = connect(&root.path().join(path), peer).await;
            assert!(refused.is_err(), "{path}");
        }
        connect(&theirs, peer).await.unwrap();
        assert!(own.accept().is_ok());
        assert_eq!(private.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody has connected");
    }

    #[test]
    fn only_steps_that_nobody_else_can_make_are_roots() {
        assert!(steps_of_root(Path::new("/usr/bin/some.socket")));
        let path = tempfile::tempdir().unwrap();
        for path in [
            path.path().join("socket"),
            "/tmp/some.socket".into(),
            "/usr/../usr/bin/socket".into(),
            "/proc/1/root/usr/bin/socket".into(),
            "/missing/socket".into(),
        ] {
            assert!(!steps_of_root(&path), "{}", path.display());
        }
    }
}
