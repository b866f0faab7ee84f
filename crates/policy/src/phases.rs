//! Stage 4: what frees memory goes first, and a grant is backed by memory that is verified as returned.
//!
//! **Rule.** Actions come in this order: polling of statistics, shrinks (the largest first), grants (who cannot wait
//! first, then who lacks most). A lowered target frees nothing yet: the grants of a plan must fit into the room that the
//! ledger shows *now*, in which a guest counts with max(target, actual). Raising a target up to what the guest keeps
//! anyway costs nothing. In a strict commitment a grant to a guest whose self-deflation is among the k largest costs only
//! what exceeds the fall of that sum. A grant that does not fit whole is given in part.
//!
//! **Property.** After the plan the commitment holds, or is no further from holding than before.

use std::collections::BTreeSet;

use memtide_model::{Action, Bytes, Change, Commitment, PAGE_4K, Plan, Reason, Span, StatsPolling};

use crate::decide::{Guest, Scene};
use crate::demand::dead_band;
use crate::pacing::Wish;

/// The interval at which a managed guest's statistics are polled.
const POLL_EVERY: Span = Span::from_secs(1);

/// The plan, and what each guest is granted of its wish, by index.
#[must_use]
pub fn order(scene: &Scene, guests: &[Guest<'_>], mut wishes: Vec<Wish>) -> Plan {
    let mut actions = Vec::new();
    for guest in guests {
        let slow = match guest.seen.polling {
            StatsPolling::Off => true,
            StatsPolling::Every(span) => span > POLL_EVERY,
            StatsPolling::Unknown => false,
        } || (guest.seen.polling != StatsPolling::Unknown && guest.before.polled_before.is_none());
        if slow && guest.is_managed() {
            let change = Change::PollStats(POLL_EVERY);
            actions.push(Action { guest: guest.seen.id.clone(), change, reason: Reason::NeedStats });
        }
    }
    let gives = |wish: &Wish| guests[wish.index].entry.target.saturating_sub(wish.target);
    let lacks = |wish: &Wish| wish.target.saturating_sub(guests[wish.index].entry.held);
    let grows = |wish: &Wish| wish.target > guests[wish.index].entry.target;
    wishes.sort_by(|a, b| {
        let rank = |wish: &Wish| (grows(wish), grows(wish) && !wish.urgent);
        rank(a)
            .cmp(&rank(b))
            .then(gives(b).cmp(&gives(a)))
            .then(lacks(b).cmp(&lacks(a)))
            .then(a.index.cmp(&b.index))
    });
    let mut purse = Purse::new(scene, guests);
    for wish in wishes {
        let guest = &guests[wish.index];
        let target =
            if grows(&wish) { purse.grant(wish.index, guest.entry.held, wish.target) } else { wish.target };
        let sliver = grows(&wish) && target < guest.entry.target.saturating_add(dead_band(guest.seen.full));
        if !sliver {
            let change = Change::SetTarget(target.round_down(PAGE_4K));
            actions.push(Action { guest: guest.seen.id.clone(), change, reason: wish.reason });
        }
    }
    Plan { actions }
}

/// The room that grants are paid from.
struct Purse {
    spare: Bytes,
    /// Self-deflations by guest; empty unless they count.
    own: Vec<Bytes>,
    /// The same by size, for the k largest.
    by_size: BTreeSet<(Bytes, usize)>,
    k: usize,
}

impl Purse {
    fn new(scene: &Scene, guests: &[Guest<'_>]) -> Self {
        let strict = scene.commitment == Commitment::Strict;
        let k = if strict { usize::try_from(scene.self_deflations).unwrap_or(usize::MAX) } else { 0 };
        let own: Vec<Bytes> =
            if k == 0 { Vec::new() } else { guests.iter().map(|guest| guest.entry.self_deflation).collect() };
        let by_size = own.iter().enumerate().map(|(i, own)| (*own, i)).collect();
        Self { spare: scene.ledger.room.spare, own, by_size, k }
    }

    /// As much of `wanted` for a guest that holds `held` as can be paid.
    fn grant(&mut self, index: usize, held: Bytes, wanted: Bytes) -> Bytes {
        let more = wanted.saturating_sub(held);
        if more.is_zero() {
            return wanted;
        }
        let own = self.own.get(index).copied().unwrap_or_default();
        let covered = own.saturating_sub(self.next_largest(index));
        let granted = more.min(self.spare.saturating_add(covered));
        self.spare = self.spare.saturating_sub(granted.saturating_sub(covered));
        if let Some(slot) = self.own.get_mut(index) {
            *slot = own.saturating_sub(granted);
            self.by_size.remove(&(own, index));
            self.by_size.insert((*slot, index));
        }
        held.saturating_add(granted)
    }

    /// The (k+1)th largest self-deflation, where that of `index` is among the k largest; else more than any.
    fn next_largest(&self, index: usize) -> Bytes {
        let among = self.by_size.iter().rev().take(self.k).any(|(_, i)| *i == index);
        if !among {
            return Bytes::MAX;
        }
        self.by_size.iter().rev().nth(self.k).map_or(Bytes::ZERO, |(own, _)| *own)
    }
}
