//! Evidence from the agent in a guest.
//!
//! It counts what the balloon's statistics cannot show: refaults of the working set. A reader of a long file refaults, too, but its pages come
//! back later than the working set is large, so the kernel does not activate them (`workingset_activate_*`).

use memtide_model::{Agent, AgentCounters, Bytes, Span};

use crate::constants::{ALLOC_STALLS, REFAULTS};

use super::{Evidence, Source, Trust};

impl Evidence {
    /// The evidence of `balloon` with that of the `agent`, whose report came `elapsed` after the counters `before`. Its refaults replace
    /// those that the balloon's scans stand for; without a new report there are none.
    #[must_use]
    pub fn with_agent(self, before: Option<&AgentCounters>, agent: &Agent, elapsed: Span) -> Self {
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
        let (Some(before), millis @ 1..) = (before, elapsed.as_millis()) else { return heard };
        let now = &agent.counters;
        let refaults = |counters: &AgentCounters| {
            Bytes::sum([counters.activations_file, counters.activations_anon, counters.swapped_in])
        };
        let rate = |bytes: Bytes| Bytes::new(bytes.get().saturating_mul(1000) / millis);
        let read_again = rate(refaults(now).saturating_sub(refaults(before)));
        let stalls = now.alloc_stalls.saturating_sub(before.alloc_stalls).saturating_mul(1000) / millis;
        Self {
            stalls: self.stalls || stalls >= ALLOC_STALLS,
            refaults: read_again >= REFAULTS,
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
        let heard = |counters| balloon.with_agent(Some(&before), &agent(counters), second);
        assert!(!heard(stream).is_squeal() && heard(stream).source == Source::Agent);
        assert!(heard(hot).refaults && heard(hot).scanned == mib(8));
        assert!(heard(AgentCounters { oom_kills: 1, ..before }).kills);
        let blind = Agent { counts_refaults: false, ..agent(hot) };
        assert_eq!(balloon.with_agent(Some(&before), &blind, second), balloon);
    }
}
