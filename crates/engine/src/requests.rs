//! Requests under way: from acceptance until the memory returns to the host.
//!
//! **Rule.** A request that was accepted and expects a yield is *under way*. It ends if the whole yield has returned, if its time is over, or
//! if the same mechanism gets a new request for the same guest. The yield is the fall of the guest's footprint since the request was
//! accepted: the mechanism's own numbers do not count. The yield of a split of huge pages is the fall of torn memory: it is in no footprint. If several requests are under way for a guest, the oldest is credited first, and no
//! byte twice. A mechanism that answers at once is never under way.
//!
//! The list is part of the state, so replays follow the same requests.

use memtide_model::{Action, Answer, Bytes, Mechanism, Moment, Plan, Request, Snapshot, State, UnderWay};

/// Credits the guests' requests with the memory that came back, and forgets those that have ended.
pub(crate) fn follow(state: &mut State, seen: &Snapshot) {
    let busy = state.guests.iter_mut().filter(|(_, guest)| !guest.under_way.is_empty());
    for (id, guest) in busy {
        let looks = seen.guest(id);
        if let Some(&footprint) = looks.and_then(|guest| guest.cost.footprint.fresh()) {
            credit(&mut guest.under_way, footprint);
        }
        if let Some(torn) = looks.and_then(|guest| seen.torn_of(guest)) {
            credit_split(&mut guest.under_way, torn);
        }
        end(&mut guest.under_way, |asked| asked.yielded >= asked.expected || seen.taken_at >= asked.until);
    }
}

/// Credits requests, the oldest first, at the guest's present `footprint`.
fn credit(under_way: &mut [UnderWay], footprint: Bytes) {
    let mut credited = Bytes::ZERO;
    for asked in under_way.iter_mut().filter(|asked| lowers_footprint(asked)) {
        let fall = asked.from.saturating_sub(footprint).saturating_sub(credited);
        asked.yielded = fall.min(asked.expected);
        credited = credited.saturating_add(asked.yielded);
    }
}

/// Credits a split at the present `torn` memory.
fn credit_split(under_way: &mut [UnderWay], torn: Bytes) {
    for asked in under_way.iter_mut().filter(|asked| !lowers_footprint(asked)) {
        asked.yielded = asked.yielded.max(asked.from.saturating_sub(torn)).min(asked.expected);
    }
}

fn lowers_footprint(asked: &UnderWay) -> bool {
    asked.request.mechanism() != Mechanism::Split
}

/// Forgets the requests that have ended. Their yields no longer stand before those of newer requests, so these begin lower.
fn end(under_way: &mut Vec<UnderWay>, has_ended: impl Fn(&UnderWay) -> bool) {
    let mut credited = Bytes::ZERO;
    under_way.retain_mut(|asked| {
        let counts = lowers_footprint(asked);
        if counts {
            asked.from = asked.from.saturating_sub(credited);
        }
        let ends = has_ended(asked);
        if ends && counts {
            credited = credited.saturating_add(asked.yielded);
        }
        !ends
    });
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
        end(&mut guest.under_way, |asked| asked.request.mechanism() == mechanism);
        if *answer == Answer::Accepted {
            let older = guest.under_way.iter().filter(|asked| lowers_footprint(asked));
            let credited = Bytes::sum(older.map(|asked| asked.yielded));
            let from = match action.request {
                Request::Split => seen.torn_of(looks),
                _ => looks.cost.footprint.latest().map(|footprint| footprint.saturating_add(credited)),
            };
            guest.under_way.extend(from.and_then(|from| begun(action, from, seen.taken_at)));
        }
    }
}

/// A request that begins, and is measured by the fall of `from`.
fn begun(action: &Action, from: Bytes, now: Moment) -> Option<UnderWay> {
    let expects = action.expects?;
    Some(UnderWay {
        request: action.request,
        since: now,
        until: now.after(expects.within),
        expected: expects.bytes,
        from,
        yielded: Bytes::ZERO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::Request;

    fn asked(request: Request, from: u64) -> UnderWay {
        let (since, until) = (Moment::default(), Moment::from_millis(1_000));
        let mib = Bytes::from_mib;
        UnderWay { request, since, until, expected: mib(10), from: mib(from), yielded: Bytes::ZERO }
    }

    #[test]
    fn no_byte_is_credited_twice_even_after_a_request_has_ended() {
        let mib = Bytes::from_mib;
        let mut all = vec![asked(Request::SetTarget(mib(50)), 100), asked(Request::Reclaim(mib(10)), 100)];
        let is_done = |asked: &UnderWay| asked.yielded >= asked.expected;
        // The first 10 MiB are the older one's.
        credit(&mut all, mib(90));
        assert_eq!(all.iter().map(|asked| asked.yielded).collect::<Vec<_>>(), [mib(10), Bytes::ZERO]);
        end(&mut all, is_done);
        credit(&mut all, mib(90));
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].yielded, Bytes::ZERO, "these bytes were credited already");
        credit(&mut all, mib(84));
        assert_eq!(all[0].yielded, mib(6));
    }

    #[test]
    fn a_split_is_credited_with_torn_memory_and_takes_no_other_requests_bytes() {
        let mib = Bytes::from_mib;
        let mut all = vec![asked(Request::Split, 40), asked(Request::SetTarget(mib(50)), 100)];
        credit(&mut all, mib(96));
        credit_split(&mut all, mib(33));
        assert_eq!(all.iter().map(|asked| asked.yielded).collect::<Vec<_>>(), [mib(7), mib(4)]);
        credit_split(&mut all, mib(38));
        assert_eq!(all[0].yielded, mib(7), "a balloon tore more meanwhile");
        credit_split(&mut all, Bytes::ZERO);
        end(&mut all, |asked| asked.yielded >= asked.expected);
        credit(&mut all, mib(94));
        assert_eq!(all.iter().map(|asked| asked.yielded).collect::<Vec<_>>(), [mib(6)]);
    }
}
