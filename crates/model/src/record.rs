//! The journal's records. The journal is the trace format: a replay decides again from them.

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
    /// The start of a segment, or a new configuration: all that the following decisions depend on.
    Start {
        /// The version of memtide that wrote it.
        version: String,
        /// The policy's identity. Journals written before it was recorded are of memtide's own policy.
        #[serde(default = "own_policy")]
        policy: String,
        /// The configuration from here on.
        config: Box<Config>,
        /// The policy's memory before the next tick.
        state: State,
    },
    /// One decision and what became of it.
    Tick(Box<Tick>),
    /// Something that a reader of the journal should know: the daemon's start, its end, an event.
    Note {
        /// When.
        at: Moment,
        /// What, in one line.
        text: String,
    },
}

/// One decision and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// What was seen.
    pub seen: Snapshot,
    /// What was decided.
    pub plan: Plan,
    /// CRC-32 of the state's JSON after the decision: a replay notices a difference in memory, too.
    pub state_crc: u32,
    /// What `check` found wrong; the plan was not applied unless this is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<String>,
    /// How the plan's actions went, in their order; empty where none was applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<ApplyOutcome>,
}

/// How an action went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyOutcome {
    /// The VMM took it.
    Done,
    /// It failed, and why.
    Failed(String),
}
