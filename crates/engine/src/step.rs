//! One decision, the same for a live host, a simulation, a replay and a golden text: decide, check, carry out, settle.

use std::convert::Infallible;
use std::sync::Arc;

use memtide_model::{
    Answer, Config, Decision, KsmSettings, Mode, Plan, Refusal, Report, Request, Snapshot, State, Witness,
};
use memtide_policy::witness;

use crate::policy::Policy;
use crate::requests;
use crate::settle::{settle, state_crc, witness_crc};

/// The observation, decision and answers of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The observation.
    pub seen: Snapshot,
    /// The decided plan.
    pub plan: Plan,
    /// The reasons. The targets in it are those that were carried out.
    pub report: Report,
    /// The promises that single actions of the plan would break. These actions are not carried out.
    pub refusals: Vec<Refusal>,
    /// The answers of the plan's actions, in the order of the actions; empty if none was applied.
    pub answers: Vec<Answer>,
}

/// A policy at work, with its configuration and its state.
#[derive(Clone, Debug)]
pub(crate) struct Decider {
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) config: Config,
    pub(crate) state: State,
    /// The check's own record.
    pub(crate) witness: Witness,
}

impl Decider {
    pub(crate) fn new(policy: Arc<dyn Policy>, config: Config, (state, witness): (State, Witness)) -> Self {
        Self { policy, config, state, witness }
    }

    /// Decides about the observation `seen`, lets `carry_out` apply the plan, and remembers the answers. Returns the step, and the
    /// state before it.
    ///
    /// `carry_out` gets the step without answers. It returns one answer for each action, or none if it applied nothing.
    pub(crate) fn step(
        &mut self,
        seen: Snapshot,
        carry_out: impl FnOnce(&Self, &Step) -> Vec<Answer>,
    ) -> (Step, State) {
        match self.try_step(seen, |decider, step| Ok::<_, Infallible>(carry_out(decider, step))) {
            Ok(stepped) => stepped,
        }
    }

    /// The same, if carrying out can fail as a whole. After such a failure, nothing of this step is remembered except the yields of earlier
    /// requests, and what the check has seen.
    ///
    /// # Errors
    /// The errors of `carry_out`.
    pub(crate) fn try_step<E>(
        &mut self,
        seen: Snapshot,
        carry_out: impl FnOnce(&Self, &Step) -> Result<Vec<Answer>, E>,
    ) -> Result<(Step, State), E> {
        requests::follow(&mut self.state, &seen);
        let Decision { plan, state: decided, report } = self.policy.decide(&self.config, &self.state, &seen);
        witness::looks(&mut self.witness, &self.config, &seen);
        let refusals = self.policy.check(&self.config, &self.witness, &seen, &plan);
        let mut step = Step { seen, plan, report, refusals, answers: Vec::new() };
        step.answers = carry_out(self, &step)?;
        witness::hears(&mut self.witness, &step.seen, &step.plan, &step.answers);
        let mut settled = settle(&self.state, decided, &step.plan, &step.answers);
        self.policy.hears(&mut settled, &step.seen, &step.plan, &step.answers);
        requests::note(&mut settled, &step.seen, &step.plan, &step.answers);
        let before = std::mem::replace(&mut self.state, settled);
        step.report_what_is_in_force(&self.state);
        Ok((step, before))
    }

    /// The checksums of the state and of the check's own record.
    pub(crate) fn crcs(&self) -> (u32, u32) {
        (state_crc(&self.state), witness_crc(&self.witness))
    }

    /// Whether memtide manages. Then all actions of a plan are carried out, except the refused ones.
    pub(crate) fn may_apply(&self) -> bool {
        self.config.mode == Mode::Manage
    }
}

impl Step {
    /// Whether the action at this place of the plan is refused.
    pub(crate) fn is_refused(&self, place: usize) -> bool {
        self.refusals.iter().any(|refusal| refusal.action == place)
    }

    /// The settings of KSM before and after the order of the plan, if there is one that is carried out.
    pub(crate) fn sets_ksm(&self) -> Option<(KsmSettings, KsmSettings)> {
        let before = self.seen.host.ksm.fresh()?.settings;
        let places = (0..self.plan.actions.len()).filter(|place| !self.is_refused(*place));
        let mut orders = places.filter_map(|place| match self.plan.actions[place].request {
            Request::Merge(order) => Some(order),
            _ => None,
        });
        orders.next().map(|order| (before, order.after(before)))
    }

    /// Replaces the targets of failed actions in the report by the targets that still apply.
    pub(crate) fn report_what_is_in_force(&mut self, state: &State) {
        let is_done = |index: usize| self.answers.get(index).is_some_and(Answer::is_accepted);
        for (_, action) in self.plan.actions.iter().enumerate().filter(|(index, _)| !is_done(*index)) {
            let Some(id) = action.guest() else { continue };
            if let Ok(index) = self.report.guests.binary_search_by(|guest| guest.id.cmp(id)) {
                let remembered = state.guests.get(id);
                self.report.guests[index].target = remembered.and_then(|remembered| remembered.target);
            }
        }
    }
}
