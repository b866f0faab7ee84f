//! The border between the engine and everything that it observes and changes.

use std::time::Duration;

use memtide_model::{Absence, Action, Bytes, Config, GuestId, Moment, Outsiders, Snapshot, Told};
use rustix::time::{ClockId, clock_gettime};

use crate::Asking;

/// A host and its guests: the real ones, or simulated ones.
///
/// Every call is synchronous, and no call fails as a whole: a guest that cannot be read is an absent
/// [`Reading`](memtide_model::Reading) in the snapshot.
pub trait World {
    /// Observes the host and the guests. `asking` chooses the guests to ask, and the questions; the other guests keep their earlier
    /// readings. `taken_at` never goes back. The guests are ordered by identity, each once.
    fn observe(&mut self, asking: &mut Asking) -> Snapshot;

    /// Reads the present answers of the guests in `due` (ordered) between two ticks, without waiting for slow ones.
    fn look(&mut self, due: &[GuestId]) -> Vec<(GuestId, Told)>;

    /// Makes the request of one action.
    ///
    /// # Errors
    /// If the action could not be carried out, or if its result is unknown. The guest keeps its memory.
    fn apply(&mut self, action: &Action) -> Result<Applied, ApplyError>;

    /// Waits for an event, at most for `at_most`.
    fn wait(&mut self, at_most: Duration) -> Wake;

    /// Puts KSM back as it was found, at the end of a run. Returns whether it did.
    fn puts_ksm_back(&mut self) -> bool {
        false
    }

    /// Facts that an operator should know now, one line each: the status shows them.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The guests that only their users keep out, as of the last observation.
    fn outsiders(&self) -> Outsiders {
        Outsiders::default()
    }

    /// The guests that were last observed before they were killed, as far as that is known; each once.
    fn killed(&mut self) -> Vec<Killed> {
        Vec::new()
    }

    /// The clock of `taken_at`. A simulated world returns its own time.
    fn now(&self) -> Moment {
        host_clock()
    }
}

/// Why a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The time is over.
    Timeout,
    /// Something happened that a decision should see soon: host pressure, or a guest that appeared, vanished or was reset.
    Event,
    /// The operator changed the configuration.
    Reload(Box<Config>),
    /// A message for the operator until the next configuration: why a new one was refused.
    Refused(String),
    /// The engine should end.
    Stop,
}

/// What became of a request that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The mechanism accepted it. The guest has not followed yet.
    Accepted,
    /// The mechanism did its work at once, and this much memory came back to the host.
    Yielded(Bytes),
}

/// A guest that has ended, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Killed {
    /// The guest.
    pub guest: GuestId,
    /// What is known of its end, for people.
    pub how: String,
}

/// A request that was not made, or whose result is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ApplyError {
    /// The reason.
    pub why: Absence,
}

impl From<Absence> for ApplyError {
    fn from(why: Absence) -> Self {
        Self { why }
    }
}

/// The host's `CLOCK_BOOTTIME`. This clock never goes back, and it counts suspended time.
#[must_use]
pub fn host_clock() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec / 1_000_000).unwrap_or(0);
    Moment::from_millis(seconds.saturating_mul(1000).saturating_add(millis))
}
