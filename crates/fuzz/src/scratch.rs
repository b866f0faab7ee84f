//! Directories for the files and sockets of fuzz targets: in memory where there is such a place.

use std::path::Path;

use tempfile::TempDir;

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// A new empty directory, removed on drop.
///
/// # Panics
/// Where none can be made: nothing can be tested then.
pub fn directory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("memtide-fuzz-");
    let made = if Path::new(MEMORY).is_dir() { builder.tempdir_in(MEMORY) } else { builder.tempdir() };
    made.expect("a directory for the fuzz target's files")
}
