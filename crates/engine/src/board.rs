//! Where the rest of the daemon reads what the engine did last.
//!
//! The engine replaces the whole of it after each tick; a reader takes an [`Arc`] and keeps it as long as it likes. Nobody
//! holds the lock for longer than it takes to copy a pointer, so a slow client never delays a decision.

use std::sync::{Arc, PoisonError, RwLock};

use memtide_model::{ApplyOutcome, Config, Plan, Report, Snapshot, Span, State};
use serde::{Deserialize, Serialize};

/// All that there is to know about the engine after its last tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The configuration in force.
    pub config: Config,
    /// What happened since the engine began.
    pub counters: Counters,
    /// What an operator should know now: a journal that cannot be written, a plan that was refused.
    pub warnings: Vec<String>,
    /// The last tick; `None` before the first.
    pub last: Option<LastTick>,
}

/// One tick as the engine leaves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastTick {
    /// What was seen.
    pub seen: Snapshot,
    /// What was decided.
    pub plan: Plan,
    /// Why. Its targets are those that were carried out, also where an action failed.
    pub report: Report,
    /// What is remembered, after actions that failed were taken back.
    pub state: State,
    /// What `check` found wrong; the plan was not applied unless this is empty.
    pub violations: Vec<String>,
    /// How the plan's actions went, in their order; empty where none was applied.
    pub outcomes: Vec<ApplyOutcome>,
    /// How long observing, deciding and applying took together.
    pub took: Span,
}

/// What happened since the engine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Decisions made.
    pub ticks: u64,
    /// Actions that a VMM took.
    pub actions_done: u64,
    /// Actions that failed, or were not tried after an earlier one of the same plan had failed.
    pub actions_failed: u64,
    /// Plans that were not applied because `check` found a violation.
    pub plans_refused: u64,
    /// Ticks that could not be written to the journal.
    pub ticks_not_journalled: u64,
    /// Configurations taken over while running.
    pub reloads: u64,
}

/// A handle to what is [`Published`]; its clones show the same.
#[derive(Clone, Debug)]
pub struct Board {
    shown: Arc<RwLock<Arc<Published>>>,
}

impl Board {
    /// Before the first tick, with the configuration in force.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let published = Published { config, counters: Counters::default(), warnings: Vec::new(), last: None };
        Self { shown: Arc::new(RwLock::new(Arc::new(published))) }
    }

    /// What was published last.
    #[must_use]
    pub fn latest(&self) -> Arc<Published> {
        // Nothing panics while it holds this lock; were it so, the pointer in it would be whole all the same.
        Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn publish(&self, published: Published) {
        let old = {
            let mut shown = self.shown.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *shown, Arc::new(published))
        };
        // Freed outside the lock: it can be megabytes.
        drop(old);
    }
}
