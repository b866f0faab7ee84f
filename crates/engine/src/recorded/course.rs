//! The course of decisions from the start of a segment on, decided again.

use std::sync::Arc;

use memtide_model::{Config, Decision, Moment, Outsiders, Record, Span, State, Tick};

use super::Differs;
use super::event::{self, Decided, Event};
use crate::engine::{missed_warning, refusal_warnings};
use crate::journal::{Cursor, JournalError, Mark};
use crate::policy::Policy;
use crate::requests;
use crate::settle::{settle, state_crc};
use crate::step::Step;
use crate::{Counters, LastTick, Published};

/// What somebody wants of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Only to go on after it.
    Pass,
    /// To go on after it, from a state that was compared with the checksum in the journal.
    Verify,
    /// What happened.
    Events,
    /// Everything.
    All,
}

/// A decision as it is shown.
#[derive(Debug)]
pub(super) struct Shown {
    /// `None` if only the events were wanted.
    pub(super) published: Option<Published>,
    pub(super) version: Arc<str>,
    pub(super) differs: Option<Differs>,
    pub(super) events: Vec<Event>,
}

/// Decisions made again so far.
#[derive(Clone, Debug)]
pub(super) struct Course {
    policy: Arc<dyn Policy>,
    /// `None` before the first start.
    running: Option<Running>,
}

/// What the next decision depends on.
#[derive(Clone, Debug)]
struct Running {
    version: Arc<str>,
    /// The identity of the policy that decided.
    by: Arc<str>,
    config: Arc<Config>,
    state: State,
    /// Whether the state is that of the run, as far as it was compared.
    is_same: bool,
    /// Whether it was compared with the journal: with a checksum, or because the journal has it.
    is_compared: bool,
}

impl Course {
    pub(super) const fn new(policy: Arc<dyn Policy>) -> Self {
        Self { policy, running: None }
    }

    /// The number of guests that it remembers.
    pub(super) fn guests(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.state.guests.len())
    }

    /// Whether it is known if its state is that of the run.
    pub(super) fn is_compared(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.is_compared)
    }

    /// Takes the records up to and with the tick of `mark`.
    pub(super) fn take_until(
        &mut self,
        cursor: &mut Cursor,
        mark: &Mark,
        want: Want,
    ) -> Result<Option<Shown>, JournalError> {
        let mut notes = Vec::new();
        while cursor.offset() <= mark.offset {
            let is_it = cursor.offset() == mark.offset;
            match cursor.next() {
                Ok(Some(Record::Tick(tick))) => {
                    let want = if is_it { want } else { Want::Pass };
                    let shown = self.tick(*tick, std::mem::take(&mut notes), want);
                    if is_it {
                        return Ok(shown);
                    }
                }
                Ok(Some(Record::Start { version, policy, config, state, .. })) => {
                    let (version, by) = (version.into(), policy.into());
                    self.running = Some(Running {
                        version,
                        by,
                        config: Arc::from(config),
                        state,
                        is_same: true,
                        is_compared: true,
                    });
                }
                Ok(Some(Record::Note { at, text })) => notes.push((at, text)),
                Ok(Some(Record::SetsKsm { .. })) => {}
                Ok(None) => break,
                Err(error @ JournalError::Io { .. }) => return Err(error),
                // A decision was lost there: from here on nobody knows the state.
                Err(error) => {
                    self.running.get_or_insert_with(Running::unknown).is_same = false;
                    if cursor.offset() > mark.offset {
                        return Err(error);
                    }
                }
            }
        }
        Err(JournalError::NoDecision)
    }

    fn tick(&mut self, tick: Tick, notes: Vec<(Moment, String)>, want: Want) -> Option<Shown> {
        let running = self.running.get_or_insert_with(Running::unknown);
        let (was_same, recorded) = (running.is_same, tick.state_crc);
        let (step, before, agrees) = running.follow(&*self.policy, tick);
        running.is_compared = matches!(want, Want::Verify | Want::All);
        let is_same = match running.is_compared {
            true => recorded == state_crc(&running.state),
            false => was_same && agrees,
        };
        running.is_same = is_same;
        if matches!(want, Want::Pass | Want::Verify) {
            return None;
        }
        Some(Shown {
            events: event::of(Decided::by(&step), &before, &running.state, notes),
            differs: (!(was_same && agrees && is_same)).then(|| running.differs()),
            version: Arc::clone(&running.version),
            published: (want == Want::All).then(|| running.published(step)),
        })
    }
}

impl Running {
    /// Before the first start that can be read.
    fn unknown() -> Self {
        Self {
            version: "?".into(),
            by: memtide_model::OWN_POLICY.into(),
            config: Arc::default(),
            state: State::default(),
            is_same: false,
            is_compared: true,
        }
    }

    fn differs(&self) -> Differs {
        let policy = match &*self.by {
            memtide_model::OWN_POLICY => String::new(),
            other => format!(" with the policy `{other}`"),
        };
        Differs { wrote: format!("memtide {}{policy}", self.version) }
    }

    /// Decides about the observation of `tick`, and goes on with the recorded plan and its answers. Returns the step, the state before it, and
    /// whether the decided plan is the recorded one.
    fn follow(&mut self, policy: &dyn Policy, tick: Tick) -> (Step, State, bool) {
        let Tick { seen, plan, refusals, answers, .. } = tick;
        requests::follow(&mut self.state, &seen);
        let Decision { plan: decided, state, report } = policy.decide(&self.config, &self.state, &seen);
        let agrees = decided == plan;
        let mut step = Step { seen, plan, report, refusals, answers };
        let mut settled = settle(&self.state, state, &step.plan, &step.answers);
        policy.hears(&mut settled, &step.seen, &step.plan, &step.answers);
        requests::note(&mut settled, &step.seen, &step.plan, &step.answers);
        let before = std::mem::replace(&mut self.state, settled);
        step.report_what_is_in_force(&self.state);
        if !agrees {
            for guest in &mut step.report.guests {
                guest.target = self.state.guests.get(&guest.id).and_then(|remembered| remembered.target);
            }
        }
        (step, before, agrees)
    }

    fn published(&self, step: Step) -> Published {
        let Step { seen, plan, report, refusals, answers } = step;
        let warnings = missed_warning(&seen).into_iter().chain(refusal_warnings(&refusals)).collect();
        let state = self.state.clone();
        Published {
            config: Config::clone(&self.config),
            counters: Counters::default(),
            warnings,
            unwritten: None,
            outsiders: Outsiders::default(),
            last: Some(LastTick { seen, plan, report, state, refusals, answers, took: Span::ZERO }),
        }
    }
}
