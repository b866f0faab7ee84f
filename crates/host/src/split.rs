//! Makes the kernel split the torn huge pages of a process.
//!
//! **Problem.** The kernel splits torn huge pages when memory is short. Then it takes page cache, too, and a memory cgroup that plays the
//! host may be full long before.
//!
//! **Rule.** Memory of the process that is called cold (`process_madvise` with `MADV_COLD`) is split at once where a huge page is mapped only
//! in part, or lies only in part in the named range. So whole regions of 2 MiB are named, and only those that are not mapped as a whole huge
//! page: whole ones stay whole, and keep their age. Before Linux 6.7 the kernel does not tell which ones are whole. Then all regions are named.
//! That splits the same pages, but whole ones look unused from then on.
//!
//! Only private anonymous memory is named: the kernel splits huge pages of files by itself. A region whose holes were filled again looks
//! like any other, so holes do not tell which regions are torn. The kernel's page flags would, but reading them needs `CAP_SYS_ADMIN`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use memtide_advise::{Run, cold, scan};
use memtide_model::Bytes;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use crate::{HostError, Mapping, Root, start_time};

/// The size of a region.
const REGION: u64 = 2 << 20;
/// The memory that is scanned and named at a time.
const PIECE: u64 = 128 * REGION;
/// The runs that are read at a time.
const RUNS: usize = 4096;

/// Why no huge page was split.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// The kernel has no `process_madvise`.
    #[error("this kernel has no process_madvise (Linux 5.10)")]
    OldKernel,
    /// The capabilities are missing.
    #[error("no right to advise other processes: this needs CAP_SYS_NICE and CAP_SYS_PTRACE")]
    NotPermitted,
    /// The process could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The kernel refused.
    #[error("process_madvise: {0}")]
    Refused(io::Error),
}

impl SplitError {
    fn of(pid: u32, error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::NOSYS) => Self::OldKernel,
            Some(Errno::PERM | Errno::ACCESS) => Self::NotPermitted,
            Some(Errno::SRCH) => HostError::Gone { pid }.into(),
            _ => Self::Refused(error),
        }
    }
}

/// How far the huge pages of a process are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// The memory that was named to the kernel.
    pub named: Bytes,
    /// Where to go on if time ran out; `None` if the whole process is done.
    pub next: Option<u64>,
}

/// Splits the torn huge pages of the process `pid` that started at `start` (clock ticks after boot), from the address `from` on, for about
/// `within`.
///
/// # Errors
/// The reason why none was split.
pub fn split(root: &Root, pid: u32, start: u64, from: u64, within: Duration) -> Result<Split, SplitError> {
    let process = open(pid)?;
    // Comes after opening it: a process that is the same now is the one that was opened.
    if start_time(root, pid)? != start {
        return Err(HostError::Gone { pid }.into());
    }
    let pagemap = File::open(root.process(pid, "pagemap")).ok();
    let ranges = candidates(&Mapping::read_all(root, pid)?, from);
    // The mappings of a large process take their time, too. It must get on all the same.
    let until = Instant::now() + within;
    let mut split = Split::default();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            if Instant::now() >= until {
                split.next = Some(at);
                return Ok(split);
            }
            let piece = at..range.end.min(at + PIECE);
            at = piece.end;
            let named = name(process.as_fd(), &regions(pagemap.as_ref(), piece));
            let named = named.map_err(|error| SplitError::of(pid, error))?;
            split.named = split.named.saturating_add(named);
        }
    }
    Ok(split)
}

/// Whether this process may split the huge pages of others, tried on the process that started it, without naming any memory.
///
/// # Errors
/// The reason why it may not.
pub fn can_split() -> Result<(), SplitError> {
    let Some(parent) = getppid() else { return Ok(()) };
    let pid = parent.as_raw_nonzero().get().unsigned_abs();
    let process = open(pid)?;
    cold(process.as_fd(), &[]).map(drop).map_err(|error| SplitError::of(pid, error))
}

fn open(pid: u32) -> Result<OwnedFd, SplitError> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(HostError::Gone { pid })?;
    pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| SplitError::of(pid, errno.into()))
}

/// The whole regions of the private anonymous memory of a process, from the address `from` on.
fn candidates(mappings: &[Mapping], from: u64) -> Vec<Range<u64>> {
    let is_anonymous = |mapping: &&Mapping| {
        let unnamed = mapping.name.is_empty() || mapping.name.starts_with("[anon:");
        mapping.inode == 0 && unnamed && mapping.writable && mapping.resident >= Bytes::new(REGION)
    };
    let whole = mappings.iter().filter(is_anonymous).map(|mapping| {
        let start = mapping.start.max(from).next_multiple_of(REGION);
        start..mapping.end / REGION * REGION
    });
    whole.filter(|range| range.start < range.end).collect()
}

