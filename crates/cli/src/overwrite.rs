//! Writing a page must not destroy what was read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, bail};
use memtide_sim::is_journal;

/// Refuses to write a page to `path`, which `option` names, if that is one of the `inputs`, also through links, or a memtide journal.
pub fn refuse(option: &str, path: &Path, inputs: &[Option<&Path>]) -> Result<()> {
    let file = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let Some(page) = file(path) else { return Ok(()) };
    if let Some(input) = inputs.iter().flatten().find(|input| file(input) == Some(page)) {
        bail!("{option} {} would overwrite {}: name another file", path.display(), input.display());
    }
    if is_journal(path) {
        bail!("{option} {} would overwrite a memtide journal: name another file", path.display());
    }
    Ok(())
}
