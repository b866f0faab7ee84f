//! The API's Unix socket. It may replace a dead socket, but nothing else.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use memtide_config::LONGEST_SOCKET_PATH;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tracing::warn;

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// The time for which a daemon that was just killed may still seem to answer.
const DIES_WITHIN: Duration = Duration::from_secs(1);
/// The time between two checks whether that daemon is dead.
const LOOKS_EVERY: Duration = Duration::from_millis(20);
/// The time between two checks whether the daemon's socket is still at its path.
const LOOKS_FOR_NAME: Duration = Duration::from_secs(5);

/// Why the API has no socket.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Another process answers on the socket.
    #[error("{0}: another memtide answers here: stop it, or set another `socket`")]
    Taken(PathBuf),
    /// The path is not a socket.
    #[error("{0}: not a socket, so left as it is: set another `socket`")]
    NoSocket(PathBuf),
    /// The directory of the socket cannot be created.
    #[error("cannot create {path}{}", elsewhere(source))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path is too long for the kernel.
    #[error("{0}: a socket's path has at most {LONGEST_SOCKET_PATH} bytes: set a shorter `socket`")]
    TooLong(PathBuf),
    /// The socket cannot be bound.
    #[error("cannot bind {path}{}", elsewhere(source))]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Advice for a user who may not make the socket.
fn elsewhere(why: &io::Error) -> String {
    if !matches!(why.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) {
        return String::new();
    }
    let user = rustix::process::geteuid().as_raw();
    format!(
        " as user {user} (run as root, or name a configuration with `--config FILE` that sets `socket` to a place that this user can \
         write, as in socket = \"/run/user/{user}/memtide.sock\")"
    )
}

/// The socket of the API.
#[derive(Debug)]
pub struct Endpoint {
    /// The socket.
    pub listener: UnixListener,
    /// Its name.
    pub name: Name,
    /// Whether another memtide answers at the configured path.
    pub is_beside: bool,
}

impl Endpoint {
    /// Binds the socket at `path`. If another memtide answers there, binds a socket of its own beside it: `memtide-PID.sock`.
    ///
    /// # Errors
    /// If the file system refuses, or if the path exists and is not a socket.
    pub fn open(path: &Path) -> Result<Self, EndpointError> {
        let own = beside(path);
        let until = Instant::now() + DIES_WITHIN;
        let mut bound = bind(path);
        while matches!(bound, Err(EndpointError::Taken(_))) && Instant::now() < until {
            thread::sleep(LOOKS_EVERY);
            bound = bind(path);
        }
        let (listener, path, is_beside) = match bound {
            Err(taken @ EndpointError::Taken(_)) => (bind(&own).map_err(|_| taken)?, own.as_path(), true),
            bound => (bound?, path, false),
        };
        let name = Name::of(path).map_err(|source| EndpointError::Bind { path: path.to_owned(), source })?;
        Ok(Self { listener, name, is_beside })
    }
}

/// `NAME-PID.EXTENSION`.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", std::process::id()));
    let mut own = path.with_file_name(name);
    if let Some(extension) = path.extension() {
        own.set_extension(extension);
    }
    own
}

/// Binds the socket at `path` with mode 0660. Makes its directory with mode 0751 if it is missing. Replaces a socket on which nobody
/// answers.
///
/// # Errors
/// If another process answers there, or if the file system refuses.
fn bind(path: &Path) -> Result<UnixListener, EndpointError> {
    if path.as_os_str().len() > LONGEST_SOCKET_PATH {
        return Err(EndpointError::TooLong(path.to_owned()));
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let made = DirBuilder::new().recursive(true).mode(0o751).create(dir);
        made.map_err(|source| EndpointError::Directory { path: dir.to_owned(), source })?;
    }
    let failed = |source| EndpointError::Bind { path: path.to_owned(), source };
    nothing_else_is_at(path)?;
    match fs::symlink_metadata(path) {
        Ok(_) => match knock(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            Ok(()) => return Err(EndpointError::Taken(path.to_owned())),
            Err(error) => return Err(failed(error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    listen(path).map_err(failed)
}

/// Makes sure that the API's path is a socket, or that nothing is visible there.
///
/// # Errors
/// If the path exists and is not a socket.
pub fn nothing_else_is_at(path: &Path) -> Result<(), EndpointError> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => Err(EndpointError::NoSocket(path.to_owned())),
        _ => Ok(()),
    }
}

/// A listening socket whose permissions are never wider than at the end. Binding gives it the mode of the descriptor minus the
/// umask, and nobody can connect before it listens.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = socket()?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// A Unix socket that never blocks.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The name of a bound socket. Dropping it removes the name, unless the name belongs to another daemon's socket by then.
#[derive(Debug)]
pub struct Name {
    path: PathBuf,
    identity: (u64, u64),
}

impl Name {
    /// The name `path` of a socket that was just bound.
    ///
    /// # Errors
    /// If there is no such name.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }

    /// Waits until the path does not name this socket, and logs a warning: nobody can then ask the daemon.
    pub fn watch(&self) -> impl Future<Output = ()> + Send + 'static {
        let (path, ours) = (self.path.clone(), self.identity);
        async move {
            while identity(&path).is_ok_and(|there| there == ours) {
                tokio::time::sleep(LOOKS_FOR_NAME).await;
            }
            warn!(
                "{}: the socket was removed or replaced: nobody can reach this daemon, but it still manages; end it and start another, \
                 which continues from its journal",
                path.display()
            );
        }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let still_ours = identity(&self.path).is_ok_and(|there| there == self.identity);
        if still_ours && let Err(error) = fs::remove_file(&self.path) {
            warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

/// Whether a process listens on the socket at `path`, even if it is stopped.
pub fn is_answered(path: &Path) -> bool {
    knock(path).is_ok()
}

/// Connects to the socket at `path`, without waiting. If the listener's queue is full, somebody listens.
fn knock(path: &Path) -> io::Result<()> {
    match rustix::net::connect(socket()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::AGAIN) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_is_stopped_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memtide.sock");
        // Bound, but nobody accepts.
        let _stopped = listen(&path).unwrap();
        let connect = || {
            let socket = socket().unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).map(|()| socket)
        };
        let mut queue = Vec::new();
        let full = loop {
            match connect() {
                Ok(socket) => queue.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(full, Errno::AGAIN);
        assert!(is_answered(&path));
        assert!(matches!(bind(&path), Err(EndpointError::Taken(_))));
    }

    #[test]
    fn nothing_but_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("precious");
        std::fs::write(&file, "precious").unwrap();
        assert!(matches!(bind(&file), Err(EndpointError::NoSocket(_))));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

        let long = dir.path().join("x".repeat(100));
        assert!(matches!(bind(&long), Err(EndpointError::TooLong(_))));

        let socket = dir.path().join("deep/memtide.sock");
        let listener = bind(&socket).unwrap();
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(bind(&socket), Err(EndpointError::Taken(_))));
        drop(listener);
        bind(&socket).unwrap();
        assert!(socket.exists());
    }

    #[test]
    fn where_another_answers_a_second_one_answers_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("memtide.sock");
        let first = Endpoint::open(&socket).unwrap();
        assert!(!first.is_beside);
        let second = Endpoint::open(&socket).unwrap();
        let own = dir.path().join(format!("memtide-{}.sock", std::process::id()));
        assert!(second.is_beside && second.name.path() == own && own.exists());
        drop(second);
        assert!(socket.exists() && !own.exists());
    }
}
