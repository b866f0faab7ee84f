//! Which guests' memory KSM may merge.
//!
//! **Problem.** A guest can find out by the time of a write whether another guest has the same page. So memory is shared only where the operator
//! says so. But QEMU lets KSM merge all guests unless told otherwise.
//!
//! **Rule.** While memtide governs KSM, the memory of a guest that it manages may be merged exactly if `share` of the guest's class is true. Merged
//! memory that must come apart needs room: the host must have it free beyond its reserve, with nobody in want. Only one guest's memory comes apart
//! at a time; the next one waits until that is done. A guest is asked again after 10 min at the earliest. No burst begins while a guest must come apart
//! and was not asked yet.
//!
//! **Property.** No sharing ends that the host's free memory cannot hold.

use memtide_model::{Action, Bytes, KsmReason, KsmSeen, KsmState, Moment, Plan, Reason, Request};

use crate::belief::Beliefs;
use crate::belief::guest::Guest;
use crate::constants::LONGEST_PAUSE;

/// Adds the orders that are due now to the plan.
pub fn order(beliefs: &Beliefs<'_>, ksm: &KsmState, plan: &mut Plan) {
    let Beliefs { config, seen, guests, scene, .. } = beliefs;
    let is_ours = config.governs_ksm() && ksm.foreign_since.is_none();
    let Some(host) = seen.host.ksm.fresh().filter(|_| is_ours) else { return };
    let free = scene.ledger.free().min(scene.until_danger);
    let room = free.saturating_sub(scene.growing).saturating_sub(scene.wanted());
    let mut is_busy = guests.iter().any(|guest| comes_apart(guest, scene.now));
    for guest in guests.iter().filter(|guest| is_to_be_asked(guest, scene.now)) {
        let shares = guest.class.share;
        let apart = apart(guest, host);
        if !shares && !apart.is_zero() && (is_busy || apart > room) {
            continue;
        }
        is_busy |= !shares && !apart.is_zero();
        let reason = if shares { KsmReason::Shares } else { KsmReason::DoesNotShare { apart } };
        let action = Action::of(guest.seen.id.clone(), Request::Share(shares), Reason::Ksm(reason));
        plan.actions.push(action);
    }
}

/// Whether a guest must not share its memory, could, and waits to be asked.
pub fn awaits(guests: &[Guest<'_>], now: Moment) -> bool {
    guests.iter().any(|guest| !guest.class.share && is_to_be_asked(guest, now))
}

/// Whether KSM may merge its memory although its class does not share, or the other way round, and nobody has asked it to change that.
fn is_to_be_asked(guest: &Guest<'_>, now: Moment) -> bool {
    let differs = guest.seen.told.merges.fresh().is_some_and(|&merges| merges != guest.class.share);
    differs && guest.is_free() && !was_asked(guest, now)
}

/// The memory that it needs if all that is merged of it comes apart.
fn apart(guest: &Guest<'_>, host: &KsmSeen) -> Bytes {
    host.apart(guest.seen.cost.merged.latest().copied().unwrap_or_default())
}

fn was_asked(guest: &Guest<'_>, now: Moment) -> bool {
    guest.next.share_asked_at.is_some_and(|at| now.since(at) < LONGEST_PAUSE)
}

/// Whether its memory may be coming apart now: it was asked, and nobody has heard that it is done.
fn comes_apart(guest: &Guest<'_>, now: Moment) -> bool {
    was_asked(guest, now) && !guest.class.share && guest.seen.told.merges.fresh() != Some(&false)
}
