//! Directories for the files and sockets of fuzz targets: in memory if possible.

use std::path::Path;

use tempfile::TempDir;

/// The place where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// A new empty directory, removed on drop.
///
/// # Panics
/// If none can be created: then nothing can be tested.
pub fn directory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("memtide-fuzz-");
    let made = if Path::new(MEMORY).is_dir() { builder.tempdir_in(MEMORY) } else { builder.tempdir() };
    made.expect("a directory for the fuzz target's files")
}
