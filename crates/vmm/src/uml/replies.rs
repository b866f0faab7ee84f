//! What the controls of instances need and the thread that speaks with monitors may not open: the sockets that consoles answer to, and the
//! terminals of agents.
//!
//! **Problem.** mconsole answers to the path of the socket that asked. The answering instance runs as its user, perhaps in another network
//! namespace, so the socket needs a path that this user can reach. The thread that speaks with monitors may not change a file system, or open
//! anything for writing.
//!
//! **Rule.** The engine's thread opens the terminals. It makes, renews and removes the sockets, in a directory that others can pass through but not list. Each guest
//! has a socket of its own, connected to its console: the kernel delivers nothing to it that another socket has sent, so an instance can
//! neither answer for another one nor fill another one's queue. After a request without an answer, the socket is given up and a new one is made:
//! a late reply then reaches nobody.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use memtide_host::SeenFile;
use memtide_model::Absence;
use rustix::fs::{FileType, Mode, OFlags};

/// Others may pass through the directory, and not list it.
const DIRECTORY_MODE: u32 = 0o711;
/// Where pseudo-terminals are.
const TERMINALS: &str = "/dev/pts";
/// The most files of the directory that are looked at for what a killed run left.
const MOST_SWEPT: usize = 4096;
/// Sending to a socket is writing.
const SOCKET_MODE: u32 = 0o666;

/// Makes and removes the sockets of one backend, and opens its terminals.
#[derive(Debug)]
pub struct ReplySockets {
    directory: PathBuf,
    /// Whether the sockets of runs that were killed are removed.
    is_swept: bool,
    made: u64,
    sockets: Vec<Made>,
    terminals: Vec<Terminal>,
}

#[derive(Debug)]
struct Made {
    console: Console,
    path: PathBuf,
    slot: Slot<UnixDatagram>,
}

/// A terminal of an instance: the host's end of one of its serial lines. Its control learns the name from the console.
#[derive(Clone, Debug)]
pub struct Terminal {
    user: u32,
    name: Arc<Mutex<Option<PathBuf>>>,
    slot: Slot<File>,
}

/// A console and the user who must own its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Console {
    pub(super) path: PathBuf,
    pub(super) user: u32,
}

/// Where a guest's control finds what was opened for it.
#[derive(Debug)]
pub struct Slot<T>(Arc<Mutex<Held<T>>>);