/// The regions of `piece` to name: those with resident memory that is not mapped as a whole huge page; all if the kernel does not tell.
fn regions(pagemap: Option<&File>, piece: Range<u64>) -> Vec<Range<u64>> {
    let Some(pagemap) = pagemap else { return vec![piece] };
    let (mut runs, mut at) = (Vec::new(), piece.start);
    while at < piece.end {
        match scan(pagemap.as_fd(), at..piece.end, RUNS, &mut runs) {
            Ok(next) if next > at => at = next,
            _ => return vec![piece],
        }
    }
    in_parts(&runs, &piece)
}

/// The regions of `piece` with resident memory that is not in whole huge pages; neighbours are joined.
fn in_parts(runs: &[Run], piece: &Range<u64>) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for run in runs.iter().filter(|run| !run.is_whole) {
        let start = (run.range.start / REGION * REGION).max(piece.start);
        let end = run.range.end.next_multiple_of(REGION).min(piece.end);
        match found.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => found.push(start..end),
        }
    }
    found
}

/// Calls `ranges` cold. Leaves out those that cannot be advised: they are locked, or were unmapped in the meantime.
fn name(process: BorrowedFd<'_>, ranges: &[Range<u64>]) -> io::Result<Bytes> {
    let (mut named, mut left) = (Bytes::ZERO, ranges);
    while !left.is_empty() {
        let done = match cold(process, left) {
            Ok(done) => done,
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::NOMEM)) => 0,
            Err(error) => return Err(error),
        };
        named = named.saturating_add(Bytes::new(done));
        let mut rest = done;
        let whole = left.iter().take_while(|range| {
            let length = range.end - range.start;
            let is_done = rest >= length;
            rest = rest.saturating_sub(length);
            is_done
        });
        // The first one that is not done stopped the kernel.
        left = left.get(whole.count() + 1..).unwrap_or_default();
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, resident: u64) -> Mapping {
        let resident = Bytes::from_mib(resident);
        Mapping { start: start << 20, end: end << 20, writable: true, resident, ..Mapping::default() }
    }

    #[test]
    fn whole_regions_of_anonymous_memory_are_looked_at() {
        let named = |name: &str, inode| Mapping { name: name.to_owned(), inode, ..mapping(100, 110, 10) };
        let mappings = [
            mapping(1, 9, 8),
            mapping(21, 22, 1),
            mapping(31, 40, 1),
            named("/memfd:ram (deleted)", 7),
            named("[heap]", 0),
            Mapping { writable: false, ..mapping(200, 210, 10) },
            named("[anon:ram]", 0),
        ];
        let mib = |range: &Range<u64>| (range.start >> 20, range.end >> 20);
        let of = |from: u64| candidates(&mappings, from << 20).iter().map(mib).collect::<Vec<_>>();
        assert_eq!(of(0), [(2, 8), (100, 110)]);
        assert_eq!(of(5), [(6, 8), (100, 110)], "it goes on where it stopped");
        assert_eq!(of(104), [(104, 110)]);
    }

    #[test]
    fn regions_that_are_not_whole_are_named_once() {
        let page = 4096;
        let run = |start: u64, end: u64, is_whole| Run { range: start..end, is_whole };
        let runs = [
            run(0, REGION, true),
            run(REGION + page, REGION + 2 * page, false),
            run(REGION + 5 * page, REGION + 6 * page, false),
            run(2 * REGION - page, 2 * REGION + page, false),
            run(3 * REGION, 5 * REGION, true),
            run(5 * REGION, 5 * REGION + page, false),
        ];
        assert_eq!(in_parts(&runs, &(0..8 * REGION)), [REGION..3 * REGION, 5 * REGION..6 * REGION]);
        assert_eq!(in_parts(&[], &(0..8 * REGION)), []);
    }

    #[test]
    fn the_process_must_be_the_one_that_was_meant() {
        let root = Root::system();
        let (pid, within) = (std::process::id(), Duration::from_secs(1));
        let other = start_time(&root, pid).unwrap() + 1;
        match split(&root, pid, other, 0, within) {
            Err(SplitError::Host(HostError::Gone { .. }) | SplitError::OldKernel) => {}
            done => panic!("{done:?}"),
        }
        assert!(split(&root, u32::MAX, 1, 0, within).is_err());
    }

    #[test]
    fn a_process_is_done_at_once_or_goes_on_where_it_stopped() {
        let root = Root::system();
        let pid = std::process::id();
        let start = start_time(&root, pid).unwrap();
        let memory = vec![1_u8; 16 << 20];
        match split(&root, pid, start, 0, Duration::ZERO) {
            Ok(done) => assert!(done.next.is_some() && done.named.is_zero(), "{done:?}"),
            Err(error) => return assert!(matches!(error, SplitError::OldKernel), "{error}"),
        }
        assert_eq!(split(&root, pid, start, 0, Duration::from_secs(60)).unwrap().next, None);
        assert!(memory.iter().all(|byte| *byte == 1));
    }
}
