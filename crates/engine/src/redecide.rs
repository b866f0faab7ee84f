//! Decides a recorded run again with the current policy. Traces are updated in this way after an intended change of the policy.
//!
//! Observations and refusals are kept. Plans and states are new. The guests did not live through the new plans: the
//! more a new policy differs, the less its trace shows about its real effect. Then a new run should be recorded.

use memtide_model::{Action, Answer, Config, Plan, Record, Subject, Tick};

use crate::policy::own_policy;
use crate::settle::memory;
use crate::step::{Decider, Step};

/// The same records with the decisions of memtide's own policy. Skips ticks before the first start.
#[must_use]
pub fn redecide(records: impl IntoIterator<Item = Record>) -> Vec<Record> {
    let mut decider: Option<Decider> = None;
    let mut again = Vec::new();
    for record in records {
        match record {
            Record::Start { version, config, state, witness, .. } => {
                // A start within a run, for example at a new segment, keeps the running state.
                let memory = match decider.take() {
                    Some(running) if state.decided_at.is_some() => (running.state, running.witness),
                    _ => memory(state, witness),
                };
                let begun = decider.insert(Decider::new(own_policy(), Config::clone(&config), memory));
                let (policy, state) = (begun.policy.identity().to_owned(), begun.state.clone());
                let witness = Some(Box::new(begun.witness.clone()));
                again.push(Record::Start { version, policy, config, state, witness });
            }
            Record::Tick(tick) => {
                let Some(decider) = &mut decider else { continue };
                again.push(Record::Tick(Box::new(tick_again(decider, *tick))));
            }
            note @ Record::Note { .. } => again.push(note),
            // The tick of the order follows, and may hold another one now.
            Record::SetsKsm { .. } => {}
        }
    }
    again
}

fn tick_again(decider: &mut Decider, recorded: Tick) -> Tick {
    let Tick { seen, plan: old_plan, answers: old_outcomes, .. } = recorded;
    let (step, _) = decider.step(seen, |decider, step| {
        if decider.may_apply() { answers(&old_plan, &old_outcomes, step) } else { Vec::new() }
    });
    let Step { seen, plan, refusals, answers, .. } = step;
    let (state_crc, witness_crc) = decider.crcs();
    Tick { seen, plan, state_crc, witness_crc: Some(witness_crc), refusals, answers }
}

/// A guest that refused an action at some moment also refuses a new action at that moment.
fn answers(recorded: &Plan, recorded_outcomes: &[Answer], step: &Step) -> Vec<Answer> {
    let refused = |subject: &Subject| {
        let mut all = recorded.actions.iter().zip(recorded_outcomes);
        all.find(|(action, how)| action.subject == *subject && matches!(how, Answer::Failed(_)))
            .map(|(_, how)| how)
    };
    let answer = |(place, action): (usize, &Action)| match step.is_refused(place) {
        true => Answer::Refused,
        false => refused(&action.subject).cloned().unwrap_or(Answer::Accepted),
    };
    step.plan.actions.iter().enumerate().map(answer).collect()
}
