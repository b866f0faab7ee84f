//! Decides which memtide manages a guest if several run on one host.
//!
//! **Problem.** Two managers that move one balloon fight. Each can have its own configuration, socket and journal, so none of these
//! shows one manager to the other.
//!
//! **Rule.** The manager of a guest holds a lock on a file named after the guest's process and its start, in a directory shared by all
//! daemons of one user. The kernel drops the lock when the process that holds it ends. A guest that another memtide has locked is
//! left alone, and tried again after [`BETWEEN_TRIES`]. A daemon of another user than root also leaves alone what root's has locked: it sees that the file
//! is there. It may not open it, because who can open a file can lock it.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memtide_model::{GuestId, Moment, Span};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, openat, statat, unlinkat};
use tracing::warn;

/// The time between two attempts to lock a guest that another memtide manages.
const BETWEEN_TRIES: Span = Span::from_secs(1);
/// The directory of the locks of root's daemons. Only root may write to `/run`: nobody else can make it first.
const OF_ROOT: &str = "/run/memtide/guests";
/// Others may pass through the directory above it: sockets for them are there, too.
const ABOVE_MODE: u32 = 0o751;
/// Others may look whether a lock of root's is there, and neither list nor open any.
const MODE_OF_ROOTS: u32 = 0o711;
/// Another user's directory is for that user alone.
const MODE: u32 = 0o700;
/// Stands for root's memtide: others do not see which process it is.
const ROOTS: u32 = 0;

/// The guests that this daemon manages.
#[derive(Debug)]
pub struct GuestLocks {
    dir: PathBuf,
    /// The mode of the directory, if it must be made.
    mode: u32,
    /// The directory of root's locks, if this is not root.
    of_root: Option<PathBuf>,
    lock_dir: Option<Arc<LockDir>>,
    known: BTreeMap<GuestId, GuestLock>,
    /// The directory cannot be used, and a warning has said so.
    blind: bool,
    /// The remains of killed daemons were removed.
    swept: bool,
}

#[derive(Debug)]
enum GuestLock {
    Ours { file: File, lock_dir: Arc<LockDir>, name: String },
    Another { pid: u32, tried_at: Moment },
}

impl GuestLocks {
    /// No locks yet, in the directory shared by this user's daemons.
    #[must_use]
    pub fn of_this_user() -> Self {
        let uid = rustix::process::getuid();
        let dir = match std::env::var_os("XDG_RUNTIME_DIR") {
            _ if uid.is_root() => PathBuf::from(OF_ROOT),
            Some(dir) => PathBuf::from(dir).join("memtide-claims"),
            None => std::env::temp_dir().join(format!("memtide-claims-{}", uid.as_raw())),
        };
        match uid.is_root() {
            true => Self { mode: MODE_OF_ROOTS, ..Self::at(&dir) },
            false => Self { of_root: Some(OF_ROOT.into()), ..Self::at(&dir) },
        }
    }

    /// No locks yet, in `dir`.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            mode: MODE,
            of_root: None,
            lock_dir: None,
            known: BTreeMap::new(),
            blind: false,
            swept: false,
        }
    }

    /// Locks a guest, or returns the process that manages it. If locks are not possible at all, a warning says so once, and the guest
    /// counts as locked.
    pub fn lock(&mut self, guest: &GuestId, pid: u32, now: Moment) -> Result<(), u32> {
        match self.known.get(guest) {
            Some(GuestLock::Ours { .. }) => return Ok(()),
            Some(GuestLock::Another { pid, tried_at }) if now.since(*tried_at) < BETWEEN_TRIES => {
                return Err(*pid);
            }
            _ => {}
        }
        match self.take(&format!("{pid}-{}", guest.start())) {
            Ok(Ok(ours)) => {
                self.known.insert(guest.clone(), ours);
                Ok(())
            }
            Ok(Err(pid)) => {
                self.known.insert(guest.clone(), GuestLock::Another { pid, tried_at: now });
                Err(pid)
            }
            Err(error) => {
                if !self.blind {
                    warn!(
                        "{}: cannot lock guests here, so memtide would not notice another memtide: {error}",
                        self.dir.display()
                    );
                }
                self.blind = true;
                Ok(())
            }
        }
    }

    fn take(&mut self, name: &str) -> io::Result<Result<GuestLock, u32>> {
        if self.of_root.as_ref().is_some_and(|of_root| of_root.join(name).exists()) {
            return Ok(Err(ROOTS));
        }
        // Opened each time, so a removed directory is made again. If it is still the same directory, all locks share the open one.
        let opened = LockDir::open(&self.dir, self.mode)?;
        let lock_dir = match self.lock_dir.take() {
            Some(lock_dir) if lock_dir.identity()? == opened.identity()? => lock_dir,
            _ => Arc::new(opened),
        };
        self.lock_dir = Some(Arc::clone(&lock_dir));
        if !std::mem::replace(&mut self.swept, true) {
            sweep(&lock_dir);
        }
        let taken = take(&lock_dir, name)?;
        Ok(taken.map(|file| GuestLock::Ours { file, lock_dir, name: name.to_owned() }))
    }

    /// Whether another memtide managed the guest at the last attempt.
    #[must_use]
    pub fn is_anothers(&self, guest: &GuestId) -> bool {
        matches!(self.known.get(guest), Some(GuestLock::Another { .. }))
    }

    /// Gives up the locks of guests that have ended.
    pub fn keep_only(&mut self, alive: impl Fn(&GuestId) -> bool) {
        self.known.retain(|guest, _| alive(guest));
    }
}

