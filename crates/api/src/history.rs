//! The last changes of each guest, for `explain`: the change, its reason, and its result.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use memtide_model::{Action, GuestId, Moment, WallClock};
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

/// A handle to the last changes of all guests; its clones show the same.
#[derive(Clone, Debug, Default)]
pub struct History {
    kept: Arc<Mutex<BTreeMap<GuestId, VecDeque<Tried>>>>,
}

impl History {
    /// Records a change that was tried.
    pub fn add(&self, action: &Action, at: Moment, wall: WallClock, failed: Option<String>) {
        let tried =
            Tried { at, wall, change: action.change.to_string(), reason: action.reason.to_string(), failed };
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
