//! What the policy remembers from one decision to the next. It goes into a decision and comes out of it, and it is in
//! the journal: nothing else is remembered anywhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, GuestId, GuestStats, Hold, HostState, Moment, Pressure, Reason, Span, StatsPolling, SwapCounters,
};

/// The policy's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// When the last decision was made; `None` before the first.
    pub decided_at: Option<Moment>,
    /// How short the host was.
    pub host: HostState,
    /// The host's swap counters at the last decision.
    pub swap: Option<SwapCounters>,
    /// The host's pressure at the last decision.
    pub pressure: Option<Pressure>,
    /// The slowly decaying maximum of the simultaneous growth of all guests within one reaction time (J).
    pub joint_surge: Surge,
    /// The slowly decaying maximum of what all guests together cost above their rest.
    #[serde(default)]
    pub high_tide: Bytes,
    /// How long it takes from a decision until memory of a donor is back at the host: a decaying maximum of what was
    /// measured; `None` before the first measurement.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reaction: Option<Span>,
    /// The guests by identity; boxed, so that a decision about ten thousand of them moves pointers.
    pub guests: BTreeMap<GuestId, Box<GuestState>>,
}

/// Growth within one reaction time: the newest, and a slowly decaying maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surge {
    /// Growth within the reaction time that ends now.
    pub recent: Bytes,
    /// The decaying maximum.
    pub peak: Bytes,
}

/// What is remembered of one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestState {
    /// When it was first seen.
    pub first_seen: Moment,
    /// The target last written by us; `None` while we have written none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<Bytes>,
    /// When the target was last written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target_set_at: Option<Moment>,
    /// Its actual at the last decision.
    pub actual: Bytes,
    /// Earlier sizes that its statistics may still be of, each with the moment at which it was over, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sizes: Vec<(Moment, Bytes)>,
    /// Its footprint at the last decision.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub footprint: Option<Bytes>,
    /// Its least footprint of late: it falls at once and rises slowly. `None` before its first statistics.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rest: Option<Bytes>,
    /// What it cost when its balloon last took memory and next to nothing came back, or less since: there is no more to be had.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pressed: Option<Bytes>,
    /// The counters of its want when its statistics last were fresh.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub want: Option<WantCounters>,
    /// When they last were fresh.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stats_at: Option<Moment>,
    /// When its newest statistics were made, at the earliest.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stats_of: Option<Moment>,
    /// Since when it tells of itself: when its statistics were fresh for the first time, or again after a reset.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub told_since: Option<Moment>,
    /// Used memory when the statistics were last fresh.
    pub used: Bytes,
    /// The decaying maximum of its growth within one reaction time: the headroom it has shown it needs.
    pub growth: Surge,
    /// The decaying maximum of its footprint's growth within one reaction time.
    pub surge: Surge,
    /// How its statistics were polled before we set the interval; `None` while we have not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub polled_before: Option<StatsPolling>,
    /// When we set the interval.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub polled_at: Option<Moment>,
    /// When it was last seen reset, with a driver that had not reported since.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reset_at: Option<Moment>,
    /// Strict: it counts as deflating its own balloon since it held so much, and is granted what it would take.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub helped: Option<Bytes>,
    /// Its size is raised to this at least, because it stalled, until the moment given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stalled: Option<(Bytes, Moment)>,
    /// When our last inflation ended or was last seen at work.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inflating_at: Option<Moment>,
    /// It is left alone on somebody's word.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hold: Option<Hold>,
    /// Since when it keeps more than we asked for, without a sign of want: somebody else may have asked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lifted_at: Option<Moment>,
    /// Until then its balloon may follow a command of ours that is not known to have been carried out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub doubt_until: Option<Moment>,
    /// What virtio-mem had plugged at the last decision.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub plugged: Option<Bytes>,
    /// The search for the page cache it needs.
    pub squeeze: Squeeze,
    /// No progress towards the target.
    pub stuck: Stuck,
    /// The newest change and its reason, for `explain`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_reason: Option<(Moment, Reason)>,
}

/// Those counters of a guest's statistics in which want shows; the rest is not remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantCounters {
    /// Swapped in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub swapped_in: Option<Bytes>,
    /// Faults that needed a device.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub major_faults: Option<u64>,
    /// Processes killed for want of memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oom_kills: Option<u64>,
    /// Allocations that had to wait.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub alloc_stalls: Option<u64>,
    /// Pages looked at by kswapd.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub async_scans: Option<u64>,
    /// Pages looked at by those who wait.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub direct_scans: Option<u64>,
}

impl From<&GuestStats> for WantCounters {
    fn from(stats: &GuestStats) -> Self {
        Self {
            swapped_in: stats.swapped_in,
            major_faults: stats.major_faults,
            oom_kills: stats.oom_kills,
            alloc_stalls: stats.alloc_stalls,
            async_scans: stats.async_scans,
            direct_scans: stats.direct_scans,
        }
    }
}

/// The search for the page cache that a guest needs: smaller step by step, until it squeals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Squeeze {
    /// Page cache that is left to the guest; `None` until the first step: all of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cache: Option<Bytes>,
    /// The cache it had before the last step: what it gets back when it squeals.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub good: Option<Bytes>,
    /// When the last step was made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stepped_at: Option<Moment>,
    /// No further step before this moment.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rest_until: Option<Moment>,
    /// The length of the last back-off; doubles with each squeal.
    pub back_off: Span,
}

/// Progress of a guest towards its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The last moment with progress, or when the target was written; `None` while it is at its target.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub progress_at: Option<Moment>,
    /// The nearest that actual has come to the target.
    pub distance: Bytes,
    /// Stuck: no donor before this moment.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub until: Option<Moment>,
    /// The length of the last back-off; doubles each time.
    pub back_off: Span,
    /// No progress for so long that it is said aloud.
    pub uncooperative: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_told_to_people_in_the_word_that_programs_read() {
        for state in [HostState::High, HostState::Soft, HostState::Hard, HostState::Low] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.to_string());
        }
    }
}
