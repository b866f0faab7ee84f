//! qmemman's watches: they fire when a guest reports its memory in use, and when a guest comes or goes.

use memtide_model::{Bytes, GuestId, Moment};

use super::{GuestInput, HostInput, Remembered};
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
    pub(super) fn next_sample(&self) -> Moment {
        self.next
    }

    pub(super) fn targets(
        &mut self,
        now: Moment,
        host: HostInput,
        guests: &[GuestInput],
    ) -> Vec<(GuestId, Bytes)> {
        let mut news = self.guests.follow(guests, new);
        let known = &mut self.guests.each;
        for (known, input) in known.iter_mut().zip(guests) {
            (known.current, known.max) = (input.size, input.full);
        }
        if news {
            self.round = None;
        }
        // Reports during a round are handled after it.
        if self.round.is_none() {
            for (known, input) in known.iter_mut().zip(guests) {
                news |= hear(known, input);
            }
            if news {
                self.round = begin(host.for_guests(), known);
            }
        }
        let turn = self.round.as_mut().map(|round| carry_out(host.for_guests(), known, round));
        let waits = turn.as_ref().is_some_and(|turn| turn.waits);
        self.next = now.after(if waits { WAIT } else { POLL_EVERY });
        if !waits {
            self.round = None;
        }
        let targets = turn.map(|turn| turn.targets).unwrap_or_default();
        targets.into_iter().map(|(i, target)| (guests[i].id.clone(), target)).collect()
    }
}

fn new(input: &GuestInput) -> Guest {
    let target = input.target.unwrap_or(input.size);
    Guest { current: input.size, target, max: input.full, used: None, stuck: false }
}

/// Whether the guest reports its memory in use. Guests of Qubes OS count free memory and page cache as unused. Of a balloon's statistics,
/// available memory comes closest to that.
fn hear(known: &mut Guest, input: &GuestInput) -> bool {
    let Some(available) = input.available else { return false };
    let used = input.size.saturating_sub(available);
    let news = reports(known.used, used, input.size);
    if news {
        known.used = Some(used);
    }
    news
}
