//! The journal's records. The journal is the trace format: a replay decides again from these records.

use serde::{Deserialize, Serialize};

use crate::{Config, Moment, Plan, Snapshot, State};

/// The identity of memtide's own policy.
pub const OWN_POLICY: &str = "memtide";

fn own_policy() -> String {
    OWN_POLICY.to_owned()
}

/// One record of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The start of a segment, or a new configuration: everything that the following decisions depend on.
    Start {
        /// The version of memtide that wrote the record.
        version: String,
        /// The policy's identity. A journal without this field was written by memtide's own policy.
        #[serde(default = "own_policy")]
        policy: String,
        /// The configuration from this record on.
        config: Box<Config>,
        /// The policy's memory before the next tick.
        state: State,
    },
    /// One decision and its outcome.
    Tick(Box<Tick>),
    /// Something that a reader of the journal should know, such as the daemon's start or end, or an event.
    Note {
        /// The moment of the note.
        at: Moment,
        /// The note, in one line.
        text: String,
    },
}

/// One decision and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// The observation.
    pub seen: Snapshot,
    /// The decided plan.
    pub plan: Plan,
    /// CRC-32 of the state's JSON after the decision. With it, a replay also notices a difference in the policy's memory.
    pub state_crc: u32,
    /// The violations that `check` found. A plan with violations is not applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<String>,
    /// The outcomes of the plan's actions, in the order of the actions; empty if none was applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<ApplyOutcome>,
}

/// The outcome of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyOutcome {
    /// The VMM accepted the change.
    Done,
    /// The action failed for this reason.
    Failed(String),
}
