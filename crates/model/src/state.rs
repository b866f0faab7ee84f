//! The policy's memory from one decision to the next. It is both input and output of a decision, and the journal
//! records it. The policy has no other memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    AgentCounters, BackOff, Bytes, Deed, DiskReads, Gain, GuestId, GuestStats, Hold, HostState, KsmState,
    Moment, Polling, Pressure, Reason, Span, SwapCounters, TmpfsId, UnderWay,
};

/// The policy's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The moment of the last decision; `None` before the first.
    pub decided_at: Option<Moment>,
    /// The host's shortage of memory at the last decision.
    pub host: HostState,
    /// The host's swap counters at the last decision.
    pub swap: Option<SwapCounters>,
    /// The host's pressure at the last decision.
    pub pressure: Option<Pressure>,
    /// The memory that everything except guests used at the last decision.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub other: Bytes,
    /// The joint growth of all guests and others within one reaction time, and its slowly decaying maximum (J).
    pub growth: Surge,
    /// What guests took together within one reaction time by deflating their own balloons, and its slowly decaying maximum.
    #[serde(skip_serializing_if = "Surge::is_none", default)]
    pub self_deflation: Surge,
    /// The slowly decaying maximum of all memory in use on the host: the high-water mark.
    pub high_water: Bytes,
    /// The reaction time: the time from a decision until a donor's memory is back at the host. A decaying maximum of the
    /// measured times; `None` before the first measurement.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reaction: Option<Span>,
    /// The shortage of each tmpfs that bounded its guests at the last decision.
    #[serde(skip_serializing_if = "is_no_tmpfs", default)]
    pub tmpfs: Box<BTreeMap<TmpfsId, HostState>>,
    /// What the governor of KSM remembers.
    #[serde(skip_serializing_if = "is_no_ksm", default)]
    pub ksm: Box<KsmState>,
    /// The guests by identity. They are boxed, so a decision about ten thousand guests moves only pointers.
    pub guests: BTreeMap<GuestId, Box<GuestState>>,
}

#[expect(clippy::borrowed_box, reason = "serde calls it with the field's type")]
fn is_no_tmpfs(all: &Box<BTreeMap<TmpfsId, HostState>>) -> bool {
    all.is_empty()
}

#[expect(clippy::borrowed_box, reason = "serde calls it with the field's type")]
fn is_no_ksm(ksm: &Box<KsmState>) -> bool {
    ksm.is_none()
}

/// Growth within one reaction time: the newest value and a slowly decaying maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surge {
    /// Growth within the reaction time that ends now.
    pub recent: Bytes,
    /// The decaying maximum.
    pub peak: Bytes,
}

