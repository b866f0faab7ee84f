//! Decides a recorded run again with the current policy. Traces are updated in this way after an intended change of the policy.
//!
//! Observations and refusals are kept. Plans and states are new. The guests did not live through the new plans: the
//! more a new policy differs, the less its trace shows about its real effect. Then a new run should be recorded.

use memtide_model::{Answer, Config, Plan, Record, Subject, Tick};

use crate::policy::own_policy;
use crate::state_crc;
use crate::step::{Decider, Step};

/// The same records with the decisions of memtide's own policy. Skips ticks before the first start.
#[must_use]
pub fn redecide(records: impl IntoIterator<Item = Record>) -> Vec<Record> {
    let mut decider: Option<Decider> = None;
    let mut again = Vec::new();
    for record in records {
        match record {
            Record::Start { version, config, state, .. } => {
                // A start within a run, for example at a new segment, keeps the running state.
                let state = match decider.take() {
                    Some(running) if state.decided_at.is_some() => running.state,
                    _ => state,
                };
                let begun = decider.insert(Decider::new(own_policy(), Config::clone(&config), state));
                let (policy, state) = (begun.policy.identity().to_owned(), begun.state.clone());
                again.push(Record::Start { version, policy, config, state });
            }
            Record::Tick(tick) => {
                let Some(decider) = &mut decider else { continue };
                again.push(Record::Tick(Box::new(tick_again(decider, *tick))));
            }
            note @ Record::Note { .. } => again.push(note),
        }
    }
    again
}

fn tick_again(decider: &mut Decider, recorded: Tick) -> Tick {
    let Tick { seen, plan: old_plan, answers: old_outcomes, .. } = recorded;
    let (step, _) = decider.step(seen, |decider, step| {
        if decider.may_apply(step) { answers(&old_plan, &old_outcomes, &step.plan) } else { Vec::new() }
    });
    let Step { seen, plan, violations, answers, .. } = step;
    Tick { seen, plan, state_crc: state_crc(&decider.state), violations, answers }
}

/// A guest that refused an action at some moment also refuses a new action at that moment.
fn answers(recorded: &Plan, recorded_outcomes: &[Answer], plan: &Plan) -> Vec<Answer> {
    let refused = |subject: &Subject| {
        let mut all = recorded.actions.iter().zip(recorded_outcomes);
        all.find(|(action, how)| action.subject == *subject && !how.is_accepted()).map(|(_, how)| how)
    };
    plan.actions.iter().map(|action| refused(&action.subject).cloned().unwrap_or(Answer::Accepted)).collect()
}
