//! Which guests' memory KSM may merge.
//!
//! **Problem.** A guest can find out by the time of a write whether another guest has the same page. So memory is shared only where the operator
//! says so. But QEMU lets KSM merge all guests unless told otherwise.
//!
//! **Rule.** While memtide governs KSM, a guest's memory may be merged exactly if `share` of its class is true. Merged memory that must come apart
//! needs room: it is taken from KSM once the host has as much free, one guest at a time. Guests of which nothing is merged do not wait.
//!
//! **Property.** No sharing ends that the host's free memory cannot hold.

use memtide_model::{Action, Bytes, Config, KsmReason, Plan, Reason, Request};

use crate::guest::Guest;
use crate::scene::Scene;

/// Adds the orders that are right now to the plan.
pub fn order(config: &Config, scene: &Scene, guests: &[Guest<'_>], plan: &mut Plan) {
    if !config.governs_ksm() {
        return;
    }
    let mut room = scene.ledger.really_free().saturating_sub(scene.growing);
    for guest in guests.iter().filter(|guest| guest.is_free()) {
        let shares = guest.class.share;
        if guest.seen.told.merges.fresh().is_none_or(|&merges| merges == shares) {
            continue;
        }
        let reason = if shares {
            KsmReason::Shares
        } else {
            let merged = guest.seen.cost.merged.latest().copied().unwrap_or_default();
            if merged > room {
                continue;
            }
            // The next one waits until this memory is in the ledger.
            room = if merged.is_zero() { room } else { Bytes::ZERO };
            KsmReason::DoesNotShare { merged }
        };
        let action = Action::of(guest.seen.id.clone(), Request::Share(shares), Reason::Ksm(reason));
        plan.actions.push(action);
    }
}
