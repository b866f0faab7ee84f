//! A recorded run, decided again by the policy of now: how traces follow a change of the policy that is meant.
//!
//! What was seen stays, and so do the guests that refused; plans and memory are those of now. The guests did not live
//! through these plans: the further a new policy departs, the less the trace shows of what it would bring. Then it is time
//! to record a new run.

use memtide_model::{ApplyOutcome, Config, Decision, Mode, Plan, Record, State, Tick};

use crate::{Rules, settle, state_crc};

/// The same records with the decisions of memtide's own policy. Ticks before the first start are left out.
#[must_use]
pub fn redecide(records: impl IntoIterator<Item = Record>) -> Vec<Record> {
    let rules = Rules::default();
    let mut running: Option<(Config, State)> = None;
    let mut again = Vec::new();
    for record in records {
        match record {
            Record::Start { version, config, state } => {
                // A start within a run, as at a new segment, carries the running state.
                let state = match running.take() {
                    Some((_, running)) if state.decided_at.is_some() => running,
                    _ => state,
                };
                running = Some((Config::clone(&config), state.clone()));
                again.push(Record::Start { version, config, state });
            }
            Record::Tick(tick) => {
                let Some((config, before)) = &mut running else { continue };
                let (tick, settled) = tick_again(rules, config, before, *tick);
                *before = settled;
                again.push(Record::Tick(Box::new(tick)));
            }
            note @ Record::Note { .. } => again.push(note),
        }
    }
    again
}

fn tick_again(rules: Rules, config: &Config, before: &State, tick: Tick) -> (Tick, State) {
    let Decision { plan, state, .. } = (rules.decide)(config, before, &tick.seen);
    let violations = (rules.check)(config, before, &tick.seen, &plan);
    let applied = config.mode == Mode::Manage && violations.is_empty();
    let outcomes = if applied { outcomes(&tick, &plan) } else { Vec::new() };
    let settled = settle(before, state, &plan, &outcomes);
    (Tick { state_crc: state_crc(&settled), plan, violations, outcomes, ..tick }, settled)
}

/// A guest that refused an action refuses one of the same moment again.
fn outcomes(recorded: &Tick, plan: &Plan) -> Vec<ApplyOutcome> {
    let refused = |guest| {
        let all = recorded.plan.actions.iter().zip(&recorded.outcomes);
        all.into_iter()
            .find(|(action, how)| action.guest == guest && **how != ApplyOutcome::Done)
            .map(|(_, how)| how)
    };
    plan.actions
        .iter()
        .map(|action| refused(action.guest.clone()).cloned().unwrap_or(ApplyOutcome::Done))
        .collect()
}
