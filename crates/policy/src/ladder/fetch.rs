//! Free memory that the operator wants back: the guest's balloon takes it.
//!
//! **Problem.** Free page reporting returns only free blocks of 2 MiB and larger. The rest of a guest's free memory stays with it, also when it is about
//! to be paused, saved or migrated. A balloon takes small pieces before it splits a block.
//!
//! **Rule.** If the operator orders so, a guest is inflated by that much, down to what it needs with its page cache. Nobody has to lack memory. It grows
//! again like any other guest. One that may not deflate its own balloon is left as it is: if it is held then, and grows, it would kill a program.

use memtide_model::{Ordered, Reason, Snapshot, Takes};

use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::TOLERANCE;
use crate::ladder::orders;
use crate::ladder::wish::Wish;

/// Adds the ordered inflations to `wishes`, in place of what was wished for these guests. A guest that gives more than was ordered does so.
pub fn fetch(scene: &Scene, seen: &Snapshot, guests: &[Guest<'_>], wishes: &mut Vec<Wish>) {
    let is_fetch = |ordered| if let Ordered::Fetch(bytes) = ordered { Some(bytes) } else { None };
    for (index, bytes) in orders::ordered(seen, guests, is_fetch) {
        let guest = &guests[index];
        // One that gives to its tmpfs can give more.
        let can_give = guest.is_donor(scene.now) && guest.next.lifted_at.is_none();
        if guest.need.used.is_none() || !can_give || !guest.deflates_itself() {
            continue;
        }
        let from = guest.entry.target.min(guest.entry.actual);
        let target = from
            .saturating_sub(bytes)
            .max(guest.bounds.clamp(guest.need.with(guest.need.cache_held)))
            .round_down(guest.step());
        if target.saturating_add(TOLERANCE) <= from
            && wishes.iter().all(|wish| wish.index != index || wish.target > target)
        {
            wishes.retain(|wish| wish.index != index);
            wishes.push(Wish {
                index,
                target,
                reason: Reason::Ordered,
                urgent: false,
                takes: Some(Takes::Pieces),
            });
        }
    }
}
