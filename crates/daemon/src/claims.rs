//! Decides which memtide manages a guest if several run on one host.
//!
//! **Problem.** Two managers that move one balloon fight. Each can have its own configuration, socket and journal, so none of these
//! shows one manager to the other.
//!
//! **Rule.** The manager of a guest holds a lock on a file named after the guest's process and its start, in a directory shared by all
//! daemons of one user. The kernel drops the lock when the process that holds it ends. A guest that another memtide has claimed is
//! left alone, and tried again after [`BETWEEN_TRIES`].

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

/// The time between two attempts to claim a guest that another memtide manages.
const BETWEEN_TRIES: Span = Span::from_secs(1);
/// The directory of the claims of root's daemons.
const OF_ROOT: &str = "/run/lock/memtide";

/// The guests that this daemon manages.
#[derive(Debug)]
pub struct Claims {
    dir: PathBuf,
    place: Option<Arc<Place>>,
    known: BTreeMap<GuestId, Claim>,
    /// The directory cannot be used, and a warning has said so.
    blind: bool,
    /// The remains of killed daemons were removed.
    swept: bool,
}

#[derive(Debug)]
enum Claim {
    Ours { file: File, place: Arc<Place>, name: String },
    Another { pid: u32, tried_at: Moment },
}

impl Claims {
    /// No claims yet, in the directory shared by this user's daemons.
    #[must_use]
    pub fn of_this_user() -> Self {
        let uid = rustix::process::getuid();
        let dir = match std::env::var_os("XDG_RUNTIME_DIR") {
            _ if uid.is_root() => PathBuf::from(OF_ROOT),
            Some(dir) => PathBuf::from(dir).join("memtide-claims"),
            None => std::env::temp_dir().join(format!("memtide-claims-{}", uid.as_raw())),
        };
        Self::at(&dir)
    }

    /// No claims yet, in `dir`.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), place: None, known: BTreeMap::new(), blind: false, swept: false }
    }

    /// Claims a guest, or returns the process that manages it. If claims are not possible at all, a warning says so once, and the guest
    /// counts as claimed.
    pub fn claim(&mut self, guest: &GuestId, pid: u32, now: Moment) -> Result<(), u32> {
        match self.known.get(guest) {
            Some(Claim::Ours { .. }) => return Ok(()),
            Some(Claim::Another { pid, tried_at }) if now.since(*tried_at) < BETWEEN_TRIES => {
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
                self.known.insert(guest.clone(), Claim::Another { pid, tried_at: now });
                Err(pid)
            }
            Err(error) => {
                if !self.blind {
                    warn!(
                        "{}: cannot claim guests here, so memtide would not notice another memtide: {error}",
                        self.dir.display()
                    );
                }
                self.blind = true;
                Ok(())
            }
        }
    }

    fn take(&mut self, name: &str) -> io::Result<Result<Claim, u32>> {
        // Opened each time, so a removed directory is made again. If it is still the same directory, all claims share the open one.
        let opened = Place::open(&self.dir)?;
        let place = match self.place.take() {
            Some(place) if place.identity()? == opened.identity()? => place,
            _ => Arc::new(opened),
        };
        self.place = Some(Arc::clone(&place));
        if !std::mem::replace(&mut self.swept, true) {
            sweep(&place);
        }
        let taken = take(&place, name)?;
        Ok(taken.map(|file| Claim::Ours { file, place, name: name.to_owned() }))
    }

    /// Whether another memtide managed the guest at the last attempt.
    #[must_use]
    pub fn is_anothers(&self, guest: &GuestId) -> bool {
        matches!(self.known.get(guest), Some(Claim::Another { .. }))
    }

    /// Gives up the claims of guests that have ended.
    pub fn keep_only(&mut self, alive: impl Fn(&GuestId) -> bool) {
        self.known.retain(|guest, _| alive(guest));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Self::Ours { file, place, name } = self {
            // Removed only while it is locked, and only if it is still this daemon's own file. The
            // next sweep removes a file that stays behind.
            if place.is_at(file, name) {
                let _stays = unlinkat(&place.0, name.as_str(), AtFlags::empty());
            }
        }
    }
}

