//! Guest RAM that is a shared memory file.
//!
//! A VMM that shares guest RAM with other processes (vhost-user, virtiofs, UML) keeps it in a memfd, or in a file on tmpfs or hugetlbfs.
//! The blocks of such a file are memory. The blocks of a file on a disk are not, so files on other filesystems are left out. The files are
//! found through the open file descriptors in `/proc/PID/fd`, which also reach deleted files and files of another mount namespace. A file
//! that the process has not open is not its memory, whatever its command line says.
//!
//! No file stays open here: an open descriptor would keep the memory of a guest that has ended. Each file is recognised by its device and
//! inode, so a descriptor that was closed and reused is not mistaken for it. Only [`SharedRam::find`] asks file systems
//! what they are, and one that a user provides may never answer: call it with a time budget ([`crate::within`]).

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use memtide_model::{Bytes, Space, TmpfsId};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatVfs, StatxFlags, makedev};

use crate::process::gone;
use crate::{HostError, Root};

/// `st_blocks` counts in these units, whatever the filesystem.
const BLOCK: u64 = 512;
/// Descriptors to examine in one process.
const MAX_DESCRIPTORS: usize = 65_536;
/// The most files of one process: each is looked at whenever the process is weighed. A VMM has one for each piece of RAM.
const MAX_FILES: usize = 256;
/// `TMPFS_MAGIC`.
const TMPFS: u64 = 0x0102_1994;
/// The same and `HUGETLBFS_MAGIC`: filesystems whose blocks are memory.
const MEMORY_FILESYSTEMS: [u64; 2] = [TMPFS, 0x9584_58f6];
/// `RAMFS_MAGIC`.
const RAMFS: u64 = 0x8584_58f6;
/// What the name of a memfd begins with. It is in a tmpfs of the kernel's own, which has no limit.
pub(crate) const MEMFD: &str = "/memfd:";

/// The shared memory files that hold a guest's RAM, each listed once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedRam {
    files: BTreeMap<FileId, File>,
    /// The tmpfs that can have a limit and in which the largest files of these are.
    tmpfs: Option<InTmpfs>,
}

/// A way to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    path: PathBuf,
    /// It consists of huge pages of a pool.
    is_huge: bool,
}

/// What files hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) all: Bytes,
    /// The part of it in pools of huge pages.
    pub(crate) huge: Bytes,
}

/// The files in one tmpfs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InTmpfs {
    /// One of them.
    file: FileId,
    path: PathBuf,
    /// What they can hold together: their sizes.
    hold: Bytes,
}

/// A file, whatever its names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// Its file system, as `stat` numbers it.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// What is resident of a file in the mappings of one process, without the pages that became the process's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePart {
    /// The part that is guest RAM.
    pub ram: Bytes,
    /// The rest.
    pub beside_ram: Bytes,
}

impl FilePart {
    /// Both together.
    #[must_use]
    pub const fn all(self) -> Bytes {
        self.ram.saturating_add(self.beside_ram)
    }
}

