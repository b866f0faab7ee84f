//! One decision, the same for a live host, a simulation, a replay and a golden text: decide, check, carry out, settle.

use std::convert::Infallible;
use std::sync::Arc;

use memtide_model::{Answer, Config, Decision, Mode, Plan, Report, Snapshot, State};

use crate::policy::Policy;
use crate::requests;
use crate::settle::settle;

/// The observation, decision and answers of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The observation.
    pub seen: Snapshot,
    /// The decided plan.
    pub plan: Plan,
    /// The reasons. The targets in it are those that were carried out.
    pub report: Report,
    /// The violations that `check` found. A plan with violations is not applied.
    pub violations: Vec<String>,
    /// The answers of the plan's actions, in the order of the actions; empty if none was applied.
    pub answers: Vec<Answer>,
}

/// A policy at work, with its configuration and its state.
#[derive(Clone, Debug)]
pub(crate) struct Decider {
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) config: Config,
    pub(crate) state: State,
}

impl Decider {
    pub(crate) const fn new(policy: Arc<dyn Policy>, config: Config, state: State) -> Self {
        Self { policy, config, state }
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

    /// The same, if carrying out can fail as a whole. After such a failure, nothing of this step is remembered except the yields of earlier requests.
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
        let violations = self.policy.check(&self.config, &self.state, &seen, &plan);
        let mut step = Step { seen, plan, report, violations, answers: Vec::new() };
        step.answers = carry_out(self, &step)?;
        let mut settled = settle(&self.state, decided, &step.plan, &step.answers);
        requests::note(&mut settled, &step.seen, &step.plan, &step.answers);
        let before = std::mem::replace(&mut self.state, settled);
        step.report_what_is_in_force(&self.state);
        Ok((step, before))
    }

    /// Whether a step's plan may be applied: memtide manages, and the plan breaks no promise.
    pub(crate) fn may_apply(&self, step: &Step) -> bool {
        self.config.mode == Mode::Manage && step.violations.is_empty()
    }
}

impl Step {
    /// Replaces the targets of failed actions in the report by the targets that still apply.
    fn report_what_is_in_force(&mut self, state: &State) {
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
