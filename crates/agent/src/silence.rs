//! Reports that would tell nothing new.
//!
//! **Rule.** An amount of memory has changed if it moved by 4 MiB and by 1 % of all memory. A counter has changed if it moved by 1 MiB, one kill or
//! one stalled allocation; a time, if it grew by 1 ms of waits for memory or by 50 ms of waits for a disk. At least every 5 s a report is sent anyway: it shows that the agent lives.

use memtide_model::{AgentCounters, AgentMemory, AgentStalls, Bytes};

use crate::wire::Report;

/// A report is sent after this time in any case, in milliseconds.
const LONGEST_MS: u64 = 5_000;
/// The least change of an amount.
const LEAST: Bytes = Bytes::from_mib(4);
/// The least change of an amount, as a part of all memory: one part in this many.
const PART: u64 = 100;
/// The least change of a counter of memory, and of a time.
const LEAST_COUNT: Bytes = Bytes::from_mib(1);
const LEAST_US: u64 = 1_000;
/// The same of waits for a disk, which say little alone.
const LEAST_DISK_US: u64 = 50_000;

/// Whether `now` tells nothing that `last` did not.
#[must_use]
pub fn is_same(last: &Report, now: &Report) -> bool {
    now.made_ms.saturating_sub(last.made_ms) < LONGEST_MS
        && same_memory(&last.memory, &now.memory)
        && same_counters(&last.counters, &now.counters)
        && same_stalls(last.stalls.as_ref(), now.stalls.as_ref())
}

fn same_memory(last: &AgentMemory, now: &AgentMemory) -> bool {
    let least = LEAST.max(now.total.mul_div(1, PART));
    let amounts = |m: &AgentMemory| {
        [
            m.total,
            m.free,
            m.free_blocks,
            m.pieces,
            m.available,
            m.unmapped_cache,
            m.dirty,
            m.reclaimable_slab,
            m.swap_total,
            m.swap_free,
            m.anon,
            m.tier_total,
            m.tier_free,
        ]
    };
    amounts(last).into_iter().zip(amounts(now)).all(|(last, now)| last.abs_diff(now) < least)
}

fn same_counters(last: &AgentCounters, now: &AgentCounters) -> bool {
    let amounts = |c: &AgentCounters| {
        [
            c.refaults_file,
            c.refaults_anon,
            c.activations_file,
            c.activations_anon,
            c.swapped_in,
            c.swapped_out,
        ]
    };
    let same =
        amounts(last).into_iter().zip(amounts(now)).all(|(last, now)| last.abs_diff(now) < LEAST_COUNT);
    same && last.oom_kills == now.oom_kills && last.alloc_stalls == now.alloc_stalls
}

fn same_stalls(last: Option<&AgentStalls>, now: Option<&AgentStalls>) -> bool {
    let (Some(last), Some(now)) = (last, now) else { return last.is_none() == now.is_none() };
    let same = |time: fn(&AgentStalls) -> u64, least| time(last).abs_diff(time(now)) < least;
    same(|s| s.memory_some_us, LEAST_US)
        && same(|s| s.memory_full_us, LEAST_US)
        && same(|s| s.io_some_us, LEAST_DISK_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_are_silent_for_five_seconds() {
        let mib = Bytes::from_mib;
        let last = Report {
            memory: AgentMemory { total: mib(1000), free: mib(500), ..AgentMemory::default() },
            ..Report::default()
        };
        let at = |made_ms, free: u64, kills| Report {
            made_ms,
            memory: AgentMemory { free: mib(free), ..last.memory },
            counters: AgentCounters { oom_kills: kills, ..AgentCounters::default() },
            ..last.clone()
        };
        assert!(is_same(&last, &at(1_000, 491, 0)));
        assert!(!is_same(&last, &at(1_000, 490, 0)));
        assert!(!is_same(&last, &at(1_000, 500, 1)));
        let stalled = AgentCounters { alloc_stalls: 1, ..AgentCounters::default() };
        assert!(!is_same(&last, &Report { counters: stalled, ..last.clone() }));
        let waited = |io_some_us| Some(AgentStalls { io_some_us, ..AgentStalls::default() });
        let before = Report { stalls: waited(0), ..last.clone() };
        assert!(is_same(&before, &Report { stalls: waited(49_999), ..last.clone() }));
        assert!(!is_same(&before, &Report { stalls: waited(50_000), ..last.clone() }));
        assert!(!is_same(&last, &at(5_000, 500, 0)));
    }
}
