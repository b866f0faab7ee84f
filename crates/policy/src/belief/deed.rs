//! What became of the request that a guest's agent works on.
//!
//! **Rule.** A trim or a compaction has worked if at least a quarter of what was asked for became free; any other request, if the agent reports the
//! setting that it was asked for. What becomes of memory that it writes to a tier is watched in `ladder/tier`. If a request fails, or the agent does not answer, a pause follows that doubles each time. Requests for free memory
//! in pieces have a pause of their own, which follows even a request that worked ([`COMPACT_EVERY`]).

use memtide_model::{Agent, BackOff, Deed, Moment};

use crate::belief::guest::Guest;
use crate::constants::{COMPACT_EVERY, FIRST_PAUSE, FREED_ENOUGH, LONGEST_PAUSE, SAID_AFTER};

/// Watches the request that a guest's agent works on.
pub fn watch(guest: &mut Guest<'_>, now: Moment) {
    if let Some(agent) = guest.seen.told.agent.latest() {
        let since = guest.before.agent.pieces_since.or(Some(now));
        guest.next.agent.pieces_since = since.filter(|_| agent.pieces_return);
    }
    let Some(asked) = guest.before.agent.asked else { return };
    let agent = guest.seen.told.agent.fresh().filter(|agent| agent.ended > asked.ended);
    let is_done = |agent: &Agent| match asked.deed {
        Deed::LimitCache(_) => agent.cache_limit == guest.class.cache_limit,
        Deed::ReportPieces(on) => agent.pieces_return == on,
        Deed::UseTier(on) => agent.memory.tier_total.is_zero() != on,
        Deed::Trim(_) | Deed::Compact | Deed::PageOut(_) => agent.freed >= FREED_ENOUGH.of(asked.bytes),
    };
    let is_done = agent.map(is_done);
    if is_done.is_none() && now.since(asked.at) < SAID_AFTER {
        return;
    }
    let state = &mut guest.next.agent;
    state.asked = None;
    let worked = is_done == Some(true);
    match asked.deed {
        // What it cannot bring, a trim may.
        Deed::Compact | Deed::ReportPieces(_) => {
            let before = if worked { BackOff::default() } else { state.pieces };
            state.pieces = before.again(now, COMPACT_EVERY, LONGEST_PAUSE);
        }
        Deed::PageOut(_) | Deed::UseTier(_) => {
            let tier = &mut guest.next.tier;
            let before = if worked { BackOff::default() } else { tier.back_off };
            if !worked {
                tier.back_off = before.again(now, FIRST_PAUSE, LONGEST_PAUSE);
            }
        }
        Deed::Trim(_) | Deed::LimitCache(_) if worked => state.back_off = BackOff::default(),
        Deed::Trim(_) | Deed::LimitCache(_) => {
            state.back_off = state.back_off.again(now, FIRST_PAUSE, LONGEST_PAUSE);
        }
    }
}
