//! An operator without a manager, who works out all sizes when a guest comes or goes, and writes each once.

use memtide_model::{Bytes, GuestId, Moment};

use super::{HostLook, Look, Remembered};
use crate::rules::fixed::{Guest, LOOK_EVERY, divide};

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
    pub(super) fn next_look(&self) -> Moment {
        self.next
    }

    pub(super) fn look(&mut self, now: Moment, host: HostLook, guests: &[Look]) -> Vec<(GuestId, Bytes)> {
        self.next = now.after(LOOK_EVERY);
        // If a new guest's part turns out to be its size, nothing needs to be written.
        let new = |look: &Look| Part { size: look.target.unwrap_or(look.size), written: true };
        let changed = self.guests.follow(guests, new);
        if changed {
            let guest = |look: &Look| Guest { min: look.min, full: look.full, shares: look.shares };
            let sizes = divide(host.room(), &guests.iter().map(guest).collect::<Vec<_>>());
            for (part, size) in self.guests.each.iter_mut().zip(sizes) {
                *part = Part { size, written: part.written && part.size == size };
            }
        }
        let mut written = Vec::new();
        for (part, look) in self.guests.each.iter_mut().zip(guests) {
            // A balloon without a driver cannot receive a target.
            if look.driver && !part.written {
                part.written = true;
                written.push((look.id.clone(), part.size));
            }
        }
        written
    }
}
