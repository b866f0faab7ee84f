//! A process as the kernel counts it.

use std::fs;

use crate::Outcome;

/// Resident memory, in KiB.
#[derive(Clone, Copy, Default)]
pub struct Resident {
    pub all: u64,
    pub anonymous: u64,
}

/// Processor time of a process and of all threads that it has had, in seconds.
pub fn cpu_seconds(pid: u32) -> Outcome<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').ok_or("a stat without a name")?;
    // utime and stime are fields 14 and 15; the first one after the name is field 3.
    let ticks = fields.split_ascii_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? as f64 / 100.0)
}

/// What a process has resident.
pub fn resident(pid: u32) -> Outcome<Resident> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| -> Outcome<u64> {
        let line =
            status.lines().find_map(|line| line.strip_prefix(key)).ok_or("a line of status is missing")?;
        Ok(line.split_ascii_whitespace().next().ok_or("a size without a number")?.parse()?)
    };
    Ok(Resident { all: kib("VmRSS:")?, anonymous: kib("RssAnon:")? })
}