/// The directory of the claims. Only this user may change it, because anybody else could choose which files are opened and removed.
#[derive(Debug)]
struct Place(OwnedFd);

impl Place {
    /// Opens `dir`, and makes it if it is missing.
    fn open(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = openat(CWD, dir, flags, Mode::empty())?;
        let there = fstat(&place)?;
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
        Ok(Self(place))
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

/// Removes the claims that nobody holds: those of killed daemons.
fn sweep(place: &Arc<Place>) {
    let Ok(claims) = Dir::read_from(&place.0) else { return };
    for claim in claims.flatten() {
        let Ok(name) = claim.file_name().to_str() else { continue };
        // If nobody has locked it, dropping it removes it. Other files are left alone.
        if let Ok(file) = place.file(name, OFlags::RDONLY)
            && file.try_lock().is_ok()
        {
            drop(Claim::Ours { file, place: Arc::clone(place), name: name.to_owned() });
        }
    }
}

/// Locks the file `name`, or returns the process that has locked it.
fn take(place: &Place, name: &str) -> io::Result<Result<File, u32>> {
    loop {
        let mut file = place.file(name, OFlags::RDWR | OFlags::CREATE)?;
        match file.try_lock() {
            Ok(()) if place.is_at(&file, name) => {
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
        let (mut first, mut second) = (Claims::at(dir.path()), Claims::at(dir.path()));
        first.claim(&guest(1), 5, Moment::default()).unwrap();
        second.claim(&guest(2), 6, Moment::default()).unwrap();
        drop(second);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, ["5-1"]);
    }

    #[test]
    fn a_guest_is_managed_by_one_and_by_the_next_when_that_ends() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("claims");
        let at = Moment::from_millis;
        let (mut first, mut second) = (Claims::at(&dir), Claims::at(&dir));
        assert_eq!(first.claim(&guest(1), 7, at(0)), Ok(()));
        assert_eq!(second.claim(&guest(1), 7, at(0)), Err(std::process::id()));
        assert_eq!(second.claim(&guest(2), 7, at(0)), Ok(()), "another process with the same number");
        drop(first);
        assert_eq!(second.claim(&guest(1), 7, at(500)), Err(std::process::id()), "not asked again yet");
        assert_eq!(second.claim(&guest(1), 7, at(1000)), Ok(()));
        second.keep_only(|_| false);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_file_that_a_killed_daemon_left_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("7-1"), "4711").unwrap();
        assert_eq!(Claims::at(dir.path()).claim(&guest(1), 7, Moment::default()), Ok(()));
    }

    #[test]
    fn without_a_directory_guests_are_managed_all_the_same() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(Claims::at(file.path()).claim(&guest(1), 7, Moment::default()), Ok(()));
    }

    #[test]
    fn nothing_but_files_of_the_directory_itself_is_opened_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (place, outside) = (dir.path().join("claims"), dir.path().join("outside"));
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o700)).unwrap();
        fs::write(&outside, "").unwrap();
        symlink(&outside, place.join("5-1")).unwrap();
        rustix::fs::mknodat(CWD, place.join("6-1"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        let mut claims = Claims::at(&place);
        // A daemon that waited for a writer of the pipe would wait forever.
        for (pid, start) in [(5, 1), (6, 1), (7, 1)] {
            assert_eq!(claims.claim(&guest(start), pid, Moment::default()), Ok(()));
            claims.keep_only(|_| false);
        }
        assert!(outside.exists() && place.join("5-1").is_symlink() && place.join("6-1").exists());
    }

    #[test]
    fn a_directory_of_others_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (place, behind) = (dir.path().join("claims"), dir.path().join("behind"));
        let file = place.join("17-4");
        fs::create_dir(&place).unwrap();
        fs::write(&file, "").unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(Claims::at(&place).claim(&guest(1), 7, Moment::default()), Ok(()));
        fs::set_permissions(&place, Permissions::from_mode(0o700)).unwrap();
        symlink(&place, &behind).unwrap();
        assert_eq!(Claims::at(&behind).claim(&guest(1), 7, Moment::default()), Ok(()));
        assert!(file.exists(), "nothing was swept");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "nothing was made");
    }
}
