//! The room that grants of a plan are paid from, in the ledger of a host or of a tmpfs ([`crate::ladder::phases`]).

use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use memtide_model::{Bytes, Commitment};

use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::LITTLE_AVAILABLE;

/// What is left of that room.
pub struct Purse {
    spare: Bytes,
    /// The same for guests that lack memory in use or needed cache.
    in_need: Bytes,
    /// Self-deflations by guest; empty unless they count.
    own: Vec<Bytes>,
    /// The most of each that counts.
    within: Bytes,
    /// The same with the largest on top. Grants make self-deflations smaller: an outdated entry is corrected when it comes up.
    by_size: BinaryHeap<(Bytes, usize)>,
    k: usize,
    /// The room that self-deflations and grants share.
    kept: Bytes,
}

impl Purse {
    /// The room of a ledger whose guests have these self-deflations.
    pub fn new(scene: &Scene, own: Vec<Bytes>) -> Self {
        let strict = scene.commitment == Commitment::Strict;
        let k = if strict { usize::try_from(scene.self_deflations).unwrap_or(usize::MAX) } else { 0 };
        let own = if k == 0 { Vec::new() } else { own };
        let by_size = own.iter().enumerate().map(|(i, own)| (*own, i)).collect();
        let ledger = &scene.ledger;
        let kept = ledger.for_guests().saturating_sub(ledger.strict_costs);
        let (spare, in_need, within) = (ledger.room.spare, ledger.in_need, ledger.within);
        Self { spare, in_need, own, within, by_size, k, kept }
    }

    /// No room at all.
    pub const fn empty() -> Self {
        Self {
            spare: Bytes::ZERO,
            in_need: Bytes::ZERO,
            own: Vec::new(),
            within: Bytes::ZERO,
            by_size: BinaryHeap::new(),
            k: 0,
            kept: Bytes::ZERO,
        }
    }

    /// The part of `wanted` that can be paid for.
    pub fn grant(&mut self, index: usize, guest: &Guest<'_>, wanted: Bytes) -> Bytes {
        let held = guest.entry.held;
        let more = wanted.saturating_sub(held);
        if more.is_zero() {
            return wanted;
        }
        let own = self.own.get(index).copied().unwrap_or_default();
        // What counts falls only once no more is left than counts.
        let uncounted = own.saturating_sub(self.within);
        let covers = own.saturating_sub(uncounted).saturating_sub(self.next_largest(index));
        let covered = if self.spare < uncounted { Bytes::ZERO } else { covers };
        let in_use = if has_little(guest) { guest.lacks_in_use() } else { Bytes::ZERO };
        let needed = more.min(in_use).min(self.in_need);
        // A fall of the self-deflations pays for no reach above the capacity.
        let promised =
            self.spare.saturating_add(covered).min(if self.k > 0 { self.kept } else { Bytes::MAX });
        let granted = more.min(promised).max(needed);
        let paid = granted.saturating_sub(covers.min(granted.saturating_sub(uncounted)));
        self.spare = self.spare.saturating_sub(paid);
        self.kept = self.kept.saturating_sub(granted);
        self.in_need = self.in_need.saturating_sub(granted);
        if let Some(slot) = self.own.get_mut(index) {
            *slot = own.saturating_sub(granted);
        }
        held.saturating_add(granted)
    }

    /// The (k+1)th largest self-deflation, if that of `index` is among the k largest; otherwise the maximum.
    fn next_largest(&mut self, index: usize) -> Bytes {
        let mut largest = Vec::with_capacity(self.k.min(self.own.len()) + 1);
        while largest.len() <= self.k {
            let Some(mut top) = self.by_size.peek_mut() else { break };
            let current = self.own[top.1];
            if top.0 == current {
                largest.push(PeekMut::pop(top));
            } else {
                top.0 = current;
            }
        }
        let next = largest.get(self.k).map_or(Bytes::ZERO, |(own, _)| (*own).min(self.within));
        let among = largest.iter().take(self.k).any(|(_, i)| *i == index);
        self.by_size.extend(largest);
        if among { next } else { Bytes::MAX }
    }
}

/// Whether less than three eighths of a guest's size are available: the word of a stall alone does not open the reserve.
fn has_little(guest: &Guest<'_>) -> bool {
    let available = guest.seen.told.stats.fresh().and_then(|stats| stats.available);
    available.is_some_and(|available| available < LITTLE_AVAILABLE.of(guest.full))
}
