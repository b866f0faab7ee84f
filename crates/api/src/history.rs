//! What `explain` and `ksm` tell and no decision needs: the last changes of each guest with their reasons and results, the facts that are known of it,
//! and KSM's last hour.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use memtide_engine::Published;
use memtide_model::{Action, Answer, Bytes, Fact, GuestId, KsmProcess, KsmSeen, Moment, Span, WallClock};
use serde::{Deserialize, Serialize};

/// The number of changes kept for each guest.
pub(crate) const KEPT: usize = 20;
/// The time between two points of KSM's history, and their number: an hour.
const KSM_EVERY: Span = Span::from_secs(10);
const KSM_POINTS: usize = 360;

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

/// What KSM saved at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KsmPoint {
    /// The time, by the host's boot clock.
    pub at: Moment,
    /// Memory that merging saved, zero pages included.
    pub saved: Bytes,
    /// Processor time of the kernel's thread so far.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_time: Option<Span>,
}

impl KsmPoint {
    /// What was `seen` at one moment.
    #[must_use]
    pub const fn new(at: Moment, seen: &KsmSeen) -> Self {
        Self { at, saved: seen.saved_in_all(), cpu_time: seen.cpu_time }
    }
}

/// KSM over the last hour, and the processes that it may merge.
#[derive(Clone, Debug, Default)]
struct KsmHistory {
    points: VecDeque<KsmPoint>,
    processes: Vec<KsmProcess>,
}

/// A handle to the last changes of all guests, what is known of them, and the history of KSM; its clones show the same.
#[derive(Clone, Debug, Default)]
pub struct History {
    kept: Arc<Mutex<BTreeMap<GuestId, VecDeque<Tried>>>>,
    facts: Arc<Mutex<BTreeMap<GuestId, Vec<Fact>>>>,
    ksm: Arc<Mutex<KsmHistory>>,
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

    /// Records what KSM saves, and for whom.
    pub fn add_ksm(&self, at: Moment, seen: &KsmSeen, processes: &[KsmProcess]) {
        let mut ksm = self.ksm.lock().unwrap_or_else(PoisonError::into_inner);
        if ksm.points.back().is_none_or(|last| at.since(last.at) >= KSM_EVERY) {
            ksm.points.push_back(KsmPoint::new(at, seen));
            if ksm.points.len() > KSM_POINTS {
                ksm.points.pop_front();
            }
        }
        if ksm.processes != processes {
            ksm.processes = processes.to_vec();
        }
    }

    /// What KSM saved in the last hour, the oldest first, and the processes that it may merge.
    #[must_use]
    pub fn ksm(&self) -> (Vec<KsmPoint>, Vec<KsmProcess>) {
        let ksm = self.ksm.lock().unwrap_or_else(PoisonError::into_inner);
        (ksm.points.iter().copied().collect(), ksm.processes.clone())
    }

    /// Forgets guests that are gone.
    pub fn keep_only(&self, alive: impl Fn(&GuestId) -> bool) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| alive(id));
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| alive(id));
    }

    /// Takes over what is known of a guest now.
    pub fn set_facts(&self, guest: &GuestId, facts: Vec<Fact>) {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).insert(guest.clone(), facts);
    }

    /// What is known of a guest.
    #[must_use]
    pub fn facts(&self, guest: &GuestId) -> Vec<Fact> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).get(guest).cloned().unwrap_or_default()
    }

    /// The last changes of a guest, the newest last.
    #[must_use]
    pub fn of(&self, guest: &GuestId) -> Vec<Tried> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(guest).map(|changes| changes.iter().cloned().collect()).unwrap_or_default()
    }
}
