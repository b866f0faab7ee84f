//! Allocation and reclaim: who gets memory, and who loses it.
//!
//! **Terms.** The watermarks are min, low and high. Below low, the kernel's `kswapd` frees memory up to high. Below min, the allocating
//! task frees memory itself (direct reclaim) and stalls.
//!
//! **Rule.** Reclaim takes page cache and, if there is swap, also programs' memory, in proportion to `size × coldness`. A file of size S
//! that is read at R bytes a second has the coldness `1 / (1 + R × 60 s / S)`. So reclaim takes mostly cold cache, but not only: Linux's
//! lists are not in exact order either. Mapped files count a quarter. A few MiB of cold cache always stay. Programs' memory goes to the tier first, as
//! long as that has space, and then to the guest's own swap.

use memtide_model::MIB;

use crate::file::HOT_FOR;
use crate::guest::Guest;
use crate::limits::{Budget, By};
use crate::program::Running;

/// Cold page cache that reclaim never takes.
const LEAST_CACHE: u64 = 4 * MIB;
/// Direct reclaim frees this much at a time (`SWAP_CLUSTER_MAX` is 32 pages).
const CLUSTER: u64 = 32 * 4_096;
/// A mapped file counts as its size divided by this.
const MAPPED_PART: u64 = 4;

/// The smallest zone is kept for users that can use no other zone: this part of the memory is not available.
const LEAST_ZONE_PART: u64 = 256;

impl Guest {
    /// The bytes that reclaim can free within `dt` milliseconds. Direct reclaim is half as fast.
    pub(crate) fn reclaim_budget(&self, dt: u64) -> Budget {
        let kswapd = self.on_its_processor(self.spec.reclaims / 1_000 * dt);
        Budget { kswapd, direct: kswapd / 2, swap: self.spec.swap_speed / 1_000 * dt }
    }

    /// Lets `kswapd` work, if it is awake.
    pub(crate) fn balance(&mut self) {
        if !self.kswapd_awake {
            return;
        }
        let lacks = self.marks.high.saturating_sub(self.pools.free());
        let freed = self.reclaim(lacks, By::Kswapd);
        // It sleeps once enough is free, and gives up if there is nothing to free.
        self.kswapd_awake = freed > 0 && self.pools.free() < self.marks.high;
    }

    /// Allocates up to `wanted` bytes. Reclaims first if there is not enough free memory.
    pub(crate) fn allocate(&mut self, wanted: u64) -> u64 {
        let mut got = self.pools.take(wanted, self.marks.low);
        if got == wanted {
            return got;
        }
        self.kswapd_awake = true;
        self.reclaim(wanted - got, By::Kswapd);
        got += self.pools.take(wanted - got, self.marks.min);
        if got < wanted {
            // The per-CPU lists are drained before anyone waits.
            let ready = std::mem::take(&mut self.pools.ready);
            self.pools.free_backed += ready;
            self.reclaim(wanted - got, By::Direct);
            got += self.pools.take(wanted - got, self.marks.min);
        }
        got
    }

    /// Frees up to `wanted` bytes within the rest of this step's budget. Returns the bytes freed.
    pub(crate) fn reclaim(&mut self, wanted: u64, by: By) -> u64 {
        let left = match by {
            By::Kswapd => self.budget.kswapd,
            By::Direct => self.budget.direct,
        };
        let wanted = wanted.min(left);
        if wanted == 0 {
            return 0;
        }
        let total = self.weigh();
        let (freed, scanned) =
            if total == 0 { (0, wanted.min(CLUSTER)) } else { self.collect(wanted, total) };
        match by {
            By::Kswapd => {
                self.budget.kswapd -= freed;
                self.counters.async_scans += scanned;
                self.counters.async_reclaims += freed;
            }
            By::Direct => {
                self.budget.direct -= freed;
                self.counters.direct_scans += scanned;
                self.counters.direct_reclaims += freed;
                self.counters.alloc_stalls += freed.div_ceil(CLUSTER).max(1);
            }
        }
        freed
    }

