//! Compaction: free memory in small pieces and on per-CPU lists becomes free memory in blocks that free page reporting returns.

use std::fs::{self, OpenOptions};
use std::time::Instant;

use super::drain::drain;
use super::{Refused, Tools, done};
use crate::wire::Done;

/// Asks the kernel to compact all zones (`/proc/sys/vm/compact_memory`).
///
/// # Errors
/// If the administrator does not allow it, or the kernel cannot.
pub fn compact(tools: &mut Tools<'_>) -> Result<Done, Refused> {
    if !tools.bounds.compact {
        return Err(Refused::Forbidden("compaction"));
    }
    let begun = Instant::now();
    let before = tools.facts.memory()?.free_blocks;
    drain(tools);
    let path = tools.root.proc("sys/vm/compact_memory");
    fs::write(&path, "1").map_err(|error| Refused::Unsupported(format!("{}: {error}", path.display())))?;
    let after = tools.facts.memory()?.free_blocks;
    Ok(done(after.saturating_sub(before), "compact_memory", begun))
}

/// Why compaction is not possible here.
pub(super) fn problem(tools: &Tools<'_>) -> Option<String> {
    if !tools.bounds.compact {
        return Some(Refused::Forbidden("compaction").to_string());
    }
    let path = tools.root.proc("sys/vm/compact_memory");
    let error = OpenOptions::new().write(true).open(&path).err()?;
    Some(Refused::Unsupported(format!("{}: {error}", path.display())).to_string())
}
