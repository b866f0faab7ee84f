//! Draining: free memory on per-CPU lists goes back to the kernel, so that free page reporting can return it.
//!
//! Reading `/proc/sys/vm/stat_refresh` makes each CPU bring its counters up to date, and take an eighth of its list off, at most 4 MiB
//! (`decay_pcp_high()` in `mm/page_alloc.c`, Linux 6.7 and later; earlier lists are short). Of 100 MiB that a trim dropped in a guest with one
//! CPU, 44 MiB were on its list, and 10 MiB after twelve reads.

use std::fs;
use std::time::{Duration, Instant};

use super::Tools;

/// The most reads: each makes every CPU work for a moment.
const MOST_READS: usize = 16;
/// Draining takes hardly longer.
const LONGEST: Duration = Duration::from_secs(1);

/// Drains the lists as far as the kernel lets it. If it does not, nothing is lost: the kernel does it sooner or later.
pub(super) fn drain(tools: &mut Tools<'_>) {
    let begun = Instant::now();
    let path = tools.root.proc("sys/vm/stat_refresh");
    let mut held = tools.facts.on_cpus();
    for _ in 0..MOST_READS {
        if begun.elapsed() >= LONGEST || fs::read(&path).is_err() {
            return;
        }
        let left = tools.facts.on_cpus();
        // The lists are as short as they get.
        if left > held.mul_div(15, 16) {
            return;
        }
        held = left;
    }
}
