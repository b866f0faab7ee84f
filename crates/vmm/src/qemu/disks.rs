//! `query-blockstats`: what the guest has read from its disks, as QEMU counts it.

use memtide_model::{Bytes, DiskReads};
use serde::Deserialize;

use super::balloon::Property;
use super::qmp::Command;

/// Kinds of devices whose reads QEMU does not count: another process or the kernel serves them, they are shared directories, or they are passed through
/// (a network card, perhaps; QEMU does not tell).
const SERVED_ELSEWHERE: [&str; 6] =
    ["vhost-user-blk", "vhost-user-scsi", "vhost-scsi", "vhost-user-fs", "virtio-9p", "vfio-pci"];

/// One disk in the answer.
#[derive(Debug, Deserialize)]
pub(super) struct Disk {
    stats: Counters,
}

#[derive(Debug, Deserialize)]
struct Counters {
    rd_bytes: u64,
    /// Each read by itself: those at the same time add up.
    rd_total_time_ns: u64,
}

/// Asks for it.
pub(super) fn question() -> Command {
    Command::plain("query-blockstats")
}

/// The sum over all disks; `None` if nothing was read: then the guest does not read from disks that QEMU counts.
pub(super) fn sum(disks: &[Disk]) -> Option<DiskReads> {
    let all =
        |of: fn(&Counters) -> u64| disks.iter().fold(0_u64, |sum, disk| sum.saturating_add(of(&disk.stats)));
    let bytes = all(|counters| counters.rd_bytes);
    let took_us = Some(all(|counters| counters.rd_total_time_ns) / 1_000);
    (bytes > 0).then_some(DiskReads { bytes: Bytes::new(bytes), took_us })
}

/// Whether the guest also reads from what QEMU does not count.
pub(super) fn are_elsewhere(containers: [&[Property]; 2]) -> bool {
    containers.iter().flat_map(|properties| properties.iter()).any(|property| {
        SERVED_ELSEWHERE
            .iter()
            .any(|kind| property.kind.strip_prefix("child<").is_some_and(|of| of.starts_with(kind)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reads_of_all_disks_add_up() {
        // The answer of QEMU 10.0.2, shortened.
        let disks: Vec<Disk> = serde_json::from_str(
            r#"[{"device": "", "qdev": "/machine/peripheral/d0/virtio-backend", "node-name": "n0",
                 "stats": {"rd_bytes": 4096, "rd_total_time_ns": 2000000, "wr_bytes": 5, "idle_time_ns": 1}},
                {"device": "cd", "stats": {"rd_bytes": 1024, "rd_total_time_ns": 1000}}]"#,
        )
        .unwrap();
        assert_eq!(sum(&disks), Some(DiskReads { bytes: Bytes::new(5120), took_us: Some(2_001) }));
        assert_eq!(sum(&[]), None);
    }

    #[test]
    fn shared_directories_are_served_elsewhere() {
        let of = |kind: &str| {
            let text = format!(r#"[{{"name": "x", "type": "child<{kind}>"}}]"#);
            are_elsewhere([&serde_json::from_str::<Vec<Property>>(&text).unwrap(), &[]])
        };
        assert!(of("vhost-user-fs-pci") && of("virtio-9p-pci") && of("vfio-pci") && !of("virtio-blk-pci"));
    }
}
