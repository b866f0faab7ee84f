//! An operator without a manager, who works out all sizes when a guest comes or goes, and writes each once.

use memtide_model::{Bytes, GuestId, Moment};

use super::{GuestInput, HostInput, Remembered};
use crate::rules::fixed::{Guest, SAMPLE_EVERY, divide};

/// The operator's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    next: Moment,
    guests: Remembered<Part>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    size: Bytes,
    written: bool,
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
        self.next = now.after(SAMPLE_EVERY);
        // If a new guest's part turns out to be its size, nothing needs to be written.
        let new = |input: &GuestInput| Part { size: input.target.unwrap_or(input.size), written: true };
        let changed = self.guests.follow(guests, new);
        if changed {
            let guest = |input: &GuestInput| Guest { min: input.min, full: input.full, shares: input.shares };
            let sizes = divide(host.for_guests(), &guests.iter().map(guest).collect::<Vec<_>>());
            for (part, size) in self.guests.each.iter_mut().zip(sizes) {
                *part = Part { size, written: part.written && part.size == size };
            }
        }
        let mut written = Vec::new();
        for (part, input) in self.guests.each.iter_mut().zip(guests) {
            // A balloon without a driver cannot receive a target.
            if input.driver && !part.written {
                part.written = true;
                written.push((input.id.clone(), part.size));
            }
        }
        written
    }
}