#[derive(Debug)]
enum Held<T> {
    /// A new one.
    New(T),
    /// The control has it.
    InUse,
    /// The control gave it up.
    GivenUp,
    /// There is none, because of this.
    Without(Absence),
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Slot<T> {
    fn empty() -> Self {
        Self(Arc::new(Mutex::new(Held::GivenUp)))
    }

    /// Takes it.
    ///
    /// # Errors
    /// The reason why there is none at the moment.
    pub(super) fn take(&self) -> Result<T, Absence> {
        let mut held = self.lock();
        match std::mem::replace(&mut *held, Held::InUse) {
            Held::New(it) => Ok(it),
            other => {
                let why = match &other {
                    Held::Without(why) => why.clone(),
                    Held::New(_) | Held::InUse | Held::GivenUp => Absence::Timeout,
                };
                *held = other;
                Err(why)
            }
        }
    }

    /// Gives it up: a new one is made at the next look for guests.
    pub(super) fn give_up(&self) {
        *self.lock() = Held::GivenUp;
    }

    fn is_wanted(&self) -> bool {
        matches!(&*self.lock(), Held::GivenUp | Held::Without(_))
    }

    fn put(&self, made: io::Result<T>) {
        *self.lock() = match made {
            Ok(it) => Held::New(it),
            Err(error) => Held::Without(absence(&error)),
        };
    }

    /// Whether only the maker has it.
    fn is_left(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReplySockets {
    /// Sockets in `directory`. It is created with the first one.
    #[must_use]
    pub const fn new(directory: PathBuf) -> Self {
        Self { directory, is_swept: false, made: 0, sockets: Vec::new(), terminals: Vec::new() }
    }

    /// Makes the socket for the answers of a console.
    pub(super) fn open(&mut self, console: Console) -> Slot<UnixDatagram> {
        let slot = Slot::empty();
        let mut made = Made { console, path: PathBuf::new(), slot: slot.clone() };
        self.renew(&mut made);
        self.sockets.push(made);
        slot
    }

    /// A terminal of an instance of `user`.
    pub(super) fn terminal(&mut self, user: u32) -> Terminal {
        let terminal = Terminal { user, name: Arc::default(), slot: Slot::empty() };
        self.terminals.push(terminal.clone());
        terminal
    }

    /// The first time, removes the sockets that a killed run left. Removes the sockets of controls that are gone, and makes new ones in place of those that were given up. Opens the terminals whose names
    /// are known by now.
    pub(super) fn tend(&mut self) {
        if !std::mem::replace(&mut self.is_swept, true) {
            sweep(&self.directory);
        }
        let mut sockets = std::mem::take(&mut self.sockets);
        sockets.retain_mut(|made| {
            let is_used = !made.slot.is_left();
            if !is_used {
                remove(&made.path);
            } else if made.slot.is_wanted() {
                remove(&made.path);
                self.renew(made);
            }
            is_used
        });
        self.sockets = sockets;
        self.terminals.retain(|terminal| !terminal.slot.is_left());
        self.terminals.iter().for_each(Terminal::open);
    }

    fn renew(&mut self, made: &mut Made) {
        self.made += 1;
        made.path = self.directory.join(format!("{}-{}", std::process::id(), self.made));
        let socket = self.bind(&made.path).and_then(|socket| connect(socket, &made.console));
        if socket.is_err() {
            remove(&made.path);
        }
        made.slot.put(socket);
    }

    fn bind(&self, path: &Path) -> io::Result<UnixDatagram> {
        if !self.directory.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&self.directory)?;
            fs::set_permissions(&self.directory, fs::Permissions::from_mode(DIRECTORY_MODE))?;
        }
        // The rest of a run that was killed and had the same process number.
        remove(path);
        let socket = UnixDatagram::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
        socket.set_nonblocking(true)?;
        // Each datagram tells its sender.
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        Ok(socket)
    }
}

impl Terminal {
    /// The console tells its name. It is opened at the next look for guests.
    pub(super) fn is_named(&self, name: PathBuf) {
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = Some(name);
    }

    /// Takes the open terminal.
    ///
    /// # Errors
    /// The reason why there is none at the moment.
    pub(crate) fn take(&self) -> Result<File, Absence> {
        self.slot.take()
    }

    /// Gives it up: it is opened again under the name that the console tells next.
    pub(crate) fn give_up(&self) {
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.slot.give_up();
    }

    fn open(&self) {
        let name = self.name.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(name) = name.filter(|_| self.slot.is_wanted()) {
            self.slot.put(open_terminal(&name, self.user));
        }
    }
}

impl Drop for ReplySockets {
    fn drop(&mut self) {
        self.sockets.iter().for_each(|made| remove(&made.path));
    }
}

/// Connects to a console: a socket, not a link to one, of the instance's user. Otherwise a user could make memtide send its requests to
/// another program's socket.
fn connect(socket: UnixDatagram, console: &Console) -> io::Result<UnixDatagram> {
    let seen = look_at(&console.path, FileType::Socket, console.user)?;
    socket.connect(seen.path())?;
    Ok(socket)
}

/// Looks at a file without opening it.
///
/// # Errors
/// If it is not of this type, or another user's.
fn look_at(path: &Path, is: FileType, user: u32) -> io::Result<SeenFile> {
    let seen = SeenFile::at(path, OFlags::NOFOLLOW)?;
    if seen.kind() != is || seen.user() != user {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(seen)
}

/// Opens a pseudo-terminal of a user. The console could name any file: nothing else is opened.
fn open_terminal(name: &Path, user: u32) -> io::Result<File> {
    if name.parent() != Some(Path::new(TERMINALS)) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let seen = look_at(name, FileType::CharacterDevice, user)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(seen.path(), flags, Mode::empty())?.into())
}

fn absence(error: &io::Error) -> Absence {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Absence::Forbidden,
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Absence::Disconnected,
        _ => Absence::Refused(format!("cannot be opened: {error}")),
    }
}

/// Removes sockets with names of ours on which nobody listens any more. Another daemon may use the same directory: its sockets stay.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().take(MOST_SWEPT) {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        let is_left = || {
            let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(entry.path()));
            connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        if is_socket && is_ours(&entry.file_name().to_string_lossy()) && is_left() {
            remove(&entry.path());
        }
    }
}

/// Whether a name is that of a process and a number.
fn is_ours(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-').is_some_and(|(pid, number)| is_number(pid) && is_number(number))
}

