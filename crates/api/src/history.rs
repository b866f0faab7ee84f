//! The last changes of each guest, for `explain`: the change, its reason, and its result.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use memtide_engine::Published;
use memtide_model::{Action, Answer, Bytes, GuestId, Moment, WallClock};
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
    /// The reason for its failure; `None` if it was accepted.
    pub failed: Option<String>,
    /// The memory that came back at once; `None` if the memory of this kind of request comes back later.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub yielded: Option<Bytes>,
}

impl Tried {
    fn new(action: &Action, at: Moment, wall: WallClock, answer: &Answer) -> Self {
        let (failed, yielded) = match answer {
            Answer::Accepted => (None, None),
            Answer::Yielded(bytes) => (None, Some(*bytes)),
            Answer::Failed(why) => (Some(why.clone()), None),
            Answer::Refused => (Some("the check refused it".to_owned()), None),
        };
        Self {
            at,
            wall,
            change: action.request.to_string(),
            reason: action.reason.to_string(),
            failed,
            yielded,
        }
    }
}

/// A change of a guest in `GET /v1/events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestChange {
    /// The guest as the status shows it, or `host`.
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
        let changes = last.plan.actions.iter().zip(&last.answers).map(|(action, answer)| Self {
            guest: names.subject(&action.subject),
            tried: Tried::new(action, at, wall, answer),
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
    pub fn add(&self, action: &Action, at: Moment, wall: WallClock, answer: &Answer) {
        let Some(guest) = action.guest() else { return };
        let tried = Tried::new(action, at, wall, answer);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = kept.entry(guest.clone()).or_default();
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
