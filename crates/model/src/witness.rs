//! The check's own record: what it has seen itself, and the writes that were accepted. The policy's state is no part of it, so a
//! mistake in the policy's memory cannot make a plan look harmless. The journal records it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Gain, GuestId, GuestState, Hold, KsmSettings, Moment, Span, State, Surge};

/// The check's own record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// The moment of the last snapshot; `None` before the first.
    pub seen_at: Option<Moment>,
    /// The time between the last two snapshots, as far as it counts.
    pub elapsed: Span,
    /// The memory that everything except guests used then.
    pub other: Bytes,
    /// The growth of all guests and others together within half a second, at least.
    pub growth: Bytes,
    /// The same within three seconds, and its slowly decaying maximum: at most.
    pub surge: Surge,
    /// A lower bound of what guests took together by deflating their own balloons: measured over half a second, with its slowly decaying
    /// maximum.
    #[serde(skip_serializing_if = "Surge::is_none", default)]
    pub self_deflation: Surge,
    /// An upper bound: measured over three seconds.
    #[serde(skip_serializing_if = "Surge::is_none", default)]
    pub self_deflation_at_most: Surge,
    /// The settings of KSM after the last accepted order; void once somebody else has changed them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ksm_written: Option<KsmSettings>,
    /// The same after an order whose result is unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ksm_tried: Option<KsmSettings>,
    /// KSM was seen in this run.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ksm_seen: bool,
    /// Somebody else has changed them since memtide governs.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ksm_is_anothers: bool,
    /// The guests of the last snapshot.
    pub guests: BTreeMap<GuestId, Witnessed>,
}

/// The check's own record of one guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witnessed {
    /// The target that was accepted last; void once somebody else moved the balloon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<Bytes>,
    /// When a target was last accepted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub written_at: Option<Moment>,
    /// When a target was last written without a known result.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub doubted_at: Option<Moment>,
    /// When a split of its huge pages was last accepted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub split_at: Option<Moment>,
    /// Whether this run has set the interval of its statistics.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_polled: bool,
    /// When the guest's agent was last asked for something.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent_asked_at: Option<Moment>,
    /// The memory that the guest kept in the last snapshot.
    pub actual: Bytes,
    /// The same in the snapshot before.
    pub was: Bytes,
    /// Memory that virtio-mem had plugged in the last snapshot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub plugged: Option<Bytes>,
    /// The last fresh footprint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub footprint: Option<Bytes>,
    /// The growth of this footprint within half a second, at least.
    #[serde(default)]
    pub grown: Bytes,
    /// Since when the guest has given statistics: its first fresh ones, or the first after a reset.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub told_since: Option<Moment>,
    /// When its last fresh statistics were made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub made_at: Option<Moment>,
    /// Memory that the last fresh statistics do not call available, at least.
    pub used: Bytes,
    /// The growth of this memory within three seconds, at most.
    pub grew: Bytes,
    /// Memory that the guest uses: by the last statistics that were made while its balloon rested, or by any since, at least.
    #[serde(default)]
    pub uses_at_least: Bytes,
    /// The same, at most.
    #[serde(default)]
    pub uses_at_most: Bytes,
    /// When its size last changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub moved_at: Option<Moment>,
    /// The counters of stalls, swapping and kills, added up: in its last fresh statistics, and in its agent's report.
    #[serde(skip_serializing_if = "is_none_counted", default)]
    pub hardships: [Option<u64>; 2],
    /// The size that it may need after a stall, a kill, swapping or a self-deflation, and when the last one was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub raised: Option<(Bytes, Moment)>,
    /// The programs that the guest had killed for lack of memory, by its last fresh statistics, and by its agent.
    #[serde(skip_serializing_if = "is_none_counted", default)]
    pub killed: [Option<u64>; 2],
    /// When either became more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub killed_at: Option<Moment>,
    /// Since when the guest has been content: a large part of its memory was free, and no sign of want was seen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub content_since: Option<Moment>,
    /// When the guest was last seen after a reset, before its driver had reported.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reset_at: Option<Moment>,
    /// What its steps have shown of the host's gain.
    #[serde(default)]
    pub gain: Gain,
    /// Since when the guest has made no progress towards its target. A guest that was drawn back has made none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tries_since: Option<Moment>,
    /// The smallest distance to the target since then.
    pub distance: Bytes,
    /// When it was last seen stuck: some seconds without progress.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stuck_at: Option<Moment>,
    /// When its VMM last did not carry out a target in this run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed_at: Option<Moment>,
    /// The operator's order, or somebody else's movement of its balloon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hold: Option<Hold>,
}

fn is_none_counted(counted: &[Option<u64>; 2]) -> bool {
    *counted == [None; 2]
}

/// After a write without a known result, a state says until when it is in doubt: this many milliseconds later.
const DOUBT: u64 = 30_000;

/// A stuck guest has made no progress for this many milliseconds before its pause.
const STUCK: u64 = 5_000;

/// Since when a guest has made no progress: a stuck guest that was drawn back is at its target, but its pause goes on.
fn tries_since(guest: &GuestState) -> Option<Moment> {
    let pause = guest.stuck.back_off.as_millis().saturating_add(STUCK);
    let began = guest.stuck.until.map(|until| Moment::from_millis(until.as_millis().saturating_sub(pause)));
    guest.stuck.progress_at.or(began)
}

/// The record of a run whose journal has none: an older version wrote it.
impl From<&State> for Witness {
    fn from(state: &State) -> Self {
        let guests = state.guests.iter().map(|(id, guest)| {
            let witnessed = Witnessed {
                target: guest.target,
                written_at: guest.target_set_at,
                doubted_at: guest
                    .doubt_until
                    .map(|until| Moment::from_millis(until.as_millis().saturating_sub(DOUBT))),
                is_polled: guest.polled_before.is_some(),
                split_at: guest.splits.asked.map(|asked| asked.at),
                agent_asked_at: guest.agent.asked.map(|asked| asked.at),
                actual: guest.actual,
                was: guest.actual,
                plugged: guest.plugged,
                footprint: guest.footprint,
                told_since: guest.told_since,
                used: guest.used,
                uses_at_least: guest.used,
                uses_at_most: guest.used,
                grew: guest.growth.recent,
                reset_at: guest.reset_at,
                gain: guest.gain,
                hardships: [
                    guest.counters.map(|counters| counters.hardships()),
                    guest.agent.told.map(|(counters, ..)| counters.hardships()),
                ],
                killed: [
                    guest.counters.and_then(|counters| counters.oom_kills),
                    guest.agent.told.map(|(counters, ..)| counters.oom_kills),
                ],
                tries_since: tries_since(guest),
                distance: guest.stuck.distance,
                hold: guest.hold,
                ..Witnessed::default()
            };
            (id.clone(), witnessed)
        });
        Self {
            seen_at: state.decided_at,
            elapsed: Span::ZERO,
            other: state.other,
            growth: Bytes::ZERO,
            surge: state.growth,
            self_deflation: Surge::default(),
            self_deflation_at_most: state.self_deflation,
            ksm_written: state.ksm.written,
            ksm_tried: state.ksm.tried,
            ksm_seen: state.ksm.last.is_some(),
            ksm_is_anothers: state.ksm.foreign_since.is_some(),
            guests: guests.collect(),
        }
    }
}