fn remove(path: &Path) {
    // If it is not there, nothing is left to remove.
    let _gone = fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine(path: &Path) -> Console {
        Console { path: path.to_owned(), user: rustix::process::getuid().as_raw() }
    }

    #[test]
    fn a_socket_hears_its_console_alone_and_is_renewed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (console_at, replies) = (dir.path().join("mconsole"), dir.path().join("replies"));
        let console = UnixDatagram::bind(&console_at).unwrap();
        let mut sockets = ReplySockets::new(replies.clone());
        let slot = sockets.open(mine(&console_at));
        let socket = slot.take().unwrap();
        assert_eq!(slot.take().unwrap_err(), Absence::Timeout, "it is in use");
        let address = socket.local_addr().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&replies), mode(address.as_pathname().unwrap())), (0o711, 0o666));
        let stranger = UnixDatagram::unbound().unwrap();
        let refused = stranger.send_to(b"lies", address.as_pathname().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(console.send_to(b"truth", address.as_pathname().unwrap()).unwrap(), 5);

        let count = || fs::read_dir(&replies).unwrap().count();
        slot.give_up();
        sockets.tend();
        let renewed = slot.take().unwrap();
        assert_ne!(renewed.local_addr().unwrap().as_pathname(), address.as_pathname());
        assert_eq!(count(), 1);
        drop(slot);
        sockets.tend();
        assert_eq!(count(), 0);
        let _slot = sockets.open(mine(&console_at));
        assert_eq!(count(), 1);
        drop(sockets);
        assert_eq!(count(), 0);
    }

    #[test]
    fn what_a_killed_run_left_is_removed_at_the_next_start_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let console = UnixDatagram::bind(at("console")).unwrap();
        // Dropped without its name being removed, as after a SIGKILL.
        for left in ["12345-1", "12345-22", "12345-x", "someone.sock"] {
            drop(UnixDatagram::bind(at(left)).unwrap());
        }
        fs::write(at("99-1"), "a file").unwrap();
        let of_another = UnixDatagram::bind(at("777-1")).unwrap();
        let connected = UnixDatagram::bind(at("777-2")).unwrap();
        connected.connect(at("console")).unwrap();
        let mut sockets = ReplySockets::new(dir.path().to_owned());
        sockets.tend();
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["12345-x", "777-1", "777-2", "99-1", "console", "someone.sock"]);
        drop((console, of_another, connected));
        // Only the first look sweeps.
        sockets.tend();
        assert!(at("777-1").exists());
    }

    #[test]
    fn only_a_users_own_pseudo_terminals_are_opened() {
        let mut sockets = ReplySockets::new(PathBuf::from("/nowhere"));
        let me = rustix::process::getuid().as_raw();
        let opened = |sockets: &mut ReplySockets, name: &str, user| {
            let terminal = sockets.terminal(user);
            assert!(terminal.take().is_err(), "nobody has named it");
            terminal.is_named(name.into());
            sockets.tend();
            terminal.take().map(drop)
        };
        let master =
            rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        assert_eq!(opened(&mut sockets, &name, me), Ok(()));
        assert_eq!(opened(&mut sockets, &name, me + 1), Err(Absence::Forbidden));
        for other in ["/dev/null", "/dev/pts/../null", "/etc/passwd"] {
            assert_eq!(opened(&mut sockets, other, 0), Err(Absence::Forbidden), "{other}");
        }
        assert_eq!(opened(&mut sockets, "/dev/pts/999999", me), Err(Absence::Disconnected));
    }

    #[test]
    fn links_and_sockets_of_others_are_no_consoles() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        let _other = UnixDatagram::bind(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut sockets = ReplySockets::new(dir.path().join("replies"));
        assert_eq!(sockets.open(mine(&link)).take().unwrap_err(), Absence::Forbidden);
        let others = Console { user: 12_345, ..mine(&real) };
        assert_eq!(sockets.open(others).take().unwrap_err(), Absence::Forbidden);
        let missing = sockets.open(mine(&dir.path().join("missing")));
        assert_eq!(missing.take().unwrap_err(), Absence::Disconnected);
        // It is tried again: the instance may not have opened its console yet.
        let _late = UnixDatagram::bind(dir.path().join("missing")).unwrap();
        sockets.tend();
        assert!(missing.take().is_ok());
    }
}
