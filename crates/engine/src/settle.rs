//! The memory of KSM's governor after a tick.
//!
//! **Problem.** A decision assumes that its order to KSM is carried out. But the check refuses single actions, and so do kernels.
//!
//! **Rule.** If the order was not accepted, the governor remembers what it did before, and tries again after a while.
//!
//! Live runs and replays call this function, and the answers are in the journal, so both continue with the same state.

use memtide_model::{Answer, KsmOrder, KsmState, Plan, Request, Span, State, Witness};

/// How long KSM's governor waits after an order to scan that was not carried out, and after one to stop.
const KSM_RETRY: Span = Span::from_secs(60);
const KSM_STOP_RETRY: Span = Span::from_secs(2);

/// The next state, from the state `before` a decision, the state that it `decided`, and the answers of its plan. An action
/// without an answer was not applied.
#[must_use]
pub fn settle(before: &State, mut decided: State, plan: &Plan, answers: &[Answer]) -> State {
    for (index, action) in plan.actions.iter().enumerate() {
        let answer = answers.get(index);
        if let Request::Merge(order) = action.request
            && !answer.is_some_and(Answer::is_accepted)
        {
            let is_tried = matches!(answer, Some(Answer::Failed(_)));
            let again = if order == KsmOrder::Stop { KSM_STOP_RETRY } else { KSM_RETRY };
            *decided.ksm = ksm_without_order(&before.ksm, &decided, is_tried, again);
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
    use memtide_model::{BackOff, Moment};

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
}
