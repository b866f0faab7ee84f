//! The search for the page cache that a guest needs: take some and watch, or grant some and watch.
//!
//! **Problem.** No counter tells how much of its page cache a guest needs. The balloon's statistics do not count refaults. A guest that
//! lost cache that it needs makes its kernel scan for memory again and again; but so does a reader of a long file, which gains nothing by
//! more cache. So scans are a hypothesis, and a trial decides.
//!
//! **Rule.**
//! - *Taken*: a step is taken from the cache of one guest. Once its balloon has arrived and settled, the guest is watched for `WATCHED`.
//!   If it stalls, or scans at `SCANS` or more, it is *hurt*. It needs the cache that it had before the step, and is left alone for a
//!   minute, then twice as long each time, at most an hour. If nothing happens, the next step may follow.
//! - *Granted*: a guest that was hurt, or whose scans count as refaults, is granted cache. If it has filled the grant and still scans at
//!   least half as fast, the grant is *refuted*. The guest is no longer seen to need cache. For ten minutes, then twice as long each time,
//!   memtide is *deaf* to its scans.
//! - A guest that has room for more cache and does not fill it is seen to need less and less.
//! - Guests of which neither scans nor reads from disks are told are watched for longer, and keep a least cache.
//!
//! **Property.** A guest has at most one trial at a time, and each trial ends.

use memtide_model::{Bytes, GuestState, Moment, Search, Span, Taken, Trial, TrialKind};

use crate::belief::need::Need;
use crate::constants::{
    BLIND_KEEPS, FIRST_DEAF, FOLLOWS, GRANT_WATCHED, HURT_PAUSE, LEAST_GRANT, LEAST_STEP,
    LONGEST_SEARCH_PAUSE, NEVER_ARRIVES, SCANS, SCANS_SETTLE, STEP, STILL_SCANS, TOLERANCE, UNUSED, WATCHED,
    WATCHED_BLIND,
};

/// What a decision heard about a guest's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The last step hurt: the guest gets its cache back ([`gets_back`]), and is left alone for a while.
    Hurt,
    /// Cache that was granted did not help.
    Refuted,
}

/// How far a guest's last step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arrived {
    /// Its balloon moves.
    No,
    /// Its balloon has arrived: what was taken is taken.
    Balloon,
    /// And it has the size for its needed cache.
    Size,
}

impl Arrived {
    /// How far a trial must have come to be heard. What is left of a squeezed cache may never have its size: a target is rounded down to a page.
    const fn wanted(trial: TrialKind) -> Self {
        match trial {
            TrialKind::Taken => Self::Balloon,
            TrialKind::Granted => Self::Size,
        }
    }
}

/// What a search needs to know of a guest besides its need.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    /// How far its last step has come.
    pub arrived: Arrived,
    /// Little more is free in it than its kernel keeps.
    pub is_full: bool,
    /// Its balloon was inflating a moment ago.
    pub is_excused: bool,
    /// The cache that fits into its fair share.
    pub fair: Bytes,
}

/// Listens to a guest.
pub fn listen(
    before: &GuestState,
    next: &GuestState,
    need: &Need,
    seen: Listening,
    now: Moment,
) -> (Search, Option<Heard>) {
    let Listening { arrived, is_full, is_excused, fair } = seen;
    let mut search = before.search;
    let Some(evidence) = need.evidence else { return (search, None) };
    // An inflation makes the guest's kernel scan, too.
    let is_deaf = search.deaf.lasts(now) || is_excused;
    let scanned = if is_deaf { Bytes::ZERO } else { evidence.scanned };
    let is_new = before.stats_of.is_none_or(|of| next.stats_of != Some(of));
    let has_unused_room = is_new && !is_excused && !is_full && need.cache_held <= before.cache;
    fade(&mut search, need, has_unused_room, now);
    let Some(trial) = &mut search.trial else {
        let is_short = evidence.refaults && is_full && !is_deaf;
        if is_short {
            search.needs = search.needs.max(fair).max(need.cache_held.saturating_add(LEAST_GRANT));
        }
        let has_room = arrived == Arrived::Size;
        if is_short || (has_room && search.needs > need.cache_held.saturating_add(LEAST_STEP)) {
            search.trial = Some(granted(need, now));
        }
        return (search, None);
    };
    if trial.arrived_at.is_none() && arrived >= Arrived::wanted(trial.kind) {
        trial.arrived_at = Some(now);
    }
    let trial = *trial;
    let Some(waited) = trial.arrived_at.map(|at| now.since(at)) else {
        if now.since(trial.at) >= NEVER_ARRIVES {
            search.trial = None;
        }
        return (search, None);
    };
    let scans = |least: Bytes| scanned >= SCANS && scanned >= least;
    // Until a guest has filled a grant, and once others have taken of it, it reads again what it lost.
    let is_filled =
        arrived == Arrived::Size && is_full && need.cache_held.saturating_add(TOLERANCE) >= search.needs;
    match trial.kind {
        TrialKind::Taken if (waited >= FOLLOWS && need.stalls) || scans(Bytes::ZERO) => {
            search.needs = trial.from;
            search.back_off = search.back_off.again(now, HURT_PAUSE, LONGEST_SEARCH_PAUSE);
            search.trial = Some(granted(need, now));
            return (search, Some(Heard::Hurt));
        }
        TrialKind::Taken => {
            let watched = if need.shows_refaults() { WATCHED } else { WATCHED_BLIND };
            if waited >= SCANS_SETTLE.plus(watched) {
                search.trial = None;
            }
        }
        TrialKind::Granted if is_filled && waited >= SCANS_SETTLE && scans(STILL_SCANS.of(trial.scanned)) => {
            search.needs = Bytes::ZERO;
            search.trial = None;
            search.deaf = search.deaf.again(now, FIRST_DEAF, LONGEST_SEARCH_PAUSE);
            return (search, Some(Heard::Refuted));
        }
        TrialKind::Granted => {
            if waited >= GRANT_WATCHED {
                search.trial = None;
            }
        }
    }
    (search, None)
}

