//! Who sets the balloon of a guest of Proxmox VE: what the guest's configuration says (`/etc/pve/qemu-server/VMID.conf`).
//!
//! | configuration | pvestatd |
//! |---|---|
//! | no `balloon`, as the web interface writes it by default | leaves the balloon alone |
//! | `balloon: N` | moves it towards 80 % of the host's memory every 10 s |
//! | `balloon: N` and `shares: 0` | leaves it alone ("allow manual ballooning") |
//!
//! Source: `PVE/QemuServer.pm` and `PVE/AutoBalloon.pm` of qemu-server. The directory is a file system in user space and may hang: each reading has a time budget.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtide_host::{read_regular, within};
use memtide_model::{Fence, Owner};

use super::discovery::QemuProcess;
use super::launcher::Launcher;

/// Where the configurations are.
const CONFIGURATIONS: &str = "/etc/pve/qemu-server";
/// The time between two readings. `qm set` acts at pvestatd's next round, 10 s later at most.
const READS_EVERY: Duration = Duration::from_secs(10);
/// The longest that one reading takes.
const WITHIN: Duration = Duration::from_millis(200);
/// The longest configuration that is read, in bytes.
const LONGEST: u64 = 256 << 10;

/// What is known of one guest's configuration.
#[derive(Debug, Default)]
pub(super) struct Configured {
    read_at: Option<Instant>,
    /// Why memtide leaves the guest alone.
    pub(super) fence: Option<Fence>,
}

impl Configured {
    /// Reads the configuration of the guest of `process` again if that is due.
    pub(super) fn follow(&mut self, process: &QemuProcess) {
        self.follow_in(Path::new(CONFIGURATIONS), process);
    }

    fn follow_in(&mut self, directory: &Path, process: &QemuProcess) {
        let is_due = self.read_at.is_none_or(|at| at.elapsed() >= READS_EVERY);
        if process.launcher != Launcher::Proxmox || !is_due {
            return;
        }
        self.read_at = Some(Instant::now());
        let Some(file) = configuration(directory, process) else {
            self.fence = directory.exists().then_some(Fence::Owned(Owner::Pvestatd));
            return;
        };
        let directory = directory.to_owned();
        let read = within(process.pid, WITHIN, move || match read_regular(&file, LONGEST) {
            Ok(text) => fence(&String::from_utf8_lossy(&text)),
            // A host that is no Proxmox VE: nobody moves the balloon.
            Err(_) if !directory.exists() => None,
            Err(_) => Some(Fence::Owned(Owner::Pvestatd)),
        });
        // Nobody knows: pvestatd may move it.
        self.fence = read.unwrap_or(Some(Fence::Owned(Owner::Pvestatd)));
    }
}

/// The configuration of a guest, by the number in the name of its monitor.
fn configuration(directory: &Path, process: &QemuProcess) -> Option<PathBuf> {
    let monitor = process.bound.iter().find(|path| path.extension().is_some_and(|kind| kind == "qmp"))?;
    let number = monitor.file_stem()?.to_str()?.parse::<u32>().ok()?;
    Some(directory.join(format!("{number}.conf")))
}

/// Why memtide leaves a guest with this configuration alone. Its present part ends where the first snapshot begins.
fn fence(text: &str) -> Option<Fence> {
    let mut balloon = 0_u64;
    let mut shares = 1000_u64;
    let mut locked = None;
    for line in text.lines().take_while(|line| !line.starts_with('[')) {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            // What is no number counts as set.
            "balloon" => balloon = value.parse().unwrap_or(1),
            "shares" => shares = value.parse().unwrap_or(1000),
            "lock" if value == "migrate" => locked = Some(Fence::Migrating),
            "lock" => locked = Some(Fence::Snapshot),
            _ => {}
        }
    }
    let is_owned = balloon > 0 && shares > 0;
    locked.or(is_owned.then_some(Fence::Owned(Owner::Pvestatd)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pvestatd_owns_a_balloon_with_a_minimum_and_shares() {
        let owned = Some(Fence::Owned(Owner::Pvestatd));
        for (text, expected) in [
            ("memory: 2048\n", None),
            ("memory: 2048\nballoon: 0\n", None),
            ("balloon: 512\nmemory: 2048\n", owned),
            ("balloon: 512\nshares: 0\n", None),
            ("balloon: 512\nshares: 50\n", owned),
            ("lock: migrate\n", Some(Fence::Migrating)),
            ("lock: backup\nballoon: 512\n", Some(Fence::Snapshot)),
            // Of a snapshot.
            ("memory: 2048\n\n[before]\nballoon: 512\nlock: migrate\n", None),
            ("#balloon: 5\n", None),
        ] {
            assert_eq!(fence(text), expected, "{text}");
        }
    }
}
