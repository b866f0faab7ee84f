//! Carries out a plan, action by action, in its order.
//!
//! If one guest refuses, the tick goes on, and the other guests get their changes. But actions that free memory come first in a
//! plan, and a later grant can depend on them.
//!
//! **Rule.** If an action that is not a grant fails, the plan is checked again without all actions that failed so far. If the rest
//! breaks a promise, its remaining grants are not tried.

use memtide_model::{Action, Answer, Bytes, GuestSeen, Plan, Request, Snapshot};

use crate::step::Decider;
use crate::text::one_line;
use crate::{Applied, World};

const NOT_TRIED: &str = "not tried: it relied on memory that another action of this plan did not free";

/// The input of a decision; the plan is checked against it.
pub(crate) struct Ground<'a> {
    pub(crate) decider: &'a Decider,
    pub(crate) seen: &'a Snapshot,
}

impl Ground<'_> {
    /// Carries out `plan`. Returns one answer for each action.
    pub(crate) fn apply(&self, world: &mut impl World, plan: &Plan) -> Vec<Answer> {
        let mut left = plan.clone();
        let mut grants = true;
        let mut answers = Vec::with_capacity(plan.actions.len());
        for action in &plan.actions {
            if !grants && self.raises(action) {
                answers.push(Answer::Failed(NOT_TRIED.to_owned()));
                continue;
            }
            answers.push(match world.apply(action) {
                Ok(Applied::Accepted) => Answer::Accepted,
                Ok(Applied::Yielded(bytes)) => Answer::Yielded(bytes),
                Err(error) => {
                    left.actions.retain(|other| other != action);
                    grants = grants && (self.raises(action) || self.holds(&left));
                    Answer::Failed(one_line(&error.why.to_string()))
                }
            });
        }
        assert_eq!(answers.len(), plan.actions.len(), "each action has an answer");
        answers
    }

    /// Whether `plan` keeps every promise.
    fn holds(&self, plan: &Plan) -> bool {
        let Decider { policy, config, state } = self.decider;
        policy.check(config, state, self.seen, plan).is_empty()
    }

    /// Whether `action` raises the guest's worst-case cost without asking.
    fn raises(&self, action: &Action) -> bool {
        let (Request::SetTarget(target), Some(guest)) = (action.request, action.guest()) else {
            return false;
        };
        let actual = self.seen.guest(guest).map_or(Bytes::ZERO, GuestSeen::actual);
        let promised = self.decider.state.guests.get(guest).and_then(|guest| guest.target);
        target > actual.max(promised.unwrap_or(Bytes::ZERO))
    }
}
