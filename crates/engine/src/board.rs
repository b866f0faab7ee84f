//! The board: the rest of the daemon reads the engine's last results here.
//!
//! The engine replaces the whole board after each tick. A reader takes an [`Arc`] and keeps it for any length of time. The lock is
//! held only while a pointer is copied, so a slow client never delays a decision. A listener is called with each new board.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use memtide_model::{Answer, Config, Outsiders, Plan, Refusal, Report, Snapshot, Span, State};
use serde::{Deserialize, Serialize};

/// Everything about the engine after its last tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The active configuration.
    pub config: Config,
    /// Counts since the engine began.
    pub counters: Counters,
    /// Warnings for the operator: a journal that cannot be written, an action that was refused.
    pub warnings: Vec<String>,
    /// How long the oldest tick waits that the journal has yet to get; `None` if none waits for long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<Span>,
    /// The guests that only their users keep out.
    #[serde(default)]
    pub outsiders: Outsiders,
    /// The last tick; `None` before the first.
    pub last: Option<LastTick>,
}

/// One tick and its results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastTick {
    /// The observation.
    pub seen: Snapshot,
    /// The decided plan.
    pub plan: Plan,
    /// The reasons. The targets in it are those that were carried out, even if an action failed.
    pub report: Report,
    /// The state, without the effects of failed actions.
    pub state: State,
    /// The promises that single actions of the plan would break. These actions were not carried out.
    pub refusals: Vec<Refusal>,
    /// The answers of the plan's actions, in the order of the actions; empty if none was applied.
    pub answers: Vec<Answer>,
    /// The time for observing, deciding and applying.
    pub took: Span,
}

/// Counts since the engine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Decisions made.
    pub ticks: u64,
    /// Actions that a VMM accepted.
    pub actions_done: u64,
    /// Actions that failed, or that were not tried because an earlier action of the same plan failed.
    pub actions_failed: u64,
    /// Actions that were not carried out because they would have broken a promise.
    pub actions_refused: u64,
    /// Ticks that could not be written to the journal.
    pub ticks_not_journalled: u64,
    /// Configurations accepted while running.
    pub reloads: u64,
    /// Guests that were killed, as far as that is known.
    #[serde(default)]
    pub guests_killed: u64,
}

/// A handle to the [`Published`] data. Its clones show the same data.
#[derive(Clone)]
pub struct Board {
    shown: Arc<RwLock<Arc<Published>>>,
    listeners: Arc<RwLock<Vec<Listener>>>,
}

/// Called on the engine's thread with each new board.
type Listener = Box<dyn Fn(&Arc<Published>) + Send + Sync>;

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl Board {
    /// A board before the first tick, with the active configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let published = Published {
            config,
            counters: Counters::default(),
            warnings: Vec::new(),
            unwritten: None,
            outsiders: Outsiders::default(),
            last: None,
        };
        Self { shown: Arc::new(RwLock::new(Arc::new(published))), listeners: Arc::default() }
    }

    /// The newest published data.
    #[must_use]
    pub fn latest(&self) -> Arc<Published> {
        // Nothing panics while it holds this lock. Even if something did, the pointer in it would be valid.
        Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `listener` with each board from now on, on the engine's thread. It must return at once.
    pub fn on_publish(&self, listener: impl Fn(&Arc<Published>) + Send + Sync + 'static) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    pub(crate) fn publish(&self, published: Published) {
        let published = Arc::new(published);
        let old = {
            let mut shown = self.shown.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *shown, Arc::clone(&published))
        };
        // Dropped outside the lock, because it can be megabytes.
        drop(old);
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener(&published));
    }
}
