//! What the engine says aloud. A complaint that is the same as in the tick before is not repeated: at four ticks a second
//! a guest that refuses everything would fill the log.

use std::collections::BTreeMap;

use memtide_model::{ApplyOutcome, GuestId, Tick};
use tracing::{debug, info, warn};

/// What was said last.
#[derive(Debug, Default)]
pub(crate) struct Log {
    failures: BTreeMap<GuestId, String>,
    violations: Vec<String>,
}

impl Log {
    /// Says what is new in `tick`.
    pub(crate) fn tick(&mut self, tick: &Tick) {
        if tick.violations != self.violations {
            for violation in &tick.violations {
                warn!(%violation, "the plan is not applied");
            }
            self.violations.clone_from(&tick.violations);
        }
        let mut failures = BTreeMap::new();
        for (action, outcome) in tick.plan.actions.iter().zip(&tick.outcomes) {
            match outcome {
                ApplyOutcome::Done => {
                    debug!(guest = %action.guest, change = %action.change, reason = %action.reason, "done");
                    if self.failures.contains_key(&action.guest) {
                        info!(guest = %action.guest, "changes are carried out again");
                    }
                }
                ApplyOutcome::Failed(why) => {
                    if self.failures.get(&action.guest) != Some(why) {
                        warn!(guest = %action.guest, change = %action.change, why, "failed");
                    }
                    failures.insert(action.guest.clone(), why.clone());
                }
            }
        }
        self.failures = failures;
    }
}
