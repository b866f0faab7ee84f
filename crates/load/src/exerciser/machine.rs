//! The kernel's counters for this process and for stalls.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The number after `name` at the beginning of a line, as in /proc/meminfo and memory.stat.
#[must_use]
pub fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Counters since the start of the process, or since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Faults that had to read from a device.
    pub major_faults: u64,
    /// CPU time.
    pub cpu: Duration,
    /// Microseconds in which some task of the machine stalled for memory; `None` if the kernel has no PSI.
    pub psi_some_us: Option<u64>,
}

impl Counters {
    /// Reads the counters now.
    #[must_use]
    pub fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let psi = fs::read_to_string("/proc/pressure/memory").ok();
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            major_faults: major_faults(&stat).unwrap_or(0),
            cpu: Duration::new(
                u64::try_from(cpu.tv_sec).unwrap_or(0),
                u32::try_from(cpu.tv_nsec).unwrap_or(0),
            ),
            psi_some_us: psi.as_deref().and_then(some_total),
        }
    }
}

/// `majflt`, the 12th field of proc_pid_stat(5). The second field can contain spaces and ends at the last `)`.
fn major_faults(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}

fn some_total(psi: &str) -> Option<u64> {
    psi.lines().find_map(|line| line.strip_prefix("some "))?.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let stat = "7 (a b) c) R 1 2 3 4 5 6 7 8 9 10 11 12";
        assert_eq!(major_faults(stat), Some(9));
        let psi = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 total=5\n";
        assert_eq!(some_total(psi), Some(1234));
        assert!(Counters::read().cpu > Duration::ZERO);
    }
}
