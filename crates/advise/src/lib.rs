//! System calls about memory that no library of ours offers.
//!
//! **Problem.** The kernel splits a torn huge page at once if it is told that a part of it is cold (`MADV_COLD`). It also tells which memory
//! of a process is mapped in whole huge pages (`PAGEMAP_SCAN`). A process can let KSM merge all its memory (`PR_SET_MEMORY_MERGE`). The standard
//! library offers none of these calls, nor `swapon` and `swapoff`, nor do the libraries that memtide uses.
//!
//! **Rule.** Each call is a function, with all `unsafe` of its way. None reads or changes the contents of this process's memory. Addresses are
//! numbers here: they belong to another process, and nobody follows them.
#![deny(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The most ranges of one call of [`cold`], `UIO_MAXIOV` of the kernel.
pub const MOST_RANGES: usize = 1024;

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
pub const PAGEMAP_SCAN: u32 = 0xc060_6610;
/// The same in the type of the C library, which differs.
#[allow(clippy::cast_possible_wrap, clippy::cast_lossless, reason = "the bits count")]
const REQUEST: libc::Ioctl = PAGEMAP_SCAN as libc::Ioctl;
/// `PAGE_IS_PRESENT` and `PAGE_IS_HUGE` of the kernel's `linux/fs.h`.
const PRESENT: u64 = 1 << 3;
const HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Resident memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it is mapped in whole huge pages.
    pub is_whole: bool,
}

/// Tells the kernel that the memory in `ranges` of the process `process` (a pidfd) is cold. It splits the huge pages that are mapped there
/// in part or lie there in part. Returns the bytes that it has dealt with: fewer if a range cannot be advised.
///
/// # Errors
/// `ENOSYS` before Linux 5.10; `EPERM` without `CAP_SYS_NICE`, or without the right to look at the process; `ESRCH` if it has ended;
/// `EINVAL` for more than [`MOST_RANGES`], and if the first range is locked or not of the kind that can be cold.
#[allow(unsafe_code, reason = "a system call")]
pub fn cold(process: BorrowedFd<'_>, ranges: &[Range<u64>]) -> io::Result<u64> {
    let length = |range: &Range<u64>| usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
    let ranges: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(usize::try_from(range.start).unwrap_or(usize::MAX)),
            iov_len: length(range),
        })
        .collect();
    // SAFETY: the kernel reads `ranges.len()` entries of `ranges`, which live until it returns. Their addresses belong to `process`, and
    // this advice changes no contents of its memory.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            ranges.as_ptr(),
            ranges.len(),
            libc::MADV_COLD,
            0_u32,
        )
    };
    u64::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// Adds the resident memory of `range` to `runs`, from a process's open `pagemap`. Stops after about `most` runs. Returns the address where
/// the next scan must begin.
///
/// # Errors
/// `ENOTTY` before Linux 6.7.
#[allow(unsafe_code, reason = "a system call")]
pub fn scan(pagemap: BorrowedFd<'_>, range: Range<u64>, most: usize, runs: &mut Vec<Run>) -> io::Result<u64> {
    let mut regions = vec![Region::default(); most.max(1)];
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        start: range.start,
        end: range.end,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: regions.len() as u64,
        category_mask: PRESENT,
        return_mask: PRESENT | HUGE,
        ..Scan::default()
    };
    // SAFETY: the kernel reads and writes `scan`, and writes at most `vec_len` regions to `regions`. Both live until it returns.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), REQUEST, &raw mut scan) };
    let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
    let told = regions.iter().take(found);
    runs.extend(told.map(|told| Run { range: told.start..told.end, is_whole: told.categories & HUGE != 0 }));
    Ok(scan.walk_end)
}

/// `PR_SET_MEMORY_MERGE` of the kernel's `linux/prctl.h`.
const SET_MEMORY_MERGE: libc::c_int = 67;

