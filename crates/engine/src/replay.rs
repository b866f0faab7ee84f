//! Decides again from a journal: the same inputs must give the same decisions, byte for byte.
//!
//! **Terms.** The *running state* is the replay's current state. A `Start` record *continues* the run if it was decided at
//! the same moment as the running state (a new segment or a new configuration). It begins a new *run* if it has decided
//! nothing yet. Otherwise it follows a *gap*: ticks that could not be written.
//!
//! **Rule.** Every tick's plan, refusals, state and record of the check must equal the recorded ones, and a start that continues must
//! carry the running state. An older journal has no record of the check; a replay then begins with what the state says. The first difference ends the replay. The answers of actions cannot be decided again, so they are taken
//! from the record.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use memtide_model::{
    Action, Answer, Config, Moment, Names, Plan, Record, Refusal, Span, State, Tick, Witness,
};

use crate::golden::{action_text, since_text};
use crate::journal::{JournalError, Reader};
use crate::policy::{Policy, own_policy};
use crate::settle::{memory, witness_crc};
use crate::step::{Decider, Step};

/// Counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Decisions made again.
    pub ticks: u64,
    /// Actions in their plans.
    pub actions: u64,
    /// Recorded actions that failed.
    pub failed: u64,
    /// Recorded actions that the check refused.
    pub refused: u64,
    /// Runs of an engine.
    pub runs: u64,
    /// Places within a run with missing ticks.
    pub gaps: u64,
    /// Notes, which a replay skips.
    pub notes: u64,
    /// The first tick.
    pub first: Option<Moment>,
    /// The last tick.
    pub last: Option<Moment>,
}

/// The first place with another result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the tick, from 1; for a start, the number of the next tick.
    pub tick: u64,
    /// The moment of the tick; for a start, the moment when its state was decided.
    pub at: Option<Moment>,
    /// The time since the first tick.
    pub since: Span,
    /// The difference.
    pub what: Mismatch,
    /// The recorded policy and the replaying policy, if they differ.
    pub policies: Option<(String, String)>,
}

