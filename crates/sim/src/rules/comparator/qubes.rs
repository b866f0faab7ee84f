//! qmemman's watches: they fire when a guest reports its memory in use, and when a guest comes or goes.

use memtide_model::{Bytes, GuestId, Moment};

use super::{HostLook, Look, Remembered};
use crate::rules::qubes::{Guest, POLL_EVERY, Round, WAIT, begin, carry_out, reports};

/// qmemman's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    next: Moment,
    guests: Remembered<Guest>,
    /// The current round. It is dropped if a guest comes or goes.
    round: Option<Round>,
}

impl Memory {
    pub(super) fn next_look(&self) -> Moment {
        self.next
    }

    pub(super) fn look(&mut self, now: Moment, host: HostLook, guests: &[Look]) -> Vec<(GuestId, Bytes)> {
        let mut news = self.guests.follow(guests, new);
        let known = &mut self.guests.each;
        for (known, look) in known.iter_mut().zip(guests) {
            (known.current, known.max) = (look.size, look.full);
        }
        if news {
            self.round = None;
        }
        // Reports during a round are handled after it.
        if self.round.is_none() {
            for (known, look) in known.iter_mut().zip(guests) {
                news |= hear(known, look);
            }
            if news {
                self.round = begin(host.room(), known);
            }
        }
        let turn = self.round.as_mut().map(|round| carry_out(host.room(), known, round));
        let waits = turn.as_ref().is_some_and(|turn| turn.waits);
        self.next = now.after(if waits { WAIT } else { POLL_EVERY });
        if !waits {
            self.round = None;
        }
        let targets = turn.map(|turn| turn.targets).unwrap_or_default();
        targets.into_iter().map(|(i, target)| (guests[i].id.clone(), target)).collect()
    }
}

fn new(look: &Look) -> Guest {
    let target = look.target.unwrap_or(look.size);
    Guest { current: look.size, target, max: look.full, used: None, stuck: false }
}

/// Whether the guest reports its memory in use. Guests of Qubes OS count free memory and page cache as unused. Of a balloon's statistics,
/// available memory comes closest to that.
fn hear(known: &mut Guest, look: &Look) -> bool {
    let Some(available) = look.available else { return false };
    let used = look.size.saturating_sub(available);
    let news = reports(known.used, used, look.size);
    if news {
        known.used = Some(used);
    }
    news
}