/// Lets KSM merge all private anonymous memory of this process, present and to come. Processes that it starts, and a program that takes its place,
/// inherit this.
///
/// # Errors
/// `EINVAL` before Linux 6.4, and without KSM.
#[allow(unsafe_code, reason = "a system call")]
pub fn merge_all() -> io::Result<()> {
    let (on, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: the call takes numbers only. It changes no contents of memory.
    match unsafe { libc::prctl(SET_MEMORY_MERGE, on, unused, unused, unused) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The highest priority of a swap device (`SWAP_FLAG_PRIO_MASK` of the kernel's `linux/swap.h`).
pub const HIGHEST_PRIORITY: u16 = 0x7fff;
/// `SWAP_FLAG_PREFER` and `SWAP_FLAG_DISCARD` of the kernel's `linux/swap.h`.
const PREFER: u16 = 0x8000;
const DISCARD: libc::c_int = 0x1_0000;

/// Swaps to the device or file at `path`, which carries a swap signature, with this priority: at most [`HIGHEST_PRIORITY`]. The kernel discards the
/// whole of it now, and later what it needs no longer.
///
/// # Errors
/// `EINVAL` without a signature, and for a priority that is too high; `EBUSY` if it is swapped to already, or in use; `EPERM` without
/// `CAP_SYS_ADMIN`; `ENOENT` if there is no such file.
#[allow(unsafe_code, reason = "a system call")]
pub fn swap_on(path: &Path, priority: u16) -> io::Result<()> {
    if priority > HIGHEST_PRIORITY {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::c_int::from(PREFER | priority) | DISCARD;
    // SAFETY: the kernel reads `path` up to its end, and it lives until the call returns.
    match unsafe { libc::swapon(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads everything back that was swapped to `path`, and swaps to it no longer. This takes as long as it takes: a signal ends it only between two
/// processes. If the kernel runs out of memory meanwhile, it kills this process first.
///
/// # Errors
/// `EINVAL` if it is not swapped to; `ENOMEM` if there is no room for what it holds; `EINTR` after a signal: what is read back stays in memory;
/// `EPERM` without `CAP_SYS_ADMIN`.
#[allow(unsafe_code, reason = "a system call")]
pub fn swap_off(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the kernel reads `path` up to its end, and it lives until the call returns.
    match unsafe { libc::swapoff(path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    const PAGE: u64 = 4096;

    /// Whole pages of this process that are resident.
    fn resident(pages: usize) -> (Vec<u8>, Range<u64>) {
        let memory = vec![1_u8; (pages + 1) * 4096];
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(PAGE);
        let end = start + PAGE * pages as u64;
        (memory, start..end)
    }

    #[test]
    fn a_process_may_call_its_own_memory_cold_and_keeps_what_is_in_it() {
        let (memory, range) = resident(8);
        let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        match cold(process.as_fd(), &[range.clone(), range.clone()]) {
            Ok(done) => assert_eq!(done, 16 * PAGE),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "{error}"),
        }
        assert!(memory.iter().all(|byte| *byte == 1));
        assert!(cold(process.as_fd(), &vec![range; MOST_RANGES + 1]).is_err());
    }

    #[test]
    fn swap_calls_return_the_errors_of_the_kernel() {
        let nowhere = Path::new("/nowhere/at/all");
        // The kernel looks at the privilege first.
        let expected = [Some(libc::ENOENT), Some(libc::EPERM), Some(libc::ENOSYS)];
        for error in [swap_on(nowhere, 100).unwrap_err(), swap_off(nowhere).unwrap_err()] {
            assert!(expected.contains(&error.raw_os_error()), "{error}");
        }
        let too_high = swap_on(nowhere, HIGHEST_PRIORITY + 1).unwrap_err();
        assert_eq!(too_high.raw_os_error(), Some(libc::EINVAL));
        assert!(swap_on(Path::new("a\0b"), 0).is_err());
    }

    #[test]
    fn resident_memory_is_found_in_parts() {
        let (_memory, range) = resident(8);
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let mut runs = Vec::new();
        let end = match scan(pagemap.as_fd(), range.clone(), 16, &mut runs) {
            Ok(end) => end,
            Err(error) => return assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}"),
        };
        assert_eq!(end, range.end);
        let found: u64 = runs.iter().map(|run| run.range.end - run.range.start).sum();
        assert_eq!(found, 8 * PAGE, "{runs:?}");
    }
}
