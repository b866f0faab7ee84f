#![allow(unsafe_code, reason = "memory is mapped here, and nowhere else")]
//! The memory that is touched.
//!
//! **Rule.** At the start, address space is reserved for the largest size; this costs nothing. A page costs memory once it is
//! filled. Memory is given back in whole pages from the end. All accesses are atomic and relaxed: another process may map the
//! same file, and no access may be optimised away.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use memtide_model::Bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::content::{PAGE, WORDS};

/// The kind of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private pages of 4 KiB.
    Anonymous,
    /// Private memory with transparent huge pages, if the kernel offers them.
    Huge,
    /// Shared memory outside any file system.
    Shared,
    /// A mapped file.
    File(PathBuf),
    /// A file, read and written through the page cache.
    Cache(PathBuf),
}

impl Kind {
    /// The path of the file, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) | Self::Cache(path) => Some(path),
            Self::Anonymous | Self::Huge | Self::Shared => None,
        }
    }
}

/// Memory of one kind.
#[derive(Debug)]
pub struct Memory {
    kind: Kind,
    mapping: Option<Mapping>,
    file: Option<File>,
    /// The file is read-only, or its size cannot change.
    fixed: bool,
    /// The bytes that the file held before.
    found: u64,
}

impl Memory {
    /// Reserves room for `most` bytes without using any. Creates a missing file if it may.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn reserve(kind: Kind, most: Bytes) -> io::Result<Self> {
        let length = usize::try_from(most.get()).map_err(io::Error::other)?.next_multiple_of(PAGE).max(PAGE);
        let mut memory = Self { mapping: None, file: None, fixed: false, found: 0, kind };
        match &memory.kind {
            Kind::Anonymous | Kind::Huge => {
                let mapping = Mapping::anonymous(length)?;
                let huge = memory.kind == Kind::Huge;
                // An error means that the kernel has no huge pages: there are none to use or to avoid.
                let _ = mapping.advise(
                    0,
                    length,
                    if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage },
                );
                memory.mapping = Some(mapping);
            }
            Kind::Shared => {
                let file = File::from(memfd_create("memtide-load", MemfdFlags::CLOEXEC)?);
                memory.mapping = Some(Mapping::file(&file, length)?);
                memory.file = Some(file);
            }
            Kind::File(path) => {
                let file =
                    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
                memory.found = file.metadata()?.len();
                memory.mapping = Some(Mapping::file(&file, length)?);
                memory.file = Some(file);
            }
            Kind::Cache(path) => {
                let writable =
                    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
                let file = match writable {
                    Err(error) if read_only(&error) => {
                        memory.fixed = true;
                        File::open(path)?
                    }
                    other => other?,
                };
                memory.fixed |= file.metadata()?.file_type().is_block_device();
                memory.found = if memory.fixed { most.get() } else { file.metadata()?.len() };
                memory.file = Some(file);
            }
        }
        Ok(memory)
    }

    /// The most bytes that it can hold.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        self.mapping.as_ref().map_or(Bytes::MAX, |mapping| Bytes::new(mapping.length as u64))
    }

    /// The bytes in the file when it was opened; 0 without a file.
    #[must_use]
    pub const fn found(&self) -> u64 {
        self.found
    }

    /// Whether it can neither be filled nor change its size.
    #[must_use]
    pub const fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// The words of the first `pages` pages, if they are mapped.
    ///
    /// # Panics
    /// If that is more than the reserved size.
    #[must_use]
    pub fn words(&self, pages: u64) -> Option<&[AtomicU64]> {
        self.mapping.as_ref().map(|mapping| mapping.words(pages))
    }

    /// All reserved words; none if they are not mapped.
    #[must_use]
    pub fn all_words(&self) -> &[AtomicU64] {
        self.mapping.as_ref().map_or(&[], |mapping| mapping.words((mapping.length / PAGE) as u64))
    }

    /// The file, if it is accessed through the page cache.
    #[must_use]
    pub const fn cached(&self) -> Option<&File> {
        match self.kind {
            Kind::Cache(_) => self.file.as_ref(),
            _ => None,
        }
    }

    /// The file, if it is mapped from a file system.
    #[must_use]
    pub const fn mapped_file(&self) -> Option<&File> {
        match self.kind {
            Kind::File(_) => self.file.as_ref(),
            _ => None,
        }
    }

    /// Extends the file to at least `bytes`, so that its pages can be touched.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn extend(&self, bytes: u64) -> io::Result<()> {
        match &self.file {
            Some(file) if !self.fixed && file.metadata()?.len() < bytes => file.set_len(bytes),
            _ => Ok(()),
        }
    }

    /// Returns the pages from `from` to `to` to the kernel; meanwhile, nobody may touch them.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn give_back(&self, from: u64, to: u64) -> io::Result<()> {
        let (start, end) = (from * PAGE as u64, to * PAGE as u64);
        match (&self.kind, &self.file, &self.mapping) {
            _ if start >= end || self.fixed => Ok(()),
            (Kind::Anonymous | Kind::Huge, _, Some(mapping)) => {
                let place = |bytes: u64| usize::try_from(bytes).map_err(io::Error::other);
                mapping.advise(place(start)?, place(end - start)?, Advice::LinuxDontNeed)
            }
            (Kind::Cache(_), Some(file), _) => {
                rustix::fs::fadvise(
                    file,
                    start,
                    std::num::NonZeroU64::new(end - start),
                    rustix::fs::Advice::DontNeed,
                )?;
                Ok(())
            }
            (_, Some(file), _) => Ok(fallocate(
                file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                start,
                end - start,
            )?),
            _ => Ok(()),
        }
    }
}

fn read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// A part of this process's address space.
#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: this value owns the mapping until it is dropped, and all accesses are atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn anonymous(length: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        Ok(Self { start: start.cast(), length })
    }

    fn file(file: &File, length: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above; other processes can change the file, but cannot break atomic accesses.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, 0)? };
        Ok(Self { start: start.cast(), length })
    }

    fn words(&self, pages: u64) -> &[AtomicU64] {
        let words = usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(WORDS);
        assert!(words <= self.length / 8, "{pages} pages of {} bytes", self.length);
        // SAFETY: the mapping has at least this length, is page-aligned, lives as long as `self`, and is accessed only
        // through atomics; every bit pattern is a valid number.
        unsafe { std::slice::from_raw_parts(self.start.cast::<AtomicU64>(), words) }
    }

    fn advise(&self, offset: usize, length: usize, advice: Advice) -> io::Result<()> {
        assert!(offset + length <= self.length, "within the mapping");
        // SAFETY: the range lies within our own mapping. Pages given back read as zeros afterwards, which are valid numbers.
        unsafe { Ok(madvise(self.start.add(offset).cast(), length, advice)?) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no slice of it is left, since slices borrow from `self`.
        if let Err(error) = unsafe { munmap(self.start.cast(), self.length) } {
            eprintln!("memtide-load: munmap: {error}");
        }
    }
}
