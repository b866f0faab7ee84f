//! A small tmpfs: instances whose memory files lie in it can together touch no more than its size.

use std::path::{Path, PathBuf};
use std::process::Command;

use memtide_model::Bytes;

use crate::error::LabError;
use crate::machine::process::run;

/// A mounted tmpfs. Dropping it unmounts it, once nobody uses it any more.
#[derive(Debug)]
pub struct SmallTmpfs {
    at: PathBuf,
}

impl SmallTmpfs {
    /// Mounts a tmpfs of this size at `at`, a new directory.
    ///
    /// # Errors
    /// [`LabError::NoSmallHost`] if this process may not mount.
    pub fn mount(at: &Path, size: Bytes) -> Result<Self, LabError> {
        std::fs::create_dir(at).map_err(LabError::file(at))?;
        let size = format!("size={}M", size.whole_mib());
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "memtide-lab"]).arg(at))
            .map_err(|error| LabError::NoSmallHost(error.to_string()))?;
        Ok(Self { at: at.to_owned() })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        // Lazily: an instance that was just killed may still hold its memory file.
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.at));
    }
}
