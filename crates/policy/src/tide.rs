//! The joint rise of all guests above their baselines.
//!
//! **Terms.** A guest's *baseline* is its lowest recent footprint: it falls at once and rises slowly. The *tide* is the sum of
//! all guests' costs above their baselines. The *high tide* is its slowly decaying maximum. Guests that work in turn have a tide
//! of one peak, whatever their number. Guests that work together have a tide of all their peaks.
//!
//! **Rule.** The gap between tide and high tide is expected to come again. A surge tells how fast guests can grow before
//! other guests' memory is back; the tide tells how far. Taking memory from guests takes longer the less of it they have
//! touched. An elastic host therefore makes room before the tide comes. Memory that guests returned at memtide's request
//! leaves the tide; otherwise asking would never end.
//!
//! **Property.** A repeating tide is expected in full while it is low, and not at all once it is high.

use memtide_model::{Bytes, Span};

use crate::surge::decayed;

/// The baseline of a guest that costs `footprint`; `elapsed` ago its baseline was `before`.
#[must_use]
pub fn baseline(before: Option<Bytes>, footprint: Bytes, elapsed: Span, memory: Span) -> Bytes {
    let Some(before) = before else { return footprint };
    let above = footprint.saturating_sub(before);
    footprint.saturating_sub(decayed(above, elapsed, memory))
}

/// The high tide `elapsed` after `before`, if the tide is `now`.
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
    fn baseline_falls_at_once_and_rises_slowly() {
        let second = Span::from_secs(1);
        assert_eq!(baseline(None, mib(300), second, MINUTES), mib(300));
        assert_eq!(baseline(Some(mib(300)), mib(200), second, MINUTES), mib(200));
        // 600 MiB above: it rises by 1 MiB a second.
        assert_eq!(baseline(Some(mib(200)), mib(800), second, MINUTES), mib(201));
    }

    #[test]
    fn a_high_tide_is_remembered_for_minutes() {
        let high_tide = high(Bytes::ZERO, mib(600), Span::from_secs(1), MINUTES);
        assert_eq!(high(high_tide, Bytes::ZERO, Span::from_secs(60), MINUTES), mib(540));
        assert_eq!(high(high_tide, mib(700), Span::from_secs(60), MINUTES), mib(700));
    }
}
