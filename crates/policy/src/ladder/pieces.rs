//! Elastic, urgently: free memory in small pieces, which free page reporting does not return by itself, of guests that do not grow and may deflate their own
//! balloons. A balloon takes it before any other, so the target is that much lower. Nobody counts on it: others give as if it did not come.

use memtide_model::{Bytes, Commitment, Pays, Span, Way};

use super::donor::{Donor, floor};
use super::{Offer, Rung, Wants, least_worth};
use crate::belief::scene::Scene;
use crate::constants::PIECES;

pub struct Pieces;

impl Rung for Pieces {
    fn way(&self) -> Way {
        Way::Pieces
    }

    fn offer(&self, scene: &Scene, wants: &Wants, donor: &Donor<'_, '_>) -> Option<Offer> {
        let guest = donor.guest;
        if scene.commitment == Commitment::Strict
            || wants.urgent.is_zero()
            || donor.size < donor.from
            || guest.takes_more()
            || !guest.deflates_itself()
            || guest.need.pieces < guest.dead_band()
        {
            return None;
        }
        // There can be more of it than was counted: memory that its kernel reserved at boot counts as touched.
        let from = guest.entry.target.min(guest.entry.actual);
        let most = PIECES.of(guest.full).min(from.saturating_sub(floor(scene, guest, guest.need.cache_held)));
        (most >= least_worth(scene, guest)).then_some(Offer {
            frees: most,
            least: most,
            hurt: Span::ZERO,
            price: 0,
            pays: Pays::Urgent,
        })
    }

    fn counts(&self) -> bool {
        false
    }

    fn take(&self, _: &Scene, _: &Wants, donor: &mut Donor<'_, '_>, bought: Bytes) {
        donor.urgent = true;
        donor.size = donor.from.saturating_sub(bought);
    }
}
