//! Page cache.
//!
//! Without urgency, one guest gives a step that is watched ([`crate::belief::search`]); as long as others lack only page cache, and the commitment is kept,
//! not from its fair share. Urgently, the idlest guest gives first ([`crate::belief::activity`]): what is likely to be cold, then the rest that nobody was
//! seen to need. Needed cache is given for used memory that others lack, or in an emergency; then cache that its kernel does not call available.
//!
//! An agent takes its time: it is asked for all that is wanted, not only for what cannot wait.

use memtide_model::{Bytes, Commitment, Pays, Span, Taken, Way};

use super::donor::{Donor, Trim, floor, has};
use super::{Offer, Rung, Wants, agent, least_worth, probe};
use crate::belief::activity;
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::belief::search;
use crate::constants::{LEAST_GRANT, LEAST_STEP, READ_AGAIN_US};

/// One step of one guest, if no other step is being watched.
pub struct Step;

impl Rung for Step {
    fn way(&self) -> Way {
        Way::Step
    }

    fn offer(&self, scene: &Scene, wants: &Wants, donor: &Donor<'_, '_>) -> Option<Offer> {
        let guest = donor.guest;
        let blind = !guest.need.shows_refaults();
        if wants.is_watched
            || !wants.urgent.is_zero()
            || !may_be_squeezed(guest)
            || guest.next.search.trial.is_some()
            || agent::is_busy(guest)
            || probe::may_give(guest, guest.entry.target).is_zero()
            || (blind && wants.for_use.is_zero())
        {
            return None;
        }
        let all = search::may_try(&guest.next.search, &guest.need, guest.full, scene.now);
        let able = all.min(has(scene, guest).saturating_sub(share_beside_cache(scene, guest)));
        let step = search::gentle_step(able).max(scene.unmet.min(able)).max(guest.dead_band()).min(able);
        let is_deaf = guest.next.search.deaf.lasts(scene.now);
        (able >= LEAST_STEP).then_some(Offer {
            frees: step.min(probe::may_give(guest, floor(scene, guest, donor.cache))),
            least: least_step(guest),
            // If its scans prove nothing, it cannot be judged by them: it can only be tried.
            hurt: if is_deaf { Span::ZERO } else { guest.next.search.back_off.span },
            price: if is_deaf { 0 } else { activity::loses(&guest.next.activity).max(1) },
            pays: Pays::All,
        })
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn take(&self, scene: &Scene, _: &Wants, donor: &mut Donor<'_, '_>, bought: Bytes) {
        squeeze(scene, donor, bought, bought, true);
    }
}

/// Page cache that is taken urgently.
pub enum Urgent {
    /// What is likely to be cold.
    Cold,
    /// What nobody was seen to need.
    Unproven,
    /// The rest.
    Needed,
}

impl Rung for Urgent {
    fn way(&self) -> Way {
        match self {
            Self::Cold => Way::Cold,
            Self::Unproven => Way::Unproven,
            Self::Needed => Way::Needed,
        }
    }

    fn offer(&self, scene: &Scene, wants: &Wants, donor: &Donor<'_, '_>) -> Option<Offer> {
        let guest = donor.guest;
        if wants.urgent.is_zero() || !may_be_squeezed(guest) || donor.counts.is_zero() {
            return None;
        }
        let most = self.most(donor).min(probe::may_give(guest, floor(scene, guest, donor.cache)));
        let least = least_step(guest);
        // Each target is work for the guest: cold cache goes in larger steps.
        let worth = if matches!(self, Self::Needed) { least } else { LEAST_GRANT };
        (most >= least).then_some(Offer {
            frees: most,
            least: worth,
            hurt: Span::ZERO,
            price: activity::loses(&guest.next.activity),
            pays: match self {
                Self::Cold => Pays::Urgent,
                Self::Unproven => Pays::Pressing,
                Self::Needed => Pays::ForUsed,
            },
        })
    }

