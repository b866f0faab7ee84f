//! Carries out a plan, action by action, in its order.
//!
//! If one guest refuses, the tick goes on, and the other guests get their changes. But actions that free memory come first in a
//! plan, and a later grant can depend on them.
//!
//! **Rule.** A refused action is not tried. If an action that is not a grant fails, the plan is checked again without all actions that were
//! refused or failed so far. If the rest breaks a promise, its remaining grants are not tried.

use memtide_model::{Action, Answer, Bytes, GuestSeen, KsmOrder, Plan, Request};

use crate::step::{Decider, Step};
use crate::text::one_line;
use crate::{Applied, World};

const NOT_TRIED: &str = "not tried: it relied on memory that another action of this plan did not free";

/// A step whose plan is carried out.
pub(crate) struct Ground<'a> {
    pub(crate) decider: &'a Decider,
    pub(crate) step: &'a Step,
    /// Whether the journal has the plan's order to KSM. Without it, KSM does not begin to scan; it may always stop.
    pub(crate) ksm_is_written: bool,
}

impl Ground<'_> {
    /// Carries out the plan. Returns one answer for each action.
    pub(crate) fn apply(&self, world: &mut impl World) -> Vec<Answer> {
        let plan = &self.step.plan;
        // The places of the actions that may still be carried out.
        let mut left: Vec<usize> = (0..plan.actions.len()).filter(|i| !self.step.is_refused(*i)).collect();
        let mut grants = true;
        let mut answers = Vec::with_capacity(plan.actions.len());
        for (place, action) in plan.actions.iter().enumerate() {
            if left.binary_search(&place).is_err() {
                answers.push(Answer::Refused);
                continue;
            }
            if !grants && self.raises(action) {
                answers.push(Answer::Failed(NOT_TRIED.to_owned()));
                continue;
            }
            // It was not even tried: nobody may take what KSM does for the work of somebody else.
            if !self.ksm_is_written && matches!(action.request, Request::Merge(KsmOrder::Scan { .. })) {
                answers.push(Answer::Refused);
                continue;
            }
            answers.push(match world.apply(action) {
                Ok(Applied::Accepted) => Answer::Accepted,
                Ok(Applied::Yielded(bytes)) => Answer::Yielded(bytes),
                Err(error) => {
                    left.retain(|other| *other != place);
                    grants = grants && (self.raises(action) || self.holds(&left));
                    Answer::Failed(one_line(&error.why.to_string()))
                }
            });
        }
        assert_eq!(answers.len(), plan.actions.len(), "each action has an answer");
        answers
    }

    /// Whether the actions in these places keep every promise.
    fn holds(&self, places: &[usize]) -> bool {
        let Decider { policy, config, witness, .. } = self.decider;
        let actions = places.iter().map(|place| self.step.plan.actions[*place].clone());
        let plan = Plan { actions: actions.collect() };
        policy.check(config, witness, &self.step.seen, &plan).is_empty()
    }

    /// Whether `action` raises the guest's worst-case cost without asking.
    fn raises(&self, action: &Action) -> bool {
        let (Some(target), Some(guest)) = (action.request.size(), action.guest()) else {
            return false;
        };
        let actual = self.step.seen.guest(guest).map_or(Bytes::ZERO, GuestSeen::actual);
        let promised = self.decider.witness.guests.get(guest).and_then(|guest| guest.target);
        target > actual.max(promised.unwrap_or(Bytes::ZERO))
    }
}
