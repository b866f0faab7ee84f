//! A cgroup's directory that stays open.
//!
//! **Problem.** A path names another cgroup as soon as somebody removes the cgroup and makes a new one of the same name.
//!
//! **Rule.** All files of a held cgroup are opened below its open directory. Once the cgroup is removed, its files are missing, even if its
//! path names a new cgroup.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, open, openat};
use rustix::io::Errno;

use crate::source::{Scratch, Source};
use crate::text::only;
use crate::{HostError, ParseError};

/// An open directory, and the path that it had when it was opened.
#[derive(Debug)]
pub(super) struct Held {
    dir: OwnedFd,
    path: PathBuf,
}

/// The most levels of cgroups below a guest's cgroup that are searched for processes. Each level needs an open file.
const DEEPEST: usize = 16;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Held {
    pub(super) fn open(path: &Path) -> Result<Self, HostError> {
        match open(path, DIRECTORY, Mode::empty()) {
            Ok(dir) => Ok(Self { dir, path: path.to_owned() }),
            Err(errno) => Err(HostError::read(path, errno.into())),
        }
    }

    /// The cgroup `name` below it.
    fn below(&self, name: &Path) -> Result<Self, HostError> {
        let path = self.path.join(name);
        match openat(&self.dir, name, DIRECTORY.union(OFlags::NOFOLLOW), Mode::empty()) {
            Ok(dir) => Ok(Self { dir, path }),
            Err(errno) => Err(HostError::read(&path, errno.into())),
        }
    }

    /// The path of one of its files, for people.
    pub(super) fn path_of(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    pub(super) fn read<T>(
        &self,
        file: &str,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, HostError> {
        let path = self.path_of(file);
        match openat(&self.dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(open) => Source::of(path, open.into()).parse(&mut Scratch::default(), parse),
            Err(errno) => Err(HostError::read(&path, errno.into())),
        }
    }

    pub(super) fn open_to_write(&self, file: &str) -> io::Result<File> {
        Ok(openat(&self.dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
    }

    /// Whether `pid` is the only process in it and in all cgroups below it. A tree that is too deep to be read has others.
    pub(super) fn is_only_of(&self, pid: u32) -> Result<bool, HostError> {
        let mut is_there = false;
        Ok(self.has_no_other(pid, &mut is_there, DEEPEST)? && is_there)
    }

    fn has_no_other(&self, pid: u32, is_there: &mut bool, levels: usize) -> Result<bool, HostError> {
        let pids = match self.read("cgroup.procs", numbers) {
            // The processes of a threaded cgroup are those of the cgroup above it.
            Err(error) if error.is_unsupported() => Vec::new(),
            pids => pids?,
        };
        *is_there |= !pids.is_empty();
        if pids.iter().any(|other| *other != u64::from(pid)) {
            return Ok(false);
        }
        for name in self.children()? {
            let below = match self.below(&name) {
                // It was removed meanwhile: it had no processes.
                Err(error) if error.is_unsupported() => continue,
                below => below?,
            };
            if levels == 0 || !below.has_no_other(pid, is_there, levels - 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The names of the cgroups right below it.
    fn children(&self) -> Result<Vec<PathBuf>, HostError> {
        let failed = |errno: Errno| HostError::read(&self.path, errno.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).into());
            }
        }
        Ok(names)
    }
}

fn numbers(text: &str) -> Result<Vec<u64>, ParseError> {
    text.lines().map(|line| only("cgroup.procs", line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn cgroup(procs: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.procs"), procs).unwrap();
        dir
    }

    #[test]
    fn a_cgroup_with_two_processes_belongs_to_neither() {
        let is_only_of_7 = |dir: &tempfile::TempDir| Held::open(dir.path()).unwrap().is_only_of(7).unwrap();
        for (procs, only) in [("7\n", true), ("8\n", false), ("7\n8\n", false), ("", false)] {
            assert_eq!(is_only_of_7(&cgroup(procs)), only, "{procs:?}");
        }
        for (below, only) in [("", true), ("7\n", true), ("8\n", false)] {
            let dir = cgroup("7\n");
            fs::create_dir_all(dir.path().join("vcpus/0")).unwrap();
            fs::write(dir.path().join("vcpus/0/cgroup.procs"), below).unwrap();
            assert_eq!(is_only_of_7(&dir), only, "below: {below:?}");
        }
        for (levels, only) in [(DEEPEST, true), (DEEPEST + 1, false)] {
            let dir = cgroup("7\n");
            fs::create_dir_all(dir.path().join("x/".repeat(levels))).unwrap();
            assert_eq!(is_only_of_7(&dir), only, "{levels} levels");
        }
    }

    #[test]
    fn a_held_cgroup_stays_the_same_whatever_its_path_names() {
        let dir = cgroup("");
        let path = dir.path().join("vm");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("cgroup.procs"), "7\n").unwrap();
        let held = Held::open(&path).unwrap();
        fs::rename(&path, dir.path().join("old")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("cgroup.procs"), "8\n").unwrap();
        assert!(held.is_only_of(7).unwrap());
        assert!(!Held::open(&path).unwrap().is_only_of(7).unwrap());
    }
}
