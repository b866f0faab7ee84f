//! The lab's requests to the exerciser in a guest.

use memtide_load::exerciser::content::{Content, PAGE};
use memtide_load::exerciser::report::Summary;
use memtide_load::helper::wire::Ask;

use crate::guest::disk::Disk;

/// The device of a guest's disk.
const DISK: &str = "/dev/vda";

/// Fills `mib` MiB of anonymous memory at `mib_per_s` (as fast as possible if it is `None`), and keeps it until the job is
/// cancelled. The exerciser does not check for room beforehand: a guest in need gets more only after it has stalled.
#[must_use]
pub fn fill(seed: u64, mib: u64, mib_per_s: Option<u64>) -> Ask {
    let rate = rate(mib_per_s);
    load(&format!("--size {mib}M --grow {rate} --seed {seed} --passes 0 --hold"))
}

/// A heap that was filled once and is left alone: `mib` MiB of objects that LZO compresses to `1 / ratio`. The job ends once it is filled; the load keeps
/// it, to be checked and cancelled.
#[must_use]
pub fn cold_heap(seed: u64, mib: u64, ratio: &str) -> Ask {
    load(&format!(
        "--size {mib}M --grow max --content heap --compress {ratio} --seed {seed} --passes 0 --hold"
    ))
}

/// Reads and checks the first `mib` MiB of the guest's disk at `mib_per_s` through its page cache. The load stays, and the
/// cache with it: the kernel drops a block device's cache with its last opener.
#[must_use]
pub fn read_disk(disk: &Disk, mib: u64, mib_per_s: Option<u64>) -> Ask {
    let (seed, rate) = (disk.seed, rate(mib_per_s));
    load(&format!(
        "--kind cache --file {DISK} --size {mib}M --seed {seed} --rate {rate} --passes 1 --verify --hold"
    ))
}

/// Starts an exerciser with these options.
#[must_use]
pub fn load(options: &str) -> Ask {
    Ask::Load { options: options.split_whitespace().map(str::to_owned).collect() }
}

fn rate(mib_per_s: Option<u64>) -> String {
    mib_per_s.map_or_else(|| "max".to_owned(), |rate| format!("{rate}M"))
}

/// The bytes that a load has checked and found to match the content of `seed`. The guest's word is not enough: the checksum
/// of all bytes read must be the one known here.
#[must_use]
pub fn verified(seed: u64, bytes: u64, checksum: u64) -> u64 {
    if checksum == Content::of(seed).checksum(0, bytes / PAGE as u64) { bytes } else { 0 }
}

/// The same for a load that has checked during its touches.
#[must_use]
pub fn verified_by(summary: &Summary, seed: u64) -> u64 {
    match (summary.checked_bytes, summary.checksum) {
        (Some(bytes), Some(checksum)) => verified(seed, bytes, checksum),
        _ => 0,
    }
}