    fn take(&self, scene: &Scene, wants: &Wants, donor: &mut Donor<'_, '_>, bought: Bytes) {
        let bytes = bought;
        let trim = match self {
            Self::Needed => bytes,
            Self::Cold | Self::Unproven => wants.all.clamp(bytes, self.most(donor).max(bytes)),
        };
        squeeze(scene, donor, bytes, trim, false);
        donor.urgent = true;
    }
}

impl Urgent {
    fn most(&self, donor: &Donor<'_, '_>) -> Bytes {
        let guest = donor.guest;
        let taken = guest.need.cache_held.saturating_sub(donor.cache);
        let unproven = search::unproven(&guest.next.search, &guest.need, guest.full);
        match self {
            Self::Cold => activity::likely_cold(unproven, &guest.next.activity).saturating_sub(taken),
            Self::Unproven => unproven.saturating_sub(taken),
            Self::Needed => donor.cache.saturating_sub(guest.need.cache_kept),
        }
    }
}

/// Page cache that kernels do not call available, of guests that have no other worth a step.
pub struct Last;

impl Rung for Last {
    fn way(&self) -> Way {
        Way::Last
    }

    fn offer(&self, scene: &Scene, _: &Wants, donor: &Donor<'_, '_>) -> Option<Offer> {
        let guest = donor.guest;
        let used = guest.need.used?;
        if scene.emergency || donor.cache >= LEAST_STEP || !guest.class.squeeze {
            return None;
        }
        // What is under way takes it already.
        let least = used.saturating_sub(guest.need.cache_beyond);
        let most = guest.need.cache_beyond.min(donor.size.saturating_sub(least));
        (most >= least_worth(scene, guest)).then_some(Offer {
            frees: most,
            least: guest.dead_band(),
            hurt: Span::ZERO,
            price: READ_AGAIN_US,
            pays: Pays::ForUsed,
        })
    }

    fn take(&self, scene: &Scene, _: &Wants, donor: &mut Donor<'_, '_>, bought: Bytes) {
        donor.size = donor.base(scene).min(floor(scene, donor.guest, Bytes::ZERO)).saturating_sub(bought);
        donor.urgent = true;
    }
}

/// The least page cache that is worth a change.
fn least_step(guest: &Guest<'_>) -> Bytes {
    LEAST_STEP.max(guest.dead_band())
}

fn may_be_squeezed(guest: &Guest<'_>) -> bool {
    guest.class.squeeze && guest.need.used.is_some()
}

/// What a guest keeps in any case while others lack only page cache: its fair share.
fn share_beside_cache(scene: &Scene, guest: &Guest<'_>) -> Bytes {
    if !scene.wanted_for_use().is_zero() || scene.emergency {
        return Bytes::ZERO;
    }
    // What the commitment lacks is not only for cache.
    if scene.ledger.room.short.is_zero() { guest.entitlement } else { Bytes::ZERO }
}

/// Takes a step of page cache: its agent is asked for `trim`.
fn squeeze(scene: &Scene, donor: &mut Donor<'_, '_>, step: Bytes, trim: Bytes, gently: bool) {
    let guest = donor.guest;
    let has = guest.need.cache_held;
    if let Some(droppable) = agent::droppable(guest, scene.now) {
        let bytes = trim.min(droppable);
        let keeps = donor.cache.saturating_sub(bytes);
        let taken = gently.then_some(Taken { has, keeps, gently });
        donor.trim = Some(Trim { index: donor.index, bytes, taken });
        if gently {
            // What the agent drops is free memory, and the guest gives it as such.
            donor.cache = keeps;
            return;
        }
    }
    donor.cache = donor.cache.saturating_sub(step);
    let size = floor(scene, guest, donor.cache);
    // Its kernel may keep less free than was assumed. In need, the step counts.
    let in_need = donor.from.saturating_sub(step).max(floor(scene, guest, Bytes::ZERO));
    let size = match scene.commitment {
        // Room for needed cache that is not filled is no part of the step.
        Commitment::Strict if gently => {
            size.max(donor.size.saturating_sub(step)).max(share_beside_cache(scene, guest))
        }
        Commitment::Elastic if gently => size.max(share_beside_cache(scene, guest)),
        // No share bounds what is taken in an emergency: no more than the step beside the idle memory.
        Commitment::Strict if scene.emergency => {
            donor.size.saturating_sub(step).max(floor(scene, guest, Bytes::ZERO))
        }
        _ => size.min(in_need),
    };
    donor.size = donor.size.min(size);
    donor.taken = Some(Taken { has, keeps: donor.cache, gently });
}