/// A difference between the record and the replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// A tick comes before any start, so there is no state to decide from.
    NoStart,
    /// Another plan.
    Plan {
        /// The recorded plan.
        recorded: Plan,
        /// The plan of the replay.
        decided: Plan,
    },
    /// The same plan, judged differently.
    Refusals {
        /// The recorded refusals.
        recorded: Vec<Refusal>,
        /// The refusals of the replay.
        decided: Vec<Refusal>,
    },
    /// The same plan, but another state.
    State {
        /// The CRC-32 of the recorded state.
        recorded: u32,
        /// The CRC-32 of the replay's state.
        decided: u32,
    },
    /// The same plan and state, but another record of the check.
    Witness {
        /// The CRC-32 of the recorded one.
        recorded: u32,
        /// The CRC-32 of the replay's.
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
    /// The identity of the recorded policy.
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

    /// The counts so far.
    #[must_use]
    pub const fn summary(&self) -> ReplaySummary {
        self.summary
    }

    /// The running state.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.decider.as_ref().map(|decider| &decider.state)
    }

    /// The running state, and what the check has seen.
    #[must_use]
    pub fn memory(&self) -> Option<(State, Witness)> {
        self.decider.as_ref().map(|decider| (decider.state.clone(), decider.witness.clone()))
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// If the decision differs from the record. The replay is then over.
    pub fn step(&mut self, record: Record) -> Result<(), Box<Difference>> {
        match record {
            Record::Start { config, policy, state, witness, .. } => {
                self.recorded_by = policy;
                self.start(*config, state, witness)
            }
            Record::Tick(tick) => self.tick(*tick),
            // The tick of the order follows.
            Record::SetsKsm { .. } => Ok(()),
            Record::Note { .. } => {
                self.summary.notes += 1;
                Ok(())
            }
        }
    }

    fn start(
        &mut self,
        config: Config,
        state: State,
        witness: Option<Box<Witness>>,
    ) -> Result<(), Box<Difference>> {
        let mut memory = memory(state, witness.clone());
        match &self.decider {
            Some(running) if running.state.decided_at == memory.0.decided_at => {
                if let Some(what) = mismatch(running, &memory.0, witness.as_deref()) {
                    return Err(self.difference(memory.0.decided_at, what));
                }
                memory.1 = running.witness.clone();
            }
            Some(_) if memory.0.decided_at.is_some() => self.summary.gaps += 1,
            _ => self.summary.runs += 1,
        }
        self.decider = Some(Decider::new(Arc::clone(&self.policy), config, memory));
        Ok(())
    }

    fn tick(&mut self, tick: Tick) -> Result<(), Box<Difference>> {
        let at = tick.seen.taken_at;
        self.summary.first.get_or_insert(at);
        let Some(decider) = &mut self.decider else {
            return Err(self.difference(Some(at), Mismatch::NoStart));
        };
        let Tick { seen, plan, state_crc: recorded, witness_crc: witnessed, refusals, answers } = tick;
        let stepped = decider.try_step(seen, |_, step| {
            if step.plan != plan {
                return Err(Mismatch::Plan { recorded: plan, decided: step.plan.clone() });
            }
            if step.refusals != refusals {
                return Err(Mismatch::Refusals { recorded: refusals, decided: step.refusals.clone() });
            }
            Ok(answers)
        });
        let (decided, witness) = decider.crcs();
        match (stepped, witnessed) {
            (Err(what), _) => return Err(self.difference(Some(at), what)),
            (Ok(_), _) if decided != recorded => {
                return Err(self.difference(Some(at), Mismatch::State { recorded, decided }));
            }
            (Ok(_), Some(recorded)) if witness != recorded => {
                return Err(self.difference(Some(at), Mismatch::Witness { recorded, decided: witness }));
            }
            (Ok((step, _)), _) => self.count(&step),
        }
        Ok(())
    }

    fn count(&mut self, step: &Step) {
        let failed = step.answers.iter().filter(|answer| matches!(answer, Answer::Failed(_)));
        self.summary.ticks += 1;
        self.summary.actions += step.plan.actions.len() as u64;
        self.summary.failed += failed.count() as u64;
        let refused = step.answers.iter().filter(|answer| **answer == Answer::Refused);
        self.summary.refused += refused.count() as u64;
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

/// The difference between a running replay and a start that continues it.
fn mismatch(running: &Decider, state: &State, witness: Option<&Witness>) -> Option<Mismatch> {
    if running.state != *state {
        let running = Box::new(running.state.clone());
        return Some(Mismatch::Start { recorded: Box::new(state.clone()), running });
    }
    let recorded = witness.filter(|witness| **witness != running.witness)?;
    let (recorded, decided) = (witness_crc(recorded), witness_crc(&running.witness));
    Some(Mismatch::Witness { recorded, decided })
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
/// The first difference, or the first place that cannot be read. A torn tail is not an error; [`Reader::torn`] reports it
/// afterwards.
pub fn replay_journal(reader: &mut Reader) -> Result<ReplaySummary, ReplayError> {
    let mut replay = Replay::default();
    for record in reader {
        replay.step(record?)?;
    }
    Ok(replay.summary())
}

impl std::error::Error for Difference {}

/// For people: the place, then one line for each action, `-` for the recorded and `+` for the newly decided.
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
            Mismatch::Refusals { recorded, decided } => {
                f.write_str("the same plan, judged differently")?;
                let lines =
                    |all: &[Refusal]| -> Vec<String> { all.iter().map(|one| one.why.clone()).collect() };
                write_lines(f, &lines(recorded), &lines(decided))
            }
            Mismatch::Witness { recorded, decided } => write!(
                f,
                "the same plan and state, but the check remembers something else (CRC-32 {recorded:08x} recorded, {decided:08x} now)"
            ),
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

/// The lines that only one side has, with their sign, and the lines of both sides. Each side keeps its order.
fn write_lines(f: &mut fmt::Formatter<'_>, recorded: &[String], decided: &[String]) -> fmt::Result {
    for line in recorded {
        write!(f, "\n{} {line}", if decided.contains(line) { ' ' } else { '-' })?;
    }
    for line in decided.iter().filter(|line| !recorded.contains(line)) {
        write!(f, "\n+ {line}")?;
    }
    Ok(())
}

/// One line for each action of `plan`. If a line reads like an action of `other` but differs, it shows every byte. If the two
/// plans differ only in their order, it shows the action's place.
fn plan_lines(plan: &Plan, other: &Plan) -> Vec<String> {
    let names = Names::of(plan.actions.iter().chain(&other.actions).filter_map(Action::guest));
    let text = |action: &Action| action_text(&names, action, None);
    let reordered = plan.actions.len() == other.actions.len()
        && plan.actions.iter().all(|action| other.actions.contains(action));
    let line = |(index, action): (usize, &Action)| {
        if reordered {
            return format!("{}. {}", index + 1, text(action));
        }
        let alike = other.actions.iter().any(|b| action != b && text(action) == text(b));
        if alike {
            format!("{}: {:?}", text(action), (action.request, action.expects, action.reason))
        } else {
            text(action)
        }
    };
    plan.actions.iter().enumerate().map(line).collect()
}

/// A state as text, one line for each guest and one for the host.
fn state_lines(state: &State) -> Vec<String> {
    let host = State { guests: BTreeMap::new(), ..state.clone() };
    let host = std::iter::once(format!("host: {host:?}"));
    host.chain(state.guests.iter().map(|(id, guest)| format!("{id:?}: {guest:?}"))).collect()
}
