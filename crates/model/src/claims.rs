//! Sizes that nobody has proved, or that contradict each other.
//!
//! **Problem.** Anybody whose guests count can start a process whose command line names any size. The ledger would hold memory for it, and take it
//! from guests that need it.
//!
//! **Rule.**
//!
//! - As long as no VMM has told a guest's size on a proved socket, its size counts no further than its process has mapped memory that can be its RAM.
//!   Before the mappings are read, the guest counts at its footprint. Such a guest is only observed.
//! - No guest can use more memory than the machine has. A guest of such a size, claimed, told or mapped, counts at its footprint and is only observed.
//! - A guest whose balloon keeps more than all of its memory counts at what the balloon keeps, and is only observed: one of the two is wrong.
//!
//! A size within the machine's memory counts in full once a VMM has told it: a large guest that has just started looks the same.

use crate::{Absence, Bytes, Fence, GuestSeen, Told, largest_guest};

impl GuestSeen {
    /// Bounds what counts of a guest. `mapped` is the memory of its process that can be its RAM; `None` if its mappings were not read. `memory` is
    /// what the machine has.
    pub fn bound_claims(&mut self, mapped: Option<Bytes>, memory: Bytes) {
        // Only a process that has ended has none.
        let footprint = self.cost.footprint.latest().copied().unwrap_or_default();
        let keeps = self.told.balloon.latest().map_or(Bytes::ZERO, |balloon| balloon.actual);
        let claims = [self.told.full, keeps, self.cost.overhead_bound, self.unplugged_request()];
        if let Some(claims) = claims.into_iter().max().filter(|worst| *worst > largest_guest(memory)) {
            self.count_at(footprint);
            // Nothing else that it tells is believed either.
            let fence = self.told.fence.unwrap_or(Fence::Oversized { claims });
            self.told = Told { fence: Some(fence), ..Told::claimed(footprint, Absence::Malformed) };
            return;
        }
        if self.told.claimed {
            let touched = footprint.saturating_sub(self.cost.overhead);
            match mapped {
                Some(mapped) => self.told.full = self.told.full.min(mapped.max(touched)),
                None => self.count_at(self.told.full.min(footprint)),
            }
            if self.told.balloon.latest().is_some() {
                self.told.fence = self.told.fence.or(Some(Fence::Unproved));
            }
        } else if keeps > self.told.full {
            self.told.fence = self.told.fence.or(Some(Fence::Contradicts { full: self.told.full }));
            self.told.full = keeps;
        }
    }

    /// Makes `full` its worst case. Its cost stays what it is.
    const fn count_at(&mut self, full: Bytes) {
        self.told.full = full;
        (self.cost.overhead, self.cost.overhead_bound) = (Bytes::ZERO, Bytes::ZERO);
    }
}