impl SharedRam {
    /// Finds the shared memory files that a process has open: all its memfds, the named files, and the files in a named directory (the
    /// `mem-path` of `memory-backend-file` can be either). If they are more than 256, only as many are found.
    ///
    /// # Errors
    /// [`HostError::Gone`] if there is no such process; another error if its descriptors cannot be listed.
    pub fn find(root: &Root, pid: u32, named: &[PathBuf]) -> Result<Self, HostError> {
        let directory = root.process(pid, "fd");
        let entries =
            fs::read_dir(&directory).map_err(|source| gone(pid, HostError::read(&directory, source)))?;
        let (mut found, mut tmpfs) = (Self::default(), BTreeMap::new());
        for entry in entries.flatten().take(MAX_DESCRIPTORS) {
            let path = entry.path();
            // A descriptor that was closed in the meantime has no link: nothing to count.
            if let Ok(link) = fs::read_link(&path)
                && is_ram(&link, named)
            {
                found.add(path, !link.to_string_lossy().starts_with(MEMFD), &mut tmpfs);
            }
        }
        found.tmpfs = tmpfs.into_values().max_by_key(|files| files.hold);
        Ok(found)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The tmpfs that holds most of the files, if they can hold at least half of a guest's `full` memory: a VMM may have small files
    /// there that are something else. `None` otherwise, and for memfds and huge pages: they have no limit of this kind.
    #[must_use]
    pub fn tmpfs(&self, full: Bytes) -> Option<TmpfsId> {
        let files = self.tmpfs.as_ref().filter(|files| files.hold.saturating_add(files.hold) >= full)?;
        Some(TmpfsId(files.file.device))
    }

    /// The space of this tmpfs, if it has a limit.
    ///
    /// # Errors
    /// If the file cannot be looked at. [`HostError::Gone`] if it is no longer open in the process `pid`.
    pub fn space(&self, pid: u32) -> Result<Option<Space>, HostError> {
        let Some(InTmpfs { file, path, .. }) = &self.tmpfs else { return Ok(None) };
        let Some(seen) = Seen::at(path).filter(|seen| seen.id == *file) else {
            return Err(HostError::Gone { pid });
        };
        let stat = rustix::fs::fstatvfs(&seen.file).map_err(|error| HostError::read(path, error.into()))?;
        Ok(space(&stat))
    }

    /// The files.
    pub fn files(&self) -> impl Iterator<Item = FileId> {
        self.files.keys().copied()
    }

    /// The memory that the files hold. A file that is gone holds nothing.
    #[must_use]
    pub fn blocks(&self) -> Bytes {
        self.blocks_beside(&BTreeMap::new()).all
    }

    /// The memory that the files hold, without those that count `for_others`.
    pub(crate) fn blocks_beside(&self, for_others: &BTreeMap<FileId, FilePart>) -> Blocks {
        let mut blocks = Blocks::default();
        for (id, file) in self.files.iter().filter(|(id, _)| !for_others.contains_key(id)) {
            let Some(seen) = Seen::at(&file.path).filter(|seen| seen.id == *id) else { continue };
            blocks.all = blocks.all.saturating_add(seen.blocks);
            if file.is_huge {
                blocks.huge = blocks.huge.saturating_add(seen.blocks);
            }
        }
        blocks
    }

    /// Adds a file, also to those of its tmpfs, by its device.
    fn add(&mut self, path: PathBuf, has_mount: bool, tmpfs: &mut BTreeMap<u64, InTmpfs>) {
        let Some(seen) = Seen::at(&path) else { return };
        if self.files.len() == MAX_FILES || self.files.contains_key(&seen.id) {
            return;
        }
        let Some(kind) = kind(&seen.file).filter(|kind| MEMORY_FILESYSTEMS.contains(kind)) else { return };
        if kind == TMPFS && has_mount {
            let first = || InTmpfs { file: seen.id, path: path.clone(), hold: Bytes::ZERO };
            let files = tmpfs.entry(seen.id.device).or_insert_with(first);
            files.hold = files.hold.saturating_add(seen.size);
        }
        self.files.insert(seen.id, File { path, is_huge: kind != TMPFS });
    }
}

/// Whether a descriptor that links to `link` is a memfd or one of the named files.
fn is_ram(link: &Path, named: &[PathBuf]) -> bool {
    link.to_string_lossy().starts_with(MEMFD) || named.iter().any(|name| is_named(link, name))
}

/// Whether a file, as the kernel shows it (possibly as deleted), is `name` or lies in that directory.
pub(crate) fn is_named(shown: &Path, name: &Path) -> bool {
    let shown = shown.to_string_lossy();
    let path = shown.strip_suffix(" (deleted)").unwrap_or(&shown);
    !name.as_os_str().is_empty() && Path::new(path).starts_with(name)
}

/// A regular file as the kernel knows it.
struct Seen {
    /// Opened for nothing but looking at it.
    file: OwnedFd,
    id: FileId,
    size: Bytes,
    blocks: Bytes,
}

impl Seen {
    /// The file that the path of a descriptor leads to. Does not ask its file system.
    fn at(path: &Path) -> Option<Self> {
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let status = rustix::fs::statx(&file, c"", how, StatxFlags::BASIC_STATS).ok()?;
        if FileType::from_raw_mode(status.stx_mode.into()) != FileType::RegularFile {
            return None;
        }
        let device = makedev(status.stx_dev_major, status.stx_dev_minor);
        Some(Self {
            file,
            id: FileId { device, inode: status.stx_ino },
            size: Bytes::new(status.stx_size),
            blocks: Bytes::new(status.stx_blocks.saturating_mul(BLOCK)),
        })
    }
}

/// Whether a file or directory is on a file system that keeps its blocks outside of memory.
///
/// # Errors
/// If it cannot be looked at.
pub(crate) fn is_on_disk(path: &Path) -> std::io::Result<bool> {
    let kind = u64::try_from(rustix::fs::statfs(path)?.f_type).ok();
    Ok(kind.is_some_and(|kind| kind != RAMFS && !MEMORY_FILESYSTEMS.contains(&kind)))
}

/// The kind of the file system of a file, by its magic number.
fn kind(file: &OwnedFd) -> Option<u64> {
    rustix::fs::fstatfs(file).ok().and_then(|filesystem| u64::try_from(filesystem.f_type).ok())
}

/// The space of a file system; `None` if it has no limit, as a tmpfs with `size=0`.
fn space(stat: &StatVfs) -> Option<Space> {
    let bytes = |blocks: u64| Bytes::new(blocks.saturating_mul(stat.f_frsize));
    (stat.f_blocks > 0).then(|| Space { size: bytes(stat.f_blocks), free: bytes(stat.f_bavail) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::MIB;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_memfd_is_counted_once_and_let_go() {
        let (root, pid) = (Root::system(), std::process::id());
        let before = SharedRam::find(&root, pid, &[]).unwrap().blocks();
        let mut file = File::from(memfd_create("memtide-test", MemfdFlags::CLOEXEC).unwrap());
        let again = file.try_clone().unwrap();
        file.write_all(&vec![1; 4 * usize::try_from(MIB).unwrap()]).unwrap();
        let ram = SharedRam::find(&root, pid, &[]).unwrap();
        assert_eq!(ram.blocks(), before.saturating_add(Bytes::from_mib(4)));
        let status = file.metadata().unwrap();
        let id = FileId { device: status.dev(), inode: status.ino() };
        assert!(ram.files().any(|file| file == id));
        assert_eq!(
            ram.blocks_beside(&BTreeMap::from([(id, FilePart::default())])).all,
            before,
            "it counts elsewhere"
        );
        drop((file, again));
        assert_eq!(ram.blocks(), before);
    }

    #[test]
    fn files_on_a_disk_are_no_memory_and_a_memfd_is_in_no_tmpfs_with_a_limit() {
        let kind = |path: &str| Seen::at(Path::new(path)).and_then(|seen| kind(&seen.file));
        assert!(kind("/proc/self/exe").is_none_or(|kind| !MEMORY_FILESYSTEMS.contains(&kind)));
        assert_eq!(kind("/nowhere"), None);
        assert!(is_on_disk(Path::new("/nowhere")).is_err());
        let _file = memfd_create("memtide-limit", MemfdFlags::CLOEXEC).unwrap();
        let (root, pid) = (Root::system(), std::process::id());
        let ram = SharedRam::find(&root, pid, &[]).unwrap();
        assert_eq!((ram.tmpfs(Bytes::ZERO), ram.space(pid).unwrap()), (None, None));
    }

    #[test]
    fn the_space_of_a_files_tmpfs_is_read_and_a_closed_file_tells_nothing() {
        let directory = Path::new("/dev/shm");
        let file_system = rustix::fs::statfs(directory).unwrap();
        if u64::try_from(file_system.f_type) != Ok(TMPFS) || file_system.f_blocks == 0 {
            memtide_testing::skipped("/dev/shm is no tmpfs with a limit here");
            return;
        }
        let path = directory.join(format!("memtide-space-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(&[1; 4096]).unwrap();
        fs::remove_file(&path).unwrap();
        let (root, pid) = (Root::system(), std::process::id());
        let ram = SharedRam::find(&root, pid, std::slice::from_ref(&path)).unwrap();
        assert_eq!(ram.tmpfs(Bytes::new(2 * 4096)), Some(TmpfsId(file.metadata().unwrap().dev())));
        assert_eq!(ram.tmpfs(Bytes::new(2 * 4096 + 1)), None, "it holds too little to be the guest's memory");
        let space = ram.space(pid).unwrap().unwrap();
        assert!(space.free < space.size && !space.size.is_zero(), "{space}");
        drop(file);
        assert!(matches!(ram.space(pid), Err(HostError::Gone { .. })));
    }

    #[test]
    fn a_file_is_named_by_its_path_or_its_directory() {
        for (shown, name, expected) in [
            ("/dev/shm/ram", "/dev/shm/ram", true),
            ("/dev/shm/ram (deleted)", "/dev/shm/ram", true),
            ("/dev/hugepages/qemu_back_mem.ram.Xy (deleted)", "/dev/hugepages", true),
            ("/dev/shm/ram2", "/dev/shm/ram", false),
            ("/dev/shm/ram", "", false),
        ] {
            assert_eq!(is_named(Path::new(shown), Path::new(name)), expected, "{shown} {name}");
        }
    }

    #[test]
    fn an_ended_process_is_gone() {
        let found = SharedRam::find(&Root::system(), u32::MAX, &[]);
        assert!(matches!(found, Err(HostError::Gone { .. })));
    }
}
