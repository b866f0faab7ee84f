//! Free memory that free page reporting does not return: the guest's agent makes it return.
//!
//! **Problem.** Reporting returns blocks of 2 MiB. What programs and page cache leave behind is free in smaller pieces, and a guest of which
//! three quarters are free may give nothing back.
//!
//! **Rule.** If memory is wanted, reporting is made to return smaller pieces, too: it costs the guest some CPU time as long as it lasts, and tears
//! huge pages of the host, which [`super::splits`] then split. It lasts for a minute at least, and until nothing is wanted. Pieces that are too
//! small even for that are compacted, which takes the guest's CPU time for seconds. Between two such requests lies a minute; if they bring
//! nothing, twice as long each time, up to 10 min. A guest that takes more memory, or whose balloon inflates and is not stuck, is not asked.
//!
//! **Property.** Nobody counts on it: what has come back shows in the host's free memory. The guest reports as its kernel chose while nothing
//! is wanted.

use memtide_model::{Agent, Bytes, Deed, Moment, Reason};

use crate::belief::guest::Guest;
use crate::constants::{COMPACT_EVERY, LEAST_STEP};

/// The end of the reporting of small pieces, once nothing is wanted.
#[must_use]
pub fn end(guest: &Guest<'_>, agent: &Agent, wanted: Bytes, now: Moment) -> Option<(Deed, Bytes, Reason)> {
    let has_lasted = guest.next.agent.pieces_since.is_none_or(|since| now.since(since) >= COMPACT_EVERY);
    let ends = agent.pieces_return && wanted.is_zero() && has_lasted;
    ends.then_some((Deed::ReportPieces(false), Bytes::ZERO, Reason::PiecesUnwanted))
}

/// What an agent is asked for, the bytes that should come of it, and why.
#[must_use]
pub fn deed(guest: &Guest<'_>, agent: &Agent, wanted: Bytes, now: Moment) -> Option<(Deed, Bytes, Reason)> {
    // A balloon that inflates and a guest that grows take small pieces, too, and need the guest's processors.
    let inflates = guest.inflates() && !guest.is_stuck(now);
    if guest.next.agent.pieces.lasts(now) || inflates || guest.takes_more() {
        return None;
    }
    // What a guest lacks itself is no reason to ask it.
    if wanted.is_zero() || !guest.reports_freed() || guest.is_withheld() || !guest.lacks_cache().is_zero() {
        return None;
    }
    let may_return = agent.reports_pieces && !agent.pieces_return;
    let offers = [
        (Deed::ReportPieces(true), if may_return { agent.memory.pieces } else { Bytes::ZERO }),
        (Deed::Compact, if agent.compacts { agent.free_pieces() } else { Bytes::ZERO }),
    ];
    let (deed, pieces) = offers.into_iter().find(|(_, pieces)| *pieces >= LEAST_STEP)?;
    Some((deed, pieces, Reason::FreePieces { pieces, wanted }))
}
