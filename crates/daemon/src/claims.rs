//! Which memtide manages a guest, where several run on one host.
//!
//! **Problem.** Two managers that move one balloon fight. Each may have a configuration, a socket and a journal of its own, so
//! that neither of these tells them of each other.
//!
//! **Rule.** Whoever manages a guest holds a lock on a file that is named after the guest's process and its start, in a
//! directory that all daemons of one user share. The kernel drops the lock with the process that holds it. A guest that another
//! one has claimed is left alone, and asked for again [`BETWEEN_TRIES`] later.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memtide_model::{GuestId, Moment, Span};
use tracing::warn;

/// Between two attempts at a guest that another memtide manages.
const BETWEEN_TRIES: Span = Span::from_secs(1);
/// Where root's daemons claim guests.
const OF_ROOT: &str = "/run/lock/memtide";

/// The guests that this daemon manages.
#[derive(Debug)]
pub struct Claims {
    dir: PathBuf,
    known: BTreeMap<GuestId, Claim>,
    /// The directory cannot be used, which was said.
    blind: bool,
    /// What killed daemons left behind was removed.
    swept: bool,
}

#[derive(Debug)]
enum Claim {
    Ours { file: File, path: PathBuf },
    Another { pid: u32, tried_at: Moment },
}

impl Claims {
    /// No claims yet, in the directory that this user's daemons share.
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
        Self { dir: dir.to_owned(), known: BTreeMap::new(), blind: false, swept: false }
    }

    /// Claims a guest, or says whose it is. Where claims cannot be made at all, that is said once, and nobody else is seen.
    pub fn claim(&mut self, guest: &GuestId, pid: u32, now: Moment) -> Result<(), u32> {
        match self.known.get(guest) {
            Some(Claim::Ours { .. }) => return Ok(()),
            Some(Claim::Another { pid, tried_at }) if now.since(*tried_at) < BETWEEN_TRIES => {
                return Err(*pid);
            }
            _ => {}
        }
        if !std::mem::replace(&mut self.swept, true) {
            sweep(&self.dir);
        }
        let path = self.dir.join(format!("{pid}-{}", guest.start()));
        match take(&self.dir, &path) {
            Ok(Ok(file)) => {
                self.known.insert(guest.clone(), Claim::Ours { file, path });
                Ok(())
            }
            Ok(Err(pid)) => {
                self.known.insert(guest.clone(), Claim::Another { pid, tried_at: now });
                Err(pid)
            }
            Err(error) => {
                if !self.blind {
                    warn!(
                        "{}: guests cannot be claimed here, so another memtide would not be noticed: {error}",
                        self.dir.display()
                    );
                }
                self.blind = true;
                Ok(())
            }
        }
    }

    /// Whether another memtide managed the guest when it was last asked for.
    #[must_use]
    pub fn is_anothers(&self, guest: &GuestId) -> bool {
        matches!(self.known.get(guest), Some(Claim::Another { .. }))
    }

    /// Gives up the claims of guests that are gone.
    pub fn keep_only(&mut self, alive: impl Fn(&GuestId) -> bool) {
        self.known.retain(|guest, _| alive(guest));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Self::Ours { file, path } = self {
            // Only while it is locked: nobody else's file is removed. One that stays behind is swept away by the next.
            if is_at(file, path) {
                let _stays = fs::remove_file(path);
            }
        }
    }
}

/// Removes the claims that nobody holds any more: those of daemons that were killed.
fn sweep(dir: &Path) {
    let Ok(claims) = fs::read_dir(dir) else { return };
    for path in claims.flatten().map(|claim| claim.path()) {
        // Dropped, and so removed, where nobody has locked it. Of any other it is not for us to say anything.
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
        {
            drop(Claim::Ours { file, path });
        }
    }
}

/// Locks the file `path`, or says which process has locked it.
fn take(dir: &Path, path: &Path) -> io::Result<Result<File, u32>> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if fs::metadata(dir)?.uid() != rustix::process::getuid().as_raw() {
        return Err(io::Error::other("the directory belongs to somebody else"));
    }
    loop {
        let options = OpenOptions::new().read(true).write(true).create(true).mode(0o600).clone();
        let mut file = options.open(path)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => {
                file.set_len(0)?;
                write!(file, "{}", std::process::id())?;
                return Ok(Ok(file));
            }
            // The one who had locked it removed it in between.
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.take(16).read_to_string(&mut text)?;
                return Ok(Err(text.trim().parse().unwrap_or(0)));
            }
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
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
}
