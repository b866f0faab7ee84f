//! Disk images with the exerciser's content, so that a guest can check the data that it reads.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use memtide_load::exerciser::content::{Content, PAGE};
use memtide_model::{Bytes, MIB};
use rustix::fs::{Mode, OFlags};

use crate::error::LabError;
use crate::machine::places::write_whole_with;

/// A raw image filled with the exerciser's content.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The file.
    pub path: PathBuf,
    /// The content's seed.
    pub seed: u64,
    /// Its size.
    pub size: Bytes,
}

impl Disk {
    /// The image of `mib` MiB for `seed` in the cache; generates it if it is missing.
    ///
    /// # Errors
    /// If the image cannot be written.
    pub fn ensure(cache: &Path, seed: u64, mib: u64) -> Result<Self, LabError> {
        let disk =
            Self { path: cache.join(format!("disk-{seed}-{mib}MiB.raw")), seed, size: Bytes::from_mib(mib) };
        if fs::metadata(&disk.path).is_ok_and(|file| file.len() == disk.size.get()) {
            return Ok(disk);
        }
        write_whole_with(&disk.path, |file| {
            let mut chunk = vec![0; 1 << 20];
            (0..mib).map(|nth| nth * (MIB / PAGE as u64)).try_for_each(|first| {
                Content::of(seed).fill_bytes(first, &mut chunk);
                file.write_all(&chunk)
            })
        })?;
        Ok(disk)
    }

    /// Whether the file can be read without the host's page cache.
    #[must_use]
    pub fn direct(&self) -> bool {
        is_direct(&self.path)
    }
}

/// Whether a file can be read without the host's page cache (tmpfs and some overlays refuse `O_DIRECT`).
#[must_use]
pub fn is_direct(path: &Path) -> bool {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_load::exerciser::content::Tally;

    #[test]
    fn an_image_holds_the_content_and_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::ensure(dir.path(), 5, 2).unwrap();
        let bytes = fs::read(&disk.path).unwrap();
        let mut tally = Tally::default();
        tally.check_bytes(&Content::of(5), 0, &bytes);
        assert_eq!((tally.bytes, tally.mismatches), (2 << 20, 0));
        let written = fs::metadata(&disk.path).unwrap().modified().unwrap();
        Disk::ensure(dir.path(), 5, 2).unwrap();
        assert_eq!(fs::metadata(&disk.path).unwrap().modified().unwrap(), written);
    }
}