/// Lowers the need of a guest that has room for more cache and does not use it. If less than the smallest step remains, the guest needs none.
fn fade(search: &mut Search, need: &Need, has_unused_room: bool, now: Moment) {
    if has_unused_room {
        search.needs = search.needs.saturating_sub(UNUSED.of(search.needs.saturating_sub(need.cache_held)));
    }
    if search.needs < LEAST_STEP && !search.back_off.lasts(now) {
        search.needs = Bytes::ZERO;
    }
}

/// The search of a guest whose balloon makes no progress: others are tried first.
#[must_use]
pub fn interrupted(search: Search, now: Moment) -> Search {
    match search.trial {
        Some(Trial { kind: TrialKind::Taken, .. }) => {
            let back_off = search.back_off.again(now, HURT_PAUSE, LONGEST_SEARCH_PAUSE);
            Search { trial: None, back_off, ..search }
        }
        _ => search,
    }
}

/// The page cache that a guest gets back because a step hurt it, and how long it is left alone then.
#[must_use]
pub fn gets_back(search: &Search, now: Moment) -> Option<(Bytes, Span)> {
    let is_granted = search.trial.is_some_and(|trial| trial.kind == TrialKind::Granted);
    (is_granted && search.back_off.lasts(now)).then_some((search.needs, search.back_off.span))
}

/// A grant that begins now.
fn granted(need: &Need, now: Moment) -> Trial {
    let scanned = need.evidence.map_or(Bytes::ZERO, |evidence| evidence.scanned).max(SCANS);
    Trial { kind: TrialKind::Granted, from: need.cache_held, at: now, arrived_at: None, scanned }
}

/// Cache that was not seen to be needed.
#[must_use]
pub fn unproven(search: &Search, need: &Need, full: Bytes) -> Bytes {
    let keeps = if need.shows_refaults() { Bytes::ZERO } else { BLIND_KEEPS.of(full) };
    need.cache_held.saturating_sub(search.needs.max(keeps).max(need.cache_kept))
}

/// Cache that may be taken from a guest by trial: after a pause, also cache that it was seen to need.
#[must_use]
pub fn may_try(search: &Search, need: &Need, full: Bytes, now: Moment) -> Bytes {
    let searched =
        if search.back_off.lasts(now) { *search } else { Search { needs: Bytes::ZERO, ..*search } };
    unproven(&searched, need, full)
}

/// The next step of a search in which nobody is in a hurry.
#[must_use]
pub fn gentle_step(may_take: Bytes) -> Bytes {
    STEP.of(may_take).max(LEAST_STEP).min(may_take)
}

/// Notes a step. Needed cache that is taken urgently proves nothing: the guest gets it back later.
pub fn take(search: &mut Search, taken: Taken, now: Moment) {
    if taken.keeps < search.needs && !taken.gently {
        search.trial = None;
        return;
    }
    let from = match search.trial {
        // Steps that follow each other too fast to be watched are one step.
        Some(Trial { kind: TrialKind::Taken, from, .. }) => from.max(taken.has),
        _ => taken.has,
    };
    search.needs = search.needs.min(taken.keeps);
    search.trial =
        Some(Trial { kind: TrialKind::Taken, from, at: now, arrived_at: None, scanned: Bytes::ZERO });
}

/// Whether a step is being watched.
#[must_use]
pub fn is_taken(search: &Search) -> bool {
    search.trial.is_some_and(|trial| trial.kind == TrialKind::Taken)
}
