//! Trimming: cold, clean, unmapped page cache and reclaimable slab become free.
//!
//! **Rule.** The kernel is asked for a piece at a time, by the gentlest means that works here, then by the next one. After each piece the
//! counters are looked at. Trimming ends if enough is free, if only the least cache is left, or if refaults show that hot cache is taken.

use std::time::{Duration, Instant};

use memtide_model::{AgentMemory, Bytes};

use super::drain::drain;
use super::means::Outcome;
use super::{Means, Refused, Tools, done, is_hot, shrunk};
use crate::wire::Done;

/// The kernel is asked for this much at a time.
const PIECE: Bytes = Bytes::from_mib(32);
/// Trimming takes no longer.
const LONGEST: Duration = Duration::from_secs(10);

/// After less, the per-CPU lists are left alone.
const WORTH_DRAINING: Bytes = Bytes::from_mib(4);

/// A request to trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The amount.
    pub bytes: Bytes,
    /// Anonymous memory may be swapped out, too.
    pub may_swap: bool,
    /// All page cache may be dropped at once if nothing else works.
    pub last_resort: bool,
}

/// What the kernel may be asked for. It takes reclaimable slab as well, but nothing makes it take that in place of page cache.
#[must_use]
pub fn may_take(memory: &AgentMemory, least: Bytes) -> Bytes {
    memory.unmapped_cache.saturating_sub(memory.dirty).saturating_sub(least)
}

/// Trims, and drains the per-CPU lists that the dropped pages are on.
///
/// # Errors
/// If the administrator does not allow it, if no means works here, or if the kernel's numbers cannot be read.
pub fn trim(tools: &mut Tools<'_>, asked: Trim) -> Result<Done, Refused> {
    let done = drop_cache(tools, asked)?;
    if done.bytes.is_some_and(|bytes| bytes >= WORTH_DRAINING) {
        drain(tools);
    }
    Ok(done)
}

/// Drops page cache, and leaves the pages on the per-CPU lists.
///
/// # Errors
/// As [`trim`].
pub fn drop_cache(tools: &mut Tools<'_>, asked: Trim) -> Result<Done, Refused> {
    if !tools.bounds.trim {
        return Err(Refused::Forbidden("trimming"));
    }
    let may_swap = asked.may_swap && tools.bounds.swap;
    let mut means = Means::usable(tools);
    if asked.last_resort {
        if !tools.bounds.drop_caches {
            return Err(Refused::Forbidden("drop_caches"));
        }
        means.push(Means::DropCaches);
    }
    if means.is_empty() {
        return Err(Refused::Unsupported(Means::missing()));
    }
    let begun = Instant::now();
    let mut before = tools.facts.report()?;
    let least = tools.bounds.least_cache(before.memory.total);
    let mut left = asked.bytes.min(may_take(&before.memory, least));
    let (mut freed, mut used) = (Bytes::ZERO, None);
    for means in means {
        while !left.is_zero() && begun.elapsed() < LONGEST {
            let piece = left.min(PIECE);
            let outcome = means.drop(tools, piece, may_swap);
            let after = tools.facts.report()?;
            // Some kernels reclaim more than they are asked for. What somebody has read meanwhile hides what is gone.
            let gone = shrunk(&before.memory, &after.memory);
            let dropped = if outcome == Outcome::Whole { gone.max(piece) } else { gone };
            if !dropped.is_zero() {
                used = Some(means);
            }
            freed = freed.saturating_add(dropped);
            left = left.saturating_sub(dropped).min(may_take(&after.memory, least));
            let refaults = after.counters.activations_file.saturating_sub(before.counters.activations_file);
            let takes_hot = is_hot(refaults, dropped.max(PIECE));
            before = after;
            if takes_hot {
                return Ok(done(freed, used.unwrap_or(means).name(), begun));
            }
            // A little less may be what somebody has read meanwhile.
            if dropped < piece.mul_div(3, 4) {
                break;
            }
        }
    }
    Ok(done(freed, used.map_or("none", Means::name), begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_cache_and_the_least_cache_are_left() {
        let mib = Bytes::from_mib;
        let memory = AgentMemory {
            unmapped_cache: mib(300),
            dirty: mib(20),
            reclaimable_slab: mib(10),
            ..AgentMemory::default()
        };
        assert_eq!(may_take(&memory, mib(100)), mib(180));
        assert_eq!(may_take(&memory, mib(1000)), mib(0));
    }
}
