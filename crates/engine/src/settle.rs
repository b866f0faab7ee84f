//! The policy's state after a tick.
//!
//! **Problem.** The state of a decision assumes that all its actions were carried out. But the check refuses single actions, and so
//! do VMMs.
//!
//! **Rule.** An action is believed only if its answer is [`Answer::Accepted`]. For every other action, everything remembered
//! *because of that write* returns to its former value: the target and its moment, the distance to it, a squeeze step, and the
//! reason shown to people; a hold does not end with a refused action. Everything learned from observations (demand, stalls, growth,
//! statistics, inflation in progress, being stuck) stays.
//!
//! Live runs and replays call this function, and the answers are in the journal, so both continue with the same state.

use memtide_model::{
    Action, Answer, GuestState, KsmOrder, KsmState, Plan, Reason, Request, Span, State, Witness,
};

/// How long balloons may follow commands of the former run that are not in its journal.
pub(crate) const DOUBT: Span = Span::from_secs(30);

/// How long KSM's governor waits after an order to scan that was not carried out, and after one to stop.
const KSM_RETRY: Span = Span::from_secs(60);
const KSM_STOP_RETRY: Span = Span::from_secs(2);

/// The next state, from the state `before` a decision, the state that it `decided`, and the answers of its plan. Actions
/// without an answer were not applied.
#[must_use]
pub fn settle(before: &State, mut decided: State, plan: &Plan, answers: &[Answer]) -> State {
    let unknown = GuestState::default();
    for (index, action) in plan.actions.iter().enumerate() {
        if answers.get(index).is_some_and(Answer::is_accepted) {
            continue;
        }
        if let Request::Merge(order) = action.request {
            let is_tried = matches!(answers.get(index), Some(Answer::Failed(_)));
            let again = if order == KsmOrder::Stop { KSM_STOP_RETRY } else { KSM_RETRY };
            *decided.ksm = ksm_without_order(&before.ksm, &decided, is_tried, again);
        }
        let Some(id) = action.guest() else { continue };
        if let Some(guest) = decided.guests.get_mut(id) {
            let remembered = before.guests.get(id).map_or(&unknown, |guest| &**guest);
            take_back(guest, remembered, action);
            let is_refused = answers.get(index) == Some(&Answer::Refused);
            if is_refused && matches!(action.reason, Reason::HoldEnds { .. }) {
                guest.hold = remembered.hold;
            }
            // Nobody knows the result of the action: a missing answer is not a refusal.
            let is_tried = matches!(answers.get(index), Some(Answer::Failed(_)))
                && matches!(action.request, Request::SetTarget(_));
            if let Some(at) = decided.decided_at.filter(|_| is_tried) {
                guest.doubt_until = Some(at.after(DOUBT));
            }
        }
    }
    decided
}

/// The memory of KSM's governor whose order was not carried out, or not yet. It tries `again` after a while.
fn ksm_without_order(before: &KsmState, decided: &State, is_tried: bool, again: Span) -> KsmState {
    let next = &decided.ksm;
    KsmState {
        found: if is_tried { next.found } else { before.found },
        written: before.written,
        tried: if is_tried { next.written } else { before.tried },
        burst: before.burst,
        in_vain: before.in_vain,
        looks_again: before.looks_again,
        scanned: before.scanned.min(next.scanned),
        // Nobody knows whether it was carried out: the reason may be what somebody looks for.
        last_reason: if is_tried { next.last_reason } else { before.last_reason },
        rests_until: decided.decided_at.map(|now| now.after(again)),
        ..(**next).clone()
    }
}

/// Makes `guest` forget `action`, which was not carried out.
fn take_back(guest: &mut GuestState, before: &GuestState, action: &Action) {
    if guest.last_reason.is_some_and(|(_, reason)| reason == action.reason) {
        guest.last_reason = before.last_reason;
    }
    match action.request {
        Request::SetTarget(_) => {
            guest.target = before.target;
            (guest.target_set_at, guest.target_set_from) = (before.target_set_at, before.target_set_from);
            guest.gain.step = before.gain.step;
            guest.stuck.progress_at = before.stuck.progress_at;
            guest.stuck.distance = before.stuck.distance;
            // A squeal is kept: the guest did squeal, and its counters will not show it a second time.
            if matches!(
                action.reason,
                Reason::SqueezeStep { .. } | Reason::Emergency { .. } | Reason::TmpfsShort { .. }
            ) {
                guest.search = before.search;
            }
        }
        Request::PollStats(_) => {
            guest.polled_before = before.polled_before;
            guest.polled_at = before.polled_at;
        }
        // A split or a deed of the agent that failed is watched like one that returned nothing.
        Request::Reclaim(_)
        | Request::Split
        | Request::Trim(_)
        | Request::Compact
        | Request::LimitCache(_)
        | Request::Merge(_)
        | Request::Share(_) => {}
    }
}

/// The memory in a start. An older journal has no record of the check: it has seen what the state says.
pub(crate) fn memory(state: State, witness: Option<Box<Witness>>) -> (State, Witness) {
    let witness = witness.map_or_else(|| Witness::from(&state), |witness| *witness);
    (state, witness)
}

/// CRC-32 of a state's JSON, as recorded in the journal after each tick.
///
/// # Panics
/// Never: JSON can express everything in a state.
#[must_use]
pub fn state_crc(state: &State) -> u32 {
    // Large enough that it need not grow. Growing would copy it, which takes as long as writing it.
    let mut json = Vec::with_capacity(1024 * (1 + state.guests.len()));
    serde_json::to_writer(&mut json, state).expect("a state's keys are texts and its numbers are integers");
    crc32fast::hash(&json)
}

