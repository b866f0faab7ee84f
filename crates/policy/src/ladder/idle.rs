//! Idle memory: the guest that holds most gives first. Elastic, guests that report freed memory are asked for it only in an emergency: it comes back by
//! itself, and what was freed a moment ago would be taken for nothing.

use memtide_model::{Bytes, Commitment, Pays, Span, Way};

use super::donor::{Donor, floor};
use super::{Offer, Rung, Wants, agent, least_worth};
use crate::belief::scene::Scene;

pub struct Idle;

impl Rung for Idle {
    fn way(&self) -> Way {
        Way::Idle
    }

    fn offer(&self, scene: &Scene, wants: &Wants, donor: &Donor<'_, '_>) -> Option<Offer> {
        let guest = donor.guest;
        guest.need.used?;
        let idle = idle(scene, wants, donor);
        // What an agent has dropped on request is taken at once: that fixes the size.
        let comes_back = scene.commitment == Commitment::Elastic
            && guest.reports_freed()
            && agent::returning(guest, scene.now).is_zero();
        if idle < least_worth(scene, guest) || (comes_back && !scene.emergency) {
            return None;
        }
        Some(Offer {
            frees: idle,
            least: guest.dead_band(),
            hurt: Span::ZERO,
            price: 0,
            pays: if comes_back { Pays::Urgent } else { Pays::All },
        })
    }

    fn take(&self, scene: &Scene, wants: &Wants, donor: &mut Donor<'_, '_>, bought: Bytes) {
        let guest = donor.guest;
        let size = match scene.commitment {
            Commitment::Strict => donor.from.saturating_sub(bought),
            // Untouched memory goes first, and brings nothing back.
            Commitment::Elastic => {
                guest.entry.touched().saturating_sub(bought).max(floor(scene, guest, guest.need.cache_held))
            }
        };
        donor.urgent = !wants.urgent.is_zero() || !wants.over.is_zero();
        donor.size = donor.size.min(size);
    }
}

fn idle(scene: &Scene, wants: &Wants, donor: &Donor<'_, '_>) -> Bytes {
    let guest = donor.guest;
    let cache = guest.need.cache_held;
    // Memory that was granted for needed cache, and is not filled yet, is idle only for others' memory in use.
    let keeps = if wants.for_use.is_zero() { cache.max(guest.need.cache) } else { cache };
    let idle = donor.from.saturating_sub(floor(scene, guest, keeps));
    match scene.commitment {
        Commitment::Strict => idle,
        Commitment::Elastic => idle.min(guest.entry.touched().saturating_sub(floor(scene, guest, cache))),
    }
}
