//! The last changes of each guest, for `explain`: the change, its reason, and its result.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use memtide_engine::Published;
use memtide_model::{Action, ApplyOutcome, GuestId, Moment, WallClock};
use serde::{Deserialize, Serialize};

/// The number of changes kept for each guest.
const KEPT: usize = 20;

/// One change that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// The time, by the host's boot clock.
    pub at: Moment,
    /// The time, for people.
    pub wall: WallClock,
    /// The change, in words.
    pub change: String,
    /// The reason, in words.
    pub reason: String,
    /// The reason for its failure; `None` if the VMM accepted it.
    pub failed: Option<String>,
}

impl Tried {
    fn new(action: &Action, at: Moment, wall: WallClock, failed: Option<String>) -> Self {
        Self { at, wall, change: action.change.to_string(), reason: action.reason.to_string(), failed }
    }
}

/// A change of a guest in `GET /v1/events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestChange {
    /// The guest, as the status shows it.
    pub guest: String,
    /// The change.
    #[serde(flatten)]
    pub tried: Tried,
}

impl GuestChange {
    /// The changes of the last tick, in their order; none in observe mode.
    #[must_use]
    pub fn of(published: &Published) -> Vec<Self> {
        let Some(last) = &published.last else { return Vec::new() };
        let (at, wall) = (last.seen.taken_at, last.seen.wall);
        let names = last.report.names();
        let changes = last.plan.actions.iter().zip(&last.outcomes).map(|(action, outcome)| {
            let failed = match outcome {
                ApplyOutcome::Done => None,
                ApplyOutcome::Failed(why) => Some(why.clone()),
            };
            Self { guest: names.name(&action.guest), tried: Tried::new(action, at, wall, failed) }
        });
        changes.collect()
    }
}

/// A handle to the last changes of all guests; its clones show the same.
#[derive(Clone, Debug, Default)]
pub struct History {
    kept: Arc<Mutex<BTreeMap<GuestId, VecDeque<Tried>>>>,
}

impl History {
    /// Records a change that was tried.
    pub fn add(&self, action: &Action, at: Moment, wall: WallClock, failed: Option<String>) {
        let tried = Tried::new(action, at, wall, failed);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = kept.entry(action.guest.clone()).or_default();
        changes.push_back(tried);
        if changes.len() > KEPT {
            changes.pop_front();
        }
    }

    /// Forgets guests that are gone.
    pub fn keep_only(&self, alive: impl Fn(&GuestId) -> bool) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| alive(id));
    }

    /// The last changes of a guest, the newest last.
    #[must_use]
    pub fn of(&self, guest: &GuestId) -> Vec<Tried> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(guest).map(|changes| changes.iter().cloned().collect()).unwrap_or_default()
    }
}
