//! Small files: one word, one number, `Key: 123 kB` lines.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use memtide_host::Root;
use memtide_model::Bytes;

/// Longer than any file that is read here.
const LONGEST: u64 = 1 << 20;

/// The file's text.
pub(super) fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The file's only number.
pub(super) fn number(path: &Path) -> Option<u64> {
    text(path).ok()?.trim().parse().ok()
}

/// The word that the kernel marks in `always [madvise] never`, or else the file's only word.
pub(super) fn chosen(path: &Path) -> Option<String> {
    let text = text(path).ok()?;
    let word = match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
        Some((word, _)) => word,
        None => text.trim(),
    };
    (!word.is_empty()).then(|| word.to_owned())
}

/// The size in a line `KEY: 123 kB`. The kernel writes kB and means KiB.
pub(super) fn kib(text: &str, key: &str) -> Option<Bytes> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok().map(Bytes::from_kib)
}

/// The type of the file system at `path` in the mounts of a process: that of the longest mount point above the path.
pub(super) fn file_system(root: &Root, process: &str, path: &Path) -> Option<String> {
    let mounts = text(&root.proc(format!("{process}/mountinfo"))).ok()?;
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let point = PathBuf::from(place.split(' ').nth(4)?.replace("\\040", " "));
        path.starts_with(&point)
            .then(|| (point.components().count(), kind.split(' ').next().unwrap_or_default().to_owned()))
    };
    // Of two mounts at one place, the later one is visible.
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}
