//! Records of a journal.

use memtide_model::{OWN_POLICY, Record, State};

/// The first record of a run that knows nothing.
#[must_use]
pub fn start() -> Record {
    Record::Start {
        version: "1".to_owned(),
        policy: OWN_POLICY.to_owned(),
        config: Box::default(),
        state: State::default(),
        witness: None,
    }
}
