//! A swap device of a guest: on a disk, on a tmpfs of the host, or on compressed memory of the host.
//!
//! The disk of this machine is neither slow nor steady. So QEMU's `throttle` filter makes it one hard disk, which all guests share evenly: 200 requests
//! and 100 MiB a second. It is read and written without the host's page cache.
//!
//! The guest finds its device by its serial number, makes a swap area in it, and swaps to it. On memory it does so with discard, so that the host has memory
//! back once it is free in the guest. A hard disk knows no discard.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memtide_load::helper::wire::{Ask, Output};
use memtide_model::{Bytes, MIB};
use serde_json::json;

use crate::error::LabError;
use crate::guest::Guest;
use crate::guest::disk::is_direct;
use crate::machine::small_tmpfs::SmallTmpfs;
use crate::machine::zram::Zram;

/// The serial number of the device. Agents know it, too.
const SERIAL: &str = memtide_agent::wire::TIER;
/// What the hard disk does a second.
const REQUESTS_PER_S: u64 = 200;
const BYTES_PER_S: u64 = 100 * MIB;
/// The longest time to make a swap area.
const SWAPON: Duration = Duration::from_secs(30);

/// Where a guest swaps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file on the host's disk, as slow as a hard disk.
    Disk,
    /// A file on a tmpfs of the host.
    Tmpfs,
    /// A zram of the host.
    Zram,
}

/// A guest's swap device. Keep it longer than the guest.
#[derive(Debug)]
pub struct Swap {
    file: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// With the number of guests that share the disk.
    Disk(u64),
    /// The mounted tmpfs.
    Tmpfs(#[allow(dead_code, reason = "mounted as long as the device is")] SmallTmpfs),
    Zram(Zram),
}

impl Swap {
    /// A device of `size` for the guest `name`, one of `sharing` that use the same disk. Its files are in `dir`.
    ///
    /// # Errors
    /// If it cannot be made here.
    pub fn create(
        medium: Medium,
        size: Bytes,
        dir: &Path,
        name: &str,
        sharing: u64,
    ) -> Result<Self, LabError> {
        let sparse = |file: &Path| {
            let made = File::create(file).and_then(|made| made.set_len(size.get()));
            made.map_err(LabError::file(file))
        };
        match medium {
            Medium::Disk => {
                let file = dir.join(format!("{name}.swap.raw"));
                sparse(&file)?;
                Ok(Self { file, kind: Kind::Disk(sharing.max(1)) })
            }
            Medium::Tmpfs => {
                // The file is sparse: the tmpfs needs room for more than its data.
                let tmpfs = SmallTmpfs::mount(
                    &dir.join(format!("{name}.swap")),
                    size.saturating_add(Bytes::from_mib(1)),
                )?;
                let file = tmpfs.path().join("swap.raw");
                sparse(&file)?;
                Ok(Self { file, kind: Kind::Tmpfs(tmpfs) })
            }
            Medium::Zram => {
                let zram = Zram::create(size)?;
                Ok(Self { file: zram.node().to_owned(), kind: Kind::Zram(zram) })
            }
        }
    }

    /// QEMU's arguments.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let file = self.file.to_string_lossy().replace(',', ",,");
        let mut arguments = Vec::new();
        let node = match self.kind {
            Kind::Disk(sharing) => {
                let limits =
                    json!({ "iops-total": REQUESTS_PER_S / sharing, "bps-total": BYTES_PER_S / sharing });
                let group = json!({ "qom-type": "throttle-group", "id": "swap-rate", "limits": limits });
                arguments.extend(["-object".to_owned(), group.to_string()]);
                let direct = if is_direct(&self.file) { "on" } else { "off" };
                format!(
                    "driver=throttle,throttle-group=swap-rate,node-name=swap0,file.driver=raw,file.file.driver=file,\
                     file.file.filename={file},file.file.cache.direct={direct}"
                )
            }
            Kind::Tmpfs(_) => format!(
                "driver=raw,node-name=swap0,discard=unmap,file.driver=file,file.filename={file},file.discard=unmap"
            ),
            Kind::Zram(_) => format!(
                "driver=raw,node-name=swap0,discard=unmap,file.driver=host_device,file.filename={file},\
                 file.cache.direct=on,file.discard=unmap"
            ),
        };
        let device = format!("virtio-blk-pci,drive=swap0,serial={SERIAL}");
        arguments.extend(["-blockdev".to_owned(), node, "-device".to_owned(), device]);
        arguments
    }

    /// Makes a swap area in it, and swaps to it.
    ///
    /// # Errors
    /// If the guest has no such device, or refuses.
    pub fn on(&self, guest: &Guest) -> Result<(), LabError> {
        let discard = if matches!(self.kind, Kind::Disk(_)) { "" } else { "-d" };
        let cmd = format!(
            "for disk in /sys/block/vd*; do [ \"$(cat $disk/serial)\" = {SERIAL} ] && device=/dev/${{disk##*/}}; done; \
             mkswap $device > /dev/null && swapon {discard} $device"
        );
        let output: Output = guest.ask(Ask::Sh { cmd }, SWAPON)?;
        match output.code {
            Some(0) => Ok(()),
            _ => Err(LabError::Load {
                guest: guest.name().to_owned(),
                why: format!("no swap: {}", output.text.trim()),
            }),
        }
    }

    /// The host's memory that it takes.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn held(&self) -> Result<Bytes, LabError> {
        match &self.kind {
            Kind::Disk(_) => Ok(Bytes::ZERO),
            Kind::Tmpfs(_) => {
                let file = fs::metadata(&self.file).map_err(LabError::file(&self.file))?;
                Ok(Bytes::new(file.blocks().saturating_mul(512)))
            }
            Kind::Zram(zram) => Ok(zram.held()?.used),
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if matches!(self.kind, Kind::Disk(_)) {
            // It is in the run's directory, which is removed or kept: but nobody needs old swap.
            let _ = fs::remove_file(&self.file);
        }
    }
}