impl Surge {
    /// Whether nothing grew.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The policy's memory of one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestState {
    /// When the guest was first seen.
    pub first_seen: Moment,
    /// The target that memtide wrote last; `None` if it has written none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<Bytes>,
    /// When the target was last written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target_set_at: Option<Moment>,
    /// Its actual at that moment.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub target_set_from: Bytes,
    /// The guest's actual at the last decision.
    pub actual: Bytes,
    /// Earlier sizes that the guest's statistics may still describe, each with the moment when that size ended. The oldest comes first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sizes: Vec<(Moment, Bytes)>,
    /// The guest's footprint at the last decision.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub footprint: Option<Bytes>,
    /// The counters of want in its last fresh statistics; `None` before the first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<BalloonCounters>,
    /// What it had read from its disks when its VMM last told, and when that was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disks: Option<(DiskReads, Moment)>,
    /// The earliest moment at which the newest statistics can have been made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stats_of: Option<Moment>,
    /// When the guest's current series of statistics began: its first fresh statistics, or the first after a reset.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub told_since: Option<Moment>,
    /// Used memory at the last decision with fresh statistics.
    pub used: Bytes,
    /// Used memory when these statistics came: they can be those of several decisions.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub used_then: Bytes,
    /// The growth of its used memory within one reaction time. The guest has shown that it needs this headroom.
    pub growth: Surge,
    /// The growth of its footprint within one reaction time.
    pub surge: Surge,
    /// The accepted requests that have not yielded all that is expected, the oldest first; at most one of each mechanism.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub under_way: Vec<UnderWay>,
    /// How the statistics were polled before memtide set the interval; `None` if memtide has not set it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub polled_before: Option<Polling>,
    /// When memtide set the interval.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub polled_at: Option<Moment>,
    /// When the guest was last seen after a reset, before its driver had reported.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reset_at: Option<Moment>,
    /// The guest stalled: its size is raised to at least this much until this moment.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stalled: Option<(Bytes, Moment)>,
    /// When memtide's last inflation ended, or was last seen in progress.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inflating_at: Option<Moment>,
    /// The order or event that makes memtide leave this guest alone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hold: Option<Hold>,
    /// Since when the guest keeps more than its target without a sign of want. Somebody else may have moved its balloon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lifted_at: Option<Moment>,
    /// Until this moment, the balloon may follow a command of memtide whose answer is unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub doubt_until: Option<Moment>,
    /// Memory that virtio-mem had plugged at the last decision.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub plugged: Option<Bytes>,
    /// The CPU time that it uses.
    #[serde(skip_serializing_if = "Activity::is_unknown", default)]
    pub activity: Activity,
    /// The search for the page cache that the guest needs.
    pub search: Search,
    /// The page cache that it could drop at the last decision.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub cache: Bytes,
    /// Its last target was for free memory in small pieces.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub took_pieces: bool,
    /// When it last deflated its own balloon beyond its target.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deflated_at: Option<Moment>,
    /// Free memory in small pieces that the last inflation for it did not bring back.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub pieces_stay: Bytes,
    /// When its last round of squeezes by the clock ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub squeezed_at: Option<Moment>,
    /// The splits of its torn huge pages.
    #[serde(skip_serializing_if = "Splits::are_none", default)]
    pub splits: Splits,
    /// What its agent told, and was asked for.
    #[serde(skip_serializing_if = "AgentState::is_none", default)]
    pub agent: AgentState,
    /// Its compressed tier.
    #[serde(skip_serializing_if = "TierState::is_none", default)]
    pub tier: TierState,
    /// When its VMM was last asked whether KSM may merge its memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub share_asked_at: Option<Moment>,
    /// What is known of the host's gain from what it gives.
    #[serde(default)]
    pub gain: Gain,
    /// The guest's progress towards its target.
    pub stuck: Stuck,
    /// The newest change and its reason, for `explain`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_reason: Option<(Moment, Reason)>,
}

/// What is remembered of a guest's tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierState {
    /// The last memory that was written to it and is being watched.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub watched: Option<PagedOut>,
    /// What lies in it because memtide asked for it, or was watched and not read back. The rest was squeezed out of a guest that may use it.
    #[serde(default)]
    pub trusted: Bytes,
    /// What its guest's kernel had written without being asked, and all that was read from it, at the last look.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seen: Option<(Bytes, Bytes)>,
    /// The last batch of it that was not read back, and when that was known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cold: Option<(Bytes, Moment)>,
    /// The pause after memory that was read back soon.
    #[serde(default)]
    pub back_off: BackOff,
    /// The pause after a tier that was in vain: its guest's memory does not compress, or it could not be attached.
    #[serde(default)]
    pub vain: BackOff,
    /// When the VMM was last asked for something.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub asked_at: Option<Moment>,
    /// When memory was last wanted that it could save.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wanted_at: Option<Moment>,
}

impl TierState {
    /// Whether the guest never had one.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Memory that was written to a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagedOut {
    /// The amount that was asked for.
    pub bytes: Bytes,
    /// When it was asked for.
    pub since: Moment,
    /// All that had been read from the tier until then.
    pub read: Bytes,
}

/// The counters of the balloon's statistics that show want. The other counters are not remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalloonCounters {
    /// Memory swapped in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub swapped_in: Option<Bytes>,
    /// Page faults that read from a device.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub major_faults: Option<u64>,
    /// Processes killed for lack of memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oom_kills: Option<u64>,
    /// Allocations that had to wait.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub alloc_stalls: Option<u64>,
    /// Pages scanned by kswapd.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub async_scans: Option<u64>,
    /// Pages scanned in direct reclaim.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub direct_scans: Option<u64>,
}

