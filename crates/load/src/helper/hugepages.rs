//! Huge pages that the guest reserves and does not use.

use std::fs;
use std::io;
use std::path::Path;

use super::wire::Hugepages;
use crate::exerciser::machine::number_after;

/// Reserves `mib` MiB of huge pages through the proc file system at `proc`; zero releases them all.
///
/// # Errors
/// If the kernel has no huge pages, or refuses the change.
pub fn reserve(proc: &Path, mib: u64) -> io::Result<Hugepages> {
    let setting = proc.join("sys/vm/nr_hugepages");
    let meminfo = fs::read_to_string(proc.join("meminfo"))?;
    let page_kib = number_after(&meminfo, "Hugepagesize:")
        .filter(|&kib| kib > 0)
        .ok_or_else(|| io::Error::other("this kernel has no huge pages"))?;
    fs::write(&setting, (mib.saturating_mul(1024) / page_kib).to_string())?;
    let pages = fs::read_to_string(&setting)?.trim().parse().map_err(io::Error::other)?;
    Ok(Hugepages { pages, page_kib })
}
