//! The mergeable part of a process, and when its mappings are read anew. The rule is in [`super::processes`].

use std::time::Duration;

use memtide_model::{Bytes, Moment, Pages, Span};

use crate::{Mapping, page_size};

/// The mappings of a process are read anew if its anonymous memory has changed by this much, or by a quarter if that is more.
const MUCH: Bytes = Bytes::from_mib(64);
/// The pauses between two readings of the mappings of a process.
const FIRST_PAUSE: Span = Span::from_secs(5);
const LONGEST_PAUSE: Span = Span::from_secs(600);
/// The first pause after which merged pages that may have come apart are looked for. It doubles while few have.
const FIRST_PAUSE_IF_APART: Span = Span::from_secs(60);
/// Merged pages may have come apart if there were this many faults (in pages), or a 64th of the merged pages if that is more.
const MUCH_APART: Bytes = Bytes::from_mib(1);
/// The least pause, in multiples of the time that reading took.
const PAUSE_PER_READING: u64 = 200;

/// What decides whether the mappings of a process are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signs {
    /// Whether its VMM lets KSM merge the guest's memory.
    pub(super) merges: Option<bool>,
    /// Whether KSM may merge all of it: then its mappings tell only what has come apart.
    pub(super) is_whole: bool,
    pub(super) anonymous: Bytes,
    /// Its merged pages as the kernel counts them.
    pub(super) merging: Bytes,
    /// Its page faults; `None` if they cannot be read.
    pub(super) faults: Option<u64>,
}

/// The mergeable part of a process's anonymous memory, as it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) mergeable: Bytes,
    /// What was known when it was read; of merged pages and faults, when the kernel counted the merged pages anew.
    then: Signs,
    /// Merged pages that have come apart; `None` if that was not read.
    pub(super) apart: Option<Bytes>,
    pub(super) read_at: Moment,
    /// The least pause before it is read anew, the pause if merged pages may have come apart, and the pause if nothing has changed.
    least: Span,
    pause_if_apart: Span,
    pause: Span,
}

impl Part {
    /// A process of which only what comes apart is read, and nothing of which has yet.
    pub(super) const fn unread(signs: Signs, now: Moment) -> Self {
        Self {
            mergeable: signs.anonymous,
            then: signs,
            apart: None,
            read_at: now,
            least: FIRST_PAUSE,
            pause_if_apart: FIRST_PAUSE_IF_APART,
            pause: LONGEST_PAUSE,
        }
    }

    /// The same after these `mappings` were read at `now`, for as long as that `took`. Without mappings, all memory counts.
    pub(super) fn read(
        mappings: &[Mapping],
        before: Option<Self>,
        signs: Signs,
        (now, took): (Moment, Duration),
    ) -> Self {
        let Signs { anonymous, merging, .. } = signs;
        let marked = mappings.iter().filter(|mapping| mapping.is_mergeable);
        let marked = Bytes::sum(marked.map(|mapping| mapping.anonymous)).min(anonymous);
        let merged = || mappings.iter().map(|mapping| mapping.merged);
        let still =
            merged().try_fold(Bytes::ZERO, |sum, merged| merged.map(|merged| sum.saturating_add(merged)));
        let is_told = !mappings.is_empty() && !merging.is_zero();
        let apart = still.filter(|_| is_told).map(|still| merging.saturating_sub(still));
        let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let least = FIRST_PAUSE.max(Span::from_millis(took.saturating_mul(PAUSE_PER_READING)));
        let longest = LONGEST_PAUSE.max(least);
        let more =
            apart.unwrap_or_default().saturating_sub(before.and_then(|part| part.apart).unwrap_or_default());
        let pause_if_apart = match before {
            Some(part) if more < much_apart(merging) => part.pause_if_apart.doubled(),
            _ => FIRST_PAUSE_IF_APART,
        };
        Self {
            mergeable: if mappings.is_empty() { anonymous } else { marked },
            then: signs,
            apart,
            read_at: now,
            least,
            pause_if_apart: pause_if_apart.clamp(least, longest),
            pause: match before {
                Some(part) => part.pause.doubled().clamp(least, longest),
                None => least,
            },
        }
    }

    /// The same if the kernel has counted the merged pages anew: then it knows what has come apart.
    pub(super) fn at(self, signs: Signs) -> Self {
        if self.then.merging == signs.merging {
            return self;
        }
        let Signs { merging, faults, .. } = signs;
        Self { then: Signs { merging, faults, ..self.then }, apart: None, ..self }
    }

    pub(super) fn is_due(&self, now: Signs, at: Moment) -> bool {
        let then = &self.then;
        let much = MUCH.max(then.anonymous.mul_div(1, 4));
        let has_grown = !now.is_whole && then.anonymous.abs_diff(now.anonymous) > much;
        let faults = now.faults.zip(then.faults).map(|(now, then)| Pages::new(now.saturating_sub(then)));
        let is_much = faults.is_none_or(|faults| faults.to_bytes(page_size()) >= much_apart(now.merging));
        let may_be_apart = !now.merging.is_zero() && is_much;
        let age = at.since(self.read_at);
        now.merges != then.merges
            || (has_grown && age >= self.least)
            || (may_be_apart && age >= self.pause_if_apart)
            || age >= self.pause
    }

    /// The same part of other `anonymous` memory.
    pub(super) fn of(&self, anonymous: Bytes) -> Bytes {
        if self.then.anonymous.is_zero() {
            return self.mergeable.min(anonymous);
        }
        anonymous.mul_div(self.mergeable.get(), self.then.anonymous.get())
    }
}

/// The least of `merging` memory that is worth a reading if it may have come apart.
fn much_apart(merging: Bytes) -> Bytes {
    MUCH_APART.max(merging.mul_div(1, 64))
}
