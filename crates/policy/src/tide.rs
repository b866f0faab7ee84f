//! By how much the guests together rise above what they cost at rest.
//!
//! **Terms.** A guest's *rest* is its least footprint of late: it falls at once and rises slowly. The *tide* is the sum of
//! what all guests cost above their rest; the *high tide* its slowly decaying maximum. Guests that work in turn have a tide
//! of one peak, however many they are; guests that work together one of all their peaks.
//!
//! **Rule.** What lies between the tide and the high tide is to be expected again. A surge says how fast guests can grow
//! before memory of others is back; the tide says how far. Taking memory from guests takes longer the less of it they have
//! touched, so that an elastic host makes room before the tide comes, not when it is there. What came back from guests because we
//! asked for it is no part of the tide any more, or else asking would never end.
//!
//! **Property.** A tide that repeats is expected whole while it is low, and nothing of it once it is high.

use memtide_model::{Bytes, Span};

use crate::surge::decayed;

/// The rest of a guest that costs `footprint`, and rested at `before` `elapsed` ago.
#[must_use]
pub fn rest(before: Option<Bytes>, footprint: Bytes, elapsed: Span, memory: Span) -> Bytes {
    let Some(before) = before else { return footprint };
    let above = footprint.saturating_sub(before);
    footprint.saturating_sub(decayed(above, elapsed, memory))
}

/// The high tide after a tide of `now`, `elapsed` after the last one.
#[must_use]
pub fn high(before: Bytes, now: Bytes, elapsed: Span, memory: Span) -> Bytes {
    decayed(before, elapsed, memory).max(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTES: Span = Span::from_secs(600);

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    #[test]
    fn rest_falls_at_once_and_rises_slowly() {
        let second = Span::from_secs(1);
        assert_eq!(rest(None, mib(300), second, MINUTES), mib(300));
        assert_eq!(rest(Some(mib(300)), mib(200), second, MINUTES), mib(200));
        // 600 MiB above: 1 MiB in a second.
        assert_eq!(rest(Some(mib(200)), mib(800), second, MINUTES), mib(201));
    }

    #[test]
    fn a_high_tide_is_remembered_for_minutes() {
        let high_tide = high(Bytes::ZERO, mib(600), Span::from_secs(1), MINUTES);
        assert_eq!(high(high_tide, Bytes::ZERO, Span::from_secs(60), MINUTES), mib(540));
        assert_eq!(high(high_tide, mib(700), Span::from_secs(60), MINUTES), mib(700));
    }
}
