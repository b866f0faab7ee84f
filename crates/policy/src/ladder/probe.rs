//! A guest gives a probe before it gives more.
//!
//! **Rule.** Until the host is known to gain from a guest ([`crate::belief::gain`]), the guest may be asked for [`PROBE`] of its memory below what is
//! resident. Nobody waits for it in an emergency: each guest counts with what it may give now, so several are probed at once.

use memtide_model::{Bytes, Proof};

use crate::belief::gain;
use crate::belief::guest::Guest;
use crate::constants::{PROBE, TOLERANCE};
use crate::ladder::wish::Wish;

/// The least size that a guest may be asked to keep now.
fn least(guest: &Guest<'_>) -> Bytes {
    match guest.next.gain.proof {
        Proof::Gained => Bytes::ZERO,
        Proof::None | Proof::Vain { .. } => gain::resident(guest.seen)
            .unwrap_or(guest.full)
            .min(guest.full)
            .saturating_sub(PROBE.of(guest.full)),
    }
}

/// What a guest may give of `from` now.
#[must_use]
pub fn may_give(guest: &Guest<'_>, from: Bytes) -> Bytes {
    from.saturating_sub(least(guest))
}

/// Makes steps down as small as they may be now.
pub fn hold_back(guests: &[Guest<'_>], wishes: &mut Vec<Wish>) {
    wishes.retain_mut(|wish| {
        let guest = &guests[wish.index];
        let from = guest.entry.target.min(guest.entry.actual);
        let least = least(guest).min(from).round_down(guest.step());
        if wish.target >= least {
            return true;
        }
        wish.target = least;
        least.saturating_add(TOLERANCE) <= from
    });
}
