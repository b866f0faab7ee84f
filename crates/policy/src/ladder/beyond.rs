//! Memory beyond the fair shares: only for others' memory in use.

use memtide_model::{Bytes, Pays, Span, Way};

use super::donor::Donor;
use super::{Offer, Rung, Wants, least_worth};
use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::{HURT_PAUSE, READ_AGAIN_US};

pub struct BeyondShare;

impl Rung for BeyondShare {
    fn way(&self) -> Way {
        Way::BeyondShare
    }

    fn offer(&self, scene: &Scene, _: &Wants, donor: &Donor<'_, '_>) -> Option<Offer> {
        let guest = donor.guest;
        let (share, from) = match guest.need.used {
            // It would take it again.
            Some(_) if takes_it_back(scene, guest) => {
                (guest.entitlement.max(guest.in_use()), donor.base(scene))
            }
            Some(_) => (guest.entitlement, donor.base(scene)),
            // What a silent guest has not touched counts for it.
            None => (guest.entitlement, donor.size),
        };
        let over = from.saturating_sub(share);
        (over >= least_worth(scene, guest)).then_some(Offer {
            frees: over,
            least: guest.dead_band(),
            hurt: Span::ZERO,
            price: READ_AGAIN_US,
            pays: Pays::ForUsed,
        })
    }

    fn take(&self, scene: &Scene, _: &Wants, donor: &mut Donor<'_, '_>, bought: Bytes) {
        let guest = donor.guest;
        // A silent guest keeps its fair share, and what it has not touched: nobody knows what it needs.
        let (base, least) = match guest.need.used {
            Some(_) => (donor.base(scene), Bytes::ZERO),
            None => (donor.size, guest.entitlement),
        };
        donor.size = base.saturating_sub(bought).max(least.min(base));
        donor.urgent = true;
    }
}

/// Whether a guest has deflated its own balloon a moment ago.
fn takes_it_back(scene: &Scene, guest: &Guest<'_>) -> bool {
    let lately = guest.next.deflated_at.is_some_and(|at| scene.now.since(at) < HURT_PAUSE);
    lately || guest.next.stalled.is_some() && guest.deflates_itself()
}
