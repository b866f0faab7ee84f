//! The balloon: a driver that takes memory from its kernel and returns it to the host.
//!
//! **Rule.** The driver looks at its target only when the VMM writes it, and then works until it arrives there. It takes free memory at its
//! own full speed; memory that must be reclaimed first arrives at the speed of reclaim. If the guest may deflate its own balloon
//! (`deflate-on-oom`), it does so 1 MiB at a time, before a program is killed. The driver does not take that memory back until its target
//! is written again.

use memtide_model::MIB;

use crate::guest::Guest;
use crate::limits::By;

/// Allocations that stall for each MiB of self-deflation (measured: 17,136 for 504 MiB).
const STALLS_A_MIB: u64 = 34;

impl Guest {
    /// Moves the balloon for `dt` milliseconds. Returns the part of a processor that this took, in thousandths.
    pub(crate) fn drive(&mut self, dt: u64) -> u64 {
        let driver = self.driver;
        if !driver.moves || driver.hangs || self.now < driver.up_at {
            return 0;
        }
        let keeps = self.pools.memory - self.pools.balloon;
        if keeps < driver.target {
            let most = self.on_its_processor(self.spec.deflates / 1_000 * dt).max(1);
            self.progress.moved += self.pools.deflate((driver.target - keeps).min(most));
        } else if keeps > driver.target {
            let most = self.on_its_processor(self.spec.inflates / 1_000 * dt).max(1);
            let wanted = (keeps - driver.target).min(most);
            let took = self.inflate(wanted);
            self.progress.moved += took;
            if self.pools.memory - self.pools.balloon > driver.target {
                return 1_000 * wanted / most;
            }
        }
        self.driver.moves = self.pools.memory - self.pools.balloon != driver.target;
        0
    }

    fn inflate(&mut self, wanted: u64) -> u64 {
        let torn = self.spec.torn_per_mille;
        let mut took = self.pools.inflate(wanted, self.marks.low, torn);
        if took < wanted {
            self.kswapd_awake = true;
            self.reclaim(wanted - took, By::Kswapd);
            self.reclaim((wanted - took).saturating_sub(self.pools.free()), By::Direct);
            took += self.pools.inflate(wanted - took, self.marks.min, torn);
        }
        took
    }

    /// The guest deflates its own balloon for up to `dt` milliseconds, to get `wanted` bytes that it cannot get otherwise.
    pub(crate) fn deflate_for(&mut self, wanted: u64, dt: u64) -> u64 {
        if !self.spec.deflate_on_oom || self.waits || self.now < self.driver.up_at {
            return 0;
        }
        let most = (self.spec.deflates_itself / 1_000 * dt).max(1);
        let bytes = self.pools.deflate(wanted.next_multiple_of(MIB).min(most));
        self.progress.moved += bytes;
        self.counters.alloc_stalls += bytes * STALLS_A_MIB / MIB;
        self.counters.direct_scans += bytes;
        bytes
    }
}
