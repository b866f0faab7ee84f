//! Before the first page: what can be had, and what a file holds.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use memtide_model::Bytes;

use super::content::{PAGE, WORDS, read_words};
use super::error::RunError;
use super::memory::{Kind, Memory, read_page};
use super::options::Options;
use super::room::{Room, room};

/// The size to begin with; refused at once where it cannot be had.
pub fn size(options: &Options) -> Result<Bytes, RunError> {
    let Some(asked) = options.size else { return Ok(all_memory()) };
    let needs_room = options.kind.path().is_none() && options.grow.is_none();
    if let Some(Room { bytes: left, set_by }) = room(Path::new("/")).filter(|_| needs_room)
        && asked > left
    {
        return Err(RunError::NoRoom { asked, left, set_by });
    }
    Ok(asked)
}

/// Memory and swap of the machine: more was never had.
#[must_use]
pub fn all_memory() -> Bytes {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Bytes::from_kib(kib("MemTotal:")).saturating_add(Bytes::from_kib(kib("SwapTotal:")))
}

/// Whether the file holds what it should already.
pub fn look_at_the_file(options: &Options, memory: &Memory, size: Bytes) -> Result<bool, RunError> {
    let Some(path) = options.kind.path().map(|path| path.display().to_string()) else { return Ok(false) };
    let found = memory.found();
    if memory.is_fixed() && found < size.get() {
        return Err(RunError::Short { path, has: Bytes::new(found), wants: size });
    }
    if found == 0 {
        return Ok(false);
    }
    let only_read = options.writes.basis_points() == 0;
    let ours = first_page(memory).is_ok_and(|words| {
        // The first word carries the number of writes.
        words.iter().zip(options.content.words(0, 0)).skip(1).all(|(found, expected)| *found == expected)
    });
    let long_enough = found >= size.get();
    match (ours, only_read, memory.is_fixed()) {
        (true, true, _) | (true, _, true) if long_enough => Ok(true),
        (true, _, false) => Ok(false),
        (false, true, _) if long_enough && !options.verify && matches!(options.kind, Kind::Cache(_)) => {
            Ok(true)
        }
        _ => Err(RunError::Foreign(path)),
    }
}

fn first_page(memory: &Memory) -> io::Result<Vec<u64>> {
    if let Some(file) = memory.cached() {
        let mut bytes = [0; PAGE];
        read_page(file, 0, &mut bytes)?;
        return Ok(read_words(&bytes).collect());
    }
    let words = memory.words(1).unwrap_or_default();
    Ok(words.iter().take(WORDS).map(|word| word.load(Ordering::Relaxed)).collect())
}
