//! The journal's records. The journal is the trace format: a replay decides again from these records.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Config, KsmSettings, Moment, Plan, Snapshot, State, Witness};

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
        /// The check's own record before the next tick. An older journal has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        witness: Option<Box<Witness>>,
    },
    /// One decision and its answer.
    Tick(Box<Tick>),
    /// memtide sets KSM next. The tick of this order follows; if it does not, nobody knows whether the order was carried out.
    SetsKsm {
        /// The moment of the decision.
        at: Moment,
        /// The settings before the order.
        before: KsmSettings,
        /// The settings after it.
        wanted: KsmSettings,
    },
    /// Something that a reader of the journal should know, such as the daemon's start or end, or an event.
    Note {
        /// The moment of the note.
        at: Moment,
        /// The note, in one line.
        text: String,
    },
}

/// One decision and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// The observation.
    pub seen: Snapshot,
    /// The decided plan.
    pub plan: Plan,
    /// CRC-32 of the state's JSON after the decision. With it, a replay also notices a difference in the policy's memory.
    pub state_crc: u32,
    /// The same of the check's own record. An older journal has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub witness_crc: Option<u32>,
    /// The promises that single actions of the plan would break. These actions are not carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
    /// The answers of the plan's actions, in the order of the actions; empty if none was applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<Answer>,
}

/// A promise that one action of a plan would break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The place of the action in its plan, from 0.
    pub action: usize,
    /// The action and the promise, in words.
    pub why: String,
}

/// The answer to an action's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The mechanism accepted the request. Whether memory comes back shows later.
    Accepted,
    /// The mechanism did its work at once: this much memory came back to the host.
    Yielded(Bytes),
    /// The action failed for this reason.
    Failed(String),
    /// The check refused the action, or the journal must have it first: nobody tried it.
    Refused,
}

impl Answer {
    /// Whether the mechanism took the request.
    #[must_use]
    pub const fn is_accepted(&self) -> bool {
        !matches!(self, Self::Failed(_) | Self::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostState, TmpfsId};

    #[test]
    fn a_start_with_all_kinds_of_keys_is_read_again() {
        let mut state = State::default();
        let tmpfs = [TmpfsId(24), TmpfsId::of_node(1)].map(|id| (id, HostState::default()));
        state.tmpfs.extend(tmpfs);
        let start = Record::Start {
            version: "1".to_owned(),
            policy: own_policy(),
            config: Box::default(),
            state,
            witness: None,
        };
        let text = serde_json::to_string(&start).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), start);
        assert!(serde_json::from_str::<Record>(&text.replace("\"24\"", "\"dev\"")).is_err());
    }
}