impl Drop for GuestLock {
    fn drop(&mut self) {
        if let Self::Ours { file, lock_dir, name } = self {
            // Removed only while it is locked, and only if it is still this daemon's own file. The
            // next sweep removes a file that stays behind.
            if lock_dir.is_at(file, name) {
                let _stays = unlinkat(&lock_dir.0, name.as_str(), AtFlags::empty());
            }
        }
    }
}

/// The directory of the locks. Only this user may change it, because anybody else could choose which files are opened and removed.
#[derive(Debug)]
struct LockDir(OwnedFd);

impl LockDir {
    /// Opens `dir`, and makes it if it is missing.
    fn open(dir: &Path, mode: u32) -> io::Result<Self> {
        if let Some(above) = dir.parent() {
            DirBuilder::new().recursive(true).mode(ABOVE_MODE).create(above)?;
        }
        DirBuilder::new().recursive(true).mode(mode).create(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock_dir = openat(CWD, dir, flags, Mode::empty())?;
        let there = fstat(&lock_dir)?;
        if there.st_uid != rustix::process::getuid().as_raw() {
            let why = format!(
                "the directory belongs to user {}: remove it, and memtide creates it again",
                there.st_uid
            );
            return Err(io::Error::other(why));
        }
        if there.st_mode & 0o022 != 0 {
            return Err(io::Error::other(
                "others may write to the directory: remove it, and memtide creates it again",
            ));
        }
        Ok(Self(lock_dir))
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        let there = fstat(&self.0)?;
        Ok((there.st_dev, there.st_ino))
    }

    /// Opens a regular file in it, without waiting.
    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::other(format!("{name} is not a file")))
        }
    }

    fn is_at(&self, file: &File, name: &str) -> bool {
        match (fstat(file), statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)) {
            (Ok(ours), Ok(there)) => (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino),
            _ => false,
        }
    }
}

/// Removes the locks that nobody holds: those of killed daemons.
fn sweep(lock_dir: &Arc<LockDir>) {
    let Ok(locks) = Dir::read_from(&lock_dir.0) else { return };
    for lock in locks.flatten() {
        let Ok(name) = lock.file_name().to_str() else { continue };
        // If nobody has locked it, dropping it removes it. Other files are left alone.
        if let Ok(file) = lock_dir.file(name, OFlags::RDONLY)
            && file.try_lock().is_ok()
        {
            drop(GuestLock::Ours { file, lock_dir: Arc::clone(lock_dir), name: name.to_owned() });
        }
    }
}

