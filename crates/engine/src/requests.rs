//! Requests under way: from the mechanism's "accepted" to the memory that the host has back.
//!
//! **Rule.** A request that was accepted and expects a yield is *under way*. It ends when the host has seen all of the yield come back, when
//! its time is over, or when the same mechanism gets a new request for the same guest. The yield is the fall of the guest's footprint since
//! the request was accepted: the mechanism's own numbers do not count. If several requests are under way for a guest, the oldest is
//! credited first, and no byte twice.
//!
//! The list is part of the state, so replays follow the same requests.

use memtide_model::{Action, Answer, Bytes, GuestSeen, Moment, Plan, Snapshot, State, UnderWay};

/// Credits the guests' requests with the memory that came back, and forgets those that have ended.
pub(crate) fn follow(state: &mut State, seen: &Snapshot) {
    let busy = state.guests.iter_mut().filter(|(_, guest)| !guest.under_way.is_empty());
    for (id, guest) in busy {
        let footprint = seen.guest(id).and_then(|guest| guest.cost.footprint.fresh());
        let Some(&footprint) = footprint else { continue };
        let mut credited = Bytes::ZERO;
        for asked in &mut guest.under_way {
            let fall = asked.from.saturating_sub(footprint).saturating_sub(credited);
            asked.yielded = fall.min(asked.expected);
            credited = credited.saturating_add(asked.yielded);
        }
        let fell = guest.under_way.iter().map(|asked| asked.from.saturating_sub(footprint)).max();
        assert!(fell.is_none_or(|fell| credited <= fell), "no byte is credited twice");
    }
    for guest in state.guests.values_mut() {
        guest.under_way.retain(|asked| asked.yielded < asked.expected && seen.taken_at < asked.until);
    }
}

/// Notes the accepted requests of a plan.
pub(crate) fn note(state: &mut State, seen: &Snapshot, plan: &Plan, answers: &[Answer]) {
    for (action, answer) in plan.actions.iter().zip(answers) {
        let Some(id) = action.guest() else { continue };
        let (Some(guest), Some(looks)) = (state.guests.get_mut(id), seen.guest(id)) else { continue };
        if !answer.is_accepted() {
            continue;
        }
        let mechanism = action.request.mechanism();
        guest.under_way.retain(|asked| asked.request.mechanism() != mechanism);
        if *answer == Answer::Accepted {
            guest.under_way.extend(begun(action, looks, seen.taken_at));
        }
    }
}

fn begun(action: &Action, guest: &GuestSeen, now: Moment) -> Option<UnderWay> {
    let expects = action.expects?;
    Some(UnderWay {
        request: action.request,
        since: now,
        until: now.after(expects.within),
        expected: expects.bytes,
        from: *guest.cost.footprint.latest()?,
        yielded: Bytes::ZERO,
    })
}