impl BalloonCounters {
    /// Stalls, direct scans, kills and swapping, added up: it rises if a task of the guest waited for memory.
    #[must_use]
    pub fn hardships(&self) -> u64 {
        let swapped_in = self.swapped_in.map(Bytes::get);
        let all = [self.alloc_stalls, self.direct_scans, self.oom_kills, swapped_in];
        all.into_iter().flatten().fold(0, u64::wrapping_add)
    }
}

impl From<&GuestStats> for BalloonCounters {
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

/// The CPU time that a guest uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// When its CPU time was last read, and how much it was; `None` before the first reading.
    pub read: Option<(Moment, Span)>,
    /// The time that the mean is taken over so far.
    pub observed: Span,
    /// The mean, in thousandths of one CPU.
    pub mean: u64,
}

impl Activity {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// The search for the page cache that a guest needs: memtide takes some away, or grants more, and watches what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    /// The page cache that the guest was seen to need.
    #[serde(skip_serializing_if = "Bytes::is_nothing", default)]
    pub needs: Bytes,
    /// The change that is being watched.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trial: Option<Trial>,
    /// No cache is taken by trial before this moment.
    #[serde(skip_serializing_if = "BackOff::is_over", default)]
    pub back_off: BackOff,
    /// More cache did not lower the guest's scans: before this moment, they prove nothing.
    #[serde(skip_serializing_if = "BackOff::is_over", default)]
    pub deaf: BackOff,
}

/// A change of a guest's page cache whose effect is being watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// The direction of the change.
    pub kind: TrialKind,
    /// The guest's cache before the change.
    pub from: Bytes,
    /// When the change was made.
    pub at: Moment,
    /// Since when the guest has had its new size.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arrived_at: Option<Moment>,
    /// Granted: memory that its kernel scanned per second before the change.
    pub scanned: Bytes,
}

/// The direction of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialKind {
    /// Cache was taken.
    Taken,
    /// Cache was granted.
    Granted,
}

/// The splits of a guest's torn huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Splits {
    /// The split that is being watched.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub asked: Option<Asked>,
    /// When memtide asked for the last split that returned something, or whose return another inflation hid. Only an inflation since then can
    /// have torn more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_at: Option<Moment>,
    /// Splits returned nothing: none is asked for before this moment.
    #[serde(skip_serializing_if = "BackOff::is_over", default)]
    pub back_off: BackOff,
}

impl Splits {
    fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A split that is being watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// When memtide asked for it.
    pub at: Moment,
    /// The torn memory at that moment.
    pub torn: Bytes,
    /// The least torn memory since.
    pub least: Bytes,
}

/// What memtide remembers of a guest's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentState {
    /// Its last counters, its time of stalls for disks in microseconds, and when they were made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub told: Option<(AgentCounters, u64, Moment)>,
    /// The request that it works on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub asked: Option<AgentAsked>,
    /// Requests freed too little: none is made before this moment.
    #[serde(skip_serializing_if = "BackOff::is_over", default)]
    pub back_off: BackOff,
    /// It is not asked for free memory in pieces before this moment.
    #[serde(skip_serializing_if = "BackOff::is_over", default, alias = "compacts")]
    pub pieces: BackOff,
    /// Since when free page reporting returns small pieces, too.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pieces_since: Option<Moment>,
}

impl AgentState {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A request that an agent works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAsked {
    /// When memtide asked.
    pub at: Moment,
    /// What for.
    #[serde(alias = "request")]
    pub deed: Deed,
    /// The memory that was asked for; zero for a limit of page cache.
    pub bytes: Bytes,
    /// The requests that the agent had ended before.
    pub ended: u64,
}

/// A guest's progress towards its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The last moment with progress, or when the target was written; `None` if the guest is at its target.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub progress_at: Option<Moment>,
    /// The smallest distance so far between actual and target.
    pub distance: Bytes,
    /// The guest is stuck: it is no donor before this moment.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub until: Option<Moment>,
    /// It got stuck while its balloon was to deflate: it is granted nothing before that moment.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub takes: bool,
    /// The length of the last back-off. It doubles each time.
    pub back_off: Span,
    /// The guest has made no progress for a long time, so memtide reports it.
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
