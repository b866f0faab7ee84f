//! The memory of guests that have ended, until the kernel has freed it.
//!
//! **Problem.** A process that ends shows no memory any more, and its pages are freed a while later. In between they look like memory that others
//! have taken.
//!
//! **Rule.** Since a guest ended, the rise of the host's other use counts as its pages, up to its last footprint. Once the rise is over, or after
//! [`FREED_WITHIN`], it does not.

use memtide_model::{Bytes, Moment, Span};

/// A process of a terabyte takes about this long to free.
const FREED_WITHIN: Span = Span::from_secs(30);

/// What is known of guests that have ended.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The host's other use at the last look.
    other: Bytes,
    /// Guests whose pages may be there still.
    leaving: Option<Leaving>,
}

#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// The other use before the first of them ended.
    before: Bytes,
    /// What they can have left of their memory.
    memory: Bytes,
    /// When the last one ended.
    since: Moment,
}

impl Ending {
    /// The part of the host's `other` use that is the memory of ended guests. `ended` are the last footprints of those that were still there at the
    /// last look.
    pub(super) fn look(&mut self, other: Bytes, ended: Bytes, now: Moment) -> Bytes {
        if !ended.is_zero() {
            let (before, memory) =
                self.leaving.map_or((self.other, Bytes::ZERO), |leaving| (leaving.before, leaving.memory));
            let memory = memory.saturating_add(ended);
            self.leaving = Some(Leaving { before, memory, since: now });
        }
        self.other = other;
        let Some(Leaving { before, memory, since }) = self.leaving else { return Bytes::ZERO };
        let memory = memory.min(other.saturating_sub(before));
        let lasts = !memory.is_zero() && now.since(since) < FREED_WITHIN;
        self.leaving = lasts.then_some(Leaving { before, memory, since });
        if lasts { memory } else { Bytes::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_ended_guests_are_known_until_they_are_freed() {
        let mut ending = Ending::default();
        let mut look = |other, ended, secs: u64| {
            let now = Moment::from_millis(1000 * secs);
            ending.look(Bytes::from_mib(other), Bytes::from_mib(ended), now).whole_mib()
        };
        assert_eq!(look(500, 0, 1), 0);
        assert_eq!(look(700, 0, 2), 0, "others have grown");
        assert_eq!(look(1500, 1600, 3), 800, "half of it is freed");
        assert_eq!(look(1100, 0, 4), 400);
        assert_eq!(look(1300, 0, 5), 400, "others have grown meanwhile");
        assert_eq!(look(1600, 700, 6), 900, "another one");
        assert_eq!(look(690, 0, 7), 0);
        assert_eq!(look(900, 0, 8), 0, "that is growth again");
        assert_eq!(look(1900, 1000, 9), 1000);
        assert_eq!(look(1900, 0, 40), 0, "nothing takes that long");
    }
}
