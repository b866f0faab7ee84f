//! The border between the engine and everything that it observes and changes.

use std::time::Duration;

use memtide_model::{Absence, Action, Config, GuestId, Moment, Snapshot, Told};
use rustix::time::{ClockId, clock_gettime};

use crate::Asking;

/// A host and its guests: the real ones, or simulated ones.
///
/// Everything is synchronous, and nothing here fails as a whole: a guest that cannot be read is an absent
/// [`Reading`](memtide_model::Reading) in the snapshot.
pub trait World {
    /// What the host and the guests look like now. `asking` says which guests to ask, and for what; of the others, what is known
    /// from before. `taken_at` never lies before that of an earlier snapshot; the guests are ordered by identity, each once.
    fn observe(&mut self, asking: &mut Asking) -> Snapshot;

    /// What the guests of `due` (ordered) tell now, between two ticks, as far as they answer at once.
    fn look(&mut self, due: &[GuestId]) -> Vec<(GuestId, Told)>;

    /// Carries out one action. `Ok` means that the VMM took it, not that the guest has followed.
    ///
    /// # Errors
    /// Where it could not be carried out, or where nobody knows whether it was. The guest keeps what it has.
    fn apply(&mut self, action: &Action) -> Result<(), ApplyError>;

    /// Waits until something happens, at most for `at_most`.
    fn wait(&mut self, at_most: Duration) -> Wake;

    /// The clock of `taken_at`. A simulated world answers with its own time.
    fn now(&self) -> Moment {
        host_clock()
    }
}

/// Why a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The time is over.
    Timeout,
    /// Something happened that a decision should know of soon: host pressure, a guest that came, went or was reset.
    Event,
    /// The operator changed the configuration.
    Reload(Box<Config>),
    /// What an operator should know until the next configuration: why a new one was refused.
    Refused(String),
    /// The engine is to end.
    Stop,
}

/// An action that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{guest}: {why}")]
pub struct ApplyError {
    /// The guest.
    pub guest: GuestId,
    /// Why not.
    pub why: Absence,
}

/// The host's `CLOCK_BOOTTIME`: it never goes back, and it counts the time that the host was suspended.
#[must_use]
pub fn host_clock() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec / 1_000_000).unwrap_or(0);
    Moment::from_millis(seconds.saturating_mul(1000).saturating_add(millis))
}
