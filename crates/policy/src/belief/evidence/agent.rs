//! Evidence from the agent in a guest.
//!
//! It counts what the balloon's statistics cannot show: refaults, and the time that tasks wait for disks.
//!
//! **Rule.** A refault that the kernel activates belongs to the working set (`workingset_activate_*`): a few of them prove that too much was
//! taken. All other refaults are a hypothesis, as scans are without an agent ([`crate::belief::search`]): a guest that lost most of a file reads it again
//! later than its working set is large, and so does a reader of a long file. They count if they are many, or if tasks wait for the disk:
//! on a slow disk, few refaults cost much. A first reading of a file is no refault. The kernel counts what a trim drops as direct reclaim: where
//! an agent trims, only its stalled allocations count.

use memtide_model::{Agent, AgentCounters, Bytes, Span};

use crate::constants::{ALLOC_STALLS, REFAULTS};

use super::Evidence;

impl Evidence {
    /// The evidence of `balloon` with that of the `agent`, whose report came `elapsed` after the counters and the time of stalls for disks (in microseconds) in `before`. Its refaults replace
    /// those that the balloon's scans stand for; without a new report there are none. What a guest with a tier reads back from it counts once it costs a tenth
    /// of a CPU: 100 µs for each page.
    #[must_use]
    pub fn with_agent(
        self,
        before: Option<(&AgentCounters, u64)>,
        agent: &Agent,
        has_tier: bool,
        elapsed: Span,
    ) -> Self {
        let told = Self { reclaims: self.reclaims && !agent.trims, ..self };
        if !agent.counts_refaults {
            return told;
        }
        let heard =
            Self { shows_stalls: true, shows_refaults: true, refaults: false, scanned: Bytes::ZERO, ..told };
        let (Some((before, waited)), millis @ 1..) = (before, elapsed.as_millis()) else { return heard };
        let now = &agent.counters;
        let unless_tier = |bytes| if has_tier { Bytes::ZERO } else { bytes };
        let working_set = |counters: &AgentCounters| {
            let activations = unless_tier(counters.activations_anon);
            Bytes::sum([counters.activations_file, activations, counters.swapped_in])
        };
        let all = |counters: &AgentCounters| {
            let swapped = counters.refaults_anon.saturating_add(counters.swapped_in);
            counters.refaults_file.saturating_add(unless_tier(swapped))
        };
        let rate = |of: &dyn Fn(&AgentCounters) -> Bytes| {
            Bytes::new(of(now).saturating_sub(of(before)).get().saturating_mul(1000) / millis)
        };
        let (proven, read_again) = (rate(&working_set), rate(&all));
        let waits_us = agent.stalls.unwrap_or_default().io_some_us.saturating_sub(waited);
        let stalls = now.alloc_stalls.saturating_sub(before.alloc_stalls).saturating_mul(1000) / millis;
        let heard = Self {
            stalls: self.stalls || stalls >= ALLOC_STALLS,
            refaults: proven >= REFAULTS,
            kills: self.kills || now.oom_kills > before.oom_kills,
            ..heard
        };
        heard.reading_again(read_again, waits_us, elapsed)
    }
}

#[cfg(test)]
mod tests {
    use memtide_model::AgentStalls;

    use super::*;
    use crate::constants::{SCANS, SLOW_REFAULTS};

    #[test]
    fn refaults_count_by_their_kind_and_their_cost() {
        let second = Span::from_secs(1);
        let balloon = Evidence {
            refaults: true,
            scanned: Bytes::from_mib(50),
            ..Evidence::of_balloon(None, &Default::default(), second, true)
        };
        let agent = |counters| Agent { counters, counts_refaults: true, ..Agent::default() };
        let before = AgentCounters::default();
        let mib = Bytes::from_mib;
        let few = AgentCounters { refaults_file: mib(8), ..before };
        let many = AgentCounters { refaults_file: mib(20), ..before };
        let hot = AgentCounters { activations_file: mib(4), ..few };
        let heard = |counters| balloon.with_agent(Some((&before, 0)), &agent(counters), false, second);
        assert!(!heard(before).is_squeal() && heard(before).shows_refaults, "scans do not count");
        assert!(!heard(few).is_squeal() && heard(few).scanned == mib(8));
        assert!(heard(many).refaults && heard(hot).refaults);
        let stalls = Some(AgentStalls { io_some_us: 125_000, ..AgentStalls::default() });
        let waits = |waited, counters| {
            balloon.with_agent(Some((&before, waited)), &Agent { stalls, ..agent(counters) }, false, second)
        };
        assert!(waits(0, few).refaults && !waits(1, few).refaults);
        let of_hard_disk = AgentCounters { refaults_file: SLOW_REFAULTS, ..before };
        let slow = waits(0, of_hard_disk);
        assert!(slow.refaults && slow.scanned == SCANS, "the disk gives no more");
        assert_eq!(waits(1, of_hard_disk).scanned, SLOW_REFAULTS);
        assert!(!waits(0, before).refaults, "a first reading");
        assert!(heard(AgentCounters { oom_kills: 1, ..before }).kills);
        let blind = Agent { counts_refaults: false, ..agent(hot) };
        assert_eq!(balloon.with_agent(Some((&before, 0)), &blind, false, second), balloon);
        let reclaims = Evidence { reclaims: true, ..balloon };
        assert!(reclaims.with_agent(None, &agent(before), false, second).is_stalled());
        let trims = Agent { trims: true, ..agent(before) };
        assert!(!reclaims.with_agent(None, &trims, false, second).is_stalled(), "it may be the trim");
    }

    #[test]
    fn what_a_tier_gives_back_counts_by_its_cost() {
        let (second, none) = (Span::from_secs(1), AgentCounters::default());
        let balloon = Evidence::of_balloon(None, &Default::default(), second, true);
        let heard = |mib| {
            let back = Bytes::from_mib(mib);
            let counters =
                AgentCounters { swapped_in: back, refaults_anon: back, activations_anon: back, ..none };
            let agent = Agent { counters, counts_refaults: true, ..Agent::default() };
            balloon.with_agent(Some((&none, 0)), &agent, true, second).refaults
        };
        assert_eq!([3, 4].map(heard), [false, true]);
    }
}
