//! Files that a user of the host has named.
//!
//! **Problem.** An open waits for the other end of a pipe. A device may act on it: an open of `/dev/watchdog` starts the watchdog.
//!
//! **Rule.** What a path leads to is looked at before it is opened: `O_PATH` opens nothing. Only a regular file is opened then, for reading,
//! and the same one, through its descriptor. Without blocking: the user may hold a lease of it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};

/// Opens the regular file that `path` leads to, for reading.
///
/// # Errors
/// If there is no file, if it may not be read, or if it is not a regular one.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let seen = SeenFile::at(path, OFlags::empty())?;
    if seen.kind() != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(seen.path(), flags, Mode::empty())?.into())
}

/// A file that was looked at and not opened. Its user may exchange files and directories at any moment: [`SeenFile::path`] leads to this file.
#[derive(Debug)]
pub struct SeenFile {
    file: OwnedFd,
    status: Stat,
}

impl SeenFile {
    /// The file that `path` leads to; with [`OFlags::NOFOLLOW`] among `more`, the link itself if it is one.
    ///
    /// # Errors
    /// If there is no file, or if it may not be reached.
    pub fn at(path: &Path, more: OFlags) -> io::Result<Self> {
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | more, Mode::empty())?;
        let status = rustix::fs::fstat(&file)?;
        Ok(Self { file, status })
    }

    /// Its type.
    #[must_use]
    pub const fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.status.st_mode)
    }

    /// Its owner.
    #[must_use]
    pub const fn user(&self) -> u32 {
        self.status.st_uid
    }

    /// The path that leads to this file and no other one, as long as this lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

/// The first `most` bytes of the regular file that `path` leads to.
///
/// # Errors
/// As of [`open_regular`], or if it cannot be read.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The most symbolic links on the way to one file, as in the kernel.
const MOST_LINKS: usize = 40;

/// The place of `path` below the directory `root`. Links lead to places below `root`, as for a process whose root it is. Nothing in /proc
/// is such a place: links there mean other files to each process.
///
/// # Errors
/// If the path leads above `root` or into /proc, or if a link cannot be read.
pub fn below(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "not a path below the root");
    let (mut done, mut links) = (PathBuf::new(), 0);
    let mut rest: Vec<PathBuf> = parts(path);
    while let Some(part) = rest.pop() {
        match part.components().next() {
            Some(Component::RootDir) => done = PathBuf::new(),
            Some(Component::ParentDir) if !done.pop() => return Err(refused()),
            Some(Component::Normal(name)) => {
                let here = done.join(name);
                if here == Path::new("proc") {
                    return Err(refused());
                }
                match std::fs::read_link(root.join(&here)) {
                    Ok(_) if links == MOST_LINKS => return Err(refused()),
                    Ok(link) => {
                        links += 1;
                        rest.extend(parts(&link));
                    }
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => done = here,
                    Err(error) => return Err(error),
                }
            }
            _ => {}
        }
    }
    Ok(root.join(done))
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn regular_files_are_read_and_nothing_else_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "content").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("/dev/null", at("device")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(read_regular(&at("file"), 4).unwrap(), b"cont");
        assert_eq!(read_regular(&at("link"), 400).unwrap(), b"content");
        for name in ["device", "pipe", ""] {
            let error = open_regular(&at(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}: {error}");
        }
        assert_eq!(open_regular(&at("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_was_looked_at_stays_the_same_whatever_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("directory")).unwrap();
        for (name, text) in [("directory/file", "the first"), ("other", "another")] {
            fs::write(at(name), text).unwrap();
        }
        let seen = SeenFile::at(&at("directory/file"), OFlags::NOFOLLOW).unwrap();
        fs::rename(at("other"), at("directory/file")).unwrap();
        assert_eq!(fs::read_to_string(seen.path()).unwrap(), "the first");
        fs::rename(at("directory"), at("moved")).unwrap();
        symlink("/etc", at("directory")).unwrap();
        assert_eq!(fs::read_to_string(seen.path()).unwrap(), "the first");
        symlink(at("moved/file"), at("link")).unwrap();
        let link = SeenFile::at(&at("link"), OFlags::NOFOLLOW).unwrap();
        assert_eq!(link.kind(), FileType::Symlink);
    }

    #[test]
    fn a_path_stays_below_the_root_of_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("var/lib")).unwrap();
        fs::create_dir(at("run")).unwrap();
        fs::write(at("run/file"), "inside").unwrap();
        symlink("/run", at("var/run")).unwrap();
        symlink("../../run/file", at("var/lib/link")).unwrap();
        symlink("/../run/file", at("above")).unwrap();
        symlink("circle", at("circle")).unwrap();
        symlink("/proc/self/fd/0", at("passed")).unwrap();
        for path in ["/run/file", "/var/run/file", "/var/lib/link", "var/lib/../run/file", "./run//file"] {
            assert_eq!(below(dir.path(), Path::new(path)).unwrap(), at("run/file"), "{path}");
        }
        for path in ["../file", "/above", "circle", "passed", "/proc/self/fd/0", "/missing", "/run/file/x"] {
            assert!(below(dir.path(), Path::new(path)).is_err(), "{path}");
        }
    }
}
