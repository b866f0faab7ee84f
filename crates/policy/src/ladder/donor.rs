//! A guest that can give, and what it has been asked for so far.

use memtide_model::{Bytes, Commitment, HostState, Reason, Taken, Takes, Way};

use super::{least_worth, probe};
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::{GENTLE_EVERY, LEAST_HEADROOM};
use crate::ladder::wish::Wish;

/// A guest that can give.
pub struct Donor<'g, 'a> {
    pub index: usize,
    pub guest: &'g Guest<'a>,
    /// The size that it was asked to keep so far.
    pub from: Bytes,
    /// The size that it should keep.
    pub size: Bytes,
    /// The page cache that it keeps.
    pub cache: Bytes,
    /// The most that others can count on.
    pub counts: Bytes,
    /// It cannot wait.
    pub urgent: bool,
    /// The last way in which it gives, and all that was offered in it.
    pub way: Option<(Way, Bytes)>,
    /// The step of the search that its balloon takes.
    pub taken: Option<Taken>,
    /// Page cache that its agent should drop.
    pub trim: Option<Trim>,
}

/// Page cache that an agent should drop.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    /// The index of the guest.
    pub index: usize,
    /// The page cache to drop.
    pub bytes: Bytes,
    /// The step of the search, unless the balloon takes it.
    pub taken: Option<Taken>,
}

impl<'g, 'a> Donor<'g, 'a> {
    pub fn new(scene: &Scene, guest: &'g Guest<'a>, index: usize) -> Self {
        let from = guest.entry.target;
        Self {
            index,
            guest,
            from,
            size: from,
            cache: guest.need.cache_held,
            counts: probe::may_give(guest, has(scene, guest)),
            urgent: false,
            way: None,
            taken: None,
            trim: None,
        }
    }

    /// Its size from which what is given counts: elastic, what it has not touched brings nothing back.
    pub fn base(&self, scene: &Scene) -> Bytes {
        match scene.commitment {
            Commitment::Strict => self.size,
            Commitment::Elastic => self.size.min(self.guest.entry.touched()),
        }
    }

    /// Its new target, if the change is worth making.
    pub fn wish(&self, scene: &Scene, wanted: Bytes) -> Option<Wish> {
        let guest = self.guest;
        let size = if self.urgent || self.taken.is_some() {
            self.size
        } else {
            let gentle = self.from.saturating_sub(super::gentle(guest, scene.now));
            let lately = guest.before.target_set_at.is_some_and(|at| scene.now.since(at) < GENTLE_EVERY);
            // What is not given at once waits until a larger step is due: each new target is work for the guest.
            if lately && self.size < gentle {
                return None;
            }
            self.size.max(gentle)
        };
        let target = size.max(guest.bounds.reservation()).round_down(guest.step());
        let takes = match self.way {
            Some((Way::Pieces, _)) => Some(Takes::Pieces),
            _ => self.taken.map(Takes::Cache),
        };
        let less = target.saturating_add(least_worth(scene, guest)) <= self.from;
        let reason = self.reason(scene, wanted);
        less.then_some(Wish { index: self.index, target, reason, urgent: self.urgent, takes })
    }

    fn reason(&self, scene: &Scene, wanted: Bytes) -> Reason {
        let guest = self.guest;
        let demand = guest.need.with(self.cache);
        match self.way {
            Some((Way::Pieces, pieces)) => Reason::FreePieces { pieces, wanted },
            _ if guest.need.used.is_none() => {
                Reason::OverShare { entitlement: guest.entitlement, short: wanted }
            }
            _ if scene.emergency => {
                let floor = floor(scene, guest, self.cache);
                Reason::Emergency { state: HostState::Low, free: scene.ledger.free(), floor }
            }
            Some((Way::Step | Way::Cold | Way::Unproven | Way::Needed, _)) => {
                Reason::SqueezeStep { cache: self.cache, demand, wanted }
            }
            Some((Way::Idle, idle)) => Reason::IdleMemory { idle, demand, wanted },
            Some((Way::Last | Way::BeyondShare, _)) | None => {
                Reason::OverEntitlement { entitlement: guest.entitlement, demand, short: wanted }
            }
        }
    }
}

/// What a guest has to give: strict, the size that it was asked to keep; elastic, what it has touched of it.
pub fn has(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    match scene.commitment {
        Commitment::Strict => guest.entry.target,
        Commitment::Elastic => guest.entry.target.min(guest.entry.touched()),
    }
}

/// The size of a guest that keeps `cache`.
pub fn floor(scene: &Scene, guest: &Guest<'_>, cache: Bytes) -> Bytes {
    let keeps = match guest.need.used {
        Some(used) if scene.emergency => {
            let beyond = if guest.class.squeeze { guest.need.cache_beyond } else { Bytes::ZERO };
            Bytes::sum([used.saturating_sub(beyond), LEAST_HEADROOM, cache])
        }
        _ => guest.need.with(cache),
    };
    // Strict: a guest lacks cache only within its fair share, so others hold as much beyond theirs. Memory in use cannot wait.
    let share = match scene.commitment {
        Commitment::Strict if scene.wanted_for_use().is_zero() && !scene.emergency => guest.entitlement,
        _ => Bytes::ZERO,
    };
    guest.bounds.clamp(keeps).max(share)
}
