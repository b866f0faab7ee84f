//! The guest's own view of its memory: /proc/meminfo, /proc/vmstat and /proc/pressure/memory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::exerciser::machine::number_after;

/// A guest's memory at one moment, as its kernel counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meminfo {
    /// Milliseconds of the guest's `CLOCK_MONOTONIC`.
    pub monotonic_ms: u64,
    /// `MemTotal` in KiB.
    pub total_kib: u64,
    /// `MemFree` in KiB.
    pub free_kib: u64,
    /// `MemAvailable` in KiB.
    pub available_kib: u64,
    /// `Cached` in KiB.
    pub cached_kib: u64,
    /// `SwapTotal` in KiB.
    pub swap_kib: u64,
    /// Microseconds in which at least one task stalled; `None` if the kernel has no PSI.
    pub psi_some_us: Option<u64>,
    /// Microseconds in which all tasks stalled; `None` if the kernel has no PSI.
    pub psi_full_us: Option<u64>,
    /// Counters of /proc/vmstat under the kernel's names: `allocstall_*`, `pgmajfault`, `pswpin`, `pswpout`, `oom_kill`,
    /// `workingset_refault_anon` and `workingset_refault_file`.
    pub vmstat: BTreeMap<String, u64>,
}

impl Meminfo {
    /// Tasks that the guest's OOM killer has killed since boot.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        self.vmstat.get("oom_kill").copied().unwrap_or(0)
    }

    /// Pages that the guest has read from swap, and written to swap, since boot.
    #[must_use]
    pub fn swapped(&self) -> (u64, u64) {
        let of = |name: &str| self.vmstat.get(name).copied().unwrap_or(0);
        (of("pswpin"), of("pswpout"))
    }

    /// Pages of files that the guest has dropped and read again since boot.
    #[must_use]
    pub fn file_refaults(&self) -> u64 {
        self.vmstat.get("workingset_refault_file").copied().unwrap_or(0)
    }
}

/// Reads all fields from the proc file system at `proc`.
///
/// # Errors
/// If meminfo or vmstat cannot be read. Fields that the kernel does not have are zero or `None`.
pub fn read(proc: &Path) -> io::Result<Meminfo> {
    let meminfo = std::fs::read_to_string(proc.join("meminfo"))?;
    let vmstat = std::fs::read_to_string(proc.join("vmstat"))?;
    let pressure = std::fs::read_to_string(proc.join("pressure/memory")).unwrap_or_default();
    let field = |name: &str| number_after(&meminfo, name).unwrap_or(0);
    Ok(Meminfo {
        monotonic_ms: monotonic_ms(),
        total_kib: field("MemTotal:"),
        free_kib: field("MemFree:"),
        available_kib: field("MemAvailable:"),
        cached_kib: field("Cached:"),
        swap_kib: field("SwapTotal:"),
        psi_some_us: psi_total(&pressure, "some"),
        psi_full_us: psi_total(&pressure, "full"),
        vmstat: vmstat.lines().filter_map(counter).collect(),
    })
}

fn monotonic_ms() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn psi_total(text: &str, kind: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(kind))?;
    line.split_whitespace().find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

fn counter(line: &str) -> Option<(String, u64)> {
    const NAMES: [&str; 6] =
        ["pgmajfault", "pswpin", "pswpout", "oom_kill", "workingset_refault_anon", "workingset_refault_file"];
    let (name, value) = line.split_once(' ')?;
    let wanted = name.starts_with("allocstall_") || NAMES.contains(&name);
    wanted.then_some(())?;
    Some((name.to_owned(), value.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc(pressure: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("meminfo"),
            "MemTotal:  991516 kB\nMemFree: 12 kB\nMemAvailable: 800000 kB\nBuffers: 1 kB\nCached: 77 kB\nSwapTotal: 8 kB\n",
        )
        .unwrap();
        std::fs::write(
            dir.path().join("vmstat"),
            "nr_free_pages 5\nallocstall_normal 3\npgmajfault 9\npswpin 3\npswpout 5\noom_kill 1\nworkingset_refault_file 40\n",
        )
        .unwrap();
        if let Some(text) = pressure {
            std::fs::create_dir(dir.path().join("pressure")).unwrap();
            std::fs::write(dir.path().join("pressure/memory"), text).unwrap();
        }
        dir
    }

    #[test]
    fn the_kernels_numbers_are_read() {
        let dir = proc(Some(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=56\n",
        ));
        let seen = read(dir.path()).unwrap();
        assert_eq!(
            (seen.total_kib, seen.available_kib, seen.cached_kib, seen.swap_kib),
            (991_516, 800_000, 77, 8)
        );
        assert_eq!((seen.psi_some_us, seen.psi_full_us), (Some(1234), Some(56)));
        assert_eq!((seen.oom_kills(), seen.swapped()), (1, (3, 5)));
        assert_eq!(
            seen.vmstat.keys().map(String::as_str).collect::<Vec<_>>(),
            ["allocstall_normal", "oom_kill", "pgmajfault", "pswpin", "pswpout", "workingset_refault_file"]
        );
    }

    #[test]
    fn a_kernel_without_psi_has_none() {
        assert_eq!(read(proc(None).path()).unwrap().psi_some_us, None);
        assert_eq!(read(proc(Some("garbage\n")).path()).unwrap().psi_full_us, None);
    }
}
