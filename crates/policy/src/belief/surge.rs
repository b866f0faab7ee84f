//! Growth within one reaction time, and its slowly decaying maximum.
//!
//! Steps of growth arrive at uneven ticks. A leaky sum with the reaction time as its time constant turns a steady rate `r` into
//! `r × reaction`. A single burst counts as itself, whatever the ticks. The maximum falls exponentially, to about a third after
//! one `memory` span.

use memtide_model::{Bytes, Span, Surge};

/// The surge after another `growth`, `elapsed` after the last one.
#[must_use]
pub fn observe(before: Surge, growth: Bytes, elapsed: Span, reaction: Span, memory: Span) -> Surge {
    let recent = decayed(before.recent, elapsed, reaction).saturating_add(growth);
    let peak = decayed(before.peak, elapsed, memory).max(recent);
    Surge { recent, peak }
}

/// `bytes` after decaying for `elapsed` with the time constant `constant`. First order: after one constant without a tick nothing
/// is left; no caller lets that happen.
pub(crate) fn decayed(bytes: Bytes, elapsed: Span, constant: Span) -> Bytes {
    let constant = constant.as_millis().max(1);
    bytes.mul_div(constant.saturating_sub(elapsed.as_millis()), constant)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);
    const MINUTES: Span = Span::from_secs(600);

    #[test]
    fn a_burst_counts_as_itself_and_is_remembered() {
        let burst = observe(Surge::default(), Bytes::from_mib(100), Span::from_millis(250), SECOND, MINUTES);
        assert_eq!(burst, Surge { recent: Bytes::from_mib(100), peak: Bytes::from_mib(100) });
        let later = observe(burst, Bytes::ZERO, SECOND, SECOND, MINUTES);
        assert_eq!(later.recent, Bytes::ZERO);
        // 100 MiB × 599 s / 600 s = 99.8 MiB
        assert_eq!(later.peak.whole_mib(), 99);
    }

    #[test]
    fn a_steady_rate_counts_as_rate_times_reaction() {
        // 40 MiB every 250 ms is 160 MiB a second; for a reaction time of 1 s the sum approaches 160 MiB.
        let mut surge = Surge::default();
        for _ in 0..40 {
            surge = observe(surge, Bytes::from_mib(40), Span::from_millis(250), SECOND, MINUTES);
        }
        assert!((158..=160).contains(&surge.recent.whole_mib()), "{surge:?}");
    }
}
