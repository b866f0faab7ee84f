//! Carrying out a plan, action by action, in its order.
//!
//! One guest's refusal does not end the tick: the others get what was decided for them. But what frees memory comes first
//! in a plan, and a later grant can rest on it.
//!
//! **Rule.** When an action fails that was no grant, the plan is checked again without all that failed so far. Once it no
//! longer keeps every promise, its remaining grants are not tried.

use memtide_model::{Action, ApplyOutcome, Bytes, Change, Plan, Snapshot};

use crate::World;
use crate::step::Decider;
use crate::text::one_line;

const NOT_TRIED: &str = "not tried: it relied on memory that another action of this plan did not free";

/// What a plan is carried out against.
pub(crate) struct Ground<'a> {
    pub(crate) decider: &'a Decider,
    pub(crate) seen: &'a Snapshot,
}

impl Ground<'_> {
    /// Carries out `plan`; one outcome for each action.
    pub(crate) fn apply(&self, world: &mut impl World, plan: &Plan) -> Vec<ApplyOutcome> {
        let mut left = plan.clone();
        let mut grants = true;
        let mut outcomes = Vec::with_capacity(plan.actions.len());
        for action in &plan.actions {
            if !grants && self.raises(action) {
                outcomes.push(ApplyOutcome::Failed(NOT_TRIED.to_owned()));
                continue;
            }
            outcomes.push(match world.apply(action) {
                Ok(()) => ApplyOutcome::Done,
                Err(error) => {
                    left.actions.retain(|other| other != action);
                    grants = grants && (self.raises(action) || self.holds(&left));
                    ApplyOutcome::Failed(one_line(&error.why.to_string()))
                }
            });
        }
        outcomes
    }

    /// Whether `plan` keeps every promise.
    fn holds(&self, plan: &Plan) -> bool {
        let Decider { policy, config, state } = self.decider;
        policy.check(config, state, self.seen, plan).is_empty()
    }

    /// Whether `action` lets the guest come to cost more than it can without asking.
    fn raises(&self, action: &Action) -> bool {
        let Change::SetTarget(target) = action.change else { return false };
        let guests = &self.seen.guests;
        let actual = guests
            .binary_search_by(|guest| guest.id.cmp(&action.guest))
            .map_or(Bytes::ZERO, |index| guests[index].actual());
        let promised = self.decider.state.guests.get(&action.guest).and_then(|guest| guest.target);
        target > actual.max(promised.unwrap_or(Bytes::ZERO))
    }
}
