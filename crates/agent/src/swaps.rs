//! The swap devices of the guest, and which of them is the host's tier.
//!
//! **Rule.** A tier is known by its serial number alone ([`TIER`]). Asking a virtual disk for it is a request to the host, so each device is asked once for as
//! long as the guest swaps to it. While a tier is being read back, the kernel counts it in `SwapTotal` no longer, but still lists it here.

use std::fs;
use std::io::ErrorKind;

use memtide_host::{HostError, Root};
use memtide_model::Bytes;

use crate::wire::TIER;

/// What follows the path of a device that has gone while it was swapped to.
const GONE: &str = "\\040(deleted)";

/// A swap device or file in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Its path, with spaces as the kernel writes them.
    pub path: String,
    /// Its size.
    pub total: Bytes,
    /// What lies in it.
    pub used: Bytes,
    /// The kernel fills the highest first.
    pub priority: i32,
}

impl Swap {
    /// The name of the device in `/sys/block`; `None` if it cannot be a whole disk.
    #[must_use]
    pub fn disk(&self) -> Option<&str> {
        let path = self.path.strip_suffix(GONE).unwrap_or(&self.path);
        path.strip_prefix("/dev/").filter(|name| !name.contains('/'))
    }
}

/// The lines of `/proc/swaps` that can be read.
#[must_use]
pub fn parse_swaps(text: &str) -> Vec<Swap> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let path = words.next()?.to_owned();
        let mut kib = words.skip(1);
        Some(Swap {
            path,
            total: Bytes::from_kib(kib.next()?.parse().ok()?),
            used: Bytes::from_kib(kib.next()?.parse().ok()?),
            priority: kib.next()?.parse().ok()?,
        })
    };
    text.lines().skip(1).filter_map(line).collect()
}

/// The disks that the guest swaps to, and whether each is a tier.
#[derive(Debug, Default)]
pub(crate) struct Disks(Vec<(String, bool)>);

impl Disks {
    /// The tier among `swaps`.
    ///
    /// # Errors
    /// If a disk does not tell its serial number.
    pub(crate) fn tier(&mut self, root: &Root, swaps: &[Swap]) -> Result<Option<Swap>, HostError> {
        // Another device may get the name of one that is no longer there.
        self.0.retain(|(name, _)| swaps.iter().any(|swap| swap.disk() == Some(name)));
        for swap in swaps {
            if let Some(name) = swap.disk()
                && self.is_tier(root, name)?
            {
                return Ok(Some(swap.clone()));
            }
        }
        Ok(None)
    }

    fn is_tier(&mut self, root: &Root, name: &str) -> Result<bool, HostError> {
        if let Some((_, is_tier)) = self.0.iter().find(|(known, _)| known == name) {
            return Ok(*is_tier);
        }
        let serial = serial(root, name)?;
        // A virtual disk that fails tells an empty one, and is asked again.
        if serial.as_ref().is_none_or(|serial| !serial.is_empty()) {
            self.0.push((name.to_owned(), serial.as_deref() == Some(TIER)));
        }
        Ok(serial.as_deref() == Some(TIER))
    }
}

/// The serial number of a block device; `None` if it has none.
pub(crate) fn serial(root: &Root, name: &str) -> Result<Option<String>, HostError> {
    let path = root.sys("block").join(name).join("serial");
    match fs::read_to_string(&path) {
        Ok(serial) => Ok(Some(serial.trim_end_matches('\n').to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(HostError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWAPS: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
        /dev/vdb2                               partition\t1048572\t\t20480\t\t-2\n\
        /dev/vda                                partition\t524284\t\t99328\t\t100\n\
        /swap\\040file                           file\t\t4096\t\t0\t\t-3\n";

    fn root_with(serials: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (name, serial) in serials {
            let at = dir.path().join("sys/block").join(name);
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("serial"), serial).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn swaps_are_read_and_what_is_no_swap_is_not() {
        let swaps = parse_swaps(SWAPS);
        let vda = Swap {
            path: "/dev/vda".to_owned(),
            total: Bytes::from_kib(524_284),
            used: Bytes::from_kib(99_328),
            priority: 100,
        };
        assert_eq!((swaps.len(), &swaps[1]), (3, &vda));
        let disks: Vec<_> = swaps.iter().map(Swap::disk).collect();
        assert_eq!(disks, [Some("vdb2"), Some("vda"), None]);
        for nonsense in ["", "Filename\n", "Filename\n/dev/vda\n/dev/vda partition x y z\n\n"] {
            assert_eq!(parse_swaps(nonsense), [], "{nonsense:?}");
        }
    }

    #[test]
    fn a_tier_is_known_by_its_serial_number_also_when_it_has_gone() {
        let (dir, root) = root_with(&[("vda", TIER), ("vdc", "memtide-tier2")]);
        let mut disks = Disks::default();
        let mut tier = |swaps: &[Swap]| disks.tier(&root, swaps).unwrap();
        let swaps = parse_swaps(SWAPS);
        assert_eq!(tier(&swaps), Some(swaps[1].clone()));
        fs::remove_dir_all(dir.path().join("sys")).unwrap();
        let gone = parse_swaps(&SWAPS.replace("/dev/vda ", "/dev/vda\\040(deleted) "));
        assert_eq!(tier(&gone), Some(gone[1].clone()));
        let other = parse_swaps(&SWAPS.replace("/dev/vda ", "/dev/vdc "));
        assert_eq!(tier(&other), None);
        assert_eq!(tier(&swaps), None, "another disk may have its name now");
    }

    #[test]
    fn a_disk_is_asked_once_while_it_is_swapped_to() {
        let (dir, root) = root_with(&[("vda", "root-disk")]);
        let mut disks = Disks::default();
        let mut tier = |swaps: &[Swap]| disks.tier(&root, swaps).unwrap();
        let swaps = parse_swaps(SWAPS);
        assert_eq!(tier(&swaps), None);
        fs::write(dir.path().join("sys/block/vda/serial"), TIER).unwrap();
        assert_eq!(tier(&swaps), None);
        assert_eq!(tier(&[]), None);
        assert_eq!(tier(&swaps), Some(swaps[1].clone()), "it was swapped to anew");
        tier(&[]);
        fs::write(dir.path().join("sys/block/vda/serial"), "").unwrap();
        assert_eq!(tier(&swaps), None);
        fs::write(dir.path().join("sys/block/vda/serial"), TIER).unwrap();
        assert_eq!(tier(&swaps), Some(swaps[1].clone()), "a disk that told nothing is asked again");
    }
}
