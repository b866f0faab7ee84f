//! Deciding again from a journal: the same inputs must give the same decisions, byte for byte.
//!
//! **Terms.** The *running state* is the one that the replay arrived at. A `Start` record either *continues* the run (it
//! was decided at the same moment as the running state: a new segment or a new configuration), or begins a new *run* (it
//! has decided nothing yet), or follows a *gap* (ticks that could not be written).
//!
//! **Rule.** Every tick's plan, violations and state must be those that were recorded, and a start that continues must
//! carry the running state. The first difference ends the replay. How the actions went cannot be decided again: it is
//! taken from the record.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use memtide_model::{Action, ApplyOutcome, Config, Moment, Plan, Record, Span, State, Tick};

use crate::golden::{Names, action_text, since_text};
use crate::journal::{JournalError, Reader};
use crate::policy::{Policy, own_policy};
use crate::state_crc;
use crate::step::{Decider, Step};

/// What a replay went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Decisions that were made again.
    pub ticks: u64,
    /// Actions in their plans.
    pub actions: u64,
    /// Actions that had failed.
    pub failed: u64,
    /// Plans that had not been applied because of a violation.
    pub refused: u64,
    /// Runs of an engine.
    pub runs: u64,
    /// Places within a run where ticks are missing.
    pub gaps: u64,
    /// Notes, which are skipped.
    pub notes: u64,
    /// The first tick.
    pub first: Option<Moment>,
    /// The last tick.
    pub last: Option<Moment>,
}

/// The first place where deciding again gave something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the tick, from 1; for a start, that of the next tick.
    pub tick: u64,
    /// When the tick was; for a start, when its state had been decided.
    pub at: Option<Moment>,
    /// How long after the first tick.
    pub since: Span,
    /// What differs.
    pub what: Mismatch,
    /// The policy that decided what is recorded, and the one that decided again, if they are not the same.
    pub policies: Option<(String, String)>,
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// A tick comes before any start: there is nothing to decide from.
    NoStart,
    /// Another plan.
    Plan {
        /// The recorded plan.
        recorded: Plan,
        /// The plan of now.
        decided: Plan,
    },
    /// The same plan, judged differently.
    Violations {
        /// The recorded violations.
        recorded: Vec<String>,
        /// The violations of now.
        decided: Vec<String>,
    },
    /// The same plan, but something else is remembered.
    State {
        /// The CRC-32 of the recorded state.
        recorded: u32,
        /// The CRC-32 of the state of now.
        decided: u32,
    },
    /// A start that continues the run carries another state.
    Start {
        /// The recorded state.
        recorded: Box<State>,
        /// The running state.
        running: Box<State>,
    },
}

