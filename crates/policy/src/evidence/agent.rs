//! Evidence from the agent in a guest.
//!
//! It counts what the balloon's statistics cannot show: refaults of the working set. A reader of a long file refaults, too, but its pages come
//! back later than the working set is large, so the kernel does not activate them (`workingset_activate_*`).

use memtide_model::{Agent, AgentCounters, Bytes, Span};

use crate::constants::{ALLOC_STALLS, DISK_WAITS_US, REFAULT_SCANS, REFAULTS, SCANS};

use super::{Evidence, Source, Trust};

impl Evidence {
    /// The evidence of `balloon` with that of the `agent`, whose report came `elapsed` after the counters and the time of stalls for disks (in microseconds) in `before`. Its refaults replace
    /// those that the balloon's scans stand for; without a new report there are none.
    #[must_use]
    pub fn with_agent(self, before: Option<(&AgentCounters, u64)>, agent: &Agent, elapsed: Span) -> Self {
        if !agent.counts_refaults {
            return self;
        }
        let heard = Self {
            source: Source::Agent,
            trust: Trust::ShowsSqueals,
            refaults: false,
            scanned: Bytes::ZERO,
            ..self
        };
        let (Some((before, waited)), millis @ 1..) = (before, elapsed.as_millis()) else { return heard };
        let now = &agent.counters;
        let working_set = |counters: &AgentCounters| {
            Bytes::sum([counters.activations_file, counters.activations_anon, counters.swapped_in])
        };
        let all = |counters: &AgentCounters| {
            Bytes::sum([counters.refaults_file, counters.refaults_anon, counters.swapped_in])
        };
        let rate = |of: &dyn Fn(&AgentCounters) -> Bytes| {
            Bytes::new(of(now).saturating_sub(of(before)).get().saturating_mul(1000) / millis)
        };
        let (proven, read_again) = (rate(&working_set), rate(&all));
        let waits_us = agent.stalls.unwrap_or_default().io_some_us.saturating_sub(waited);
        let waits = read_again >= SCANS && waits_us >= elapsed.as_millis() * DISK_WAITS_US;
        let stalls = now.alloc_stalls.saturating_sub(before.alloc_stalls).saturating_mul(1000) / millis;
        Self {
            stalls: self.stalls || stalls >= ALLOC_STALLS,
            refaults: waits || proven >= REFAULTS || read_again >= REFAULT_SCANS,
            kills: self.kills || now.oom_kills > before.oom_kills,
            scanned: read_again,
            ..heard
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_working_set_counts_and_a_stream_does_not() {
        let second = Span::from_secs(1);
        let balloon = Evidence {
            refaults: true,
            scanned: Bytes::from_mib(50),
            ..Evidence::of_balloon(None, &Default::default(), second)
        };
        let agent = |counters| Agent { counters, counts_refaults: true, ..Agent::default() };
        let before = AgentCounters::default();
        let mib = Bytes::from_mib;
        let stream = AgentCounters { refaults_file: mib(100), ..before };
        let hot = AgentCounters { activations_file: mib(8), ..stream };
        let heard = |counters| balloon.with_agent(Some((&before, 0)), &agent(counters), second);
        assert!(!heard(stream).is_squeal() && heard(stream).source == Source::Agent);
        assert!(heard(hot).refaults && heard(hot).scanned == mib(8));
        assert!(heard(AgentCounters { oom_kills: 1, ..before }).kills);
        let blind = Agent { counts_refaults: false, ..agent(hot) };
        assert_eq!(balloon.with_agent(Some((&before, 0)), &blind, second), balloon);
    }
}
