//! The guest's agent: asked before the balloon takes page cache.
//!
//! **Problem.** A balloon takes the pages that the guest's kernel happens to find, and nobody on the host sees whether they were needed. An
//! agent drops cold cache by itself, ends if the working set refaults, and says what it has freed.
//!
//! **Rule.** If memory is wanted, an agent is asked to trim in place of a step of the search ([`crate::belief::search`]). If no step is due, it is asked
//! for free memory that free page reporting does not return (`ladder/reporting`): a trim must not wait for that. The
//! memory that becomes free is idle, and goes like all idle memory. Urgently, the balloon takes the step as well, and the agent is asked for the
//! guest's part of all that is wanted, not only of what cannot wait: it may take seconds. A request that freed too little is followed by a pause of
//! 10 s, then twice as long each time, up to 10 min: meanwhile the balloon alone takes what others lack.
//!
//! **Property.** An agent works on at most one request. No grant is paid with memory that an agent only promises.

use std::collections::BTreeMap;

use memtide_model::{Action, Bytes, Deed, Moment, Ordered, Reason, Request, Snapshot, Takes, Yield};

use super::{Trim, reporting};

use crate::belief::guest::Guest;
use crate::belief::scene::Scene;
use crate::constants::{LEAST_STEP, SAID_AFTER};
use crate::ladder::orders;

/// Page cache that a guest's agent may drop now; `None` if it cannot be asked, so that the balloon takes it.
#[must_use]
pub fn droppable(guest: &Guest<'_>, now: Moment) -> Option<Bytes> {
    let agent = guest.seen.told.agent.fresh().filter(|agent| agent.trims)?;
    let droppable = agent.droppable();
    let state = &guest.next.agent;
    (!state.back_off.lasts(now) && droppable >= LEAST_STEP).then_some(droppable)
}

/// Memory that a guest's agent has freed, or is about to, and that the host does not have yet.
#[must_use]
pub fn returning(guest: &Guest<'_>, now: Moment) -> Bytes {
    let asked = guest.before.under_way.iter().filter(|asked| frees(asked.request) && now < asked.until);
    Bytes::sum(asked.map(|asked| asked.expected.saturating_sub(asked.yielded)))
}

/// Whether memory becomes free by a request, so that a balloon can take it. What reporting returns comes back without one.
fn frees(request: Request) -> bool {
    matches!(request.deed(), Some(Deed::Trim(_) | Deed::Compact | Deed::PageOut(_)))
}

/// Whether a guest's agent works on a request.
#[must_use]
pub fn is_busy(guest: &Guest<'_>) -> bool {
    guest.next.agent.asked.is_some() || guest.seen.told.agent.latest().is_some_and(|agent| agent.busy)
}

/// What agents are asked for now: limits of page cache, free memory in pieces, memory that goes to tiers, and the trims that the operator ordered or the ladder chose.
#[must_use]
pub fn ask(
    scene: &Scene,
    seen: &Snapshot,
    guests: &[Guest<'_>],
    trims: &[Trim],
    for_tiers: &BTreeMap<usize, (Deed, Bytes, Reason)>,
) -> Vec<Action> {
    let chosen: BTreeMap<usize, &Trim> = trims.iter().map(|trim| (trim.index, trim)).collect();
    let is_trim = |ordered| if let Ordered::Trim(bytes) = ordered { Some(bytes) } else { None };
    let ordered = orders::ordered(seen, guests, is_trim);
    let mut actions = Vec::new();
    for (index, guest) in guests.iter().enumerate() {
        let chosen = chosen.get(&index).copied();
        let (asked, taken) = match ordered.get(&index) {
            Some(bytes) => (ordered_trim(guest, *bytes), None),
            None => {
                let for_tier = for_tiers.get(&index).copied();
                (request(guest, chosen, for_tier, scene), chosen.and_then(|trim| trim.taken))
            }
        };
        let Some((deed, bytes, reason)) = asked else { continue };
        // What its agent is asked for first may be something else.
        let takes = taken.filter(|_| matches!(deed, Deed::Trim(_))).map(Takes::Cache);
        let expects = (!bytes.is_zero()).then_some(Yield { bytes, within: SAID_AFTER });
        let action = Action::of(guest.seen.id.clone(), Request::Agent(deed), reason);
        actions.push(Action { expects, takes, ..action });
    }
    actions
}

/// A trim that the operator ordered: a pause after failures does not count.
fn ordered_trim(guest: &Guest<'_>, bytes: Bytes) -> Option<(Deed, Bytes, Reason)> {
    let agent = guest.seen.told.agent.fresh().filter(|agent| agent.trims)?;
    let bytes = bytes.min(agent.droppable());
    let is_free = guest.is_managed() && !guest.is_withheld() && guest.next.hold.is_none() && !is_busy(guest);
    (is_free && !bytes.is_zero()).then_some((Deed::Trim(bytes), bytes, Reason::Ordered))
}

fn request(
    guest: &Guest<'_>,
    chosen: Option<&Trim>,
    for_tier: Option<(Deed, Bytes, Reason)>,
    scene: &Scene,
) -> Option<(Deed, Bytes, Reason)> {
    let (wanted, now) = (scene.wanted(), scene.now);
    let agent = guest.seen.told.agent.fresh()?;
    if is_busy(guest) {
        return None;
    }
    // That is owed to a guest that is left alone, too, and no pause delays it.
    if let Some(ended) = reporting::end(guest, agent, wanted, now) {
        return Some(ended);
    }
    if !guest.is_free() {
        return None;
    }
    // Cold page cache comes before cold memory of programs.
    let is_page_out = |asked: &(Deed, Bytes, Reason)| matches!(asked.0, Deed::PageOut(_));
    if let Some(asked) = for_tier.filter(|asked| chosen.is_none() || !is_page_out(asked)) {
        return Some(asked);
    }
    if guest.next.agent.back_off.lasts(now) {
        return None;
    }
    if let Some(trim) = chosen {
        let reason = Reason::ColdCache { droppable: agent.droppable(), wanted };
        return Some((Deed::Trim(trim.bytes), trim.bytes, reason));
    }
    if agent.trims && agent.cache_limit != guest.class.cache_limit {
        return Some((Deed::LimitCache(guest.class.cache_limit), Bytes::ZERO, Reason::CacheLimit));
    }
    reporting::deed(guest, agent, wanted, now)
}