/// Why a journal could not be replayed to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It could not be read.
    #[error("cannot read the journal to its end")]
    Journal(#[from] JournalError),
    /// A decision differs.
    #[error(transparent)]
    Differs(#[from] Box<Difference>),
}

/// Decides again, record by record.
#[derive(Debug)]
pub struct Replay {
    policy: Arc<dyn Policy>,
    decider: Option<Decider>,
    /// Who decided what is recorded.
    recorded_by: String,
    summary: ReplaySummary,
}

impl Default for Replay {
    fn default() -> Self {
        Self::with_policy(own_policy())
    }
}

impl Replay {
    /// A replay with another policy than memtide's own.
    #[must_use]
    pub fn with_policy(policy: Arc<dyn Policy>) -> Self {
        Self { policy, decider: None, recorded_by: String::new(), summary: ReplaySummary::default() }
    }

    /// What it went through so far.
    #[must_use]
    pub const fn summary(&self) -> ReplaySummary {
        self.summary
    }

    /// The state that it arrived at.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.decider.as_ref().map(|decider| &decider.state)
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// Where deciding again gives something else. The replay is at its end then.
    pub fn step(&mut self, record: Record) -> Result<(), Box<Difference>> {
        match record {
            Record::Start { config, policy, state, .. } => {
                self.recorded_by = policy;
                self.start(*config, state)
            }
            Record::Tick(tick) => self.tick(*tick),
            Record::Note { .. } => {
                self.summary.notes += 1;
                Ok(())
            }
        }
    }

    fn start(&mut self, config: Config, state: State) -> Result<(), Box<Difference>> {
        match self.decider.as_ref().map(|decider| &decider.state) {
            Some(running) if running.decided_at == state.decided_at => {
                if *running != state {
                    let at = state.decided_at;
                    let running = Box::new(running.clone());
                    return Err(self.difference(at, Mismatch::Start { recorded: Box::new(state), running }));
                }
            }
            Some(_) if state.decided_at.is_some() => self.summary.gaps += 1,
            _ => self.summary.runs += 1,
        }
        self.decider = Some(Decider::new(Arc::clone(&self.policy), config, state));
        Ok(())
    }

    fn tick(&mut self, tick: Tick) -> Result<(), Box<Difference>> {
        let at = tick.seen.taken_at;
        self.summary.first.get_or_insert(at);
        let Some(decider) = &mut self.decider else {
            return Err(self.difference(Some(at), Mismatch::NoStart));
        };
        let Tick { seen, plan, state_crc: recorded, violations, outcomes } = tick;
        let stepped = decider.try_step(seen, |_, step| {
            if step.plan != plan {
                return Err(Mismatch::Plan { recorded: plan, decided: step.plan.clone() });
            }
            if step.violations != violations {
                return Err(Mismatch::Violations { recorded: violations, decided: step.violations.clone() });
            }
            Ok(outcomes)
        });
        let decided = state_crc(&decider.state);
        match stepped {
            Ok((step, _)) if decided == recorded => self.count(&step),
            Ok(_) => return Err(self.difference(Some(at), Mismatch::State { recorded, decided })),
            Err(what) => return Err(self.difference(Some(at), what)),
        }
        Ok(())
    }

    fn count(&mut self, step: &Step) {
        let failed = step.outcomes.iter().filter(|outcome| matches!(outcome, ApplyOutcome::Failed(_)));
        self.summary.ticks += 1;
        self.summary.actions += step.plan.actions.len() as u64;
        self.summary.failed += failed.count() as u64;
        self.summary.refused += u64::from(!step.violations.is_empty());
        self.summary.last = Some(step.seen.taken_at);
    }

    fn difference(&self, at: Option<Moment>, what: Mismatch) -> Box<Difference> {
        let since = match (at, self.summary.first) {
            (Some(at), Some(first)) => at.since(first),
            _ => Span::ZERO,
        };
        let (recorded, now) = (&self.recorded_by, self.policy.identity());
        let policies = (recorded != now).then(|| (recorded.clone(), now.to_owned()));
        Box::new(Difference { tick: self.summary.ticks + 1, at, since, what, policies })
    }
}

/// Decides again from `records`, with memtide's own policy.
///
/// # Errors
/// The first difference.
pub fn replay(records: impl IntoIterator<Item = Record>) -> Result<ReplaySummary, Box<Difference>> {
    let mut replay = Replay::default();
    for record in records {
        replay.step(record)?;
    }
    Ok(replay.summary())
}

/// Decides again from a journal, record by record, with memtide's own policy.
///
/// # Errors
/// The first difference, or the first place that cannot be read. A torn tail is none: [`Reader::torn`] tells of it
/// afterwards.
pub fn replay_journal(reader: &mut Reader) -> Result<ReplaySummary, ReplayError> {
    let mut replay = Replay::default();
    for record in reader {
        replay.step(record?)?;
    }
    Ok(replay.summary())
}

impl std::error::Error for Difference {}

/// For people: where it is, then one line for each action, `-` recorded and `+` decided now.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tick {} at {}: ", self.tick, since_text(self.since))?;
        if let Some((recorded, now)) = &self.policies {
            write!(f, "recorded with the policy `{recorded}`, decided again with `{now}`: ")?;
        }
        match &self.what {
            Mismatch::NoStart => f.write_str("no start record before it"),
            Mismatch::Plan { recorded, decided } => {
                f.write_str("a different plan")?;
                write_lines(f, &plan_lines(recorded, decided), &plan_lines(decided, recorded))
            }
            Mismatch::Violations { recorded, decided } => {
                f.write_str("the same plan, judged differently")?;
                write_lines(f, recorded, decided)
            }
            Mismatch::State { recorded, decided } => write!(
                f,
                "the same plan, but a different state (CRC-32 {recorded:08x} recorded, {decided:08x} now)"
            ),
            Mismatch::Start { recorded, running } => {
                f.write_str("a start that continues the run has a different state")?;
                let (recorded, running) = (state_lines(recorded), state_lines(running));
                let only = |of: &[String], other: &[String]| -> Vec<String> {
                    of.iter().filter(|line| !other.contains(line)).cloned().collect()
                };
                write_lines(f, &only(&recorded, &running), &only(&running, &recorded))
            }
        }
    }
}

/// The lines that only one side has, with their sign, and those of both, in the order of each side.
fn write_lines(f: &mut fmt::Formatter<'_>, recorded: &[String], decided: &[String]) -> fmt::Result {
    for line in recorded {
        write!(f, "\n{} {line}", if decided.contains(line) { ' ' } else { '-' })?;
    }
    for line in decided.iter().filter(|line| !recorded.contains(line)) {
        write!(f, "\n+ {line}")?;
    }
    Ok(())
}

/// One line for each action of `plan`; with every byte where it reads like an action of `other` and is not the same, and
/// with its place where the two differ only in their order.
fn plan_lines(plan: &Plan, other: &Plan) -> Vec<String> {
    let names = Names::of(plan.actions.iter().chain(&other.actions).map(|action| &action.guest));
    let text = |action: &Action| action_text(&names, action, None);
    let reordered = plan.actions.len() == other.actions.len()
        && plan.actions.iter().all(|action| other.actions.contains(action));
    let line = |(index, action): (usize, &Action)| {
        if reordered {
            return format!("{}. {}", index + 1, text(action));
        }
        let alike = other.actions.iter().any(|b| action != b && text(action) == text(b));
        if alike { format!("{}: {:?}", text(action), (action.change, action.reason)) } else { text(action) }
    };
    plan.actions.iter().enumerate().map(line).collect()
}

/// A state, one line for each guest and one for the host.
fn state_lines(state: &State) -> Vec<String> {
    let host = State { guests: BTreeMap::new(), ..state.clone() };
    let host = std::iter::once(format!("host: {host:?}"));
    host.chain(state.guests.iter().map(|(id, guest)| format!("{id:?}: {guest:?}"))).collect()
}
