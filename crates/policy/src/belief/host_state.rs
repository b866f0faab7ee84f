//! The host's shortage: high, soft, hard, low.
//!
//! **Rule.** A state begins when the free share of the capacity falls below its line. It ends when the share is a quarter above
//! that line again (hysteresis). A second opinion: if the host swaps in, or its tasks stalled for memory during at least a tenth
//! of the time since the last decision, the state is one step harder, though never `low` for that alone. The reserve does not
//! count as free, except for `low`: that is an emergency, in which guests give page cache that they use. It is measured against
//! all memory that is really free. It begins before the host swaps or kills, not before the reserve is touched.
//! Only `low` changes decisions; in the other states the engine decides more often.
//!
//! **Property.** At a constant free share without pressure, the state does not change.

use memtide_model::{Config, HostSeen, HostState, Moment, State};

use crate::belief::ledger::Ledger;
use crate::constants::{LINE_ENDS, PRESSURE_PART};

/// The state of the host at `now`.
#[must_use]
pub fn judge(config: &Config, state: &State, seen: &HostSeen, ledger: &Ledger, now: Moment) -> HostState {
    let by_free = by_free(config, state.host, seen, ledger);
    if !under_pressure(state, seen, now) {
        return by_free;
    }
    match by_free {
        HostState::High => HostState::Soft,
        HostState::Soft | HostState::Hard => HostState::Hard,
        HostState::Low => HostState::Low,
    }
}

/// The state by free memory alone, if it was `before`.
pub fn by_free(config: &Config, before: HostState, seen: &HostSeen, ledger: &Ledger) -> HostState {
    let lines = [
        (HostState::Low, config.states.low(), ledger.really_free()),
        (HostState::Hard, config.states.hard(), ledger.free()),
        (HostState::Soft, config.states.soft(), ledger.free()),
    ];
    for (state, share, free) in lines {
        let line = seen.share(share);
        let line = if before >= state { LINE_ENDS.of(line) } else { line };
        if free < line {
            return state;
        }
    }
    HostState::High
}

fn under_pressure(state: &State, seen: &HostSeen, now: Moment) -> bool {
    let swapped_in = match (state.swap, seen.swap.fresh()) {
        (Some(before), Some(swap)) => swap.swapped_in > before.swapped_in,
        _ => false,
    };
    let stalled = match (state.decided_at, state.pressure, seen.pressure.fresh()) {
        (Some(at), Some(before), Some(pressure)) => {
            let elapsed_us = now.since(at).as_millis().saturating_mul(1000);
            let stalled_us = pressure.some_us.saturating_sub(before.some_us);
            elapsed_us > 0 && stalled_us.saturating_mul(PRESSURE_PART) >= elapsed_us
        }
        _ => false,
    };
    swapped_in || stalled
}