/// Locks the file `name`, or returns the process that has locked it.
fn take(lock_dir: &LockDir, name: &str) -> io::Result<Result<File, u32>> {
    loop {
        let mut file = lock_dir.file(name, OFlags::RDWR | OFlags::CREATE)?;
        match file.try_lock() {
            Ok(()) if lock_dir.is_at(&file, name) => {
                file.set_len(0)?;
                write!(file, "{}", std::process::id())?;
                return Ok(Ok(file));
            }
            // The previous owner removed it before it was locked here.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.take(16).read_to_string(&mut text)?;
                return Ok(Err(text.trim().parse().unwrap_or(0)));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn guest(start: u64) -> GuestId {
        GuestId::new("web", start, "boot")
    }

    #[test]
    fn what_killed_daemons_left_behind_is_swept_away() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("17428-8849238"), "17").unwrap();
        let (mut first, mut second) = (GuestLocks::at(dir.path()), GuestLocks::at(dir.path()));
        first.lock(&guest(1), 5, Moment::default()).unwrap();
        second.lock(&guest(2), 6, Moment::default()).unwrap();
        drop(second);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, ["5-1"]);
    }

    #[test]
    fn a_guest_is_managed_by_one_and_by_the_next_when_that_ends() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("locks");
        let at = Moment::from_millis;
        let (mut first, mut second) = (GuestLocks::at(&dir), GuestLocks::at(&dir));
        assert_eq!(first.lock(&guest(1), 7, at(0)), Ok(()));
        assert_eq!(second.lock(&guest(1), 7, at(0)), Err(std::process::id()));
        assert_eq!(second.lock(&guest(2), 7, at(0)), Ok(()), "another process with the same number");
        drop(first);
        assert_eq!(second.lock(&guest(1), 7, at(500)), Err(std::process::id()), "not asked again yet");
        assert_eq!(second.lock(&guest(1), 7, at(1000)), Ok(()));
        second.keep_only(|_| false);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn what_roots_daemon_has_locked_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = Moment::from_millis;
        let mut of_root = GuestLocks { mode: MODE_OF_ROOTS, ..GuestLocks::at(&dir.path().join("roots")) };
        let mut users = GuestLocks {
            of_root: Some(dir.path().join("roots")),
            ..GuestLocks::at(&dir.path().join("users"))
        };
        assert_eq!(of_root.lock(&guest(1), 7, at(0)), Ok(()));
        let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("roots"), mode("roots/7-1")), (0o711, 0o600), "others may look, and not open");
        assert_eq!(users.lock(&guest(1), 7, at(0)), Err(ROOTS));
        assert_eq!(users.lock(&guest(2), 7, at(0)), Ok(()));
        drop(of_root);
        assert_eq!(users.lock(&guest(1), 7, at(1000)), Ok(()));
    }

    #[test]
    fn a_file_that_a_killed_daemon_left_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("7-1"), "4711").unwrap();
        assert_eq!(GuestLocks::at(dir.path()).lock(&guest(1), 7, Moment::default()), Ok(()));
    }

    #[test]
    fn without_a_directory_guests_are_managed_all_the_same() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(GuestLocks::at(file.path()).lock(&guest(1), 7, Moment::default()), Ok(()));
    }

    #[test]
    fn nothing_but_files_of_the_directory_itself_is_opened_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (lock_dir, outside) = (dir.path().join("locks"), dir.path().join("outside"));
        fs::create_dir(&lock_dir).unwrap();
        fs::set_permissions(&lock_dir, Permissions::from_mode(0o700)).unwrap();
        fs::write(&outside, "").unwrap();
        symlink(&outside, lock_dir.join("5-1")).unwrap();
        rustix::fs::mknodat(CWD, lock_dir.join("6-1"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        let mut locks = GuestLocks::at(&lock_dir);
        // A daemon that waited for a writer of the pipe would wait forever.
        for (pid, start) in [(5, 1), (6, 1), (7, 1)] {
            assert_eq!(locks.lock(&guest(start), pid, Moment::default()), Ok(()));
            locks.keep_only(|_| false);
        }
        assert!(outside.exists() && lock_dir.join("5-1").is_symlink() && lock_dir.join("6-1").exists());
    }

    #[test]
    fn a_directory_of_others_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (lock_dir, behind) = (dir.path().join("locks"), dir.path().join("behind"));
        let file = lock_dir.join("17-4");
        fs::create_dir(&lock_dir).unwrap();
        fs::write(&file, "").unwrap();
        fs::set_permissions(&lock_dir, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(GuestLocks::at(&lock_dir).lock(&guest(1), 7, Moment::default()), Ok(()));
        fs::set_permissions(&lock_dir, Permissions::from_mode(0o700)).unwrap();
        symlink(&lock_dir, &behind).unwrap();
        assert_eq!(GuestLocks::at(&behind).lock(&guest(1), 7, Moment::default()), Ok(()));
        assert!(file.exists(), "nothing was swept");
        assert_eq!(fs::read_dir(&lock_dir).unwrap().count(), 1, "nothing was made");
    }
}
