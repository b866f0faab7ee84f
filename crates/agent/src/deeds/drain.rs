//! Draining: free memory on per-CPU lists goes back to the kernel, so that free page reporting can return it.
//!
//! Since Linux 6.7, the lists of each CPU may hold an eighth of a zone, for which all its CPUs share: 128 MiB in a guest of 1 GiB. Small trims stay there
//! whole. Reading `/proc/sys/vm/stat_refresh` makes each CPU lower what its list may hold by an eighth, and take off what is beyond that, at most
//! 8 MiB (`decay_pcp_high()` in `mm/page_alloc.c`). So the first reads may change nothing. Earlier lists are short.

use std::fs;
use std::time::{Duration, Instant};

use memtide_model::Bytes;

use super::Tools;

/// The most reads: each makes every CPU work for a moment. From what a list may hold to a 64th of it takes 31.
const MOST_READS: usize = 40;
/// Less is left on the lists.
const SHORT: Bytes = Bytes::from_mib(2);
/// Draining takes hardly longer.
const LONGEST: Duration = Duration::from_secs(1);

/// Drains the lists as far as the kernel lets it. If it does not, nothing is lost: the kernel does it sooner or later.
pub(super) fn drain(tools: &mut Tools<'_>) {
    let begun = Instant::now();
    let path = tools.root.proc("sys/vm/stat_refresh");
    for _ in 0..MOST_READS {
        if tools.facts.on_cpus() <= SHORT || begun.elapsed() >= LONGEST || fs::read(&path).is_err() {
            return;
        }
    }
}