    /// Drops up to `wanted` bytes of page cache, as a request from user space does. Returns the bytes freed.
    pub(crate) fn drop_cache(&mut self, wanted: u64) -> u64 {
        let budget = std::mem::take(&mut self.budget);
        // Without a budget for swap, only page cache has a weight.
        let total = self.weigh();
        let freed = if total == 0 { 0 } else { self.collect(wanted, total).0 };
        self.budget = budget;
        freed
    }

    /// Weighs each program and file for reclaim, and returns the sum of the weights.
    fn weigh(&mut self) -> u128 {
        let cold = self.cold.saturating_sub(LEAST_CACHE);
        let mut total = u128::from(cold);
        for file in &self.files {
            total += file_weight(file);
        }
        if self.can_swap() {
            total += self.programs.iter().map(Running::weight).sum::<u128>();
        }
        total
    }

    /// Takes `wanted` bytes in proportion to the weights, whose sum is `total`. Returns the bytes freed and the bytes scanned for them.
    fn collect(&mut self, wanted: u64, total: u128) -> (u64, u64) {
        let part = |weight: u128| u64::try_from(u128::from(wanted) * weight / total).unwrap_or(u64::MAX);
        let (mut freed, mut scanned) = (0, 0);
        let cold = self.cold.saturating_sub(LEAST_CACHE);
        let take = part(u128::from(cold)).min(cold);
        self.cold -= take;
        (freed, scanned) = (freed + take, scanned + take);
        for file in &mut self.files {
            let take = part(file_weight(file)).min(file.resident);
            file.resident -= take;
            freed += take;
            // Hot pages are scanned several times before one of them is taken.
            let looks = 1 + (file.heat * HOT_FOR / file.size().max(1)).min(3);
            scanned += take * looks;
        }
        self.pools.cache -= freed;
        let swapped = if self.can_swap() { self.swap_out(&part) } else { 0 };
        self.pools.programs -= swapped;
        // Reclaimed memory is free at once: the requester takes it.
        self.pools.free_backed += freed + swapped;
        (freed + swapped, scanned + 2 * swapped)
    }

    /// Whether reclaim can write programs' memory anywhere in this step. Without a budget, it drops page cache only.
    fn can_swap(&self) -> bool {
        self.budget.swap > 0 && (self.swap_left() > 0 || self.tier_space().1 > 0)
    }

    /// Writes a part of each program's memory to the tier, and what that has no space for to the guest's swap.
    fn swap_out(&mut self, part: &dyn Fn(u128) -> u64) -> u64 {
        let (mut left, mut swap_left) = (self.tier_space().1, self.swap_left().min(self.budget.swap));
        let mut swapped = 0;
        for index in 0..self.programs.len() {
            let program = &self.programs[index];
            let take = part(program.weight()).min(program.resident);
            let to_tier = take.min(left);
            let written = if to_tier > 0 { self.write_out(index, to_tier) } else { 0 };
            left -= written;
            // What could not be written for want of memory stays.
            let to_swap = (take - to_tier).min(swap_left);
            let program = &mut self.programs[index];
            program.resident -= to_swap;
            program.swapped += to_swap;
            swap_left -= to_swap;
            self.budget.swap -= to_swap;
            self.counters.swapped_out += to_swap;
            swapped += written + to_swap;
        }
        swapped
    }

    /// The space left in its swap.
    pub(crate) fn swap_left(&self) -> u64 {
        let swapped: u64 = self.programs.iter().map(|program| program.swapped).sum();
        self.spec.swap.get().saturating_sub(swapped)
    }

    /// `MemAvailable`, as `si_mem_available()` computes it.
    pub(crate) fn available(&self) -> u64 {
        let low = self.marks.low;
        let cache = self.pools.cache - low.min(self.pools.cache / 2);
        let slab = self.spec.slab.get();
        let slab = slab - low.min(slab / 2);
        let kept = self.marks.high + self.pools.memory / LEAST_ZONE_PART;
        (self.pools.free() + cache + slab).saturating_sub(kept)
    }
}

fn file_weight(file: &crate::file::Reading) -> u128 {
    let size = file.size().max(1);
    let weight = u128::from(file.resident) * u128::from(size) / u128::from(size + file.heat * HOT_FOR);
    if file.spec.mapped { weight / u128::from(MAPPED_PART) } else { weight }
}
