//! What comes out of one decision.

use serde::{Deserialize, Serialize};

use crate::{Plan, Report, State};

/// What came out of one decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What is to be changed.
    pub plan: Plan,
    /// What is to be remembered.
    pub state: State,
    /// Why each guest gets what it gets, and why nothing was done where nothing was done.
    pub report: Report,
}
