//! The host's own swap: what the host reads back from it is reported as a warning.

use std::collections::VecDeque;

use memtide_model::{Bytes, Moment, Reading, Span, SwapCounters};

/// The time that a warning covers.
const TOLD_FOR: Span = Span::from_secs(600);
/// The counters are remembered this often.
const REMEMBERED_EVERY: Span = Span::from_secs(10);
/// Less was read back by chance: pages of programs that nobody ran since the host last swapped.
const LEAST: Bytes = Bytes::from_mib(1);

/// What the host has read back lately.
#[derive(Debug, Default)]
pub(super) struct HostSwap {
    /// All that was read back since the boot, at moments of the last ten minutes.
    seen: VecDeque<(Moment, Bytes)>,
    lately: Bytes,
}

impl HostSwap {
    pub(super) fn look(&mut self, swap: &Reading<SwapCounters>, now: Moment) {
        let Some(swap) = swap.fresh() else { return };
        self.lately =
            self.seen.front().map_or(Bytes::ZERO, |(_, then)| swap.swapped_in.saturating_sub(*then));
        if self.seen.back().is_none_or(|(at, _)| now.since(*at) >= REMEMBERED_EVERY) {
            self.seen.push_back((now, swap.swapped_in));
        }
        while self.seen.front().is_some_and(|(at, _)| now.since(*at) > TOLD_FOR) {
            self.seen.pop_front();
        }
    }

    /// A warning for the status, if there is one.
    pub(super) fn warning(&self) -> Option<String> {
        let lately = self.lately;
        (lately >= LEAST).then(|| {
            format!("the host swaps: it read {lately} back from its own swap in the last 10 min. Its guests and programs need more memory than it has")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_back_is_told_for_ten_minutes() {
        let mut host = HostSwap::default();
        let mut look = |secs: u64, mib: u64| {
            let swapped_in = Bytes::from_mib(mib);
            let swap = SwapCounters { swapped_in, swapped_out: Bytes::ZERO };
            host.look(&Reading::now(swap), Moment::from_millis(secs * 1_000));
            host.warning()
        };
        assert_eq!(look(0, 500), None, "before memtide was there");
        assert_eq!(look(5, 500), None);
        assert!(look(20, 512).unwrap().starts_with("the host swaps: it read 12 MiB back"));
        assert!(look(30, 512).is_some());
        assert!(look(620, 512).is_some(), "it was at 20 s at the latest");
        assert_eq!(look(700, 512), None);
    }
}