/// The same of the check's own record.
///
/// # Panics
/// Never, for the same reason.
#[must_use]
pub fn witness_crc(witness: &Witness) -> u32 {
    let mut json = Vec::with_capacity(512 * (1 + witness.guests.len()));
    serde_json::to_writer(&mut json, witness)
        .expect("a record's keys are texts and its numbers are integers");
    crc32fast::hash(&json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::{BackOff, Bytes, GuestId, Moment, Search, Span, Stuck};

    const OLD: Bytes = Bytes::from_mib(512);
    const NEW: Bytes = Bytes::from_mib(384);
    const STEP: Reason =
        Reason::SqueezeStep { cache: Bytes::from_mib(64), demand: NEW, wanted: Bytes::from_mib(1) };

    fn guest() -> GuestId {
        GuestId::new("web", 1, "boot")
    }

    #[test]
    fn a_burst_whose_end_was_not_carried_out_has_chosen_no_pause() {
        let second = Span::from_secs(1);
        let decided = KsmState {
            looks_again: BackOff::default().again(Moment::default(), second, second),
            ..KsmState::default()
        };
        let decided = KsmState { in_vain: decided.looks_again, ..decided };
        let state = State { ksm: Box::new(decided), ..State::default() };
        let before = KsmState::default();
        let after = ksm_without_order(&before, &state, false, second);
        assert_eq!((after.in_vain, after.looks_again), (before.in_vain, before.looks_again));
    }

    fn state(target: Option<Bytes>, at: u64, reason: Reason) -> State {
        let at = Moment::from_millis(at);
        let mut state = State { decided_at: Some(at), ..State::default() };
        let remembered = GuestState {
            target,
            target_set_at: target.map(|_| at),
            inflating_at: Some(at),
            used: Bytes::from_mib(at.as_millis()),
            search: Search { needs: Bytes::from_mib(at.as_millis()), ..Search::default() },
            stuck: Stuck {
                progress_at: Some(at),
                back_off: Span::from_millis(at.as_millis()),
                ..Stuck::default()
            },
            last_reason: Some((at, reason)),
            ..GuestState::default()
        };
        state.guests.insert(guest(), Box::new(remembered));
        state
    }

    fn plan(request: Request, reason: Reason) -> Plan {
        Plan { actions: vec![Action::of(guest(), request, reason)] }
    }

    #[test]
    fn what_was_done_is_believed() {
        let (before, decided) = (state(Some(OLD), 1, Reason::Release), state(Some(NEW), 2, STEP));
        let settled =
            settle(&before, decided.clone(), &plan(Request::SetTarget(NEW), STEP), &[Answer::Accepted]);
        assert_eq!(settled, decided);
    }

    #[test]
    fn what_failed_or_was_not_tried_is_taken_back_and_what_was_seen_stays() {
        let (before, decided) = (state(Some(OLD), 1, Reason::Release), state(Some(NEW), 2, STEP));
        for answers in [vec![], vec![Answer::Failed("refused".to_owned())]] {
            let settled = settle(&before, decided.clone(), &plan(Request::SetTarget(NEW), STEP), &answers);
            let (kept, old) = (&settled.guests[&guest()], &before.guests[&guest()]);
            assert_eq!(kept.target, Some(OLD));
            assert_eq!(kept.target_set_at, old.target_set_at);
            assert_eq!(kept.stuck.progress_at, old.stuck.progress_at);
            assert_eq!(kept.stuck.back_off, decided.guests[&guest()].stuck.back_off);
            assert_eq!(kept.inflating_at, decided.guests[&guest()].inflating_at);
            assert_eq!(kept.search, old.search);
            assert_eq!(kept.last_reason, old.last_reason);
            assert_eq!(kept.used, decided.guests[&guest()].used);
            assert_eq!(settled.decided_at, decided.decided_at);
        }
    }

    #[test]
    fn a_guest_that_was_not_known_before_has_no_target() {
        let decided = state(Some(NEW), 2, STEP);
        let settled = settle(&State::default(), decided, &plan(Request::SetTarget(NEW), STEP), &[]);
        assert_eq!(settled.guests[&guest()].target, None);
        assert_eq!(settled.guests[&guest()].last_reason, None);
    }

    #[test]
    fn a_squeal_is_remembered_even_where_the_write_failed() {
        let squeal = Reason::Squeal { cache: NEW, back_off: Span::from_secs(60) };
        let (before, decided) = (state(Some(OLD), 1, Reason::Release), state(Some(NEW), 2, squeal));
        let settled = settle(&before, decided.clone(), &plan(Request::SetTarget(NEW), squeal), &[]);
        assert_eq!(settled.guests[&guest()].search, decided.guests[&guest()].search);
        assert_eq!(settled.guests[&guest()].target, Some(OLD));
    }

    #[test]
    fn a_failed_poll_leaves_the_target_alone() {
        let (before, decided) = (state(Some(OLD), 1, STEP), state(Some(NEW), 2, Reason::NeedStats));
        let poll = plan(Request::PollStats(Span::from_secs(1)), Reason::NeedStats);
        let settled = settle(&before, decided, &poll, &[Answer::Failed("no".to_owned())]);
        assert_eq!(settled.guests[&guest()].target, Some(NEW));
        assert_eq!(settled.guests[&guest()].last_reason, before.guests[&guest()].last_reason);
    }
}
